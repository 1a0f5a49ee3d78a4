//! How much memory the caches of all requests may take together, and how much one request may come to.

use super::models::CACHE_STEP_TOKENS;
use crate::roofline::checkpoint::ModelShape;
use crate::roofline::memory::{RUNTIME_OVERHEAD, activation_bytes};
use crate::roofline::model::FloatType;
use crate::units::Bytes;

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvBudget {
    bytes: Bytes,
    bytes_per_token: u64,
}

/// The model leaves no room for a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model takes {model} with its intermediate results, of {limit} that the worker may use, which leaves too little \
     for the cache of one request"
)]
pub(crate) struct NoRoom {
    model: Bytes,
    limit: Bytes,
}

impl KvBudget {
    /// What `limit` leaves beside the weights in `element`s, the intermediate results of one step, and the runtime.
    pub(crate) fn new(limit: Bytes, shape: &ModelShape, element: FloatType) -> Result<Self, NoRoom> {
        let model = Bytes(shape.resident_bytes(element))
            + activation_bytes(shape.config.hidden_size)
            + RUNTIME_OVERHEAD;
        Self::beside(model, limit, shape.config.kv_bytes_per_token(element))
    }

    fn beside(model: Bytes, limit: Bytes, bytes_per_token: u64) -> Result<Self, NoRoom> {
        let budget = Self {
            // Saturating: a model larger than the limit leaves nothing.
            bytes: limit - model,
            bytes_per_token,
        };
        if budget.longest_request() == 0 {
            return Err(NoRoom { model, limit });
        }
        Ok(budget)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The most that the cache of a request takes whose prompt and answer have `tokens` together: caches grow in
    /// steps.
    pub(crate) fn request_bytes(&self, tokens: usize) -> u64 {
        let tokens = (tokens as u64).next_multiple_of(CACHE_STEP_TOKENS);
        tokens.saturating_mul(self.bytes_per_token)
    }

    /// The longest request that fits when nothing else runs, in tokens.
    pub(crate) fn longest_request(&self) -> u64 {
        self.bytes.0 / self.bytes_per_token.max(1) / CACHE_STEP_TOKENS * CACHE_STEP_TOKENS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_longest_request_fits_and_a_longer_one_does_not(
            room in 0..10_000_000_u64, per_token in 1..5000_u64,
        ) {
            let budget = KvBudget::beside(Bytes(700), Bytes(700 + room), per_token);
            let Ok(budget) = budget else {
                prop_assert!(room < 256 * per_token);
                return Ok(());
            };
            let longest = usize::try_from(budget.longest_request()).unwrap();
            prop_assert!(budget.request_bytes(longest) <= room);
            prop_assert!(budget.request_bytes(longest + 1) > room);
            prop_assert!(budget.request_bytes(1) > 0);
        }
    }

    #[test]
    fn a_model_that_fills_the_limit_is_told() {
        let err = KvBudget::beside(Bytes::gib(3), Bytes::gib(2), 1000).unwrap_err();
        assert_eq!(
            err.to_string(),
            "the model takes 3.0 GiB with its intermediate results, of 2.0 GiB that the worker may use, which leaves too \
             little for the cache of one request"
        );
    }
}
