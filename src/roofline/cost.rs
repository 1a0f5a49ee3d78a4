//! What a checkpoint costs to run: its dimensions, and its weights as the engine holds them.

use super::checkpoint::{MatrixStorage, ModelShape};
use super::dimensions::{Attention, FeedForward, Layer, ModelDimensions};
use super::model::FloatType;
use super::predict::ModelCost;
use super::weights::Weights;
use crate::units::Bytes;

impl ModelCost {
    /// With floats held as `element`: the CPU back end computes in 32 bits, whatever the files hold.
    pub(crate) fn of_checkpoint(shape: &ModelShape, element: FloatType) -> Self {
        let config = &shape.config;
        let layer = Layer {
            attention: Attention::Grouped {
                heads: config.attention_heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
                window: None,
                output_gate: false,
                keys_are_values: false,
                shares_cache: false,
            },
            feed_forward: FeedForward::Dense {
                intermediate: config.intermediate_size,
                matrices: 3,
            },
        };
        let resident = Bytes(shape.resident_bytes(element));
        let idle = if shape.tied {
            Bytes::ZERO
        } else {
            embedding_bytes(shape, element)
        };
        Self {
            dimensions: ModelDimensions {
                hidden: config.hidden_size,
                vocabulary: config.vocab_size,
                tied_embeddings: shape.tied,
                per_layer_inputs: None,
                layers: vec![layer; config.layers as usize],
            },
            weights: Weights {
                every_step: resident - idle,
                experts: Bytes::ZERO,
                idle,
            },
        }
    }
}

/// Of the token embedding as the engine holds it.
fn embedding_bytes(shape: &ModelShape, element: FloatType) -> Bytes {
    let elements = u64::from(shape.config.vocab_size) * u64::from(shape.config.hidden_size);
    Bytes(match shape.matrices.get("model.embed_tokens") {
        Some(MatrixStorage::Affine(scheme)) => {
            let scales = 2 * element.bytes() * elements / u64::from(scheme.group_size);
            elements * u64::from(scheme.bits) / 8 + scales
        }
        Some(MatrixStorage::Float) | None => elements * element.bytes(),
    })
}
