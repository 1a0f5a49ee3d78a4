//! Configuration of a model that the engine can run, from the text of its `config.json`:
//! dimensions, and the computation of each layer.
//!
//! A [`ModelConfig`] is always supported. Unsupported files are rejected here with the name of the
//! field, before any weights are read. [`facts`](crate::facts) reads the dimensions; this module
//! adds the properties that only an engine needs.

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
    /// The checkpoint decides whether embeddings are tied; see
    /// [`ModelShape::tied`](crate::checkpoint::ModelShape::tied).
    pub dimensions: ModelDimensions,
    pub layers: Vec<LayerConfig>,
    pub block_norms: BlockNorms,
    pub rms_norm_eps: f32,
    /// True if norms multiply by one plus their weight.
    pub norm_adds_one: bool,
    /// True if embeddings are multiplied by the square root of their width.
    pub scales_embeddings: bool,
    /// True if the residual stream is clipped to the range of half precision when the model
    /// computes in half precision.
    pub clips_residuals: bool,
    /// `max_position_embeddings`: maximum tokens of prompt and completion.
    pub max_context_tokens: u64,
    /// `None` if the file omits the field. The checkpoint then decides; see
    /// [`ModelShape::tied`](crate::checkpoint::ModelShape::tied).
    pub tie_word_embeddings: Option<bool>,
    pub quantization: Option<Quantization>,
    pub eos_token_ids: Vec<u32>,
    /// True if the checkpoint belongs to a multimodal model, of which the engine uses only the text
    /// model.
    pub is_multimodal: bool,
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
        // Multimodal models nest the fields of their text model.
        let section = root.object("text_config")?;
        let text = section.as_ref().map_or(root, Section::as_fields);
        let dimensions = facts
            .dimensions
            .expect("every architecture has a row in the table of families");
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
        reader.check_supported()?;
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
            is_multimodal: section.is_some(),
        })
    }
}

#[cfg(test)]
mod tests;
