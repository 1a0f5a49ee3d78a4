//! Limits of one API key in one gateway, as a value without clock and network.
//!
//! Requests and tokens per minute are token buckets that hold one minute's limit. The tokens of a
//! request are known only at its end: the gateway reserves the estimated prompt, and charges the
//! difference afterwards, so a bucket can become negative. Use through other gateways is charged
//! when they report it.

use std::time::{Duration, Instant};

use rooflet_api::v1alpha1::ApiKeySpec;

const MINUTE_SECONDS: f64 = 60.0;

/// Reason why a key may not be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    Requests {
        per_minute: u32,
        wait: Duration,
    },
    Tokens {
        per_minute: u64,
        wait: Duration,
    },
    Concurrency {
        limit: u32,
    },
    /// The budget of the day is used up.
    Budget {
        per_day: u64,
        wait: Duration,
    },
}

/// Use of the key through the other gateways, from their reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Others {
    /// Requests and tokens since the first use of the key.
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
    pub(crate) tokens_today: u64,
    pub(crate) in_progress: u32,
}

/// State of a limit for the response headers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Remaining {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// Time until the limit is available in full.
    pub(crate) reset: Duration,
}

/// Bucket that refills by `limit` per minute, up to `limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    level: f64,
    filled_at: Instant,
}

impl Bucket {
    fn fill(&mut self, limit: f64, now: Instant) {
        let seconds = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.level = (self.level + seconds * limit / MINUTE_SECONDS).min(limit);
        self.filled_at = now;
    }

    /// Returns the time until the bucket holds `amount`.
    fn wait(&self, amount: f64, limit: f64) -> Duration {
        let seconds = (amount - self.level) * MINUTE_SECONDS / limit;
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    fn remaining(&self, limit: u64) -> Remaining {
        Remaining {
            limit,
            remaining: self.level.max(0.0) as u64,
            reset: self.wait(limit as f64, limit as f64),
        }
    }
}

/// Limits and their use; see the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Meter {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    in_progress: u32,
    others: Others,
}

impl Meter {
    pub(crate) fn new(others: Others) -> Self {
        Self {
            requests: None,
            tokens: None,
            in_progress: 0,
            others,
        }
    }

    pub(crate) fn in_progress(&self) -> u32 {
        self.in_progress
    }

    /// Updates the use through other gateways, and charges its increase at `now`.
    pub(crate) fn set_others(&mut self, spec: &ApiKeySpec, others: Others, now: Instant) {
        let requests = others.requests.saturating_sub(self.others.requests);
        let tokens = others.tokens.saturating_sub(self.others.tokens);
        // A bucket that was not used yet is full, also if other gateways were used.
        if let (Some(bucket), Some(limit)) = (&mut self.requests, spec.requests_per_minute) {
            bucket.fill(f64::from(limit), now);
            bucket.level -= requests as f64;
        }
        if let (Some(bucket), Some(limit)) = (&mut self.tokens, spec.tokens_per_minute) {
            bucket.fill(limit as f64, now);
            bucket.level -= tokens as f64;
        }
        self.others = others;
    }

    /// Admits a request with about `prompt_tokens`, and reserves them.
    ///
    /// `others` is the last reported use, `own_tokens_today` are the tokens through this gateway,
    /// and `day_left` is the time until the next day. Returns the exhausted limit otherwise;
    /// nothing is reserved then.
    pub(crate) fn admit(
        &mut self,
        spec: &ApiKeySpec,
        prompt_tokens: u64,
        others: Others,
        own_tokens_today: u64,
        now: Instant,
        day_left: Duration,
    ) -> Result<(), Denial> {
        self.set_others(spec, others, now);
        self.fill(spec, now);
        if let Some(per_day) = spec.tokens_per_day
            && own_tokens_today.saturating_add(self.others.tokens_today) >= per_day
        {
            return Err(Denial::Budget {
                per_day,
                wait: day_left,
            });
        }
        if let Some(limit) = spec.concurrent_requests
            && self.in_progress.saturating_add(self.others.in_progress) >= limit
        {
            return Err(Denial::Concurrency { limit });
        }
        if let (Some(bucket), Some(per_minute)) = (&self.requests, spec.requests_per_minute)
            && bucket.level < 1.0
        {
            let wait = bucket.wait(1.0, f64::from(per_minute));
            return Err(Denial::Requests { per_minute, wait });
        }
        if let (Some(bucket), Some(per_minute)) = (&self.tokens, spec.tokens_per_minute) {
            // A prompt that is longer than the limit needs a full bucket.
            let needed = (prompt_tokens.clamp(1, per_minute)) as f64;
            if bucket.level < needed {
                let wait = bucket.wait(needed, per_minute as f64);
                return Err(Denial::Tokens { per_minute, wait });
            }
        }
        if let Some(bucket) = &mut self.requests {
            bucket.level -= 1.0;
        }
        self.charge(prompt_tokens as f64);
        self.in_progress += 1;
        Ok(())
    }

    /// Ends an admitted request: replaces its `reserved` tokens by the `used` ones.
    pub(crate) fn end(&mut self, spec: &ApiKeySpec, reserved: u64, used: u64, now: Instant) {
        self.fill(spec, now);
        self.in_progress = self.in_progress.saturating_sub(1);
        self.charge(used as f64 - reserved as f64);
    }

    /// Returns the state of the limits per minute of requests and of tokens.
    pub(crate) fn remaining(
        &mut self,
        spec: &ApiKeySpec,
        others: Others,
        now: Instant,
    ) -> (Option<Remaining>, Option<Remaining>) {
        self.set_others(spec, others, now);
        self.fill(spec, now);
        let requests = self.requests.zip(spec.requests_per_minute);
        let tokens = self.tokens.zip(spec.tokens_per_minute);
        (
            requests.map(|(bucket, limit)| bucket.remaining(u64::from(limit))),
            tokens.map(|(bucket, limit)| bucket.remaining(limit)),
        )
    }

    fn charge(&mut self, tokens: f64) {
        if let Some(bucket) = &mut self.tokens {
            bucket.level -= tokens;
        }
    }

    /// Refills the buckets. A new limit starts with a full bucket, and a changed one keeps its use.
    fn fill(&mut self, spec: &ApiKeySpec, now: Instant) {
        let fill = |bucket: &mut Option<Bucket>, limit: Option<f64>| match limit {
            None => *bucket = None,
            Some(limit) => bucket
                .get_or_insert(Bucket {
                    level: limit,
                    filled_at: now,
                })
                .fill(limit, now),
        };
        fill(&mut self.requests, spec.requests_per_minute.map(f64::from));
        fill(&mut self.tokens, spec.tokens_per_minute.map(|limit| limit as f64));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use rooflet_base::clock::Clock;

    const DAY_LEFT: Duration = Duration::from_secs(3600);

    fn admit(meter: &mut Meter, spec: &ApiKeySpec, prompt: u64, now: Instant) -> Result<(), Denial> {
        let others = meter.others;
        meter.admit(spec, prompt, others, 0, now, DAY_LEFT)
    }

    #[test]
    fn requests_per_minute_refill() {
        let spec = ApiKeySpec {
            requests_per_minute: Some(6),
            ..ApiKeySpec::default()
        };
        let (mut meter, start) = (Meter::new(Others::default()), Clock::System.instant());
        for _ in 0..6 {
            admit(&mut meter, &spec, 10, start).unwrap();
        }
        let wait = Duration::from_secs(10);
        assert_eq!(
            admit(&mut meter, &spec, 10, start),
            Err(Denial::Requests { per_minute: 6, wait })
        );
        let just_before = start + wait - Duration::from_millis(1);
        assert!(admit(&mut meter, &spec, 10, just_before).is_err());
        admit(&mut meter, &spec, 10, start + wait).unwrap();
        assert!(admit(&mut meter, &spec, 10, start + wait).is_err());
    }

    #[test]
    fn long_responses_are_paid_by_later_requests() {
        let spec = ApiKeySpec {
            tokens_per_minute: Some(600),
            ..ApiKeySpec::default()
        };
        let (mut meter, start) = (Meter::new(Others::default()), Clock::System.instant());
        // Longer than the limit, but the bucket is full.
        admit(&mut meter, &spec, 700, start).unwrap();
        meter.end(&spec, 700, 1300, start);
        let wait = Duration::from_secs(80);
        assert_eq!(
            admit(&mut meter, &spec, 100, start),
            Err(Denial::Tokens {
                per_minute: 600,
                wait
            })
        );
        let (_, tokens) = meter.remaining(&spec, Others::default(), start);
        let tokens = tokens.expect("a limit");
        assert_eq!((tokens.limit, tokens.remaining), (600, 0));
        assert_eq!(tokens.reset, Duration::from_secs(130));
        admit(&mut meter, &spec, 100, start + wait).unwrap();
    }

    #[test]
    fn counts_use_through_other_gateways() {
        let spec = ApiKeySpec {
            requests_per_minute: Some(10),
            tokens_per_minute: Some(1000),
            tokens_per_day: Some(5000),
            concurrent_requests: Some(2),
            ..ApiKeySpec::default()
        };
        let start = Clock::System.instant();
        let used = Others {
            requests: 1_000_000,
            tokens: 50_000_000,
            tokens_today: 4000,
            in_progress: 1,
        };
        // Use before the gateway's start does not count for the current minute.
        let mut meter = Meter::new(used);
        admit(&mut meter, &spec, 100, start).unwrap();
        assert_eq!(
            admit(&mut meter, &spec, 100, start),
            Err(Denial::Concurrency { limit: 2 })
        );
        meter.end(&spec, 100, 100, start);
        let more = Others {
            requests: used.requests + 9,
            ..used
        };
        meter.set_others(&spec, more, start);
        assert!(matches!(
            admit(&mut meter, &spec, 100, start),
            Err(Denial::Requests { .. })
        ));
        let almost = Others {
            tokens_today: 4999,
            ..more
        };
        assert_eq!(
            meter.admit(&spec, 100, almost, 1, start, DAY_LEFT),
            Err(Denial::Budget {
                per_day: 5000,
                wait: DAY_LEFT
            })
        );
    }

    /// A full bucket does not refill while it is not used. So a later charge counts in full.
    #[test]
    fn charges_count_from_their_own_time() {
        let spec = ApiKeySpec {
            tokens_per_minute: Some(600),
            ..ApiKeySpec::default()
        };
        let start = Clock::System.instant();
        let minute_later = start + Duration::from_secs(60);
        let mut meter = Meter::new(Others::default());
        admit(&mut meter, &spec, 1, start).unwrap();
        meter.end(&spec, 1, 601, minute_later);
        assert!(admit(&mut meter, &spec, 1, minute_later).is_err());
        let mut meter = Meter::new(Others::default());
        admit(&mut meter, &spec, 1, start).unwrap();
        let others = Others {
            tokens: 600,
            ..Others::default()
        };
        let denied = meter.admit(&spec, 1, others, 0, minute_later, DAY_LEFT);
        assert!(matches!(denied, Err(Denial::Tokens { .. })), "{denied:?}");
        // An hour of use through another gateway, reported in time, does not add up.
        let hour = (1..=60_u32).map(|minute| (minute_later + Duration::from_secs(60) * minute, minute));
        for (now, minute) in hour {
            let tokens = 600 + 600 * u64::from(minute);
            meter.set_others(
                &spec,
                Others {
                    tokens,
                    ..Others::default()
                },
                now,
            );
        }
        let end = minute_later + Duration::from_secs(3602);
        admit(&mut meter, &spec, 1, end).unwrap();
    }

    #[test]
    fn changed_limit_applies_at_once() {
        let mut spec = ApiKeySpec::default();
        let (mut meter, start) = (Meter::new(Others::default()), Clock::System.instant());
        for _ in 0..100 {
            admit(&mut meter, &spec, 1000, start).unwrap();
        }
        spec.requests_per_minute = Some(60);
        for _ in 0..60 {
            admit(&mut meter, &spec, 0, start).unwrap();
        }
        assert!(admit(&mut meter, &spec, 0, start).is_err());
        spec.requests_per_minute = Some(6);
        let later = start + Duration::from_secs(60);
        let admitted = (0..100)
            .filter(|_| admit(&mut meter, &spec, 0, later).is_ok())
            .count();
        assert_eq!(admitted, 6);
    }

    proptest! {
        /// In any period, at most one bucket plus the refill is used, and a rejected request is
        /// admitted after the stated wait.
        #[test]
        fn never_exceeds_the_limit(
            per_minute in 1_u32..200,
            pauses in prop::collection::vec(0_u64..5000, 1..300),
        ) {
            let spec = ApiKeySpec { requests_per_minute: Some(per_minute), ..ApiKeySpec::default() };
            let start = Clock::System.instant();
            let (mut meter, mut now, mut admitted) = (Meter::new(Others::default()), start, 0_u32);
            for pause in pauses {
                now += Duration::from_millis(pause);
                match admit(&mut meter, &spec, 0, now) {
                    Ok(()) => admitted += 1,
                    Err(Denial::Requests { wait, .. }) => {
                        let mut later = meter.clone();
                        let at = now + wait + Duration::from_micros(1);
                        prop_assert!(admit(&mut later, &spec, 0, at).is_ok(), "wait {wait:?}");
                    }
                    Err(other) => prop_assert!(false, "{other:?}"),
                }
            }
            let refill = f64::from(per_minute) * (now - start).as_secs_f64() / 60.0;
            prop_assert!(f64::from(admitted) <= f64::from(per_minute) + refill + 1e-6);
        }
    }
}
