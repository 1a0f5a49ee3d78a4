//! Facts about the files of the worker's model.

use rooflet_inference_api::ollama::models::ModelFacts;
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::{FloatType, QuantizationMode};

/// Facts about the model's files.
#[derive(Debug, Clone)]
pub(crate) struct FileFacts {
    model: ModelFacts,
    pub(super) layers: usize,
    pub(super) hidden: u32,
}

impl FileFacts {
    pub(crate) fn of(shape: &ModelShape) -> Self {
        let config = &shape.config;
        let quantization = match &config.quantization {
            None => match shape.element {
                FloatType::F32 => "F32".to_owned(),
                FloatType::F16 => "F16".to_owned(),
                FloatType::BF16 => "BF16".to_owned(),
            },
            Some(quantization) => match quantization.default.mode {
                QuantizationMode::Affine => format!("int{}", quantization.default.bits),
                QuantizationMode::Mxfp4 => "mxfp4".to_owned(),
                QuantizationMode::Mxfp8 => "mxfp8".to_owned(),
                QuantizationMode::Nvfp4 => "nvfp4".to_owned(),
            },
        };
        Self {
            model: ModelFacts {
                architecture: config.architecture.to_string(),
                parameters: shape.parameters,
                weights_bytes: shape.weights_bytes,
                context_tokens: 0,
                quantization,
            },
            layers: config.layers.len(),
            hidden: config.dimensions.hidden,
        }
    }

    /// Returns the facts for this context length.
    pub(super) fn with_context(&self, context_tokens: u64) -> ModelFacts {
        ModelFacts {
            context_tokens,
            ..self.model.clone()
        }
    }
}
