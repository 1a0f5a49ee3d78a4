//! Memory of replicas: the reservation of a replica, and the memory that models may use on a node.
//! The scheduler uses these figures for placement. The agent checks them again with current
//! figures.
//!
//! A reservation is the maximum that a replica can use: weights, the KV cache of every stream at
//! full context, the intermediate results of one prefill step, and the runtime. The reservations of
//! a node never exceed [`allocatable`]. A reservation is released when the worker has exited.

use std::fmt;

use crate::predict::ModelCost;
use rooflet_base::units::Bytes;
use rooflet_model::dimensions::{Attention, ModelDimensions};
use rooflet_model::kv_cache::KvBits;

/// Memory of a worker before it loads a model: engine context, compiled kernels, tokenizer, HTTP.
pub const RUNTIME_OVERHEAD: Bytes = Bytes(500_000_000);

/// Approximate bytes of intermediate results of a prefill step, per token and hidden dimension. The
/// headroom covers the kept rows of logits (one per stream).
pub(crate) const ACTIVATION_BYTES_PER_ELEMENT: u64 = 40;

/// Maximum tokens of one prefill step.
pub const PREFILL_STEP_TOKENS: u64 = 2048;

/// Maximum bytes of attention scores in memory without a fused kernel. A whole step over a long
/// cache would need gigabytes, so the engine splits it. The scores of a single token may be larger.
const SCORES_BYTES: u64 = 256 << 20;

/// Bytes of one score: float32, or two copies of 16 bits (before and after mask or softmax).
const SCORE_BYTES: u64 = 4;

/// Bytes of one score of latent attention: the part with position, the sum and its softmax in 16 bits.
/// With three copies, GLM-4.7-Flash in 4 bits needs 23.6 GB for a prompt of 21,672 tokens; mlx-lm
/// reported a peak of 23.8 GB (itsmostafa/inference-speed-tests, M4 Max and M5 Max).
const LATENT_SCORE_BYTES: u64 = 6;

/// Head sizes with a fused Metal kernel for many tokens: `sdpa_full_supported_head_dim` in
/// mlx/backend/metal/scaled_dot_product_attention.cpp of MLX 0.32.2.
pub const FUSED_HEAD_DIMS: [u32; 5] = [64, 72, 80, 96, 128];

/// Step in which the engine's caches grow, in tokens.
pub const CACHE_STEP_TOKENS: u32 = 256;

/// Share of the working-set limit that stays free, in percent. A model close to the limit can drop
/// to a twentieth of its speed.
const HEADROOM_PERCENT: u64 = 5;

/// Working-set limit in percent of all memory, if Metal does not report it: the lowest observed
/// limits are 67 % on machines below 32 GB and 78 % on larger machines, both rounded down here.
const WORKING_SET_PERCENT_SMALL: u64 = 66;
const WORKING_SET_PERCENT_LARGE: u64 = 75;
/// Minimum memory of a large machine. A 32 GB machine reports slightly less on some systems.
const LARGE_MACHINE: Bytes = Bytes::gib(31);

/// Model as the engine stores it; from its files or from `FleetNode.status.models`.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedModel {
    pub cost: ModelCost,
    /// Bits of one element of the KV cache.
    pub kv_bits: KvBits,
}

impl ServedModel {
    /// Returns the bytes of the KV caches of all streams at full context.
    fn kv_bytes(&self, demand: Demand) -> Bytes {
        cache_bytes(&self.cost.dimensions, demand.context_tokens, self.kv_bits)
            * u64::from(demand.max_concurrency)
    }
}

/// Serving parameters that determine memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Maximum tokens of a request: prompt and answer together.
    pub context_tokens: u32,
    /// Maximum number of concurrent requests.
    pub max_concurrency: u32,
}

impl ServedModel {
    /// Returns a model with these weights and this cache, for tests of memory. `kv_per_token` is a
    /// multiple of 4.
    pub fn of_size(weights: Bytes, kv_per_token: u32) -> Self {
        use rooflet_model::dimensions::{Attention, FeedForward, Layer, ModelDimensions};
        let layer = Layer {
            attention: Attention::Grouped {
                // No attention scores.
                heads: 0,
                kv_heads: kv_per_token / 4,
                head_dim: 1,
                window: None,
                output_gate: false,
                keys_are_values: false,
                shares_cache: false,
            },
            feed_forward: FeedForward::Dense {
                intermediate: 0,
                matrices: 3,
            },
        };
        Self {
            cost: ModelCost {
                dimensions: ModelDimensions {
                    hidden: 0,
                    vocabulary: 0,
                    tied_embeddings: true,
                    per_layer_inputs: None,
                    layers: vec![layer],
                },
                weights: rooflet_model::weights::Weights {
                    every_step: weights,
                    ..rooflet_model::weights::Weights::default()
                },
            },
            kv_bits: KvBits::HALF,
        }
    }
}

/// Returns the bytes of the cache of a sequence of `tokens`. The last step is allocated as a whole.
/// A window releases tokens in whole steps.
pub fn cache_bytes(dimensions: &ModelDimensions, tokens: u32, bits: KvBits) -> Bytes {
    let steps = tokens.div_ceil(CACHE_STEP_TOKENS);
    let allocated = steps.saturating_mul(CACHE_STEP_TOKENS);
    let layers = dimensions.layers.iter().map(|layer| {
        let mut attention = layer.attention;
        // The engine also keeps the state before the last step.
        if let Attention::GatedDelta { .. } = attention {
            return attention.kv_bytes(allocated, bits) * 2;
        }
        if let Attention::Grouped {
            window: Some(window), ..
        } = &mut attention
        {
            let room = window.saturating_add(CACHE_STEP_TOKENS - 1);
            *window = room
                .checked_next_multiple_of(CACHE_STEP_TOKENS)
                .unwrap_or(u32::MAX);
        }
        attention.kv_bytes(allocated, bits)
    });
    layers.sum()
}

/// Returns the memory of one prefill step at the end of a context of `context_tokens`, with a cache
/// of `bits`. Layers run one after the other, so only the largest scores count.
pub fn activation_bytes(dimensions: &ModelDimensions, context_tokens: u32, bits: KvBits) -> Bytes {
    let scores = |attention: &Attention| score_bytes(attention, context_tokens, bits);
    let largest = dimensions
        .layers
        .iter()
        .map(|layer| scores(&layer.attention))
        .max();
    let hidden = u64::from(dimensions.hidden);
    Bytes(ACTIVATION_BYTES_PER_ELEMENT) * PREFILL_STEP_TOKENS * hidden + largest.unwrap_or(Bytes::ZERO)
}

/// Returns the bytes of a layer's scores in a prefill step. Quantised caches have no fused kernel.
fn score_bytes(attention: &Attention, context_tokens: u32, bits: KvBits) -> Bytes {
    match *attention {
        Attention::Grouped {
            heads,
            head_dim,
            window,
            ..
        } if bits.0 < KvBits::HALF.0 || !FUSED_HEAD_DIMS.contains(&head_dim) => {
            let step = PREFILL_STEP_TOKENS.min(u64::from(context_tokens));
            let reach = window.map_or(u64::MAX, |window| u64::from(window) + step);
            let keys = reach.min(u64::from(context_tokens));
            let of_token = Bytes(SCORE_BYTES) * u64::from(heads) * keys;
            (of_token * step).min(of_token.max(Bytes(SCORES_BYTES)))
        }
        // Latent attention has no fused kernel in mlx-lm, which does not split the step.
        Attention::Latent { heads, .. } => {
            let step = PREFILL_STEP_TOKENS.min(u64::from(context_tokens));
            Bytes(LATENT_SCORE_BYTES) * u64::from(heads) * step * u64::from(context_tokens)
        }
        // Gated delta layers compute no scores.
        Attention::Grouped { .. } | Attention::GatedDelta { .. } => Bytes::ZERO,
    }
}

/// Returns the number of tokens whose scores over `keys` keys may be in memory at the same time.
pub fn scored_at_once(heads: u64, keys: u64) -> u64 {
    let row = heads.saturating_mul(keys).saturating_mul(SCORE_BYTES);
    (SCORES_BYTES / row.max(1)).max(1)
}

/// Memory reserved for a replica, by purpose. `Display` shows all summands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    pub weights: Bytes,
    pub kv_cache: Bytes,
    pub activations: Bytes,
    pub runtime: Bytes,
    demand: Demand,
}

impl Reservation {
    /// Returns the maximum memory of serving `demand` with this model.
    pub fn new(model: &ServedModel, demand: Demand) -> Self {
        Self {
            weights: model.cost.weights.resident(),
            kv_cache: model.kv_bytes(demand),
            activations: activation_bytes(&model.cost.dimensions, demand.context_tokens, model.kv_bits),
            runtime: RUNTIME_OVERHEAD,
            demand,
        }
    }

    pub fn total(&self) -> Bytes {
        self.weights + self.kv_cache + self.activations + self.runtime
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (weights {} + KV cache {} for {} streams of {} tokens + activations {} + runtime {})",
            self.total(),
            self.weights,
            self.kv_cache,
            self.demand.max_concurrency,
            self.demand.context_tokens,
            self.activations,
            self.runtime
        )
    }
}

/// Returns the largest number in `first..=last` that satisfies `holds`. If `holds` is false for a
/// number, it must be false for all larger numbers.
pub fn largest_where(first: u32, last: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    if first > last || !holds(first) {
        return None;
    }
    let (mut low, mut high) = (u64::from(first), u64::from(last) + 1);
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        if holds(u32::try_from(middle).expect("the middle of two 32-bit numbers has 32 bits")) {
            low = middle;
        } else {
            high = middle;
        }
    }
    u32::try_from(low).ok()
}

/// Returns the memory that models may use on a machine with `total` memory. `working_set` is the
/// limit that the GPU reports, if available.
pub fn allocatable(total: Bytes, working_set: Option<Bytes>) -> Bytes {
    let percent = if total >= LARGE_MACHINE {
        WORKING_SET_PERCENT_LARGE
    } else {
        WORKING_SET_PERCENT_SMALL
    };
    let limit = working_set.unwrap_or(share(total, percent)).min(total);
    share(limit, 100 - HEADROOM_PERCENT)
}

fn share(Bytes(bytes): Bytes, percent: u64) -> Bytes {
    Bytes(bytes / 100 * percent + bytes % 100 * percent / 100)
}

/// Memory of a node at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// Memory that models may use; see [`allocatable`].
    pub allocatable: Bytes,
    /// Memory that is available to a new program now.
    pub available: Bytes,
}

/// Memory of one replica on the node, from admission until its worker has exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub reserved: Bytes,
    /// Part of `reserved` that the worker already uses and that `available` therefore excludes. 0
    /// if unknown, which is the safe assumption.
    pub resident: Bytes,
}

/// Reason why a replica cannot load now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryRefusal {
    #[error("it needs {requested}, and models may use {allocatable} of this node")]
    NeverFits { requested: Bytes, allocatable: Bytes },
    #[error("it needs {requested}, and {free} of {allocatable} are not reserved by other replicas")]
    Reserved {
        requested: Bytes,
        free: Bytes,
        allocatable: Bytes,
    },
    #[error("it needs {requested}, and only {free} are available now because other programs use the rest")]
    NotFreeNow { requested: Bytes, free: Bytes },
}

impl MemoryRefusal {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NeverFits { .. } => "ExceedsNodeMemory",
            Self::Reserved { .. } => "InsufficientMemory",
            Self::NotFreeNow { .. } => "MemoryInUse",
        }
    }
}

/// Checks whether `requested` fits beside the memory of the other replicas: against the limit of
/// the node, and against the available memory after every replica has reached its reservation.
pub fn admit(
    node: NodeMemory,
    held: impl IntoIterator<Item = Held>,
    requested: Bytes,
) -> Result<(), MemoryRefusal> {
    let (mut reserved, mut pending) = (Bytes::ZERO, Bytes::ZERO);
    for replica in held {
        reserved += replica.reserved;
        pending += replica.reserved - replica.resident;
    }
    let NodeMemory {
        allocatable,
        available,
    } = node;
    if requested > allocatable {
        return Err(MemoryRefusal::NeverFits {
            requested,
            allocatable,
        });
    }
    let free = allocatable - reserved;
    if requested > free {
        return Err(MemoryRefusal::Reserved {
            requested,
            free,
            allocatable,
        });
    }
    let free = available - pending;
    if requested > free {
        return Err(MemoryRefusal::NotFreeNow { requested, free });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use rooflet_model::shapes::ShapeFile;
    use rooflet_model::weights::Weights;

    proptest! {
        /// For every chunk that the engine processes, a step has no more scores than the
        /// reservation includes.
        #[test]
        fn reservation_covers_the_scores_of_every_chunk(
            heads in 1..200_u32, context in 1..2_000_000_u32, step in 1..2049_u64, keys in 1..2_000_000_u64,
            window in proptest::option::of(1..5000_u32),
        ) {
            let attention = Attention::Grouped {
                heads, kv_heads: 1, head_dim: 256, window,
                output_gate: false, keys_are_values: false, shares_cache: false,
            };
            let step = step.min(u64::from(context));
            let reach = window.map_or(u64::MAX, |window| u64::from(window) + step - 1);
            let keys = keys.min(u64::from(context)).min(reach);
            let at_once = scored_at_once(u64::from(heads), keys).min(step);
            let row = SCORE_BYTES * u64::from(heads) * keys;
            let counted = score_bytes(&attention, context, KvBits::HALF);
            prop_assert!(row * at_once <= counted.0, "{} of {counted}", row * at_once);
        }
    }

    #[test]
    fn scores_need_memory_without_a_fused_kernel() {
        let of = |head_dim: u32, bits: u32| {
            let mut model = ServedModel::of_size(Bytes::ZERO, 4);
            model.cost.dimensions.layers[0].attention = Attention::Grouped {
                heads: 16,
                kv_heads: 8,
                head_dim,
                window: None,
                output_gate: false,
                keys_are_values: false,
                shares_cache: false,
            };
            activation_bytes(&model.cost.dimensions, 131_072, KvBits::new(bits))
        };
        for fused in [64, 72, 80, 96, 128] {
            assert_eq!(of(fused, 16), Bytes::ZERO);
        }
        assert_eq!(of(256, 16), Bytes(SCORES_BYTES));
        assert_eq!(of(128, 8), Bytes(SCORES_BYTES));
    }

    /// mlx-lm reported peaks of 16.90 and 23.82 GB for prompts of 11 and 21,672 tokens
    /// (itsmostafa/inference-speed-tests, M4 Max and M5 Max).
    #[test]
    fn latent_attention_needs_memory_for_scores() {
        let shapes = ShapeFile::parse(include_str!("../../model/src/shapes.json")).unwrap();
        let dimensions = shapes.dimensions("glm-4.7-flash").unwrap();
        let bits = KvBits::HALF;
        let prompt = cache_bytes(&dimensions, 21_672, bits) + activation_bytes(&dimensions, 21_672, bits);
        let share = prompt.0 as f64 / (23.82e9 - 16.90e9);
        assert!((share - 1.0).abs() < 0.05, "{share}");
    }

    /// Qwen3-8B in 4 bits with groups of 64: 36 layers, 8 KV heads of 128, half precision.
    fn qwen3_8b() -> ServedModel {
        let shapes = r#"{"qwen3-8b": {"L": 36, "V": 151936, "d": 4096, "ff": 12288, "hd": 128, "mats": 3, "nh": 32, "nkv": 8, "tied": 0}}"#;
        let dimensions = ShapeFile::parse(shapes).unwrap().dimensions("qwen3-8b").unwrap();
        let weights = Weights {
            every_step: Bytes(4_260_000_000),
            idle: Bytes(350_000_000),
            ..Weights::default()
        };
        ServedModel {
            cost: ModelCost { dimensions, weights },
            kv_bits: KvBits::HALF,
        }
    }

    #[test]
    fn reservation_is_the_sum_of_its_parts() {
        let demand = Demand {
            context_tokens: 16_384,
            max_concurrency: 4,
        };
        let reservation = Reservation::new(&qwen3_8b(), demand);
        assert_eq!(reservation.kv_cache, Bytes(147_456 * 16_384 * 4));
        assert_eq!(reservation.activations, Bytes(40 * 2048 * 4096));
        assert_eq!(
            reservation.total(),
            Bytes(4_610_000_000 + 9_663_676_416 + 335_544_320 + 500_000_000)
        );
        assert_eq!(
            reservation.to_string(),
            "14.1 GiB (weights 4.3 GiB + KV cache 9.0 GiB for 4 streams of 16384 tokens + activations 320.0 MiB + runtime 476.8 MiB)"
        );
    }

    #[test]
    fn cache_grows_in_whole_steps() {
        let of = |tokens| cache_bytes(&qwen3_8b().cost.dimensions, tokens, KvBits::HALF);
        assert_eq!(of(0), Bytes::ZERO);
        assert_eq!(of(1), Bytes(147_456 * 256));
        assert_eq!(of(256), of(1));
        assert_eq!(of(1000), Bytes(147_456 * 1024));
        assert_eq!(of(u32::MAX), Bytes(147_456 * u64::from(u32::MAX)), "no overflow");
    }

    #[test]
    fn window_is_rounded_up_by_a_step() {
        let mut dimensions = qwen3_8b().cost.dimensions;
        for layer in &mut dimensions.layers {
            if let Attention::Grouped { window, .. } = &mut layer.attention {
                *window = Some(128);
            }
        }
        let of = |tokens| cache_bytes(&dimensions, tokens, KvBits::HALF);
        assert_eq!(of(100), Bytes(147_456 * 256));
        assert_eq!(of(100_000), Bytes(147_456 * 512));
    }

    #[test]
    fn uses_the_lowest_observed_share_without_a_gpu_limit() {
        // Metal's limit of a 64 GB machine is 81 % of its memory, of which 5 % stay free.
        assert_eq!(allocatable(Bytes(64_000), Some(Bytes(51_840))), Bytes(49_248));
        assert_eq!(allocatable(Bytes::gib(16), None), Bytes(10_771_777_977));
        assert!(allocatable(Bytes::gib(32), None) > Bytes::gib(22));
        assert_eq!(
            allocatable(Bytes(1000), Some(Bytes(5000))),
            Bytes(950),
            "at most the total memory"
        );
    }

    #[test]
    fn reserved_memory_that_is_not_used_yet_is_not_free() {
        let node = NodeMemory {
            allocatable: Bytes(100),
            available: Bytes(60),
        };
        let loading = Held {
            reserved: Bytes(40),
            resident: Bytes(10),
        };
        assert_eq!(admit(node, [loading], Bytes(30)), Ok(()));
        assert_eq!(
            admit(node, [loading], Bytes(31)),
            Err(MemoryRefusal::NotFreeNow {
                requested: Bytes(31),
                free: Bytes(30)
            })
        );
        assert_eq!(
            admit(node, [loading], Bytes(61)).map_err(|refusal| refusal.reason()),
            Err("InsufficientMemory")
        );
        assert_eq!(
            admit(node, [], Bytes(101)).map_err(|refusal| refusal.reason()),
            Err("ExceedsNodeMemory")
        );
    }

    proptest! {
        #[test]
        fn replicas_admitted_one_by_one_fit_together(
            allocatable in 0u64..1000,
            requests in proptest::collection::vec((0u64..400, 0u64..400), 0..20),
        ) {
            let mut held: Vec<Held> = Vec::new();
            for (requested, resident) in requests {
                let resident = resident.min(requested);
                let used: u64 = held.iter().map(|held| held.resident.0).sum();
                let node = NodeMemory { allocatable: Bytes(allocatable), available: Bytes(1000 - used.min(1000)) };
                if admit(node, held.iter().copied(), Bytes(requested)).is_ok() {
                    held.push(Held { reserved: Bytes(requested), resident: Bytes(resident) });
                }
            }
            prop_assert!(held.iter().map(|held| held.reserved.0).sum::<u64>() <= allocatable);
        }

        #[test]
        fn longest_context_fits_and_one_more_token_does_not(
            concurrency in 1u32..64, budget_gib in 1u64..200, longest in 1u32..1_000_000,
        ) {
            let model = qwen3_8b();
            let budget = Bytes::gib(budget_gib);
            let total = |context_tokens| {
                Reservation::new(&model, Demand { context_tokens, max_concurrency: concurrency }).total()
            };
            match largest_where(1, longest, |tokens| total(tokens) <= budget) {
                Some(tokens) => {
                    prop_assert!(total(tokens) <= budget);
                    prop_assert!(tokens == longest || total(tokens + 1) > budget);
                }
                None => prop_assert!(total(1) > budget),
            }
        }
    }
}
