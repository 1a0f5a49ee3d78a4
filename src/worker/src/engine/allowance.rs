//! Limit of the engine's share of the chip's time. The agent sets it while another replica uses its
//! reserved bandwidth; see `agent/src/workers/pacing.rs`.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use rooflet_base::clock::Clock;
use rooflet_base::mutex::{lock, wait};

/// Validity of a share. If the agent stops, the worker returns to full speed after this time.
const VALIDITY: Duration = Duration::from_secs(10);

/// Maximum duration of a pause, regardless of the duration of the step.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Current limit of the engine's share.
#[derive(Debug)]
pub(crate) struct Allowance {
    clock: Clock,
    limit: Mutex<Limit>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, Default)]
struct Limit {
    /// Share below 1, and the end of its validity.
    share: Option<(f64, Instant)>,
    /// Set when the engine ends: no more pauses.
    ended: bool,
}

impl Limit {
    fn share(&self, now: Instant) -> Option<f64> {
        let (share, until) = self.share.filter(|_| !self.ended)?;
        (now < until).then_some(share)
    }
}

impl Allowance {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            limit: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Sets the engine's share of the time. Values outside of 0 to 1 remove the limit.
    pub(crate) fn allow(&self, share: f64) {
        let until = self.clock.instant() + VALIDITY;
        lock(&self.limit).share = (share > 0.0 && share < 1.0).then_some((share, until));
        self.changed.notify_all();
    }

    pub(crate) fn end(&self) {
        lock(&self.limit).ended = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_limited(&self) -> bool {
        lock(&self.limit).share(self.clock.instant()).is_some()
    }

    /// Blocks the thread after a step of duration `worked`, so that the engine keeps to its share.
    /// Returns early if the share changes.
    pub(crate) fn rest(&self, worked: Duration) {
        let begin = self.clock.instant();
        let mut limit = lock(&self.limit);
        loop {
            let now = self.clock.instant();
            let Some(share) = limit.share(now) else { return };
            let due = Duration::try_from_secs_f64(worked.as_secs_f64() * (share.recip() - 1.0));
            let due = due.unwrap_or(MAX_PAUSE).min(MAX_PAUSE);
            let left = due.saturating_sub(now - begin);
            if left.is_zero() {
                return;
            }
            limit = wait(&self.changed, limit, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use rooflet_base::clock::ManualClock;

    #[test]
    fn share_expires() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let allowance = Allowance::new(Clock::Manual(manual.clone()));
        assert!(!allowance.is_limited());
        for (share, limited) in [
            (0.5, true),
            (1.0, false),
            (0.0, false),
            (f64::NAN, false),
            (0.05, true),
        ] {
            allowance.allow(share);
            assert_eq!(allowance.is_limited(), limited, "{share}");
        }
        manual.advance(VALIDITY);
        assert!(!allowance.is_limited(), "the share has expired");
        allowance.allow(0.5);
        allowance.end();
        assert!(!allowance.is_limited());
    }

    #[test]
    fn rest_is_proportional_to_work_and_ends_with_the_limit() {
        let allowance = Arc::new(Allowance::new(Clock::System));
        let rest = |worked| {
            let begin = Clock::System.instant();
            allowance.rest(Duration::from_millis(worked));
            Clock::System.instant() - begin
        };
        assert!(rest(10_000) < Duration::from_secs(5), "no share is set");
        allowance.allow(0.2);
        assert!(rest(10) >= Duration::from_millis(40));
        let other = Arc::clone(&allowance);
        let resting = std::thread::spawn(move || {
            other.rest(Duration::from_secs(3600));
            Clock::System.instant()
        });
        let begin = Clock::System.instant();
        allowance.allow(1.0);
        let woken = resting.join().unwrap() - begin;
        assert!(woken < MAX_PAUSE / 2, "{woken:?}");
    }
}
