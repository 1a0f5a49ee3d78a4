//! Estimated size of a model's weights without headers: matrix by matrix, from dimensions and
//! formats. The estimate omits norms and biases, which are less than a thousandth.

use super::stored::StoredFormat;
use crate::dimensions::{Attention, FeedForward, Layer, ModelDimensions};
use crate::weights::Weights;
use rooflet_base::units::Bytes;

/// Time at which a matrix is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    EveryStep,
    /// Only for tokens that are routed to the expert.
    RoutedTokens,
    SingleRows,
}

pub(super) fn weights(dimensions: &ModelDimensions, format: &StoredFormat) -> Weights {
    let (mut every_step, mut experts, mut idle) = (0.0, 0.0, 0.0);
    let mut add = |module: &str, parameters: u64, read: Read| {
        let bits = parameters as f64 * format.of_text_module(module).bits_per_weight();
        match read {
            Read::EveryStep => every_step += bits,
            Read::RoutedTokens => experts += bits,
            Read::SingleRows => idle += bits,
        }
    };
    let head = dimensions.head_parameters();
    if dimensions.tied_embeddings {
        add("embed_tokens", head, Read::EveryStep);
    } else {
        add("embed_tokens", head, Read::SingleRows);
        add("lm_head", head, Read::EveryStep);
    }
    if let Some(inputs) = dimensions.per_layer_inputs {
        let width = u64::from(inputs.width) * dimensions.layers.len() as u64;
        add(
            "embed_tokens_per_layer",
            u64::from(inputs.vocabulary) * width,
            Read::SingleRows,
        );
        let projection = u64::from(dimensions.hidden) * width;
        add("per_layer_model_projection", projection, Read::EveryStep);
        add("per_layer_input_gate", projection, Read::EveryStep);
        add("per_layer_projection", projection, Read::EveryStep);
    }
    for (index, layer) in dimensions.layers.iter().enumerate() {
        for (module, parameters, read) in matrices(layer, dimensions.hidden) {
            add(&format!("layers.{index}.{module}"), parameters, read);
        }
    }
    let bytes = |bits: f64| Bytes((bits / 8.0).round() as u64);
    Weights {
        every_step: bytes(every_step),
        experts: bytes(experts),
        idle: bytes(idle),
        native_floats: format.has_native_floats(),
        ..Weights::default()
    }
}

/// Returns the matrices of one layer with their names in MLX checkpoints, their parameters and the
/// time of reading.
fn matrices(layer: &Layer, hidden: u32) -> Vec<(&'static str, u64, Read)> {
    let d = u64::from(hidden);
    let mut found = Vec::with_capacity(8);
    let mut every_step = |module, parameters| found.push((module, parameters, Read::EveryStep));
    match layer.attention {
        Attention::Grouped {
            heads,
            kv_heads,
            head_dim,
            output_gate,
            keys_are_values,
            shares_cache,
            ..
        } => {
            let queries = d * u64::from(heads) * u64::from(head_dim);
            every_step(
                "self_attn.q_proj",
                if output_gate { 2 * queries } else { queries },
            );
            if !shares_cache {
                let keys = d * u64::from(kv_heads) * u64::from(head_dim);
                every_step("self_attn.k_proj", keys);
                if !keys_are_values {
                    every_step("self_attn.v_proj", keys);
                }
            }
            every_step("self_attn.o_proj", queries);
        }
        Attention::Latent {
            heads,
            query_rank,
            kv_rank,
            nope_dim,
            rope_dim,
            value_dim,
        } => {
            let heads = u64::from(heads);
            let query = heads * (u64::from(nope_dim) + u64::from(rope_dim));
            match query_rank {
                Some(rank) => {
                    every_step("self_attn.q_a_proj", d * u64::from(rank));
                    every_step("self_attn.q_b_proj", u64::from(rank) * query);
                }
                None => every_step("self_attn.q_proj", d * query),
            }
            let compressed = u64::from(kv_rank);
            every_step(
                "self_attn.kv_a_proj_with_mqa",
                d * (compressed + u64::from(rope_dim)),
            );
            let expanded = heads * (u64::from(nope_dim) + u64::from(value_dim));
            every_step("self_attn.kv_b_proj", compressed * expanded);
            every_step("self_attn.o_proj", heads * u64::from(value_dim) * d);
        }
        Attention::GatedDelta { .. } => {
            every_step("linear_attn", layer.attention.parameters(hidden));
        }
    }
    let block = layer.feed_forward;
    match block {
        FeedForward::Dense {
            intermediate,
            matrices,
        } => {
            let matrix = d * u64::from(intermediate);
            if matrices > 2 {
                every_step("mlp.gate_proj", matrix * u64::from(matrices - 2));
            }
            every_step("mlp.up_proj", matrix);
            every_step("mlp.down_proj", matrix);
        }
        FeedForward::Experts { experts, .. } => {
            let router = d * u64::from(experts);
            every_step("mlp.gate", router);
            every_step("mlp.shared_expert", block.shared_parameters(hidden) - router);
            let routed = block.expert_parameters(hidden) * u64::from(experts);
            found.push(("mlp.switch_mlp.experts", routed, Read::RoutedTokens));
        }
    }
    found
}
