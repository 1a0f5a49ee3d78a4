//! Bytes and operations of one decode step.

use rooflet_model::dimensions::{Attention, FeedForward, ModelDimensions};

use super::{ModelCost, Workload};

/// Passes over a linear layer's state: one read and one write.
const STATE_PASSES: f64 = 2.0;

/// Bytes and operations of one step, independent of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepWork {
    pub batch: f64,
    /// Tokens in the cache of each sequence.
    pub context_tokens: f64,
    /// Bytes of weights that every step reads, of routed experts, of KV caches, and of linear
    /// layers' states.
    pub dense: f64,
    pub experts: f64,
    pub kv: f64,
    /// Bytes of the KV caches, counted once per query head. The number of query heads per key head is
    /// rounded up to a power of two, because five heads take the time of eight (docs/roofline.md).
    pub attended: f64,
    /// The same figures of layers with latent attention.
    pub latent: f64,
    pub latent_attended: f64,
    pub states: f64,
    /// Parameters that one token is multiplied with, in 10⁹.
    pub active_billions: f64,
    /// Weights of routed experts that the step reads, in 10⁹, and the width of an expert.
    pub expert_billions: f64,
    pub expert_width: f64,
    pub bits_per_weight: f64,
    pub super_blocks: bool,
    pub tabulated_experts: bool,
    pub native_floats: bool,
    pub hidden: f64,
    /// Average number of query heads per key head.
    pub queries_per_key: f64,
    /// Number of layers, and of layers of each kind.
    pub layers: f64,
    /// Number of all layers if some have a sliding window. These families also have more norms,
    /// soft caps or sinks.
    pub windowed_layers: f64,
    pub expert_layers: f64,
    pub linear_layers: f64,
    pub latent_layers: f64,
}

impl StepWork {
    pub fn new(model: &ModelCost, workload: Workload) -> Self {
        let dimensions = &model.dimensions;
        let batch = workload.batch.max(1);
        let sequences = f64::from(batch);
        let dense = model.weights.every_step.0 as f64;
        let mut work = Self {
            batch: sequences,
            context_tokens: f64::from(workload.context_tokens),
            dense,
            experts: (model.weights.streamed(dimensions, batch).0 as f64 - dense).max(0.0),
            kv: 0.0,
            attended: 0.0,
            latent: 0.0,
            latent_attended: 0.0,
            states: 0.0,
            active_billions: dimensions.active_parameters() as f64 / 1e9,
            expert_billions: dimensions.expert_parameters() as f64 / 1e9
                * dimensions.touched_expert_share(batch),
            expert_width: expert_width(dimensions),
            bits_per_weight: 8.0 * (dense + model.weights.experts.0 as f64)
                / (dimensions.core_parameters() + dimensions.expert_parameters()).max(1) as f64,
            super_blocks: model.weights.super_blocks,
            tabulated_experts: model.weights.tabulated_experts,
            native_floats: model.weights.native_floats,
            hidden: f64::from(dimensions.hidden),
            queries_per_key: 0.0,
            layers: dimensions.layers.len() as f64,
            windowed_layers: 0.0,
            expert_layers: dimensions.expert_layers() as f64,
            linear_layers: dimensions.linear_layers() as f64,
            latent_layers: 0.0,
        };
        for layer in &dimensions.layers {
            let bytes = layer
                .attention
                .kv_read_bytes(workload.context_tokens, workload.kv_bits)
                .0 as f64
                * sequences;
            match layer.attention {
                Attention::GatedDelta { .. } => work.states += STATE_PASSES * bytes,
                Attention::Grouped {
                    window,
                    heads,
                    kv_heads,
                    ..
                } => {
                    let queries = f64::from(heads) / f64::from(kv_heads.max(1));
                    work.kv += bytes;
                    work.attended += bytes * power_of_two(queries);
                    work.queries_per_key += queries / work.layers;
                    if window.is_some() {
                        work.windowed_layers = work.layers;
                    }
                }
                Attention::Latent { heads, .. } => {
                    work.latent += bytes;
                    work.latent_attended += bytes * f64::from(heads);
                    work.latent_layers += 1.0;
                    work.queries_per_key += f64::from(heads) / work.layers;
                }
            }
        }
        work
    }

    pub(super) fn bytes(&self) -> f64 {
        self.dense + self.experts + self.kv + self.latent + self.states
    }
}

/// Returns the next power of two, or the number itself if it is one.
fn power_of_two(number: f64) -> f64 {
    number.max(1.0).log2().ceil().exp2()
}

/// Returns the width of the routed experts; 0 if there are none.
fn expert_width(dimensions: &ModelDimensions) -> f64 {
    let width = dimensions
        .layers
        .iter()
        .find_map(|layer| match layer.feed_forward {
            FeedForward::Experts { intermediate, .. } => Some(intermediate),
            FeedForward::Dense { .. } => None,
        });
    f64::from(width.unwrap_or(0))
}
