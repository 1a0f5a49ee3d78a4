//! A pass of the binder as intents.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Step, confirmation, plan, requests, waiting};
use crate::fleet::FollowedFleet;
use crate::intent::{Deletion, Intent, Intents, Snapshot, Version};
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaStatus};
use rooflet_scheduler::Rival;

/// What the binder would write. `fleet` follows the same objects.
pub fn intents(fleet: &mut FollowedFleet, snapshot: &Snapshot, now: Timestamp) -> Intents {
    let replicas: Vec<_> = snapshot.replicas.iter().map(Arc::as_ref).collect();
    let mut writes = Vec::new();
    for step in fleet.trial(|fleet| plan(fleet, &replicas, now)) {
        match step {
            Step::Bind { replica, node, .. } => writes.push(Intent::Bind {
                of: Version::of(replica),
                node,
            }),
            Step::Preempt {
                replica,
                status,
                victims,
                ..
            } => {
                writes.push(Intent::ReplicaStatus {
                    of: Version::of(replica),
                    status,
                });
                writes.extend(victims.iter().map(|victim| Intent::DeleteReplica {
                    of: Version::of(*victim),
                    why: Deletion::Preemption,
                }));
            }
            Step::Report { replica, status, .. } | Step::Confirm { replica, status } => {
                writes.push(Intent::ReplicaStatus {
                    of: Version::of(replica),
                    status,
                });
            }
        }
    }
    Intents {
        writes,
        requeue_after: None,
    }
}

/// What a binder would write that knew nothing but the rival's rule.
pub fn rival(fleet: &mut FollowedFleet, snapshot: &Snapshot, rival: Rival, now: Timestamp) -> Intents {
    let replicas: Vec<_> = snapshot.replicas.iter().map(Arc::as_ref).collect();
    let waiting = waiting(&replicas);
    let requests = requests(&waiting, &replicas, now);
    let placed = fleet.trial(|fleet| rival.place_all(&requests, fleet));
    let mut intents = Intents::default();
    for (replica, node) in waiting.into_iter().zip(placed) {
        let of = Version::of(replica);
        intents.writes.extend(node.map(|node| Intent::Bind { of, node }));
    }
    for step in replicas.iter().filter_map(|replica| confirmation(replica, now)) {
        if let Step::Confirm { replica, status } = step {
            let of = Version::of(replica);
            intents.writes.push(Intent::ReplicaStatus { of, status });
        }
    }
    intents
}

/// The status that follows a binding.
pub fn bound(replica: &ModelReplica, node: &str, now: Timestamp) -> ModelReplicaStatus {
    super::scheduled(replica, node, now)
}
