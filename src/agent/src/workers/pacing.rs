//! How much of the chip's time replicas without objectives take while replicas with objectives have requests. Those have
//! their shares promised; without a limit a neighbour's engine would take half of the time whatever was promised.
//!
//! The monitors tell each worker its share, and the engine's thread rests between its steps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::replica::ReplicaKey;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_roofline::admission::BEST_EFFORT_SHARE;

/// Who has had requests is busy for so long: until its monitor has asked once more, and so that the gaps between the
/// requests of one client are none.
const BUSY_FOR: Duration = Duration::from_secs(3);

/// A running replica.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Member {
    /// Of the chip's time; `None`: it has no objectives.
    promised: Option<f64>,
    /// When it was last seen to have requests.
    asked: Option<Instant>,
}

impl Member {
    fn is_busy(&self, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now - asked < BUSY_FOR)
    }
}

/// See the module. Clones share the members.
#[derive(Debug, Clone)]
pub(crate) struct Pacing {
    clock: Clock,
    members: Arc<Mutex<BTreeMap<ReplicaKey, Member>>>,
    changed_tx: watch::Sender<()>,
}

impl Pacing {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            members: Arc::default(),
            changed_tx: watch::Sender::new(()),
        }
    }

    /// All replicas that run, with what was promised to those that have objectives.
    pub(crate) fn promise(&self, promises: BTreeMap<ReplicaKey, Option<f64>>) {
        let mut members = self.lock();
        let next: BTreeMap<_, _> = promises
            .into_iter()
            .map(|(key, promised)| {
                let asked = members.get(&key).and_then(|member| member.asked);
                (key, Member { promised, asked })
            })
            .collect();
        if *members != next {
            *members = next;
            self.changed_tx.send_replace(());
        }
    }

    /// The replica has requests.
    pub(crate) fn is_asked(&self, key: &ReplicaKey) {
        let now = self.clock.instant();
        if let Some(member) = self.lock().get_mut(key) {
            let was_busy = member.is_busy(now);
            member.asked = Some(now);
            if !was_busy {
                self.changed_tx.send_replace(());
            }
        }
    }

    /// The share of the chip's time that the replica's worker may take now.
    pub(crate) fn share(&self, key: &ReplicaKey) -> f64 {
        let now = self.clock.instant();
        let members = self.lock();
        let limited = members.get(key).is_some_and(|member| member.promised.is_none());
        let busy = members.values().filter(|member| member.is_busy(now));
        let left = limited.then(|| left_to_others(busy.map(|member| member.promised)));
        left.flatten().unwrap_or(1.0)
    }

    /// Hears when shares may have become smaller. When they become larger is found by asking.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed_tx.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, Member>> {
        lock(&self.members)
    }
}

/// What each replica without objectives may take beside so many busy ones: an equal part of what was not promised to
/// those, and never less than admission has kept for it. `None` where nothing was promised to any: they share as it comes.
fn left_to_others(busy: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let (mut promised, mut others) = (None, 0_u32);
    for one in busy {
        match one {
            Some(share) => *promised.get_or_insert(0.0) += share,
            None => others += 1,
        }
    }
    let left = (1.0 - promised?) / f64::from(others.max(1));
    Some(left.max(BEST_EFFORT_SHARE))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use rooflet_base::clock::ManualClock;

    #[test]
    fn what_is_not_promised_is_shared_by_the_others() {
        assert_eq!(left_to_others([None, None]), None);
        assert_eq!(left_to_others([Some(0.75)]), Some(0.25));
        assert_eq!(left_to_others([Some(0.5), Some(0.25), None, None]), Some(0.125));
        // An override has promised more than there is.
        assert_eq!(
            left_to_others([Some(0.7), Some(0.7), None]),
            Some(BEST_EFFORT_SHARE)
        );
    }

    #[test]
    fn only_while_a_promise_is_made_use_of() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let pacing = Pacing::new(Clock::Manual(manual.clone()));
        let [fast, slow, new] = ["fast", "slow", "new"].map(|name| ReplicaKey::new("default", name));
        let mut changed_rx = pacing.subscribe();
        let mut shares = || {
            let changed = changed_rx.has_changed().unwrap();
            changed_rx.mark_unchanged();
            (
                pacing.share(&fast),
                pacing.share(&slow),
                pacing.share(&new),
                changed,
            )
        };
        pacing.promise([(fast.clone(), Some(0.75)), (slow.clone(), None)].into());
        assert_eq!(shares(), (1.0, 1.0, 1.0, true));
        pacing.is_asked(&slow);
        assert_eq!(shares(), (1.0, 1.0, 1.0, true));
        pacing.is_asked(&fast);
        assert_eq!(shares(), (1.0, 0.25, 1.0, true));
        pacing.is_asked(&fast);
        pacing.promise([(fast.clone(), Some(0.75)), (slow.clone(), None)].into());
        assert_eq!(shares(), (1.0, 0.25, 1.0, false), "nothing new");
        manual.advance(BUSY_FOR - Duration::from_millis(1));
        assert_eq!(shares().1, 0.25);
        manual.advance(Duration::from_millis(1));
        assert_eq!(shares(), (1.0, 1.0, 1.0, false), "it has had none for a while");
        // An objective that is taken back.
        pacing.is_asked(&fast);
        pacing.promise([(fast.clone(), None), (slow.clone(), None)].into());
        assert_eq!(shares(), (1.0, 1.0, 1.0, true));
        pacing.promise(BTreeMap::new());
        pacing.is_asked(&fast);
        assert_eq!(shares(), (1.0, 1.0, 1.0, true));
    }
}
