//! One request as its client saw it, and what speaks against using its times.

use serde::Serialize;

use super::matrix::{Cell, PromptState};

/// Tokens of a cold prompt that may be cached: what every chat template begins with.
const COMMON_PREFIX_TOKENS: u64 = 64;
/// Share of a repeated prompt that must come from the cache.
const LEAST_CACHED: f64 = 0.5;

/// Of a stream that came in fewer reads from the network, the time between them says nothing of the server's speed.
const LEAST_READS: u64 = 4;

/// One answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    /// `None` where the server does not tell.
    pub(crate) prompt_tokens: Option<u64>,
    pub(crate) cached_tokens: Option<u64>,
    pub(crate) completion_tokens: u64,
    /// The server told no usage: pieces of the stream were counted.
    pub(crate) counted_pieces: bool,
    pub(crate) reasoning_tokens: u64,
    /// Reads from the network that brought text, and tokens that came with the first.
    pub(crate) reads: u64,
    pub(crate) first_tokens: u64,
    /// `None` where the answer came in one piece.
    pub(crate) time_to_first_token_seconds: Option<f64>,
    pub(crate) total_seconds: f64,
}

/// What held for a run besides what was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Conditions {
    /// The machine slowed itself down.
    pub(crate) throttled: bool,
    pub(crate) on_battery: bool,
    /// The most tokens per second that memory bandwidth allows one stream; `None` where model or machine are unknown.
    pub(crate) ceiling: Option<f64>,
}

/// Why a run does not show what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Taint {
    /// Faster than memory bandwidth allows: not a result.
    Impossible,
    /// A part of the prompt was cached where nothing should have been.
    CacheHit,
    /// The prompt was not cached where it should have been.
    CacheMiss,
    /// Cached or not cannot be told.
    CacheUnknown,
    Reasoning,
    /// The answer ended before as many tokens as were asked for.
    Short,
    CountedPieces,
    Throttled,
    OnBattery,
}

impl Taint {
    pub(crate) fn told(self) -> &'static str {
        match self {
            Self::Impossible => "faster than the memory's bandwidth allows",
            Self::CacheHit => "prompt cached, though cold was asked",
            Self::CacheMiss => "prompt not cached, though it was sent before",
            Self::CacheUnknown => "server does not tell what was cached",
            Self::Reasoning => "reasoning tokens in the answer",
            Self::Short => "answer shorter than asked",
            Self::CountedPieces => "no usage told: pieces counted as tokens",
            Self::Throttled => "machine hot or in low power mode",
            Self::OnBattery => "on battery",
        }
    }
}

impl Sample {
    /// Tokens per second after the first, and after those that came together with it.
    pub(crate) fn decode_tokens_per_second(&self) -> Option<f64> {
        let decoding = self.total_seconds - self.time_to_first_token_seconds?;
        let decoded = self.completion_tokens.saturating_sub(self.first_tokens);
        let tells = self.reads >= LEAST_READS && decoded > 0 && decoding > 0.0;
        tells.then(|| decoded as f64 / decoding)
    }

    /// What speaks against it, of what was asked and held.
    pub(super) fn taints(&self, cell: &Cell, tokens: u32, conditions: &Conditions) -> Vec<Taint> {
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
    fn the_first_token_is_not_decoded() {
        assert_eq!(sample().decode_tokens_per_second(), Some(10.0));
        let whole = Sample {
            time_to_first_token_seconds: None,
            ..sample()
        };
        assert_eq!(whole.decode_tokens_per_second(), None);
        // A client that is slow to read finds several.
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
    fn what_was_not_as_asked_is_named() {
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
    fn no_stream_is_faster_than_memory() {
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
