//! When a replica would have answered: from what its node predicts, what its worker measured and what this gateway
//! saw itself. Seconds and tokens in, seconds out.

use rooflet_api::v1alpha1::ModelReplicaStatus;

/// How fast one replica reads and writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speed {
    /// Of prompts.
    prefill_tokens_per_second: f64,
    /// Of one stream while all are busy.
    decode_tokens_per_second: f64,
    /// The part of a decode step that is spent on weights, which all streams share; the rest grows with their number.
    shared: f64,
    /// All streams.
    streams: f64,
}

/// Where nothing is predicted, replicas differ only in what they have to do and in what was seen of them. The figures
/// are a small model's on a small Mac; they are shown nowhere.
const UNKNOWN: Speed = Speed {
    prefill_tokens_per_second: 500.0,
    decode_tokens_per_second: 25.0,
    shared: 1.0,
    streams: 1.0,
};

impl Speed {
    /// What the status says: measured decoding where there was some, else the prediction.
    pub(crate) fn of(status: &ModelReplicaStatus, max_concurrency: u32) -> Self {
        let streams = f64::from(max_concurrency.max(1));
        let measured = status
            .measured
            .as_ref()
            .and_then(|measured| measured.tokens_per_second.parse::<f64>().ok());
        let admission = status.admission.as_ref();
        let predicted = admission.and_then(|admission| admission.speed.as_ref());
        let positive = |figure: f64| (figure.is_finite() && figure > 0.0).then_some(figure);
        let prefill = predicted.and_then(|speed| {
            positive(f64::from(speed.prompt_tokens) / speed.time_to_first_token_seconds.p50)
        });
        let decode = measured
            .and_then(positive)
            .or_else(|| positive(predicted?.tokens_per_second.p50));
        let shared = predicted
            .zip(admission)
            .map(|(speed, admission)| {
                let step = speed.bytes_per_token * streams;
                (1.0 - admission.memory.kv_bytes as f64 / step).clamp(0.0, 1.0)
            })
            .filter(|shared| shared.is_finite());
        Self {
            prefill_tokens_per_second: prefill.unwrap_or(UNKNOWN.prefill_tokens_per_second),
            decode_tokens_per_second: decode.unwrap_or(UNKNOWN.decode_tokens_per_second),
            shared: shared.unwrap_or(UNKNOWN.shared),
            streams,
        }
    }

    /// Seconds for one more token of each of so many streams.
    fn step(&self, streams: f64) -> f64 {
        let load = (streams / self.streams).min(1.0);
        (self.shared + (1.0 - self.shared) * load) / self.decode_tokens_per_second
    }
}

/// What one request asks of one replica.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    /// Tokens of other prompts that are read before.
    pub(crate) backlog_tokens: u64,
    /// Tokens of its own prompt that have to be read.
    pub(crate) unread_tokens: u64,
    /// Streams under way together with it.
    pub(crate) streams: u32,
    /// Answers that have to end before it has a stream.
    pub(crate) ahead: u32,
    pub(crate) answer_tokens: u64,
}

/// Seconds from now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) first_token: f64,
    pub(crate) finish: f64,
}

impl Estimate {
    pub(crate) fn new(speed: &Speed, experience: &Experience, load: Load) -> Self {
        let tokens = (load.backlog_tokens + load.unread_tokens) as f64;
        let step = speed.step(f64::from(load.streams)) * experience.decode.0;
        // They end one after the other, as many in an answer's time as there are streams.
        let turns = f64::from(load.ahead) / speed.streams;
        let turn = turns * step * load.answer_tokens as f64;
        let first_token = turn + tokens / speed.prefill_tokens_per_second * experience.prefill.0;
        Self {
            first_token,
            finish: first_token + step * load.answer_tokens as f64,
        }
    }
}

/// How many times longer something took than was expected; 1 until seen.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Factor(f64);

/// The share of the newest observation.
const NEWEST: f64 = 0.2;
/// A single answer may be wrong by anything; what is believed of it is bounded.
const MAX_FACTOR: f64 = 16.0;

impl Default for Factor {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Factor {
    /// `then` is the factor that `expected` was computed with: many answers may have ended since.
    fn saw(&mut self, then: Self, expected: f64, took: f64) {
        let ratio = took / expected;
        if ratio.is_finite() && ratio > 0.0 {
            let seen = (then.0 * ratio).clamp(1.0 / MAX_FACTOR, MAX_FACTOR);
            self.0 += NEWEST * (seen - self.0);
        }
    }
}

/// What this gateway saw of a replica, against what was expected.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Experience {
    prefill: Factor,
    decode: Factor,
}

/// Prompts shorter than this say more about the way there than about the reading.
const MIN_TOKENS_OF_A_READING: u64 = 64;
/// Answers shorter than this say little about a pace.
const MIN_TOKENS_OF_A_PACE: u64 = 8;

impl Experience {
    /// The first token of a request came after so many seconds. `expected` was told with what was seen up to `then`.
    pub(crate) fn saw_first_token(&mut self, then: &Self, load: &Load, expected: &Estimate, took: f64) {
        if load.unread_tokens + load.backlog_tokens >= MIN_TOKENS_OF_A_READING {
            self.prefill.saw(then.prefill, expected.first_token, took);
        }
    }

    /// So many tokens came after the first one in so many seconds; the others as in [`Self::saw_first_token`].
    pub(crate) fn saw_stream(
        &mut self,
        then: &Self,
        load: &Load,
        expected: &Estimate,
        tokens: u64,
        took: f64,
    ) {
        if tokens >= MIN_TOKENS_OF_A_PACE && load.answer_tokens > 0 {
            let per_token = (expected.finish - expected.first_token) / load.answer_tokens as f64;
            self.decode.saw(then.decode, per_token * tokens as f64, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn status(measured: &str) -> ModelReplicaStatus {
        serde_json::from_value(json!({
            "phase": "Ready",
            "admission": {
                "memory": {"kvBytes": 2_000_000_000_u64},
                "speed": {
                    "tokensPerSecond": {"p50": 20.0},
                    "bytesPerToken": 2_500_000_000.0,
                    "timeToFirstTokenSeconds": {"p50": 4.0},
                    "promptTokens": 2000,
                },
            },
            "measured": {"tokensPerSecond": measured},
        }))
        .expect("a status")
    }

    fn speed(prefill: f64, decode: f64) -> Speed {
        Speed {
            prefill_tokens_per_second: prefill,
            decode_tokens_per_second: decode,
            shared: 0.5,
            streams: 4.0,
        }
    }

    #[test]
    fn what_was_measured_counts_before_what_was_predicted() {
        let predicted = Speed::of(&status("-"), 4);
        assert_eq!(predicted.prefill_tokens_per_second, 500.0);
        assert_eq!(predicted.decode_tokens_per_second, 20.0);
        // 4 streams x 2.5 GB a step, of which 2 GB are KV cache.
        assert_eq!(predicted.shared, 0.8);
        assert_eq!(Speed::of(&status("31.5"), 4).decode_tokens_per_second, 31.5);
        assert_eq!(Speed::of(&ModelReplicaStatus::default(), 1), UNKNOWN);
    }

    #[test]
    fn reading_comes_before_writing_and_others_slow_both() {
        let load = Load {
            backlog_tokens: 500,
            unread_tokens: 500,
            streams: 4,
            ahead: 0,
            answer_tokens: 100,
        };
        let estimate = Estimate::new(&speed(1000.0, 50.0), &Experience::default(), load);
        assert_eq!(
            estimate,
            Estimate {
                first_token: 1.0,
                finish: 3.0
            }
        );
        let late = Estimate::new(
            &speed(1000.0, 50.0),
            &Experience::default(),
            Load { ahead: 2, ..load },
        );
        assert_eq!((late.first_token, late.finish), (2.0, 4.0), "half a turn of 2 s");
        let alone = Load {
            backlog_tokens: 0,
            streams: 1,
            ..load
        };
        let estimate = Estimate::new(&speed(1000.0, 50.0), &Experience::default(), alone);
        assert!(
            (estimate.finish - (0.5 + 100.0 * 0.625 / 50.0)).abs() < 1e-9,
            "{estimate:?}"
        );
    }

    #[test]
    fn experience_comes_near_to_what_is_seen() {
        let load = Load {
            unread_tokens: 1000,
            streams: 1,
            answer_tokens: 100,
            ..Load::default()
        };
        let speed = speed(1000.0, 50.0);
        let mut experience = Experience::default();
        for _ in 0..60 {
            let expected = Estimate::new(&speed, &experience, load);
            let then = experience;
            experience.saw_first_token(&then, &load, &expected, 3.0);
            experience.saw_stream(&then, &load, &expected, 100, 0.5);
        }
        let learnt = Estimate::new(&speed, &experience, load);
        assert!((learnt.first_token - 3.0).abs() < 0.01, "{learnt:?}");
        assert!((learnt.finish - 3.5).abs() < 0.02, "{learnt:?}");
    }

    proptest! {
        #[test]
        fn more_work_is_never_expected_to_end_earlier(
            backlog in 0u64..10_000, unread in 0u64..10_000, streams in 1u32..8, answer in 0u64..1000, more in 1u64..1000,
            prefill in 1.0f64..1e5, decode in 0.1f64..1e3,
        ) {
            let load = Load { backlog_tokens: backlog, unread_tokens: unread, streams, ahead: 0, answer_tokens: answer };
            let finish = |load: Load| Estimate::new(&speed(prefill, decode), &Experience::default(), load).finish;
            let base = finish(load);
            prop_assert!(base.is_finite() && base >= 0.0);
            for heavier in [
                Load { backlog_tokens: backlog + more, ..load },
                Load { unread_tokens: unread + more, ..load },
                Load { streams: streams + 1, ..load },
                Load { ahead: 1, ..load },
                Load { answer_tokens: answer + more, ..load },
            ] {
                prop_assert!(finish(heavier) >= base);
            }
        }

        #[test]
        fn no_observation_makes_an_estimate_useless(seen in proptest::collection::vec((-1.0f64..1e12, -1.0f64..1e12), 0..50)) {
            let mut experience = Experience::default();
            let load = Load { unread_tokens: 100, streams: 1, answer_tokens: 10, ..Load::default() };
            for (first, rest) in seen {
                let expected = Estimate::new(&UNKNOWN, &experience, load);
                let then = experience;
                experience.saw_first_token(&then, &load, &expected, first);
                experience.saw_stream(&then, &load, &expected, 50, rest);
                let next = Estimate::new(&UNKNOWN, &experience, load);
                prop_assert!(next.first_token > 0.0 && next.finish.is_finite());
            }
        }
    }
}
