//! Mean time to the first token of the Ready replicas. Pure.
//!
//! A replica reports the median of its last requests. After a scale-up, this median still covers
//! requests from before, which waited longer because fewer replicas shared the load. The mean
//! excludes replicas whose median mostly covers such requests.

use std::collections::BTreeMap;

/// Ready replica and its request figures.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadyReplica {
    pub uid: String,
    /// Requests completed since the start of the worker.
    pub completed: u64,
    pub first_token: Option<FirstToken>,
}

/// Median time to the first token of a replica's last requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstToken {
    pub seconds: f64,
    /// Number of requests that the median covers.
    pub requests: u64,
}

/// Request counts at the time when the last scale-up took effect: when the requests that were
/// present at the scale-up were completed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ScaleUpBaseline {
    /// Completed requests of each Ready replica, by UID.
    completed: BTreeMap<String, u64>,
    /// Requests that were present at the scale-up and are not completed yet.
    backlog: u64,
}

impl ScaleUpBaseline {
    /// Updates the baseline with the Ready replicas and the number of running and waiting requests.
    ///
    /// At the first update, the baseline of every replica is zero, because the time of the last
    /// scale-up is unknown.
    pub(super) fn update(&mut self, ready: &[ReadyReplica], requests: u64) {
        let before = std::mem::take(&mut self.completed);
        // A restarted worker counts from zero.
        let known = |replica: &ReadyReplica| {
            let known = before.get(&replica.uid).copied();
            known.map(|known| if known <= replica.completed { known } else { 0 })
        };
        let has_grown = !before.is_empty() && ready.iter().any(|replica| known(replica).is_none());
        let completed_since: u64 = ready
            .iter()
            .filter_map(|replica| Some(replica.completed - known(replica)?))
            .sum();
        let advances = has_grown || self.backlog > 0;
        self.backlog = match has_grown {
            true => requests,
            false => self.backlog.saturating_sub(completed_since),
        };
        let baseline = |replica: &ReadyReplica| {
            if advances {
                replica.completed
            } else {
                known(replica).unwrap_or(0)
            }
        };
        self.completed = ready
            .iter()
            .map(|replica| (replica.uid.clone(), baseline(replica)))
            .collect();
    }

    /// Returns the mean over the replicas whose median covers mostly requests after the baseline.
    /// Returns `None` if no replica qualifies.
    pub(super) fn mean(&self, ready: &[ReadyReplica]) -> Option<f64> {
        let seconds: Vec<_> = ready
            .iter()
            .filter_map(|replica| {
                let first_token = replica.first_token?;
                let before = self.completed.get(&replica.uid)?;
                let since = replica.completed.saturating_sub(*before);
                (2 * since > first_token.requests).then_some(first_token.seconds)
            })
            .collect();
        let count = u32::try_from(seconds.len()).ok().filter(|count| *count > 0)?;
        Some(seconds.iter().sum::<f64>() / f64::from(count))
    }
}
