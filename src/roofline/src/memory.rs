//! How much memory a replica needs and how much a node may give. Pure; the scheduler places by it,
//! the agent admits by it once more with live numbers.
//!
//! A replica's reservation is the most it can ever hold: weights, the KV cache of every stream at
//! full context, one prefill step's intermediate results, and the runtime. A node never promises
//! more than [`allocatable`], and what it promised counts until the worker is gone.

use std::fmt;

use crate::predict::ModelCost;
use rooflet_base::units::Bytes;
use rooflet_model::dimensions::{Attention, ModelDimensions};
use rooflet_model::kv_cache::KvBits;

/// Held by a worker before it has loaded anything: the engine's context, compiled kernels,
/// tokenizer, HTTP.
pub const RUNTIME_OVERHEAD: Bytes = Bytes(500_000_000);

/// Intermediate results of one prefill step, per token and hidden dimension; about so many. The
/// rows of logits that are kept (one per stream) are below the headroom.
pub(crate) const ACTIVATION_BYTES_PER_ELEMENT: u64 = 40;

/// The most tokens that the engine prefills in one step.
pub const PREFILL_STEP_TOKENS: u64 = 2048;

/// Scores that attention has in memory at a time where no kernel fuses them with what follows. A
/// whole step against a long cache would have gigabytes of them; the engine computes so many tokens
/// at a time that there are no more, unless a single token has.
const SCORES_BYTES: u64 = 256 << 20;

/// Of one score: float32, or 16 bits and once more after the mask or the softmax.
const SCORE_BYTES: u64 = 4;

/// Elements of a head for which MLX has a fused kernel for many tokens on Metal:
/// `sdpa_full_supported_head_dim` in mlx/backend/metal/scaled_dot_product_attention.cpp of MLX
/// 0.32.2.
pub const FUSED_HEAD_DIMS: [u32; 5] = [64, 72, 80, 96, 128];

/// The engine's caches grow in steps of so many tokens.
pub const CACHE_STEP_TOKENS: u32 = 256;

/// Kept free below the working-set limit, in percent: a model that comes close to it can collapse
/// to a twentieth of its speed.
const HEADROOM_PERCENT: u64 = 5;

/// The share of all memory that Metal recommends as the largest working set, in percent, where it
/// could not be asked: the lowest seen on machines below 32 GB (67 %) and from there on (78 %,
/// rounded down).
const WORKING_SET_PERCENT_SMALL: u64 = 66;
const WORKING_SET_PERCENT_LARGE: u64 = 75;
/// From this size on a machine counts as large. A 32 GB machine reports slightly less on some
/// systems.
const LARGE_MACHINE: Bytes = Bytes::gib(31);

/// A model as the engine holds it; from its files, or from `FleetNode.status.models`.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedModel {
    pub cost: ModelCost,
    /// Of one element of the KV cache.
    pub kv_bits: KvBits,
}

impl ServedModel {
    /// KV caches of every stream at full context.
    fn kv_bytes(&self, demand: Demand) -> Bytes {
        cache_bytes(&self.cost.dimensions, demand.context_tokens, self.kv_bits)
            * u64::from(demand.max_concurrency)
    }
}

/// How a model is to be served, as far as memory depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Tokens one request may have, prompt and answer together.
    pub context_tokens: u32,
    /// Requests served at the same time.
    pub max_concurrency: u32,
}

impl ServedModel {
    /// A model of these weights and cache alone, for tests that are about memory. `kv_per_token` is
    /// a multiple of 4.
    pub fn of_size(weights: Bytes, kv_per_token: u32) -> Self {
        use rooflet_model::dimensions::{Attention, FeedForward, Layer, ModelDimensions};
        let layer = Layer {
            attention: Attention::Grouped {
                // Without scores.
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

/// What the cache of one sequence takes that holds `tokens`: the last step is there as a whole, and
/// what has left a window is dropped only when a step of it has.
pub fn cache_bytes(dimensions: &ModelDimensions, tokens: u32, bits: KvBits) -> Bytes {
    let steps = tokens.div_ceil(CACHE_STEP_TOKENS);
    let held = steps.saturating_mul(CACHE_STEP_TOKENS);
    let layers = dimensions.layers.iter().map(|layer| {
        let mut attention = layer.attention;
        // The state before the last step is kept, too.
        if let Attention::GatedDelta { .. } = attention {
            return attention.kv_bytes(held, bits) * 2;
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
        attention.kv_bytes(held, bits)
    });
    layers.sum()
}

/// Memory of one prefill step at the end of so long a context, whose cache has so many bits: layers
/// follow one another, so the largest scores of one count.
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

/// What a prefill step has in memory of a layer's scores. Quantised caches have no fused kernel.
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
        // The latter two are not computed by way of scores.
        Attention::Grouped { .. } | Attention::Latent { .. } | Attention::GatedDelta { .. } => Bytes::ZERO,
    }
}

/// Tokens whose scores against so many keys may be in memory at a time.
pub fn scored_at_once(heads: u64, keys: u64) -> u64 {
    let row = heads.saturating_mul(keys).saturating_mul(SCORE_BYTES);
    (SCORES_BYTES / row.max(1)).max(1)
}

/// Memory kept for one replica, by what it is for. `Display` shows the working.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    pub weights: Bytes,
    pub kv_cache: Bytes,
    pub activations: Bytes,
    pub runtime: Bytes,
    demand: Demand,
}

impl Reservation {
    /// What serving `demand` with this model can need at most.
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

/// The largest number of `first..=last` for which `holds`, which must not hold again once it has
/// failed.
pub fn last_that(first: u32, last: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    if first > last || !holds(first) {
        return None;
    }
    let (mut yes, mut no) = (u64::from(first), u64::from(last) + 1);
    while no - yes > 1 {
        let middle = u64::midpoint(yes, no);
        if holds(u32::try_from(middle).expect("between two 32-bit numbers")) {
            yes = middle;
        } else {
            no = middle;
        }
    }
    u32::try_from(yes).ok()
}

/// What models may use of a machine with `total` memory. `working_set` is the GPU's own limit,
/// where it could be asked.
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

/// A node's memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// What models may use; see [`allocatable`].
    pub allocatable: Bytes,
    /// What a new program could have right now.
    pub available: Bytes,
}

/// Memory one replica on the node holds or was promised, from admission until its worker is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub reserved: Bytes,
    /// Of that, what the worker already has and `available` therefore no longer contains. Zero
    /// where unknown, which errs on the safe side.
    pub resident: Bytes,
}

/// Why a replica may not load now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryRefusal {
    #[error("it needs {wanted}, and models may use {allocatable} of this node")]
    NeverFits { wanted: Bytes, allocatable: Bytes },
    #[error("it needs {wanted}, and {free} of {allocatable} are not reserved by other replicas")]
    Reserved {
        wanted: Bytes,
        free: Bytes,
        allocatable: Bytes,
    },
    #[error("it needs {wanted}, and other programs leave {free} free right now")]
    NotFreeNow { wanted: Bytes, free: Bytes },
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

/// Whether `wanted` fits beside what is held: against the node's limit, and against what is really
/// free once every replica has grown to its reservation.
pub fn admit(
    node: NodeMemory,
    held: impl IntoIterator<Item = Held>,
    wanted: Bytes,
) -> Result<(), MemoryRefusal> {
    let (mut reserved, mut still_to_come) = (Bytes::ZERO, Bytes::ZERO);
    for one in held {
        reserved += one.reserved;
        still_to_come += one.reserved - one.resident;
    }
    let NodeMemory {
        allocatable,
        available,
    } = node;
    if wanted > allocatable {
        return Err(MemoryRefusal::NeverFits { wanted, allocatable });
    }
    let free = allocatable - reserved;
    if wanted > free {
        return Err(MemoryRefusal::Reserved {
            wanted,
            free,
            allocatable,
        });
    }
    let free = available - still_to_come;
    if wanted > free {
        return Err(MemoryRefusal::NotFreeNow { wanted, free });
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
        /// Whatever the engine reads at a time, no step of a context has more scores than were
        /// counted.
        #[test]
        fn scores_are_counted(
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
    fn scores_count_where_no_kernel_fuses_them() {
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

    /// Qwen3-8B at 4 bits, group 64: 36 layers, 8 KV heads of 128, half precision.
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
    fn a_reservation_is_the_sum_of_its_parts() {
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
    fn a_cache_is_there_in_whole_steps() {
        let of = |tokens| cache_bytes(&qwen3_8b().cost.dimensions, tokens, KvBits::HALF);
        assert_eq!(of(0), Bytes::ZERO);
        assert_eq!(of(1), Bytes(147_456 * 256));
        assert_eq!(of(256), of(1));
        assert_eq!(of(1000), Bytes(147_456 * 1024));
        assert_eq!(of(u32::MAX), Bytes(147_456 * u64::from(u32::MAX)), "no overflow");
    }

    #[test]
    fn a_window_has_a_step_of_room() {
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
    fn without_a_gpu_limit_the_lowest_seen_share_counts() {
        // Metal's limit on a 64 GB machine is 81 % of it; 5 % of that stay free.
        assert_eq!(allocatable(Bytes(64_000), Some(Bytes(51_840))), Bytes(49_248));
        assert_eq!(allocatable(Bytes::gib(16), None), Bytes(10_771_777_977));
        assert!(allocatable(Bytes::gib(32), None) > Bytes::gib(22));
        assert_eq!(
            allocatable(Bytes(1000), Some(Bytes(5000))),
            Bytes(950),
            "never more than there is"
        );
    }

    #[test]
    fn memory_that_is_promised_but_not_taken_yet_is_not_free() {
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
                wanted: Bytes(31),
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
        fn whatever_is_admitted_one_by_one_fits_together(
            allocatable in 0u64..1000,
            wishes in proptest::collection::vec((0u64..400, 0u64..400), 0..20),
        ) {
            let mut held: Vec<Held> = Vec::new();
            for (wanted, resident) in wishes {
                let resident = resident.min(wanted);
                let taken: u64 = held.iter().map(|held| held.resident.0).sum();
                let node = NodeMemory { allocatable: Bytes(allocatable), available: Bytes(1000 - taken.min(1000)) };
                if admit(node, held.iter().copied(), Bytes(wanted)).is_ok() {
                    held.push(Held { reserved: Bytes(wanted), resident: Bytes(resident) });
                }
            }
            prop_assert!(held.iter().map(|held| held.reserved.0).sum::<u64>() <= allocatable);
        }

        #[test]
        fn the_longest_context_fits_and_one_token_more_does_not(
            concurrency in 1u32..64, budget_gib in 1u64..200, longest in 1u32..1_000_000,
        ) {
            let model = qwen3_8b();
            let budget = Bytes::gib(budget_gib);
            let total = |context_tokens| {
                Reservation::new(&model, Demand { context_tokens, max_concurrency: concurrency }).total()
            };
            match last_that(1, longest, |tokens| total(tokens) <= budget) {
                Some(tokens) => {
                    prop_assert!(total(tokens) <= budget);
                    prop_assert!(tokens == longest || total(tokens + 1) > budget);
                }
                None => prop_assert!(total(1) > budget),
            }
        }
    }
}
