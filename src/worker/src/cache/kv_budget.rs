//! KV budget: memory for the caches of all requests, and the size of one request's cache.

use rooflet_base::units::Bytes;
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::FloatType;
use rooflet_model::dimensions::ModelDimensions;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::memory::{
    CACHE_STEP_TOKENS, RUNTIME_OVERHEAD, activation_bytes, cache_bytes, largest_where,
};
use rooflet_roofline::predict::ModelCost;

/// Memory for the KV caches of all requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KvBudget {
    bytes: Bytes,
    dimensions: ModelDimensions,
    bits: KvBits,
}

/// Error for a model that leaves too little memory for a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model needs {model} with its intermediate results and the worker may use {limit}, which leaves too \
     little memory for the KV cache of one request"
)]
pub struct InsufficientMemory {
    model: Bytes,
    limit: Bytes,
}

impl KvBudget {
    /// Computes the budget: `limit` minus the weights with floats of type `element`, the
    /// intermediate results of one step at this context length, and the runtime. Caches have `bits`
    /// per element.
    pub(crate) fn new(
        limit: Bytes,
        shape: &ModelShape,
        element: FloatType,
        bits: KvBits,
        context_tokens: u32,
    ) -> Result<Self, InsufficientMemory> {
        let ModelCost { dimensions, weights } = ModelCost::of_checkpoint(shape, element);
        let activations = activation_bytes(&dimensions, context_tokens, bits);
        let model = weights.resident() + activations + RUNTIME_OVERHEAD;
        Self::from_model_bytes(model, limit, dimensions, bits)
    }

    fn from_model_bytes(
        model: Bytes,
        limit: Bytes,
        dimensions: ModelDimensions,
        bits: KvBits,
    ) -> Result<Self, InsufficientMemory> {
        let budget = Self {
            // Saturating: a model larger than the limit leaves nothing.
            bytes: limit - model,
            dimensions,
            bits,
        };
        if budget.longest_request() == 0 {
            return Err(InsufficientMemory { model, limit });
        }
        Ok(budget)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Returns the maximum size of the cache of a request whose prompt and answer have `tokens`
    /// tokens together.
    pub(crate) fn request_bytes(&self, tokens: usize) -> u64 {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        cache_bytes(&self.dimensions, tokens, self.bits).0
    }

    /// Returns the length in tokens of the longest request that fits when no other request runs.
    pub(crate) fn longest_request(&self) -> u32 {
        let fits = |steps| cache_bytes(&self.dimensions, steps * CACHE_STEP_TOKENS, self.bits) <= self.bytes;
        largest_where(1, u32::MAX / CACHE_STEP_TOKENS, fits).map_or(0, |steps| steps * CACHE_STEP_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;
    use proptest::prelude::*;

    use super::*;
    use rooflet_artifact::model_dir::ModelDir;
    use rooflet_roofline::memory::{Demand, Reservation, ServedModel};

    fn from_model_bytes(
        model: Bytes,
        limit: Bytes,
        kv_per_token: u32,
    ) -> Result<KvBudget, InsufficientMemory> {
        let ServedModel { cost, kv_bits } = ServedModel::of_size(Bytes::ZERO, kv_per_token);
        KvBudget::from_model_bytes(model, limit, cost.dimensions, kv_bits)
    }

    proptest! {
        #[test]
        fn longest_request_fits_and_a_longer_one_does_not(
            room in 0..10_000_000_u64, per_token in 1..1250_u32,
        ) {
            let per_token = 4 * per_token;
            let Ok(budget) = from_model_bytes(Bytes(700), Bytes(700 + room), per_token) else {
                prop_assert!(room < 256 * u64::from(per_token));
                return Ok(());
            };
            let longest = usize::try_from(budget.longest_request()).unwrap();
            prop_assert!(budget.request_bytes(longest) <= room);
            prop_assert!(budget.request_bytes(longest + 1) > room);
            prop_assert!(budget.request_bytes(1) > 0);
        }

        #[test]
        fn budget_equals_the_reservation(context in 1..2048_u32, streams in 1..9_u32) {
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
    fn rejects_a_model_that_fills_the_limit() {
        let err = from_model_bytes(Bytes::gib(3), Bytes::gib(2), 1000).unwrap_err();
        assert_eq!(
            err.to_string(),
            "the model needs 3.0 GiB with its intermediate results and the worker may use 2.0 GiB, which leaves \
             too little memory for the KV cache of one request"
        );
    }
}
