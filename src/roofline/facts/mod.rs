//! What a model is and weighs, from its `config.json` and the headers of its safetensors files, for any published
//! model: those of families that are known here with their dimensions, others with what their tensors tell. What this
//! program's own engine can run is `model`'s to say.
//!
//! Where the headers are known, bytes are sums over tensors by name. Without them they follow from dimensions and
//! format, and are said to be an estimate.

pub(crate) mod census;
mod config;
mod estimate;
mod family;
mod index;
mod stored;

use super::checkpoint::TensorTable;
use super::dimensions::ModelDimensions;
use super::fields::{FieldError, Fields, parse_object};
use super::predict::ModelCost;
use super::weights::Weights;
use crate::units::Bytes;
use census::{Census, Part};
use config::ConfigFacts;
pub(crate) use family::Family;
pub(crate) use index::WeightIndex;
pub(crate) use stored::StoredFormat;

/// What is known of a model's tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tensors<'a> {
    /// Their headers.
    Headers(&'a TensorTable),
    /// Only the index of the files.
    Index(&'a WeightIndex),
    Unknown,
}

/// Where the figures on a model's weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WeightsSource {
    /// Every tensor was counted.
    Headers(Census),
    /// The total is exact, what parts it has is computed.
    Index { total: Bytes },
    /// All computed, from dimensions and formats.
    Config,
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelFacts {
    pub(crate) model_type: String,
    /// `None`: the model's family is not known here, and neither is what its caches take.
    pub(crate) dimensions: Option<ModelDimensions>,
    pub(crate) max_context_tokens: Option<u32>,
    /// What an engine that makes text holds in memory.
    pub(crate) weights: Weights,
    /// Weights that it holds, unpacked.
    pub(crate) parameters: u64,
    /// Bytes in the files that it does not load: towers that see and hear, extra prediction layers, a second copy of a
    /// tied head.
    pub(crate) left_out: Bytes,
    pub(crate) source: WeightsSource,
    pub(crate) format: StoredFormat,
}

/// Why nothing can be said of a model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FactsError {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(
        "config.json: model_type `{model_type}` is not known here, and without the headers of its safetensors files \
         nothing can be said of its size; known: {}",
        Family::names()
    )]
    UnknownFamily { model_type: String },
    #[error(
        "config.json: the sizes of quantization_config.quant_method `{method}` are not known here; the headers of the \
         safetensors files would tell"
    )]
    UnknownFormat { method: String },
}

impl FactsError {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Field(_) => "InvalidModelConfig",
            Self::UnknownFamily { .. } => "UnknownModelFamily",
            Self::UnknownFormat { .. } => "UnknownWeightFormat",
        }
    }
}

impl ModelFacts {
    /// From the text of `config.json` and what is known of the tensors.
    pub(crate) fn new(config: &str, tensors: Tensors<'_>) -> Result<Self, FactsError> {
        let object = parse_object(config)?;
        let mut config = ConfigFacts::new(&object)?;
        let format = StoredFormat::new(&Fields::top(&object))?;
        let (weights, parameters, left_out, source) = match tensors {
            Tensors::Headers(table) => {
                let census = Census::new(table, &format, config.layers);
                let head = census.part(Part::Head);
                let tied = config.tied.unwrap_or(head.bytes == Bytes::ZERO) || head.bytes == Bytes::ZERO;
                if let Some(dimensions) = &mut config.dimensions {
                    dimensions.tied_embeddings = tied;
                }
                let (weights, loaded) = count(&census, tied);
                let left_out = census.total().bytes - weights.resident();
                (weights, loaded, left_out, WeightsSource::Headers(census))
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
                let (weights, parameters) = estimate(&config, &format)?;
                match index.total {
                    // What cannot be told apart is held, and never read: memory is not promised twice.
                    Some(total) => {
                        let idle = weights.idle + (total - weights.resident());
                        (
                            Weights { idle, ..weights },
                            parameters,
                            Bytes::ZERO,
                            WeightsSource::Index { total },
                        )
                    }
                    None => (weights, parameters, Bytes::ZERO, WeightsSource::Config),
                }
            }
            Tensors::Unknown => {
                let (weights, parameters) = estimate(&config, &format)?;
                (weights, parameters, Bytes::ZERO, WeightsSource::Config)
            }
        };
        Ok(Self {
            model_type: config.model_type,
            dimensions: config.dimensions,
            max_context_tokens: config.max_context_tokens,
            weights,
            parameters,
            left_out,
            source,
            format,
        })
    }

    /// From dimensions alone, in a format known by its name.
    pub(crate) fn of_shape(name: &str, cost: ModelCost) -> Self {
        Self {
            model_type: name.to_owned(),
            parameters: cost.dimensions.parameters(),
            dimensions: Some(cost.dimensions),
            max_context_tokens: None,
            weights: cost.weights,
            left_out: Bytes::ZERO,
            source: WeightsSource::Config,
            format: StoredFormat::half(),
        }
    }

    /// What the predictor needs; `None` where the family is not known.
    pub(crate) fn cost(&self) -> Option<ModelCost> {
        Some(ModelCost {
            dimensions: self.dimensions.clone()?,
            weights: self.weights,
        })
    }
}

fn estimate(config: &ConfigFacts, format: &StoredFormat) -> Result<(Weights, u64), FactsError> {
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
    Ok((estimate::weights(dimensions, format), dimensions.parameters()))
}

/// Sorts the parts by when they are read; with the number of weights that are loaded.
fn count(census: &Census, tied: bool) -> (Weights, u64) {
    let held = |part: Part| part.is_loaded() && !(tied && part == Part::Head);
    let is_idle = |part: Part| part == Part::PerLayerEmbedding || (part == Part::Embedding && !tied);
    let weights = Weights {
        every_step: census
            .sum(|part| held(part) && !is_idle(part) && part != Part::RoutedExpert)
            .bytes,
        experts: census.part(Part::RoutedExpert).bytes,
        idle: census.sum(|part| held(part) && is_idle(part)).bytes,
    };
    (weights, census.sum(held).parameters)
}

#[cfg(test)]
mod tests;
