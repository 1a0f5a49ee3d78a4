//! The share of the chip's time that the engine keeps to. The agent says how much, as long as
//! another replica makes use of what it was promised; see `agent/pacing.rs`.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use rooflet_base::clock::Clock;
use rooflet_base::mutex::{lock, wait};

/// What was said holds for so long, and no longer: an agent that is gone must not leave a slow
/// worker behind.
const HOLDS_FOR: Duration = Duration::from_secs(10);

/// No rest is longer, whatever a step took.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(crate) struct Allowance {
    clock: Clock,
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// Below 1, and until when.
    share: Option<(f64, Instant)>,
    /// The engine is to end: no rest any more.
    ended: bool,
}

impl Told {
    fn share(&self, now: Instant) -> Option<f64> {
        let (share, until) = self.share.filter(|_| !self.ended)?;
        (now < until).then_some(share)
    }
}

impl Allowance {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            told: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The engine may take so much of the time; what is no part of 1 is all of it.
    pub(crate) fn allow(&self, share: f64) {
        let until = self.clock.instant() + HOLDS_FOR;
        lock(&self.told).share = (share > 0.0 && share < 1.0).then_some((share, until));
        self.changed.notify_all();
    }

    pub(crate) fn end(&self) {
        lock(&self.told).ended = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_limited(&self) -> bool {
        lock(&self.told).share(self.clock.instant()).is_some()
    }

    /// Leaves others their part of the time after having worked for so long, by what is allowed
    /// meanwhile.
    pub(crate) fn rest(&self, worked: Duration) {
        let begin = self.clock.instant();
        let mut told = lock(&self.told);
        loop {
            let now = self.clock.instant();
            let Some(share) = told.share(now) else { return };
            let due = Duration::try_from_secs_f64(worked.as_secs_f64() * (share.recip() - 1.0));
            let due = due.unwrap_or(LONGEST_REST).min(LONGEST_REST);
            let left = due.saturating_sub(now - begin);
            if left.is_zero() {
                return;
            }
            told = wait(&self.changed, told, left);
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
    fn what_was_said_holds_until_it_is_old() {
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
        manual.advance(HOLDS_FOR);
        assert!(!allowance.is_limited(), "the agent has not been heard since");
        allowance.allow(0.5);
        allowance.end();
        assert!(!allowance.is_limited());
    }

    #[test]
    fn rest_is_in_proportion_to_work_and_ends_when_there_is_no_reason_left() {
        let allowance = Arc::new(Allowance::new(Clock::System));
        let rest = |worked| {
            let begin = Clock::System.instant();
            allowance.rest(Duration::from_millis(worked));
            Clock::System.instant() - begin
        };
        assert!(rest(10_000) < Duration::from_secs(5), "nobody has said anything");
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
        assert!(woken < LONGEST_REST / 2, "{woken:?}");
    }
}
