//! A pass of the node lifecycle as intents.

use std::sync::Arc;

use jiff::Timestamp;

use super::heard::Heard;
use super::observed::Observed;
use super::plan::{NodePlan, Step};
use crate::intent::{Deletion, Intent, Intents, Snapshot, Version};

/// What the node lifecycle would write, by what is heard of the nodes.
pub fn intents(snapshot: &Snapshot, heard: Heard, now: Timestamp) -> Intents {
    let plan = NodePlan::new(&Observed {
        nodes: snapshot.nodes.iter().map(Arc::as_ref).collect(),
        replicas: snapshot.replicas.iter().map(Arc::as_ref).collect(),
        deployments: snapshot.deployments.iter().map(Arc::as_ref).collect(),
        heard,
        reserve_node_failures: 0,
        version: env!("CARGO_PKG_VERSION"),
        now,
    });
    let writes = plan.steps.into_iter().map(|step| match step {
        Step::NodeSilent { node, status, .. }
        | Step::NodeDrained { node, status, .. }
        | Step::NodeSkewed { node, status, .. } => Intent::NodeStatus {
            of: Version::of(node),
            status,
        },
        Step::ReplicaNotReady { replica, status } | Step::ReplicaLeaving { replica, status, .. } => {
            Intent::ReplicaStatus {
                of: Version::of(replica),
                status,
            }
        }
        Step::Evict { replica, .. } => Intent::DeleteReplica {
            of: Version::of(replica),
            why: Deletion::Eviction,
        },
        Step::Release { replica, .. } => Intent::ReleaseReplica {
            of: Version::of(replica),
        },
    });
    Intents {
        writes: writes.collect(),
        requeue_after: plan.requeue_after,
    }
}
