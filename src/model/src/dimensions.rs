//! Dimensions of a transformer, layer by layer, and derived figures: parameters, floating-point
//! operations and bytes of KV cache. Dimensions describe any model that can be estimated, including
//! models that the engine does not support.

use std::num::Saturating;

/// Dimensions of a whole model, including token embedding and output head.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelDimensions {
    /// Width of the residual stream.
    pub hidden: u32,
    pub vocabulary: u32,
    /// True if the output head is the embedding table.
    pub tied_embeddings: bool,
    /// Second embedding table that every layer adds (small Gemma 4 models).
    pub per_layer_inputs: Option<PerLayerInputs>,
    pub layers: Vec<Layer>,
}

/// Table with one vector per token and layer. A step reads only the rows of the current tokens.
/// Each layer has one projection into and one out of this width. The model has one projection from
/// its own width to all layers' vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayerInputs {
    pub vocabulary: u32,
    pub width: u32,
}

/// Decoder layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layer {
    pub attention: Attention,
    pub feed_forward: FeedForward,
}

/// Token mixer of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attention {
    /// Softmax attention with grouped queries; multi-head attention if `kv_heads == heads`.
    Grouped {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        /// Number of the last tokens that a query attends to; the cache keeps no others.
        window: Option<u32>,
        /// True if a gate of the queries' size multiplies the output (Qwen3-Next and its
        /// successors).
        output_gate: bool,
        /// True if one projection computes keys and values (global layers of Gemma 4). The cache
        /// holds both, because their norms differ and only keys are rotated.
        keys_are_values: bool,
        /// True if the layer attends to the keys and values of an earlier layer and has none of its
        /// own (last layers of the small Gemma 4 models).
        shares_cache: bool,
    },
    /// Multi-head latent attention (DeepSeek V2 and V3), which caches one compressed vector per
    /// token.
    Latent {
        heads: u32,
        /// Rank of the compressed queries; `None` if they are not compressed.
        query_rank: Option<u32>,
        kv_rank: u32,
        /// Widths of a head's key: part without and part with position.
        nope_dim: u32,
        rope_dim: u32,
        value_dim: u32,
    },
    /// Gated delta rule, with a state of constant size and no cache (Qwen3-Next and its
    /// successors).
    GatedDelta {
        key_heads: u32,
        key_dim: u32,
        value_heads: u32,
        value_dim: u32,
    },
}

/// Feed-forward block of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForward {
    Dense {
        intermediate: u32,
        /// 3 with a gate (SwiGLU, GeGLU), otherwise 2.
        matrices: u32,
    },
    /// Mixture of experts. Each token is routed to `active` of `experts`, and to the shared expert
    /// if there is one.
    Experts {
        experts: u32,
        active: u32,
        intermediate: u32,
        /// Width of all shared experts together; 0 if there are none.
        shared_intermediate: u32,
        matrices: u32,
    },
}

/// Width of the short convolution before a gated delta layer, in tokens.
pub(crate) const CONVOLUTION_WIDTH: u32 = 4;

/// Returns a saturating number for products. Invalid dimensions then result in a model that is too
/// large, and not in an overflow.
pub(crate) fn wide(size: u32) -> Saturating<u64> {
    Saturating(u64::from(size))
}

impl Attention {
    /// Returns the parameters of the layer's projections.
    pub fn parameters(&self, hidden: u32) -> u64 {
        let d = wide(hidden);
        let parameters = match *self {
            Self::Grouped {
                heads,
                kv_heads,
                head_dim,
                output_gate,
                keys_are_values,
                shares_cache,
                ..
            } => {
                let head = wide(head_dim);
                let queries = d * wide(heads) * head * wide(if output_gate { 2 } else { 1 });
                let projections = match (shares_cache, keys_are_values) {
                    (true, _) => 0,
                    (false, true) => 1,
                    (false, false) => 2,
                };
                let keys_and_values = wide(projections) * d * wide(kv_heads) * head;
                queries + keys_and_values + wide(heads) * head * d
            }
            Self::Latent {
                heads,
                query_rank,
                kv_rank,
                nope_dim,
                rope_dim,
                value_dim,
            } => {
                let heads = wide(heads);
                let query = wide(nope_dim) + wide(rope_dim);
                let queries = match query_rank {
                    Some(rank) => d * wide(rank) + wide(rank) * heads * query,
                    None => d * heads * query,
                };
                let kv_rank = wide(kv_rank);
                let expand = kv_rank * heads * (wide(nope_dim) + wide(value_dim));
                queries + d * (kv_rank + wide(rope_dim)) + expand + heads * wide(value_dim) * d
            }
            Self::GatedDelta {
                key_heads,
                key_dim,
                value_heads,
                value_dim,
            } => {
                let keys = wide(key_heads) * wide(key_dim);
                let values = wide(value_heads) * wide(value_dim);
                let inputs = d * (wide(2) * keys + wide(2) * values + wide(2) * wide(value_heads));
                inputs + values * d + wide(CONVOLUTION_WIDTH) * (wide(2) * keys + values)
            }
        };
        parameters.0
    }

    /// Returns the operations of the attention scores for `tokens` new tokens after `past` tokens,
    /// without projections: two products of `2·heads·dim` per pair of tokens, over the mean context
    /// `past + tokens/2`.
    pub fn score_flops(&self, tokens: u32, past: u32) -> f64 {
        let n = f64::from(tokens);
        let mean = f64::from(past) + n / 2.0;
        match *self {
            Self::Grouped {
                heads,
                head_dim,
                window,
                ..
            } => {
                let mean = window.map_or(mean, |window| mean.min(f64::from(window)));
                4.0 * n * mean * f64::from(heads) * f64::from(head_dim)
            }
            Self::Latent {
                heads,
                nope_dim,
                rope_dim,
                value_dim,
                ..
            } => {
                let dims = f64::from(nope_dim) + f64::from(rope_dim) + f64::from(value_dim);
                2.0 * n * mean * f64::from(heads) * dims
            }
            // Each token updates and reads a state of keys × values per head.
            Self::GatedDelta {
                key_dim,
                value_heads,
                value_dim,
                ..
            } => 6.0 * n * f64::from(value_heads) * f64::from(key_dim) * f64::from(value_dim),
        }
    }
}

impl FeedForward {
    /// Returns the parameters that every token uses: the dense block, or router and shared expert.
    pub(crate) fn shared_parameters(&self, hidden: u32) -> u64 {
        let d = wide(hidden);
        let parameters = match *self {
            Self::Dense {
                intermediate,
                matrices,
            } => wide(matrices) * d * wide(intermediate),
            Self::Experts {
                experts,
                shared_intermediate,
                matrices,
                ..
            } => wide(matrices) * d * wide(shared_intermediate) + d * wide(experts),
        };
        parameters.0
    }

    /// Returns the parameters of one routed expert.
    pub fn expert_parameters(&self, hidden: u32) -> u64 {
        match *self {
            Self::Dense { .. } => 0,
            Self::Experts {
                intermediate,
                matrices,
                ..
            } => (wide(matrices) * wide(hidden) * wide(intermediate)).0,
        }
    }

    /// Returns the numbers of routed experts and of experts per token.
    pub fn routing(&self) -> Option<(u32, u32)> {
        match *self {
            Self::Dense { .. } => None,
            Self::Experts { experts, active, .. } => Some((experts, active)),
        }
    }
}

/// Returns the expected number of experts that `batch` tokens use if each selects `active` of
/// `experts` at random: `E·(1 − (1 − k/E)^B)`.
pub(crate) fn touched_experts(experts: u32, active: u32, batch: u32) -> f64 {
    let experts_f = f64::from(experts);
    let share = f64::from(active.min(experts)) / experts_f.max(1.0);
    experts_f * (1.0 - (1.0 - share).powi(i32::try_from(batch).unwrap_or(i32::MAX)))
}

impl ModelDimensions {
    /// Returns the parameters that every token reads, including the head: attention, dense blocks,
    /// routers and shared experts.
    pub fn core_parameters(&self) -> u64 {
        let layer_count = Saturating(self.layers.len() as u64);
        let width = self.per_layer_inputs.map_or(0, |inputs| inputs.width);
        let projections = wide(3) * layer_count * wide(width) * wide(self.hidden);
        let layers = self.over_layers(|layer| {
            let attention = layer.attention.parameters(self.hidden);
            attention.saturating_add(layer.feed_forward.shared_parameters(self.hidden))
        });
        (layers + projections + Saturating(self.head_parameters())).0
    }

    /// Returns the parameters of which a step reads single rows: the token table if it is not the
    /// head, and the per-layer table.
    pub fn table_parameters(&self) -> u64 {
        let tokens = if self.tied_embeddings {
            0
        } else {
            self.head_parameters()
        };
        let layer_count = Saturating(self.layers.len() as u64);
        let layers = self.per_layer_inputs.map_or(wide(0), |inputs| {
            wide(inputs.vocabulary) * wide(inputs.width) * layer_count
        });
        (Saturating(tokens) + layers).0
    }

    /// Returns the parameters of the output head, which is the embedding table if the two are tied.
    pub fn head_parameters(&self) -> u64 {
        (wide(self.vocabulary) * wide(self.hidden)).0
    }

    /// Returns the parameters of all routed experts.
    pub fn expert_parameters(&self) -> u64 {
        let experts = self.over_layers(|layer| {
            let experts = layer.feed_forward.routing().map_or(0, |(experts, _)| experts);
            (Saturating(layer.feed_forward.expert_parameters(self.hidden)) * wide(experts)).0
        });
        experts.0
    }

    /// Returns the parameters of the routed experts that one token uses.
    pub fn active_expert_parameters(&self) -> u64 {
        let experts = self.over_layers(|layer| {
            let active = layer.feed_forward.routing().map_or(0, |(_, active)| active);
            (Saturating(layer.feed_forward.expert_parameters(self.hidden)) * wide(active)).0
        });
        experts.0
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> u64 {
        let core = Saturating(self.core_parameters());
        (core + Saturating(self.expert_parameters()) + Saturating(self.table_parameters())).0
    }

    /// Returns the parameters that one token is multiplied with. The embedding table counts only as
    /// the head.
    pub fn active_parameters(&self) -> u64 {
        self.core_parameters()
            .saturating_add(self.active_expert_parameters())
    }

    fn over_layers(&self, figure: impl Fn(&Layer) -> u64) -> Saturating<u64> {
        let figures = self.layers.iter().map(|layer| Saturating(figure(layer)));
        figures.fold(Saturating(0), |sum, figure| sum + figure)
    }

    /// Returns the share of the routed experts' parameters that a step of `batch` tokens reads.
    pub fn touched_expert_share(&self, batch: u32) -> f64 {
        let (mut touched, mut all) = (0.0, 0.0);
        for layer in &self.layers {
            let Some((experts, active)) = layer.feed_forward.routing() else {
                continue;
            };
            let expert = layer.feed_forward.expert_parameters(self.hidden) as f64;
            touched += expert * touched_experts(experts, active, batch);
            all += expert * f64::from(experts);
        }
        if all > 0.0 { touched / all } else { 0.0 }
    }

    /// Returns the operations of a prefill of `tokens` after `past` tokens: `(in matrices, in
    /// attention scores)`. The head runs once, for the last token.
    pub fn prefill_flops(&self, tokens: u32, past: u32) -> (f64, f64) {
        let per_token =
            (self.core_parameters() - self.head_parameters()) as f64 + self.active_expert_parameters() as f64;
        let matrices = 2.0 * f64::from(tokens) * per_token + 2.0 * self.head_parameters() as f64;
        let scores = self
            .layers
            .iter()
            .map(|layer| layer.attention.score_flops(tokens, past))
            .sum();
        (matrices, scores)
    }

    /// Returns the dimensions for an engine that caches every token in every layer.
    pub fn without_windows(&self) -> Self {
        let mut whole = self.clone();
        for layer in &mut whole.layers {
            if let Attention::Grouped { window, .. } = &mut layer.attention {
                *window = None;
            }
        }
        whole
    }

    pub fn expert_layers(&self) -> usize {
        let routed = |layer: &&Layer| layer.feed_forward.routing().is_some();
        self.layers.iter().filter(routed).count()
    }

    pub fn linear_layers(&self) -> usize {
        let linear = |layer: &&Layer| matches!(layer.attention, Attention::GatedDelta { .. });
        self.layers.iter().filter(linear).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::KvBits;
    use rooflet_base::units::Bytes;

    #[test]
    fn invalid_dimensions_saturate() {
        let huge = u32::MAX;
        let expert = FeedForward::Experts {
            experts: huge,
            active: huge,
            intermediate: huge,
            shared_intermediate: huge,
            matrices: huge,
        };
        let attentions = [
            Attention::Grouped {
                heads: huge,
                kv_heads: huge,
                head_dim: huge,
                window: None,
                output_gate: true,
                keys_are_values: false,
                shares_cache: false,
            },
            Attention::Latent {
                heads: huge,
                query_rank: Some(huge),
                kv_rank: huge,
                nope_dim: huge,
                rope_dim: huge,
                value_dim: huge,
            },
            Attention::GatedDelta {
                key_heads: huge,
                key_dim: huge,
                value_heads: huge,
                value_dim: huge,
            },
        ];
        for attention in attentions {
            let model = ModelDimensions {
                hidden: huge,
                vocabulary: huge,
                tied_embeddings: false,
                per_layer_inputs: Some(PerLayerInputs {
                    vocabulary: huge,
                    width: huge,
                }),
                layers: vec![
                    Layer {
                        attention,
                        feed_forward: expert,
                    };
                    3
                ],
            };
            assert_eq!(
                (model.parameters(), model.active_parameters()),
                (u64::MAX, u64::MAX)
            );
            assert!(model.kv_bytes(huge, KvBits::HALF) > Bytes::gib(1 << 20));
            assert!(model.prefill_flops(huge, huge).0 > 0.0);
        }
    }
}
