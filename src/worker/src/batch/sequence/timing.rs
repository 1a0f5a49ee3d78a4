//! Timing of one request, for metrics and traces.

use std::time::{Duration, Instant};

use crate::batch::event::Durations;

/// Timing of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub submitted: Instant,
    /// Time in which the request waited until the model was loaded again.
    pub loading: Duration,
    /// Time at which the request left the queue.
    pub joined: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    /// Durations of the last token.
    pub token: TokenTime,
}

/// Durations of one token.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenTime {
    /// Time since the previous token; `None` for the first token.
    pub since_last: Option<Duration>,
    pub detokenizing: Duration,
}

impl Timing {
    pub(super) fn new(submitted: Instant, loading: Duration) -> Self {
        Self {
            submitted,
            loading,
            joined: None,
            first_token: None,
            last_token: None,
            token: TokenTime::default(),
        }
    }

    /// Returns the durations of a request that ends at `now`.
    pub(crate) fn durations(&self, now: Instant) -> Durations {
        let first_token = self.first_token.unwrap_or(now);
        Durations {
            loading: self.loading,
            prefill: first_token - self.joined.unwrap_or(first_token),
            decode: now - first_token,
        }
    }

    /// Records a token that was read at `at`.
    pub(super) fn token_read(&mut self, at: Instant) {
        self.first_token.get_or_insert(at);
        let before = self.last_token.replace(at);
        self.token = TokenTime {
            since_last: before.map(|before| at - before),
            detokenizing: Duration::ZERO,
        };
    }
}
