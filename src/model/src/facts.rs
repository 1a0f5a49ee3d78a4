//! What a model is and weighs, from its `config.json` and the headers of its safetensors files, for
//! any published model: those of families that are known here with their dimensions, others with
//! what their tensors tell. What this program's own engine can run is `model`'s to say.
//!
//! Where the headers are known, bytes are sums over tensors by name. Without them they follow from
//! dimensions and format, and are said to be an estimate.

pub mod census;
mod config;
mod estimate;
mod index;
mod stored;

use crate::checkpoint::{StoredType, TensorTable};
use crate::cost::ModelCost;
use crate::dimensions::ModelDimensions;
use crate::families;
use crate::fields::{FieldError, Fields, parse_object};
use crate::weights::{WeightFormat, Weights};
use census::{Census, Part};
pub use config::ConfigFacts;
pub use index::WeightIndex;
use rooflet_base::units::Bytes;
pub use stored::StoredFormat;

/// What is known of a model's tensors.
#[derive(Debug, Clone, Copy)]
pub enum Tensors<'a> {
    /// Their headers.
    Headers(&'a TensorTable),
    /// Only the index of the files.
    Index(&'a WeightIndex),
    Unknown,
}

/// Where the figures on a model's weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightsSource {
    /// Every tensor was counted.
    Headers(Census),
    /// The total is exact, what parts it has is computed.
    Index { total: Bytes },
    /// All computed, from dimensions and formats.
    Config,
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    pub model_type: String,
    /// `None`: the model's family is not known here, and neither is what its caches take.
    pub dimensions: Option<ModelDimensions>,
    pub max_context_tokens: Option<u32>,
    /// What an engine that makes text holds in memory.
    pub weights: Weights,
    /// Of them, floats of 16 bits, scales and offsets included.
    halves: Weights,
    /// Weights that it holds, unpacked.
    pub parameters: u64,
    /// Bytes in the files that it does not load: towers that see and hear, extra prediction layers,
    /// a second copy of a tied head.
    pub left_out: Bytes,
    pub source: WeightsSource,
    pub format: StoredFormat,
}

/// Norms and biases are left out of what dimensions say: the logarithm of that.
const DESCRIBED_WELL: f64 = 0.03;

/// Why nothing can be said of a model.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(
        "config.json: model_type `{model_type}` is not known here, and without the headers of its safetensors files \
         nothing can be said of its size; known: {}",
        families::names()
    )]
    UnknownFamily { model_type: String },
    #[error(
        "config.json: the sizes of quantization_config.quant_method `{method}` are not known here; the headers of the \
         safetensors files would tell"
    )]
    UnknownFormat { method: String },
}

impl FactsError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Field(_) => "InvalidModelConfig",
            Self::UnknownFamily { .. } => "UnknownModelFamily",
            Self::UnknownFormat { .. } => "UnknownWeightFormat",
        }
    }
}

impl ModelFacts {
    /// From the text of `config.json` and what is known of the tensors.
    pub fn new(config: &str, tensors: Tensors<'_>) -> Result<Self, FactsError> {
        let object = parse_object(config)?;
        let mut config = ConfigFacts::new(&object)?;
        let format = StoredFormat::new(&Fields::top(&object))?;
        let (loaded, left_out, source) = match tensors {
            Tensors::Headers(table) => {
                let census = Census::new(table, &format, config.layers);
                let head = census.part(Part::Head);
                let tied = config.tied.unwrap_or(head.bytes == Bytes::ZERO) || head.bytes == Bytes::ZERO;
                if let Some(dimensions) = &mut config.dimensions {
                    dimensions.tied_embeddings = tied;
                }
                let left_out = census.sum(|part| !is_held(part, tied)).bytes;
                let loaded = Loaded {
                    weights: Weights {
                        native_floats: census.bytes(StoredType::F16) + census.bytes(StoredType::F32)
                            > census.bytes(StoredType::BF16),
                        ..by_reading(tied, |wanted| census.sum(wanted).bytes)
                    },
                    halves: by_reading(tied, |wanted| census.sum(wanted).halves),
                    parameters: census.sum(|part| is_held(part, tied)).parameters,
                };
                (loaded, left_out, WeightsSource::Headers(census))
            }
            Tensors::Index(index) => {
                let has = |part| {
                    index
                        .tensors
                        .iter()
                        .any(|name| Part::of(name, config.layers) == part)
                };
                if let Some(dimensions) = &mut config.dimensions {
                    dimensions.tied_embeddings = config.tied.unwrap_or(!has(Part::Head)) || !has(Part::Head);
                }
                let mut loaded = estimate(&config, &format)?;
                let source = match index.total {
                    Some(total) => {
                        // What cannot be told apart is held, and never read: memory is not promised
                        // twice.
                        loaded.weights.idle += total - loaded.weights.resident();
                        WeightsSource::Index { total }
                    }
                    None => WeightsSource::Config,
                };
                (loaded, Bytes::ZERO, source)
            }
            Tensors::Unknown => (estimate(&config, &format)?, Bytes::ZERO, WeightsSource::Config),
        };
        Ok(Self {
            model_type: config.model_type,
            dimensions: config.dimensions,
            max_context_tokens: config.max_context_tokens,
            weights: loaded.weights,
            halves: loaded.halves,
            parameters: loaded.parameters,
            left_out,
            source,
            format,
        })
    }

    /// From dimensions alone, in a format known by its name.
    pub fn of_shape(name: &str, dimensions: ModelDimensions, format: WeightFormat) -> Self {
        let weights = Weights::estimate(&dimensions, format);
        Self {
            model_type: name.to_owned(),
            parameters: dimensions.parameters(),
            dimensions: Some(dimensions),
            max_context_tokens: None,
            halves: weights.scaled(format.half_share()),
            weights,
            left_out: Bytes::ZERO,
            source: WeightsSource::Config,
            format: StoredFormat::half(),
        }
    }

    /// The same model in an engine that computes in 32 bits, as MLX does on a CPU, and holds every
    /// float so.
    pub fn in_float32(&self) -> Self {
        Self {
            weights: Weights {
                every_step: self.weights.every_step + self.halves.every_step,
                experts: self.weights.experts + self.halves.experts,
                idle: self.weights.idle + self.halves.idle,
                native_floats: true,
                ..self.weights
            },
            halves: Weights::default(),
            ..self.clone()
        }
    }

    /// How many parameters config.json describes, where the tensors hold clearly other ones: a file
    /// is missing, or one of them belongs to another model.
    pub fn contradiction(&self) -> Option<u64> {
        let WeightsSource::Headers(_) = self.source else {
            return None;
        };
        let described = self.dimensions.as_ref()?.parameters();
        let ratio = described as f64 / self.parameters.max(1) as f64;
        (ratio.ln().abs() > DESCRIBED_WELL).then_some(described)
    }

    /// What the predictor needs; `None` where the family is not known.
    pub fn cost(&self) -> Option<ModelCost> {
        Some(ModelCost {
            dimensions: self.dimensions.clone()?,
            weights: self.weights,
        })
    }
}

/// What an engine that makes text loads.
struct Loaded {
    weights: Weights,
    halves: Weights,
    parameters: u64,
}

fn estimate(config: &ConfigFacts, format: &StoredFormat) -> Result<Loaded, FactsError> {
    let Some(dimensions) = &config.dimensions else {
        return Err(FactsError::UnknownFamily {
            model_type: config.model_type.clone(),
        });
    };
    if let Some(method) = &format.unknown {
        return Err(FactsError::UnknownFormat {
            method: method.clone(),
        });
    }
    let weights = estimate::weights(dimensions, format);
    let wide = estimate::weights(dimensions, &format.in_float32());
    Ok(Loaded {
        weights,
        halves: Weights {
            every_step: wide.every_step - weights.every_step,
            experts: wide.experts - weights.experts,
            idle: wide.idle - weights.idle,
            ..weights
        },
        parameters: dimensions.parameters(),
    })
}

/// Whether an engine that makes text holds the part. A tied head is the embedding table, and a
/// second copy is dropped.
fn is_held(part: Part, tied: bool) -> bool {
    part.is_loaded() && !(tied && part == Part::Head)
}

/// Sorts what `sum` finds in the parts by when it is read.
fn by_reading(tied: bool, sum: impl Fn(&dyn Fn(Part) -> bool) -> Bytes) -> Weights {
    let is_idle = |part: Part| part == Part::PerLayerEmbedding || (part == Part::Embedding && !tied);
    let is_expert = |part: Part| part == Part::RoutedExpert;
    Weights {
        every_step: sum(&|part| is_held(part, tied) && !is_idle(part) && !is_expert(part)),
        experts: sum(&is_expert),
        idle: sum(&|part| is_held(part, tied) && is_idle(part)),
        ..Weights::default()
    }
}

#[cfg(test)]
mod tests;
