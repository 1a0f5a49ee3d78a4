//! A pass of the node lifecycle as intents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::plan::{NodePlan, Observed, Step};
use crate::controller::intent::{Deletion, Intent, Intents, Snapshot, Version};

/// What the node lifecycle would write, after so long a silence of each node and with these nodes missing for so long.
pub(crate) fn intents(
    snapshot: &Snapshot,
    silence: BTreeMap<String, Duration>,
    missing: BTreeMap<String, Duration>,
    now: Timestamp,
) -> Intents {
    let plan = NodePlan::new(&Observed {
        nodes: snapshot.nodes.iter().map(Arc::as_ref).collect(),
        replicas: snapshot.replicas.iter().map(Arc::as_ref).collect(),
        deployments: snapshot.deployments.iter().map(Arc::as_ref).collect(),
        silence,
        missing,
        now,
    });
    let writes = plan.steps.into_iter().map(|step| match step {
        Step::NodeSilent { node, status, .. } | Step::NodeDrained { node, status, .. } => {
            Intent::NodeStatus {
                of: Version::of(node),
                status,
            }
        }
        Step::ReplicaNotReady { replica, status } => Intent::ReplicaStatus {
            of: Version::of(replica),
            status,
        },
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
        look_again_after: plan.look_again_after,
    }
}
