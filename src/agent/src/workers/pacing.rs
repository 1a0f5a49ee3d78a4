//! Shares of the chip's time while replicas with objectives have requests. Without a limit, the
//! engine of a best-effort replica uses half of the time, regardless of the share that is reserved
//! for the objectives.
//!
//! Monitors send each worker its share. The worker's engine thread pauses between its steps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::replica::ReplicaKey;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_roofline::admission::BEST_EFFORT_SHARE;

/// A replica counts as busy for this time after a request. The time covers one poll of the monitor
/// and the gaps between consecutive requests of a client.
const BUSY_FOR: Duration = Duration::from_secs(3);

/// Running replica.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Member {
    /// Reserved share of the chip's time. `None` without objectives.
    reserved: Option<f64>,
    /// Time of the last observed request.
    last_request: Option<Instant>,
}

impl Member {
    fn is_busy(&self, now: Instant) -> bool {
        self.last_request.is_some_and(|last| now - last < BUSY_FOR)
    }
}

/// Shares of the chip's time. Clones share the members.
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

    /// Sets all running replicas with their reserved shares. `None` means no objectives.
    pub(crate) fn set_shares(&self, shares: BTreeMap<ReplicaKey, Option<f64>>) {
        let mut members = self.lock();
        let next: BTreeMap<_, _> = shares
            .into_iter()
            .map(|(key, reserved)| {
                let last_request = members.get(&key).and_then(|member| member.last_request);
                (
                    key,
                    Member {
                        reserved,
                        last_request,
                    },
                )
            })
            .collect();
        if *members != next {
            *members = next;
            self.changed_tx.send_replace(());
        }
    }

    /// Records a request of the replica.
    pub(crate) fn request_started(&self, key: &ReplicaKey) {
        let now = self.clock.instant();
        if let Some(member) = self.lock().get_mut(key) {
            let was_busy = member.is_busy(now);
            member.last_request = Some(now);
            if !was_busy {
                self.changed_tx.send_replace(());
            }
        }
    }

    /// Returns the share of the chip's time that the replica's worker may use now.
    pub(crate) fn share(&self, key: &ReplicaKey) -> f64 {
        let now = self.clock.instant();
        let members = self.lock();
        let limited = members.get(key).is_some_and(|member| member.reserved.is_none());
        let busy = members.values().filter(|member| member.is_busy(now));
        let share = limited.then(|| best_effort_share(busy.map(|member| member.reserved)));
        share.flatten().unwrap_or(1.0)
    }

    /// Fires when shares may have become smaller. Larger shares are applied by the next poll.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed_tx.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, Member>> {
        lock(&self.members)
    }
}

/// Returns the share of each best-effort replica beside the busy replicas: an equal part of the
/// unreserved share, but at least [`BEST_EFFORT_SHARE`], which admission keeps free. `None` if no
/// busy replica has objectives.
fn best_effort_share(busy: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let (mut reserved, mut best_effort) = (None, 0_u32);
    for share in busy {
        match share {
            Some(share) => *reserved.get_or_insert(0.0) += share,
            None => best_effort += 1,
        }
    }
    let share = (1.0 - reserved?) / f64::from(best_effort.max(1));
    Some(share.max(BEST_EFFORT_SHARE))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use rooflet_base::clock::ManualClock;

    #[test]
    fn best_effort_replicas_share_the_unreserved_time() {
        assert_eq!(best_effort_share([None, None]), None);
        assert_eq!(best_effort_share([Some(0.75)]), Some(0.25));
        assert_eq!(
            best_effort_share([Some(0.5), Some(0.25), None, None]),
            Some(0.125)
        );
        // An admission override has reserved more than the complete chip time.
        assert_eq!(
            best_effort_share([Some(0.7), Some(0.7), None]),
            Some(BEST_EFFORT_SHARE)
        );
    }

    #[test]
    fn limits_apply_only_while_objectives_are_in_use() {
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
        pacing.set_shares([(fast.clone(), Some(0.75)), (slow.clone(), None)].into());
        assert_eq!(shares(), (1.0, 1.0, 1.0, true));
        pacing.request_started(&slow);
        assert_eq!(shares(), (1.0, 1.0, 1.0, true));
        pacing.request_started(&fast);
        assert_eq!(shares(), (1.0, 0.25, 1.0, true));
        pacing.request_started(&fast);
        pacing.set_shares([(fast.clone(), Some(0.75)), (slow.clone(), None)].into());
        assert_eq!(shares(), (1.0, 0.25, 1.0, false), "nothing new");
        manual.advance(BUSY_FOR - Duration::from_millis(1));
        assert_eq!(shares().1, 0.25);
        manual.advance(Duration::from_millis(1));
        assert_eq!(shares(), (1.0, 1.0, 1.0, false), "no recent requests");
        // An objective is removed.
        pacing.request_started(&fast);
        pacing.set_shares([(fast.clone(), None), (slow.clone(), None)].into());
        assert_eq!(shares(), (1.0, 1.0, 1.0, true));
        pacing.set_shares(BTreeMap::new());
        pacing.request_started(&fast);
        assert_eq!(shares(), (1.0, 1.0, 1.0, true));
    }
}
