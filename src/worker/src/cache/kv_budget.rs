//! How much memory the caches of all requests may take together, and how much one request may come
//! to.

use rooflet_base::units::Bytes;
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::FloatType;
use rooflet_model::dimensions::ModelDimensions;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::memory::{
    CACHE_STEP_TOKENS, RUNTIME_OVERHEAD, activation_bytes, cache_bytes, last_that,
};
use rooflet_roofline::predict::ModelCost;

/// See the module's text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KvBudget {
    bytes: Bytes,
    dimensions: ModelDimensions,
    bits: KvBits,
}

/// The model leaves no room for a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model takes {model} with its intermediate results, of {limit} that the worker may use, which leaves too little \
     for the cache of one request"
)]
pub struct NoRoom {
    model: Bytes,
    limit: Bytes,
}

impl KvBudget {
    /// What `limit` leaves beside the weights in `element`s, the intermediate results of one step
    /// of so long a context, and the runtime, for caches of so many `bits`.
    pub(crate) fn new(
        limit: Bytes,
        shape: &ModelShape,
        element: FloatType,
        bits: KvBits,
        context_tokens: u32,
    ) -> Result<Self, NoRoom> {
        let ModelCost { dimensions, weights } = ModelCost::of_checkpoint(shape, element);
        let activations = activation_bytes(&dimensions, context_tokens, bits);
        let model = weights.resident() + activations + RUNTIME_OVERHEAD;
        Self::beside(model, limit, dimensions, bits)
    }

    fn beside(model: Bytes, limit: Bytes, dimensions: ModelDimensions, bits: KvBits) -> Result<Self, NoRoom> {
        let budget = Self {
            // Saturating: a model larger than the limit leaves nothing.
            bytes: limit - model,
            dimensions,
            bits,
        };
        if budget.longest_request() == 0 {
            return Err(NoRoom { model, limit });
        }
        Ok(budget)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The most that the cache of a request takes whose prompt and answer have `tokens` together.
    pub(crate) fn request_bytes(&self, tokens: usize) -> u64 {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        cache_bytes(&self.dimensions, tokens, self.bits).0
    }

    /// The longest request that fits when nothing else runs, in tokens.
    pub(crate) fn longest_request(&self) -> u32 {
        let fits = |steps| cache_bytes(&self.dimensions, steps * CACHE_STEP_TOKENS, self.bits) <= self.bytes;
        last_that(1, u32::MAX / CACHE_STEP_TOKENS, fits).map_or(0, |steps| steps * CACHE_STEP_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;
    use proptest::prelude::*;

    use super::*;
    use rooflet_artifact::model_dir::ModelDir;
    use rooflet_roofline::memory::{Demand, Reservation, ServedModel};

    fn beside(model: Bytes, limit: Bytes, kv_per_token: u32) -> Result<KvBudget, NoRoom> {
        let ServedModel { cost, kv_bits } = ServedModel::of_size(Bytes::ZERO, kv_per_token);
        KvBudget::beside(model, limit, cost.dimensions, kv_bits)
    }

    proptest! {
        #[test]
        fn the_longest_request_fits_and_a_longer_one_does_not(
            room in 0..10_000_000_u64, per_token in 1..1250_u32,
        ) {
            let per_token = 4 * per_token;
            let Ok(budget) = beside(Bytes(700), Bytes(700 + room), per_token) else {
                prop_assert!(room < 256 * u64::from(per_token));
                return Ok(());
            };
            let longest = usize::try_from(budget.longest_request()).unwrap();
            prop_assert!(budget.request_bytes(longest) <= room);
            prop_assert!(budget.request_bytes(longest + 1) > room);
            prop_assert!(budget.request_bytes(1) > 0);
        }

        #[test]
        fn a_worker_can_serve_what_was_reserved_for_it(context in 1..2048_u32, streams in 1..9_u32) {
            let path = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("e2e/fixtures/models/qwen3");
            let shape = ModelDir::inspect(&path).unwrap().shape;
            for element in [FloatType::F32, FloatType::BF16] {
                let served = ServedModel {
                    cost: ModelCost::of_checkpoint(&shape, element),
                    kv_bits: KvBits::new(8 * element.bytes() as u32),
                };
                let demand = Demand { context_tokens: context, max_concurrency: streams };
                let limit = Reservation::new(&served, demand).total();
                let budget = KvBudget::new(limit, &shape, element, served.kv_bits, context).unwrap();
                let all = u64::from(streams) * budget.request_bytes(context as usize);
                prop_assert_eq!(budget.bytes(), Bytes(all));
            }
        }
    }

    #[test]
    fn a_model_that_fills_the_limit_is_told() {
        let err = beside(Bytes::gib(3), Bytes::gib(2), 1000).unwrap_err();
        assert_eq!(
            err.to_string(),
            "the model takes 3.0 GiB with its intermediate results, of 2.0 GiB that the worker may use, which leaves too \
             little for the cache of one request"
        );
    }
}
