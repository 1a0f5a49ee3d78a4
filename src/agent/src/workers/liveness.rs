//! Liveness of a worker, derived from the results of its polls. The module is pure.

use std::time::{Duration, Instant};

/// Number of consecutive polls without a response after which a worker counts as stalled.
const MISSED_POLLS: u32 = 2;

/// Time without progress or response after which a worker is replaced. A long prefill does not
/// trigger it, because the engine makes progress with each chunk of a prompt.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(60);

/// Liveness of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Liveness {
    #[default]
    Healthy,
    /// The worker makes no progress, but may recover. Other replicas serve its waiting requests.
    Stalled,
    /// The worker has made no progress for too long and must be replaced.
    Unresponsive,
}

/// Result of one poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Poll {
    Progressing,
    /// The worker responded, and its engine makes no progress.
    Stalled,
    Unanswered,
}

/// History of a worker's polls.
#[derive(Debug)]
pub(super) struct PollHistory {
    last_progress: Instant,
    unanswered: u32,
}

impl PollHistory {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_progress: now,
            unanswered: 0,
        }
    }

    /// Adds the result of a poll and returns the worker's liveness.
    pub(super) fn add(&mut self, poll: Poll, now: Instant) -> Liveness {
        match poll {
            Poll::Progressing => *self = Self::new(now),
            Poll::Stalled => self.unanswered = 0,
            Poll::Unanswered => self.unanswered = self.unanswered.saturating_add(1),
        }
        if now - self.last_progress >= UNRESPONSIVE_AFTER {
            Liveness::Unresponsive
        } else if poll == Poll::Stalled || self.unanswered >= MISSED_POLLS {
            Liveness::Stalled
        } else {
            Liveness::Healthy
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::Clock;

    /// Adds the polls, one per second: `p` progressing, `s` stalled, `.` unanswered. Returns the
    /// first letters of the results: healthy, stalled, unresponsive.
    fn check(polls: &str, expect: &str) {
        let begin = Clock::System.instant();
        let mut history = PollHistory::new(begin);
        let mut now = begin;
        let outcomes: String = polls
            .chars()
            .map(|poll| {
                now += Duration::from_secs(1);
                let poll = match poll {
                    'p' => Poll::Progressing,
                    's' => Poll::Stalled,
                    _ => Poll::Unanswered,
                };
                match history.add(poll, now) {
                    Liveness::Healthy => 'h',
                    Liveness::Stalled => 's',
                    Liveness::Unresponsive => 'u',
                }
            })
            .collect();
        assert_eq!(outcomes, expect, "{polls}");
    }

    #[test]
    fn worker_is_stalled_after_missed_polls_or_by_its_own_report() {
        check("p.p..p", "hhhhsh");
        check("psssp", "hsssh");
        check("p.s.", "hhsh");
    }

    #[test]
    fn worker_without_progress_is_unresponsive_until_its_next_progress() {
        let stalled = "s".repeat(62);
        check(&format!("p{stalled}p"), &format!("h{}uuuh", "s".repeat(59)));
        let unanswered = ".".repeat(60);
        check(&format!("p{unanswered}"), &format!("hh{}u", "s".repeat(58)));
    }
}
