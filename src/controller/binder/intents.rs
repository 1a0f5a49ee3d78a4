//! A pass of the binder as intents.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Step, confirmation, plan, requests, waiting};
use crate::api::v1alpha1::{ModelReplica, ModelReplicaStatus};
use crate::controller::intent::{Deletion, Intent, Intents, Snapshot, Version};
use crate::scheduler::{Fleet, Rival};

/// What the binder would write.
pub(crate) fn intents(snapshot: &Snapshot, now: Timestamp) -> Intents {
    let nodes: Vec<_> = snapshot.nodes.iter().map(Arc::as_ref).collect();
    let replicas: Vec<_> = snapshot.replicas.iter().map(Arc::as_ref).collect();
    let mut fleet = Fleet::new(nodes.iter().copied(), replicas.iter().copied());
    let mut writes = Vec::new();
    for step in plan(&mut fleet, &replicas, now) {
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
        look_again_after: None,
    }
}

/// What a binder would write that knew nothing but the rival's rule.
pub(crate) fn rival(snapshot: &Snapshot, rival: Rival, now: Timestamp) -> Intents {
    let nodes = snapshot.nodes.iter().map(Arc::as_ref);
    let replicas: Vec<_> = snapshot.replicas.iter().map(Arc::as_ref).collect();
    let mut fleet = Fleet::new(nodes, replicas.iter().copied());
    let waiting = waiting(&replicas);
    let placed = rival.place_all(&requests(&waiting, &replicas, now), &mut fleet);
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
pub(crate) fn bound(replica: &ModelReplica, node: &str, now: Timestamp) -> ModelReplicaStatus {
    super::scheduled(replica, node, now)
}
