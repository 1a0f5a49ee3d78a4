//! Cost of running a checkpoint: its dimensions and its weights as the engine stores them.

use crate::checkpoint::{MatrixStorage, ModelShape};
use crate::config::FloatType;
use crate::dimensions::ModelDimensions;
use crate::weights::Weights;
use rooflet_base::units::Bytes;

/// Properties of a model that determine its speed.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCost {
    pub dimensions: ModelDimensions,
    pub weights: Weights,
}

impl ModelCost {
    /// Returns the cost of a checkpoint whose floats are stored as `element` in memory. The CPU
    /// back end computes in 32 bits, independent of the files.
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

/// Returns the bytes of the token embedding in memory.
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
