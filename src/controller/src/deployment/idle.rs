//! Idle times of replicas, for rollouts that wait until a replica is idle.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::admission::named;
use rooflet_api::v1alpha1::{ModelReplica, StrategySpec};
use rooflet_base::clock::since;
use rooflet_base::quantity::parse_duration;

/// Settings of `spec.strategy.waitForIdle` at the time of a pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Idleness {
    idle_for: Duration,
    at_most: Duration,
    now: Timestamp,
}

impl Idleness {
    pub(super) fn of(strategy: &StrategySpec, now: Timestamp) -> Option<Self> {
        let spec = strategy.wait_for_idle.as_ref()?;
        // The schema rejects other texts. An invalid text means no wait.
        let time = |text: &str| parse_duration(text).unwrap_or_default();
        Some(Self {
            idle_for: time(&spec.idle_for),
            at_most: time(&spec.at_most),
            now,
        })
    }

    /// Returns the remaining waiting time, or `None` if the maximum time has passed.
    pub(super) fn left(self, began: Timestamp) -> Option<Duration> {
        let left = self.at_most.saturating_sub(since(self.now, began));
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time that the replica must still be without requests, zero if it is idle long
    /// enough. Returns `None` if the replica has requests or reports none.
    fn idle_time_left(self, replica: &ModelReplica) -> Option<Duration> {
        let requests = replica.status.as_ref()?.requests.as_ref()?;
        let idle = since(self.now, requests.idle_since.as_ref()?.0);
        Some(self.idle_for.saturating_sub(idle))
    }

    pub(super) fn is_idle(self, replica: &ModelReplica) -> bool {
        self.idle_time_left(replica) == Some(Duration::ZERO)
    }
}

/// Replicas that are replaced once they are idle.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InUse {
    names: Vec<String>,
    idle_for: Duration,
    at_most: Duration,
    /// Minimum time until one of them is idle long enough, without new requests.
    soonest: Option<Duration>,
}

impl InUse {
    pub(super) fn new(idleness: Idleness, replicas: &[&ModelReplica]) -> Option<Self> {
        let mut names: Vec<_> = replicas.iter().map(|replica| replica.name_any()).collect();
        names.sort();
        (!names.is_empty()).then(|| Self {
            names,
            idle_for: idleness.idle_for,
            at_most: idleness.at_most,
            soonest: replicas
                .iter()
                .filter_map(|replica| idleness.idle_time_left(replica))
                .min(),
        })
    }

    pub(super) fn requeue_after(&self, began: Timestamp, now: Timestamp) -> Duration {
        let left = self.at_most.saturating_sub(since(now, began));
        self.soonest.map_or(left, |soonest| soonest.min(left))
    }

    pub(super) fn message(&self, began: Timestamp) -> String {
        let until = began.checked_add(self.at_most).unwrap_or(Timestamp::MAX);
        format!(
            "the next replica is replaced after {} s without requests, at {until} at the latest: {}",
            self.idle_for.as_secs_f64(),
            named(self.names.clone())
        )
    }
}
