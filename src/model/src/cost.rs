//! What a checkpoint costs to run: its dimensions, and its weights as the engine holds them.

use crate::checkpoint::{MatrixStorage, ModelShape};
use crate::config::FloatType;
use crate::dimensions::ModelDimensions;
use crate::weights::Weights;
use rooflet_base::units::Bytes;

/// The model, as far as its speed depends on it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCost {
    pub dimensions: ModelDimensions,
    pub weights: Weights,
}

impl ModelCost {
    /// With floats held as `element`: the CPU back end computes in 32 bits, whatever the files
    /// hold.
    pub fn of_checkpoint(shape: &ModelShape, element: FloatType) -> Self {
        let config = &shape.config;
        let resident = Bytes(shape.resident_bytes(element));
        let experts = Bytes(shape.expert_bytes(element));
        let idle = if shape.tied {
            Bytes::ZERO
        } else {
            embedding_bytes(shape, element)
        };
        Self {
            dimensions: ModelDimensions {
                tied_embeddings: shape.tied,
                ..config.dimensions.clone()
            },
            weights: Weights {
                every_step: resident - idle - experts,
                experts,
                idle,
                native_floats: element != FloatType::BF16,
                ..Weights::default()
            },
        }
    }
}

/// Of the token embedding as the engine holds it.
fn embedding_bytes(shape: &ModelShape, element: FloatType) -> Bytes {
    let elements = shape.config.dimensions.head_parameters();
    Bytes(match shape.matrices.get("model.embed_tokens") {
        Some(MatrixStorage::Quantized(scheme)) => {
            let group_bytes = if scheme.mode.has_biases() {
                2 * element.bytes()
            } else {
                1
            };
            let scales = group_bytes * elements / u64::from(scheme.group_size);
            elements * u64::from(scheme.bits) / 8 + scales
        }
        Some(MatrixStorage::Float) | None => elements * element.bytes(),
    })
}
