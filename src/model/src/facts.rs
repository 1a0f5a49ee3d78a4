//! Dimensions and weights of any published model, from its `config.json` and the headers of its
//! safetensors files.
//!
//! For known families the facts include the dimensions. For other families they include only the
//! sizes of the tensors. [`config`](crate::config) decides which models the engine can run.
//!
//! If the headers are available, bytes are sums over tensors by name. Otherwise they are estimated
//! from dimensions and format, and marked as an estimate.

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
pub use index::{WeightIndex, WeightIndexError};
use rooflet_base::units::Bytes;
pub use stored::StoredFormat;

/// Available information about a model's tensors.
#[derive(Debug, Clone, Copy)]
pub enum Tensors<'a> {
    /// Headers of all safetensors files.
    Headers(&'a TensorTable),
    /// Only the index of the safetensors files.
    Index(&'a WeightIndex),
    Unknown,
}

/// Source of the weight sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightsSource {
    /// Sum over all tensors.
    Headers(Census),
    /// Exact total from the index; the parts are computed.
    Index { total: Bytes },
    /// Computed from dimensions and formats.
    Config,
}

/// Facts about a model; see the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    pub model_type: String,
    /// `None` if the family is unknown. The size of its caches is then unknown too.
    pub dimensions: Option<ModelDimensions>,
    pub max_context_tokens: Option<u32>,
    /// Weights that a text engine loads.
    pub weights: Weights,
    /// Part of `weights` stored in 16-bit floats, including scales and biases.
    half_floats: Weights,
    /// Number of loaded parameters, unpacked.
    pub parameters: u64,
    /// Bytes in the files that a text engine does not load: vision and audio towers, and prediction
    /// layers.
    pub left_out: Bytes,
    pub source: WeightsSource,
    pub format: StoredFormat,
}

/// Maximum magnitude of the logarithm of the ratio of described to stored parameters. The
/// dimensions omit norms and biases.
const MAX_PARAMETER_MISMATCH: f64 = 0.03;

/// Reason why a model's facts are unavailable.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(
        "config.json: unknown model_type `{model_type}`: the size cannot be determined without the headers of the \
         safetensors files; known: {}",
        families::names()
    )]
    UnknownFamily { model_type: String },
    #[error(
        "config.json: unknown quantization_config.quant_method `{method}`: the size cannot be determined without the \
         headers of the safetensors files"
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
    /// Determines the facts from the text of `config.json` and the tensors.
    pub fn new(config: &str, tensors: Tensors<'_>) -> Result<Self, FactsError> {
        let object = parse_object(config)?;
        let mut config = ConfigFacts::new(&object)?;
        let format = StoredFormat::new(&Fields::top(&object))?;
        let (loaded, left_out, source) = match tensors {
            Tensors::Headers(table) => {
                let census = Census::new(table, &format, config.layers);
                let head = census.part(Part::Head);
                // Only the values show whether a stored head is a copy of the embedding table, and the engine loads
                // both if they differ.
                let tied = head.bytes == Bytes::ZERO;
                if let Some(dimensions) = &mut config.dimensions {
                    dimensions.tied_embeddings = tied;
                }
                let left_out = census.sum(|part| !part.is_loaded()).bytes;
                let loaded = Loaded {
                    weights: Weights {
                        native_floats: census.bytes(StoredType::F16) + census.bytes(StoredType::F32)
                            > census.bytes(StoredType::BF16),
                        ..weights_by_use(tied, |selects| census.sum(selects).bytes)
                    },
                    half_floats: weights_by_use(tied, |selects| census.sum(selects).half_floats),
                    parameters: census.sum(Part::is_loaded).parameters,
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
                    dimensions.tied_embeddings = !has(Part::Head);
                }
                let mut loaded = estimate(&config, &format)?;
                let source = match index.total {
                    Some(total) => {
                        // Bytes of unknown tensors occupy memory but are not read.
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
            half_floats: loaded.half_floats,
            parameters: loaded.parameters,
            left_out,
            source,
            format,
        })
    }

    /// Returns estimated facts for `dimensions` in a named format.
    pub fn of_shape(name: &str, dimensions: ModelDimensions, format: WeightFormat) -> Self {
        let weights = Weights::estimate(&dimensions, format);
        Self {
            model_type: name.to_owned(),
            parameters: dimensions.parameters(),
            dimensions: Some(dimensions),
            max_context_tokens: None,
            half_floats: weights.scaled(format.half_share()),
            weights,
            left_out: Bytes::ZERO,
            source: WeightsSource::Config,
            format: StoredFormat::half(),
        }
    }

    /// Returns the facts for an engine that computes in 32 bits, as MLX does on a CPU, and stores
    /// every float in 32 bits.
    pub fn in_float32(&self) -> Self {
        Self {
            weights: Weights {
                every_step: self.weights.every_step + self.half_floats.every_step,
                experts: self.weights.experts + self.half_floats.experts,
                idle: self.weights.idle + self.half_floats.idle,
                native_floats: true,
                ..self.weights
            },
            half_floats: Weights::default(),
            ..self.clone()
        }
    }

    /// Returns the number of parameters that config.json describes, if it clearly differs from the
    /// number in the tensors: a file is missing or belongs to another model.
    pub fn parameter_mismatch(&self) -> Option<u64> {
        let WeightsSource::Headers(_) = self.source else {
            return None;
        };
        let described = self.dimensions.as_ref()?.parameters();
        let ratio = described as f64 / self.parameters.max(1) as f64;
        (ratio.ln().abs() > MAX_PARAMETER_MISMATCH).then_some(described)
    }

    /// Returns the input of the predictor. `None` if the family is unknown.
    pub fn cost(&self) -> Option<ModelCost> {
        Some(ModelCost {
            dimensions: self.dimensions.clone()?,
            weights: self.weights,
        })
    }
}

/// Weights that a text engine loads.
struct Loaded {
    weights: Weights,
    half_floats: Weights,
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
        half_floats: Weights {
            every_step: wide.every_step - weights.every_step,
            experts: wide.experts - weights.experts,
            idle: wide.idle - weights.idle,
            ..weights
        },
        parameters: dimensions.parameters(),
    })
}

/// Groups the bytes of all parts by the time of their use. `sum` returns the bytes of matching
/// parts.
fn weights_by_use(tied: bool, sum: impl Fn(&dyn Fn(Part) -> bool) -> Bytes) -> Weights {
    let is_idle = |part: Part| part == Part::PerLayerEmbedding || (part == Part::Embedding && !tied);
    let is_expert = |part: Part| part == Part::RoutedExpert;
    Weights {
        every_step: sum(&|part| part.is_loaded() && !is_idle(part) && !is_expert(part)),
        experts: sum(&is_expert),
        idle: sum(&|part| part.is_loaded() && is_idle(part)),
        ..Weights::default()
    }
}

#[cfg(test)]
mod tests;
