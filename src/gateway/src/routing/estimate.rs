//! Estimate of when a replica would finish a request.
//!
//! Inputs: the node's prediction, the worker's measurement and this gateway's observations. Times
//! are in seconds, lengths in tokens.

use rooflet_api::v1alpha1::ModelReplicaStatus;

/// Prefill and decode speed of a replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speed {
    /// Prompt tokens per second.
    prefill_tokens_per_second: f64,
    /// Tokens per second of one stream while all streams are busy.
    decode_tokens_per_second: f64,
    /// Share of a decode step that reads weights, from 0 to 1. The rest grows with the number of
    /// streams.
    weights_share: f64,
    /// Maximum number of concurrent streams.
    streams: f64,
}

/// Speed of a replica without prediction or measurement: a small model on a small Mac. Used only to
/// compare replicas, and never displayed.
const DEFAULT_SPEED: Speed = Speed {
    prefill_tokens_per_second: 500.0,
    decode_tokens_per_second: 25.0,
    weights_share: 1.0,
    streams: 1.0,
};

impl Speed {
    /// Returns the speed from the replica's status: measured decode speed if any, else the
    /// prediction.
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
        let weights_share = predicted
            .zip(admission)
            .map(|(speed, admission)| {
                let step = speed.bytes_per_token * streams;
                (1.0 - admission.memory.kv_bytes as f64 / step).clamp(0.0, 1.0)
            })
            .filter(|weights_share| weights_share.is_finite());
        Self {
            prefill_tokens_per_second: prefill.unwrap_or(DEFAULT_SPEED.prefill_tokens_per_second),
            decode_tokens_per_second: decode.unwrap_or(DEFAULT_SPEED.decode_tokens_per_second),
            weights_share: weights_share.unwrap_or(DEFAULT_SPEED.weights_share),
            streams,
        }
    }

    /// Returns the seconds of a decode step with this number of streams.
    fn step(&self, streams: f64) -> f64 {
        let load = (streams / self.streams).min(1.0);
        (self.weights_share + (1.0 - self.weights_share) * load) / self.decode_tokens_per_second
    }
}

/// Load of a replica, as input of an estimate for one request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    /// Prompt tokens of other requests that the replica processes first.
    pub(crate) backlog_tokens: u64,
    /// Uncached prompt tokens of the request.
    pub(crate) prefill_tokens: u64,
    /// Concurrent streams, including those of the request.
    pub(crate) streams: u32,
    /// Requests that must finish before a stream is free.
    pub(crate) requests_ahead: u32,
    pub(crate) answer_tokens: u64,
}

/// Estimated seconds until the first and the last token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) first_token: f64,
    pub(crate) finish: f64,
}

impl Estimate {
    pub(crate) fn new(speed: &Speed, correction: &SpeedCorrection, load: Load) -> Self {
        let tokens = (load.backlog_tokens + load.prefill_tokens) as f64;
        let step = speed.step(f64::from(load.streams)) * correction.decode.0;
        // In the time of one response, as many requests finish as there are streams.
        let rounds = f64::from(load.requests_ahead) / speed.streams;
        let queue_time = rounds * step * load.answer_tokens as f64;
        let first_token = queue_time + tokens / speed.prefill_tokens_per_second * correction.prefill.0;
        Self {
            first_token,
            finish: first_token + step * load.answer_tokens as f64,
        }
    }
}

/// Ratio of observed to expected time; 1 without an observation.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Factor(f64);

/// Weight of the newest observation in the moving average.
const NEWEST_WEIGHT: f64 = 0.2;
/// Upper bound of a factor, and the inverse of its lower bound. Limits the effect of an outlier.
const MAX_FACTOR: f64 = 16.0;

impl Default for Factor {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Factor {
    /// Updates the factor. `then` is the factor that `expected` was computed with; it may have
    /// changed since.
    fn update(&mut self, then: Self, expected: f64, took: f64) {
        let ratio = took / expected;
        if ratio.is_finite() && ratio > 0.0 {
            let observed = (then.0 * ratio).clamp(1.0 / MAX_FACTOR, MAX_FACTOR);
            self.0 += NEWEST_WEIGHT * (observed - self.0);
        }
    }
}

/// Correction of a replica's speed by this gateway's observations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct SpeedCorrection {
    prefill: Factor,
    decode: Factor,
}

/// Shortest prompt that updates the prefill factor. For shorter ones the network dominates.
const MIN_PREFILL_TOKENS: u64 = 64;
/// Shortest response that updates the decode factor.
const MIN_DECODE_TOKENS: u64 = 8;

impl SpeedCorrection {
    /// Records the time to first token, `took`. `expected` was computed with the correction `then`.
    pub(crate) fn record_first_token(&mut self, then: &Self, load: &Load, expected: &Estimate, took: f64) {
        if load.prefill_tokens + load.backlog_tokens >= MIN_PREFILL_TOKENS {
            self.prefill.update(then.prefill, expected.first_token, took);
        }
    }

    /// Records that `tokens` tokens after the first took `took` seconds; see
    /// [`Self::record_first_token`].
    pub(crate) fn record_decode(
        &mut self,
        then: &Self,
        load: &Load,
        expected: &Estimate,
        tokens: u64,
        took: f64,
    ) {
        if tokens >= MIN_DECODE_TOKENS && load.answer_tokens > 0 {
            let per_token = (expected.finish - expected.first_token) / load.answer_tokens as f64;
            self.decode.update(then.decode, per_token * tokens as f64, took);
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
            weights_share: 0.5,
            streams: 4.0,
        }
    }

    #[test]
    fn measured_decode_speed_replaces_prediction() {
        let predicted = Speed::of(&status("-"), 4);
        assert_eq!(predicted.prefill_tokens_per_second, 500.0);
        assert_eq!(predicted.decode_tokens_per_second, 20.0);
        // 4 streams of 2.5 GB per step, of which 2 GB are KV cache.
        assert_eq!(predicted.weights_share, 0.8);
        assert_eq!(Speed::of(&status("31.5"), 4).decode_tokens_per_second, 31.5);
        assert_eq!(Speed::of(&ModelReplicaStatus::default(), 1), DEFAULT_SPEED);
    }

    #[test]
    fn estimate_adds_prefill_decode_and_concurrent_load() {
        let load = Load {
            backlog_tokens: 500,
            prefill_tokens: 500,
            streams: 4,
            requests_ahead: 0,
            answer_tokens: 100,
        };
        let estimate = Estimate::new(&speed(1000.0, 50.0), &SpeedCorrection::default(), load);
        assert_eq!(
            estimate,
            Estimate {
                first_token: 1.0,
                finish: 3.0
            }
        );
        let late = Estimate::new(
            &speed(1000.0, 50.0),
            &SpeedCorrection::default(),
            Load {
                requests_ahead: 2,
                ..load
            },
        );
        assert_eq!(
            (late.first_token, late.finish),
            (2.0, 4.0),
            "half a response of 2 s"
        );
        let alone = Load {
            backlog_tokens: 0,
            streams: 1,
            ..load
        };
        let estimate = Estimate::new(&speed(1000.0, 50.0), &SpeedCorrection::default(), alone);
        assert!(
            (estimate.finish - (0.5 + 100.0 * 0.625 / 50.0)).abs() < 1e-9,
            "{estimate:?}"
        );
    }

    #[test]
    fn correction_converges_to_observation() {
        let load = Load {
            prefill_tokens: 1000,
            streams: 1,
            answer_tokens: 100,
            ..Load::default()
        };
        let speed = speed(1000.0, 50.0);
        let mut correction = SpeedCorrection::default();
        for _ in 0..60 {
            let expected = Estimate::new(&speed, &correction, load);
            let then = correction;
            correction.record_first_token(&then, &load, &expected, 3.0);
            correction.record_decode(&then, &load, &expected, 100, 0.5);
        }
        let corrected = Estimate::new(&speed, &correction, load);
        assert!((corrected.first_token - 3.0).abs() < 0.01, "{corrected:?}");
        assert!((corrected.finish - 3.5).abs() < 0.02, "{corrected:?}");
    }

    proptest! {
        #[test]
        fn more_work_never_finishes_earlier(
            backlog in 0u64..10_000, unread in 0u64..10_000, streams in 1u32..8, answer in 0u64..1000, more in 1u64..1000,
            prefill in 1.0f64..1e5, decode in 0.1f64..1e3,
        ) {
            let load = Load { backlog_tokens: backlog, prefill_tokens: unread, streams, requests_ahead: 0, answer_tokens: answer };
            let finish = |load: Load| Estimate::new(&speed(prefill, decode), &SpeedCorrection::default(), load).finish;
            let base = finish(load);
            prop_assert!(base.is_finite() && base >= 0.0);
            for heavier in [
                Load { backlog_tokens: backlog + more, ..load },
                Load { prefill_tokens: unread + more, ..load },
                Load { streams: streams + 1, ..load },
                Load { requests_ahead: 1, ..load },
                Load { answer_tokens: answer + more, ..load },
            ] {
                prop_assert!(finish(heavier) >= base);
            }
        }

        #[test]
        fn estimates_stay_finite_after_any_observation(observed in proptest::collection::vec((-1.0f64..1e12, -1.0f64..1e12), 0..50)) {
            let mut correction = SpeedCorrection::default();
            let load = Load { prefill_tokens: 100, streams: 1, answer_tokens: 10, ..Load::default() };
            for (first, rest) in observed {
                let expected = Estimate::new(&DEFAULT_SPEED, &correction, load);
                let then = correction;
                correction.record_first_token(&then, &load, &expected, first);
                correction.record_decode(&then, &load, &expected, 50, rest);
                let next = Estimate::new(&DEFAULT_SPEED, &correction, load);
                prop_assert!(next.first_token > 0.0 && next.finish.is_finite());
            }
        }
    }
}
