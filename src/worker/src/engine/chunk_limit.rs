//! Size limit of prompt chunks. The driver of a Mac's GPU stops commands that keep the display from
//! being drawn, so a chunk must be short there. The module is pure.

use std::time::Duration;

use super::schedule::{MAX_CHUNK_TOKENS, MIN_CHUNK_TOKENS, Pace};
use rooflet_mlx::backend::Backend;

/// Longest time of a chunk on Metal. A chunk consists of many commands, so each is shorter.
const LONGEST_CHUNK: Duration = Duration::from_secs(1);
/// Chunk size on Metal until the speed is known.
const FIRST_CHUNK_TOKENS: usize = 512;
/// Reduction after the driver stopped a chunk.
const REDUCTION: usize = 4;

/// Size limit of the chunks of one engine.
#[derive(Debug)]
pub(super) struct ChunkLimit {
    is_timed: bool,
    tokens: usize,
}

impl ChunkLimit {
    pub(super) fn new(backend: Backend) -> Self {
        Self {
            is_timed: backend == Backend::Metal,
            tokens: MAX_CHUNK_TOKENS,
        }
    }

    /// Returns the maximum number of tokens of the next chunk.
    pub(super) fn tokens(&self, pace: Pace) -> usize {
        let by_time = match pace.prefill_tokens_per_second {
            Some(rate) if self.is_timed => (rate * LONGEST_CHUNK.as_secs_f64()) as usize,
            None if self.is_timed => FIRST_CHUNK_TOKENS,
            Some(_) | None => MAX_CHUNK_TOKENS,
        };
        by_time.clamp(MIN_CHUNK_TOKENS, self.tokens)
    }

    /// Returns true if the driver may stop a pass over this many tokens. The shortest chunks are hardly longer than
    /// decode steps.
    pub(super) fn may_stop(&self, pass_tokens: usize) -> bool {
        self.is_timed && pass_tokens > MIN_CHUNK_TOKENS
    }

    /// Reduces the limit after the driver stopped a chunk, until the worker ends.
    pub(super) fn reduce(&mut self) {
        self.tokens = (self.tokens / REDUCTION).max(MIN_CHUNK_TOKENS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rate: Option<f64>) -> Pace {
        Pace {
            prefill_tokens_per_second: rate,
            ..Pace::default()
        }
    }

    #[test]
    fn chunks_on_metal_take_at_most_a_second() {
        let limit = ChunkLimit::new(Backend::Metal);
        let tokens = [None, Some(1.0), Some(150.0), Some(1e6)].map(|rate| limit.tokens(at(rate)));
        assert_eq!(
            tokens,
            [FIRST_CHUNK_TOKENS, MIN_CHUNK_TOKENS, 150, MAX_CHUNK_TOKENS]
        );
        let limit = ChunkLimit::new(Backend::Cpu);
        let tokens = [None, Some(1.0)].map(|rate| limit.tokens(at(rate)));
        assert_eq!(tokens, [MAX_CHUNK_TOKENS; 2]);
    }

    #[test]
    fn long_passes_on_metal_may_stop() {
        let limit = ChunkLimit::new(Backend::Metal);
        assert!(limit.may_stop(MIN_CHUNK_TOKENS + 1) && !limit.may_stop(MIN_CHUNK_TOKENS));
        assert!(!ChunkLimit::new(Backend::Cpu).may_stop(MAX_CHUNK_TOKENS));
    }

    #[test]
    fn stopped_chunks_reduce_the_limit() {
        let mut limit = ChunkLimit::new(Backend::Metal);
        limit.reduce();
        assert_eq!(limit.tokens(at(Some(1e6))), MAX_CHUNK_TOKENS / 4);
        (0..9).for_each(|_| limit.reduce());
        assert_eq!(limit.tokens(at(Some(1e6))), MIN_CHUNK_TOKENS);
    }
}
