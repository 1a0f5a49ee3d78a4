//! What a model is, from the text of its `config.json`: its dimensions, and how each layer
//! computes. A value of [`ModelConfig`] is one this engine can run; everything else is refused
//! here, by field name, before a byte of weights is read. Dimensions are `facts`' to read; this
//! module adds what only an engine needs.

mod architecture;
mod error;
mod layer;
mod layer_reader;
mod quantization;
mod rope;

use crate::dimensions::ModelDimensions;
use crate::facts::ConfigFacts;
use crate::families;
use crate::fields::{Fields, Section, parse_object, shortened};
pub use architecture::{Architecture, BlockNorms};
pub(crate) use architecture::{Bias, DefaultActivation, DefaultRouter};
pub use error::ModelConfigError;
pub use layer::Activation;
pub(crate) use layer::ExpertNames;
pub use layer::{
    AttentionConfig, DenseConfig, ExpertsConfig, FeedForwardConfig, GatedDeltaConfig, LayerConfig,
    MixerConfig, QueryKeyNorm, Router,
};
use layer_reader::{LayerReader, parse_activation};
pub use quantization::QuantizationMode;
pub(crate) use quantization::text_name;
pub use quantization::{Quantization, QuantizationScheme};
pub(crate) use rope::RopeDefaults;
pub use rope::{Rope, RopeScaling};

/// A parsed, supported `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub architecture: &'static Architecture,
    /// Whether embeddings are tied is the checkpoint's to say, see `checkpoint::ModelShape::tied`.
    pub dimensions: ModelDimensions,
    pub layers: Vec<LayerConfig>,
    pub block_norms: BlockNorms,
    pub rms_norm_eps: f32,
    /// Norms multiply with one plus their weight.
    pub norm_adds_one: bool,
    /// Embeddings are multiplied with the root of their width.
    pub scales_embeddings: bool,
    /// Sums in the stream are kept within half precision, where that is computed in.
    pub clips_residuals: bool,
    /// `max_position_embeddings`: prompt plus completion never exceed it.
    pub max_context_tokens: u64,
    /// `None` when the file does not say: then the checkpoint decides, see
    /// `checkpoint::ModelShape::tied`.
    pub tie_word_embeddings: Option<bool>,
    pub quantization: Option<Quantization>,
    pub eos_token_ids: Vec<u32>,
    /// The checkpoint is of a model that also sees, of which only the part that makes text is used.
    pub sees: bool,
}

/// Element type of weights, activations and KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    F32,
    F16,
    BF16,
}

impl FloatType {
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

impl ModelConfig {
    /// Parses the text of `config.json`.
    pub fn parse(text: &str) -> Result<Self, ModelConfigError> {
        let object = parse_object(text)?;
        let root = Fields::top(&object);

        let model_type = root.text("model_type")?;
        let supported = families::find(model_type)
            .and_then(|family| family.engine.as_ref().map(|architecture| (family, architecture)));
        let Some((family, architecture)) = supported else {
            return Err(ModelConfigError::UnsupportedArchitecture {
                found: shortened(model_type),
                supported: families::engine_names(),
            });
        };
        let facts = ConfigFacts::new(&object)?;
        // Models that also see nest their text model's fields.
        let section = root.object("text_config")?;
        let text = section.as_ref().map_or(root, Section::as_fields);
        let dimensions = facts.dimensions.expect("facts know every architecture");
        let reader = LayerReader {
            architecture,
            defaults: family.defaults,
            text,
            max_context_tokens: u64::from(match facts.max_context_tokens {
                Some(tokens) => tokens,
                None => text.dimension("max_position_embeddings")?,
            }),
            activation: parse_activation(&text, architecture)?,
        };
        reader.check_heads()?;
        reader.refuse_changes()?;
        reader.check_windows()?;
        let layers = dimensions.layers.iter().enumerate();
        Ok(Self {
            architecture,
            layers: layers
                .map(|(index, layer)| reader.layer(index, layer))
                .collect::<Result<_, _>>()?,
            block_norms: architecture.norms,
            rms_norm_eps: match text.optional_positive_float("rms_norm_eps")? {
                Some(eps) => eps,
                None => architecture
                    .rms_norm_eps
                    .ok_or_else(|| text.missing("rms_norm_eps"))?,
            },
            norm_adds_one: architecture.norm_adds_one,
            scales_embeddings: architecture.scales_embeddings,
            clips_residuals: architecture.clips_residuals,
            max_context_tokens: reader.max_context_tokens,
            tie_word_embeddings: facts.tied,
            quantization: quantization::parse_quantization(&root)?,
            eos_token_ids: match root.token_ids("eos_token_id")? {
                ids if ids.is_empty() => text.token_ids("eos_token_id")?,
                ids => ids,
            },
            dimensions,
            sees: section.is_some(),
        })
    }
}

#[cfg(test)]
mod tests;
