//! Replicas of a former fleet that keep running. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::desired::Desired;
use super::observed::{Observed, WorkerState};
use super::step::{RefusalKind, Step};
use crate::fleet::Retention;
use crate::replica::{DesiredReplica, ReplicaKey};

/// Reasons of refusals that the end of another replica can resolve.
const RESOURCES: [&str; 4] = [
    "InsufficientMemory",
    "MemoryInUse",
    "InsufficientDisk",
    "InsufficientBandwidth",
];

/// Running replicas that the API server does not list, and that keep running.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Retained {
    pub(super) replicas: BTreeMap<ReplicaKey, DesiredReplica>,
    pub(super) yielding: BTreeSet<ReplicaKey>,
}

impl Retained {
    /// Selects from the `absent` replicas. `unwanted` are those without a deployment.
    pub(super) fn new(
        retention: Retention,
        absent: BTreeMap<ReplicaKey, DesiredReplica>,
        unwanted: BTreeSet<ReplicaKey>,
    ) -> Self {
        let mut replicas = absent;
        let mut yielding = BTreeSet::new();
        match retention {
            Retention::Stop => replicas.clear(),
            Retention::Unidentified | Retention::Keep => {}
            Retention::Yield => yielding = unwanted,
            Retention::Expire => replicas.retain(|key, _| !unwanted.contains(key)),
        }
        Self { replicas, yielding }
    }
}

/// Returns the yielding replica to stop, if another replica was refused for lack of resources: the
/// replica with the lowest priority and the fewest requests.
pub(super) fn victim(
    desired: &Desired,
    observed: &Observed,
    steps: &BTreeMap<ReplicaKey, Step>,
) -> Option<ReplicaKey> {
    let lacks_resources = |(key, step): (&ReplicaKey, &Step)| match step {
        Step::Refuse(refusal) => {
            refusal.kind == RefusalKind::Temporary
                && RESOURCES.contains(&refusal.reason.as_str())
                && !desired.yielding.contains(key)
        }
        Step::Pull(_)
        | Step::Start(_)
        | Step::Stop(_)
        | Step::Keep
        | Step::AwaitStop
        | Step::Wait(_)
        | Step::Release => false,
    };
    if !steps.iter().any(lacks_resources) {
        return None;
    }
    let candidates = desired.yielding.iter().filter_map(|key| {
        let seen = observed.replicas.get(key)?;
        let priority = desired.replicas.get(key)?.replica.terms.priority;
        (seen.worker == WorkerState::Running).then_some((priority, seen.requests, key))
    });
    candidates.min().map(|(.., key)| key.clone())
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{check, parse_case};
    use super::*;

    #[test]
    fn yielding_replicas_stop_one_at_a_time_when_another_needs_their_memory() {
        check(
            "a:gib=6 k:gib=6:yielding",
            "k:gib=6",
            "a=refuse(Temporary/InsufficientMemory) k=stop(Deleted)",
        );
        check(
            "a:gib=6 k:gib=3:yielding l:gib=3:yielding:priority=-1",
            "k:gib=3 l:gib=3",
            "a=refuse(Temporary/InsufficientMemory) k=keep l=stop(Deleted)",
        );
        check(
            "a:gib=6 k:gib=3:yielding",
            "k:gib=3 l:gib=3:worker=stopping",
            "a=refuse(Temporary/InsufficientMemory) k=keep l=await",
        );
        check(
            "a:gib=6 k:gib=6",
            "k:gib=6",
            "a=refuse(Temporary/InsufficientMemory) k=keep",
        );
        // No resource of another replica helps.
        check(
            "a:gib=11 k:gib=6:yielding",
            "k:gib=6",
            "a=refuse(Permanent/ExceedsNodeMemory) k=keep",
        );
        check("a k:yielding", "k", "a=start(1.0 GiB) k=keep");
    }

    #[test]
    fn only_replicas_without_a_deployment_yield_and_expire() {
        let (desired, _) = parse_case("a b", "");
        let absent: BTreeMap<_, _> = desired
            .replicas
            .into_iter()
            .map(|(key, resolved)| (key, resolved.replica))
            .collect();
        let unwanted = BTreeSet::from([ReplicaKey::new("default", "b")]);
        let names = |keys: Vec<&ReplicaKey>| keys.iter().map(|key| key.name.clone()).collect::<String>();
        for (retention, running, yielding) in [
            (Retention::Stop, "", ""),
            (Retention::Unidentified, "ab", ""),
            (Retention::Keep, "ab", ""),
            (Retention::Yield, "ab", "b"),
            (Retention::Expire, "a", ""),
        ] {
            let retained = Retained::new(retention, absent.clone(), unwanted.clone());
            assert_eq!(
                names(retained.replicas.keys().collect()),
                running,
                "{retention:?}"
            );
            assert_eq!(
                names(retained.yielding.iter().collect()),
                yielding,
                "{retention:?}"
            );
        }
    }
}
