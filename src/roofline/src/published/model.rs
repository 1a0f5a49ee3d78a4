//! Conversion between published model costs and the types of the performance model.

use crate::memory::{ServedModel, activation_bytes};
use crate::predict::ModelCost;
use rooflet_api::v1alpha1 as api;
use rooflet_api::v1alpha1::{AttentionType, MAX_LAYERS, NodeModel};
use rooflet_base::units::Bytes;
use rooflet_model::dimensions::{Attention, FeedForward, Layer, ModelDimensions, PerLayerInputs};
use rooflet_model::kv_cache::KvBits;
use rooflet_model::weights::Weights;

/// Reason why a published model cannot be evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishedError {
    /// The directory cannot be served, or the agent is older.
    #[error("its agent does not report the cost of the model; the agent may be an older version")]
    NoCost,
    #[error("packedCost is not the JSON text of a cost")]
    UnreadableCost,
    #[error("cost.layers has {count} layers; the maximum is {MAX_LAYERS}")]
    TooManyLayers { count: u64 },
}

impl ServedModel {
    /// Returns an entry of `FleetNode.status.models`.
    pub fn publish(&self, name: String, architecture: String, max_context_tokens: u32) -> NodeModel {
        let ModelCost { dimensions, weights } = &self.cost;
        let kv_growth = dimensions.kv_bytes(2, self.kv_bits) - dimensions.kv_bytes(1, self.kv_bits);
        let mut layers: Vec<api::LayerGroup> = Vec::new();
        for layer in &dimensions.layers {
            let group = publish_layer(layer);
            let same = |known: &&mut api::LayerGroup| {
                known.attention == group.attention && known.feed_forward == group.feed_forward
            };
            match layers.iter_mut().find(same) {
                Some(known) => known.count += 1,
                None => layers.push(group),
            }
        }
        NodeModel {
            name,
            architecture,
            downloaded_time: None,
            last_used_time: None,
            weights_bytes: weights.resident().0,
            kv_bytes_per_token: kv_growth.0,
            activation_bytes: activation_bytes(dimensions, max_context_tokens, self.kv_bits).0,
            packed_cost: None,
            cost: Some(api::ModelCost {
                every_step_bytes: weights.every_step.0,
                expert_bytes: weights.experts.0,
                idle_bytes: weights.idle.0,
                kv_element_bits: self.kv_bits.0.round() as u32,
                hidden_size: dimensions.hidden,
                vocabulary_size: dimensions.vocabulary,
                tied_embeddings: dimensions.tied_embeddings,
                native_floats: weights.native_floats,
                per_layer_inputs: dimensions.per_layer_inputs.map(|inputs| api::PerLayerInputs {
                    vocabulary_size: inputs.vocabulary,
                    width: inputs.width,
                }),
                layers,
            }),
            max_context_tokens,
            problem: None,
        }
    }

    /// Reads a model that a node published or that was derived from files on a hub.
    pub fn published(model: &NodeModel) -> Result<Self, PublishedError> {
        let unpacked = match (&model.cost, &model.packed_cost) {
            (None, Some(text)) => {
                Some(serde_json::from_str(text).map_err(|_| PublishedError::UnreadableCost)?)
            }
            (Some(_), _) | (None, None) => None,
        };
        let cost: &api::ModelCost = unpacked
            .as_ref()
            .or(model.cost.as_ref())
            .ok_or(PublishedError::NoCost)?;
        let count: u64 = cost.layers.iter().map(|group| u64::from(group.count)).sum();
        if count > u64::from(MAX_LAYERS) {
            return Err(PublishedError::TooManyLayers { count });
        }
        let layers = cost.layers.iter().flat_map(|group| {
            let layer = Layer {
                attention: attention(&group.attention),
                feed_forward: feed_forward(&group.feed_forward),
            };
            std::iter::repeat_n(layer, group.count as usize)
        });
        Ok(Self {
            cost: ModelCost {
                dimensions: ModelDimensions {
                    hidden: cost.hidden_size,
                    vocabulary: cost.vocabulary_size,
                    tied_embeddings: cost.tied_embeddings,
                    per_layer_inputs: cost.per_layer_inputs.map(|inputs| PerLayerInputs {
                        vocabulary: inputs.vocabulary_size,
                        width: inputs.width,
                    }),
                    layers: layers.collect(),
                },
                weights: Weights {
                    every_step: Bytes(cost.every_step_bytes),
                    experts: Bytes(cost.expert_bytes),
                    idle: Bytes(cost.idle_bytes),
                    native_floats: cost.native_floats,
                    ..Weights::default()
                },
            },
            kv_bits: KvBits::new(cost.kv_element_bits),
        })
    }
}

fn publish_layer(layer: &Layer) -> api::LayerGroup {
    let attention = match layer.attention {
        Attention::Grouped {
            heads,
            kv_heads,
            head_dim,
            window,
            output_gate,
            keys_are_values,
            shares_cache,
        } => api::LayerAttention {
            kind: AttentionType::Grouped,
            heads,
            kv_heads,
            head_dim,
            window_tokens: window.unwrap_or(0),
            output_gate,
            keys_are_values,
            shares_cache,
            ..api::LayerAttention::default()
        },
        Attention::Latent {
            heads,
            query_rank,
            kv_rank,
            nope_dim,
            rope_dim,
            value_dim,
        } => api::LayerAttention {
            kind: AttentionType::Latent,
            heads,
            head_dim: nope_dim,
            value_dim,
            kv_rank,
            query_rank: query_rank.unwrap_or(0),
            rope_dim,
            ..api::LayerAttention::default()
        },
        Attention::GatedDelta {
            key_heads,
            key_dim,
            value_heads,
            value_dim,
        } => api::LayerAttention {
            kind: AttentionType::GatedDelta,
            heads: value_heads,
            kv_heads: key_heads,
            head_dim: key_dim,
            value_dim,
            ..api::LayerAttention::default()
        },
    };
    let feed_forward = match layer.feed_forward {
        FeedForward::Dense {
            intermediate,
            matrices,
        } => api::LayerFeedForward {
            intermediate_size: intermediate,
            matrices,
            ..api::LayerFeedForward::default()
        },
        FeedForward::Experts {
            experts,
            active,
            intermediate,
            shared_intermediate,
            matrices,
        } => api::LayerFeedForward {
            intermediate_size: intermediate,
            matrices,
            experts,
            active_experts: active,
            shared_intermediate_size: shared_intermediate,
        },
    };
    api::LayerGroup {
        count: 1,
        attention,
        feed_forward,
    }
}

fn attention(published: &api::LayerAttention) -> Attention {
    let set = |value: u32| Some(value).filter(|value| *value > 0);
    match published.kind {
        AttentionType::Grouped => Attention::Grouped {
            heads: published.heads,
            kv_heads: published.kv_heads,
            head_dim: published.head_dim,
            window: set(published.window_tokens),
            output_gate: published.output_gate,
            keys_are_values: published.keys_are_values,
            shares_cache: published.shares_cache,
        },
        AttentionType::Latent => Attention::Latent {
            heads: published.heads,
            query_rank: set(published.query_rank),
            kv_rank: published.kv_rank,
            nope_dim: published.head_dim,
            rope_dim: published.rope_dim,
            value_dim: published.value_dim,
        },
        AttentionType::GatedDelta => Attention::GatedDelta {
            key_heads: published.kv_heads,
            key_dim: published.head_dim,
            value_heads: published.heads,
            value_dim: published.value_dim,
        },
    }
}

fn feed_forward(published: &api::LayerFeedForward) -> FeedForward {
    let &api::LayerFeedForward {
        intermediate_size,
        matrices,
        experts,
        active_experts,
        shared_intermediate_size,
    } = published;
    if experts == 0 {
        return FeedForward::Dense {
            intermediate: intermediate_size,
            matrices,
        };
    }
    FeedForward::Experts {
        experts,
        active: active_experts,
        intermediate: intermediate_size,
        shared_intermediate: shared_intermediate_size,
        matrices,
    }
}
