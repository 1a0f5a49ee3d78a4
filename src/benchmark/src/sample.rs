//! Measurement of a request by its client, and the problems that make its times unusable.

use serde::Serialize;

use super::matrix::{Cell, PromptState};

/// Tokens of a cold prompt that may be cached: the common start of every chat template.
const COMMON_PREFIX_TOKENS: u64 = 64;
/// Minimum share of a repeated prompt that must come from the cache.
const LEAST_CACHED: f64 = 0.5;

/// Minimum number of network reads for a decode speed. With fewer reads, their times do not show
/// the server's speed.
const LEAST_READS: u64 = 4;

/// Measured answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// `None` if the server does not report it.
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub completion_tokens: u64,
    /// True if the server reported no usage, so that stream chunks were counted.
    pub counted_pieces: bool,
    pub reasoning_tokens: u64,
    /// Number of network reads that contained text.
    pub reads: u64,
    /// Tokens that arrived with the first read.
    pub first_tokens: u64,
    /// `None` for an answer that is not streamed.
    pub time_to_first_token_seconds: Option<f64>,
    pub total_seconds: f64,
}

/// Conditions of the machine during a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Conditions {
    /// True if the machine was throttled.
    pub throttled: bool,
    pub on_battery: bool,
    /// Upper limit of tokens per second per stream, from the memory bandwidth. `None` if model or
    /// machine are unknown.
    pub ceiling: Option<f64>,
}

/// Reason why a run does not measure the requested condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Taint {
    /// Faster than memory bandwidth allows. The answer is excluded.
    Impossible,
    /// Part of the prompt was cached in the cold state.
    CacheHit,
    /// The prompt was not cached in another state.
    CacheMiss,
    /// The server does not report cached tokens.
    CacheUnknown,
    Reasoning,
    /// The answer has fewer tokens than requested.
    Short,
    CountedPieces,
    Throttled,
    OnBattery,
}

impl Taint {
    pub fn description(self) -> &'static str {
        match self {
            Self::Impossible => "faster than the memory bandwidth allows",
            Self::CacheHit => "prompt was cached in the cold state",
            Self::CacheMiss => "prompt was not cached although it was sent before",
            Self::CacheUnknown => "server does not report cached tokens",
            Self::Reasoning => "reasoning tokens in the answer",
            Self::Short => "answer has fewer tokens than requested",
            Self::CountedPieces => "server reported no usage: stream chunks were counted as tokens",
            Self::Throttled => "machine was hot or in low power mode",
            Self::OnBattery => "machine was on battery power",
        }
    }
}

impl Sample {
    /// Returns the tokens per second after the first token. Tokens that arrived together with the
    /// first are excluded.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        let decoding = self.total_seconds - self.time_to_first_token_seconds?;
        let decoded = self.completion_tokens.saturating_sub(self.first_tokens);
        let is_measurable = self.reads >= LEAST_READS && decoded > 0 && decoding > 0.0;
        is_measurable.then(|| decoded as f64 / decoding)
    }

    /// Taints of the sample for a cell, the requested tokens and the conditions of the run.
    pub(crate) fn taints(&self, cell: &Cell, tokens: u32, conditions: &Conditions) -> Vec<Taint> {
        let mut taints = Vec::new();
        let mut note = |found: bool, taint| {
            if found {
                taints.push(taint);
            }
        };
        let rate = self.decode_tokens_per_second();
        let impossible = rate
            .zip(conditions.ceiling)
            .is_some_and(|(rate, ceiling)| rate > ceiling);
        note(impossible, Taint::Impossible);
        match (cell.state, self.cached_tokens) {
            (PromptState::Cold, Some(cached)) => note(cached > COMMON_PREFIX_TOKENS, Taint::CacheHit),
            (PromptState::Cold, None) => {}
            (PromptState::Hot | PromptState::Warm | PromptState::Restart, None) => {
                note(true, Taint::CacheUnknown);
            }
            (PromptState::Hot | PromptState::Warm | PromptState::Restart, Some(cached)) => {
                let prompt = self.prompt_tokens.unwrap_or(0) as f64;
                note((cached as f64) < LEAST_CACHED * prompt, Taint::CacheMiss);
            }
        }
        note(self.reasoning_tokens > 0, Taint::Reasoning);
        note(self.completion_tokens < u64::from(tokens), Taint::Short);
        note(self.counted_pieces, Taint::CountedPieces);
        note(conditions.throttled, Taint::Throttled);
        note(conditions.on_battery, Taint::OnBattery);
        taints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            prompt_tokens: Some(1000),
            cached_tokens: Some(0),
            completion_tokens: 11,
            counted_pieces: false,
            reasoning_tokens: 0,
            reads: 11,
            first_tokens: 1,
            time_to_first_token_seconds: Some(0.5),
            total_seconds: 1.5,
        }
    }

    fn cell(state: PromptState) -> Cell {
        Cell {
            context_tokens: 1000,
            state,
            concurrency: 1,
            streaming: true,
        }
    }

    #[test]
    fn first_token_is_not_part_of_decoding() {
        assert_eq!(sample().decode_tokens_per_second(), Some(10.0));
        let whole = Sample {
            time_to_first_token_seconds: None,
            ..sample()
        };
        assert_eq!(whole.decode_tokens_per_second(), None);
        // A slow client receives several tokens in one read.
        let held_up = Sample {
            reads: 7,
            first_tokens: 5,
            ..sample()
        };
        assert_eq!(held_up.decode_tokens_per_second(), Some(6.0));
        let at_once = Sample {
            reads: 2,
            first_tokens: 10,
            total_seconds: 0.500_01,
            ..sample()
        };
        assert_eq!(at_once.decode_tokens_per_second(), None);
    }

    #[test]
    fn deviations_from_the_cell_are_tainted() {
        let taints = |sample: Sample, state| sample.taints(&cell(state), 11, &Conditions::default());
        let cached = |tokens| Sample {
            cached_tokens: tokens,
            ..sample()
        };
        assert_eq!(taints(sample(), PromptState::Cold), []);
        assert_eq!(taints(cached(Some(900)), PromptState::Cold), [Taint::CacheHit]);
        assert_eq!(taints(cached(Some(900)), PromptState::Hot), []);
        assert_eq!(taints(sample(), PromptState::Hot), [Taint::CacheMiss]);
        assert_eq!(taints(cached(None), PromptState::Hot), [Taint::CacheUnknown]);
        let short = Sample {
            completion_tokens: 7,
            reasoning_tokens: 3,
            ..sample()
        };
        assert_eq!(taints(short, PromptState::Cold), [Taint::Reasoning, Taint::Short]);
    }

    #[test]
    fn stream_faster_than_memory_is_impossible() {
        let under = |ceiling| {
            let conditions = Conditions {
                ceiling: Some(ceiling),
                ..Conditions::default()
            };
            sample().taints(&cell(PromptState::Cold), 11, &conditions)
        };
        assert_eq!(under(9.9), [Taint::Impossible]);
        assert_eq!(under(10.1), []);
    }
}
