//! Writes of one pass of the node lifecycle.

use std::sync::Arc;

use jiff::Timestamp;

use super::heartbeats::Timings;
use super::observed::Observed;
use super::plan::{self, NodePlan, Step};
use crate::intent::{
    Deletion, EmitOn, Intent, Intents, PlannedEvent, PlannedWrite, Regarding, Snapshot, Version,
};
use rooflet_api::v1alpha1::{FleetNode, FleetNodeStatus, ModelReplica, ModelReplicaStatus};
use rooflet_client::EventType;
use rooflet_scheduler::ReplicaKey;

/// Returns the writes of one pass without a reserve for node failures.
pub fn intents(snapshot: &Snapshot, timings: Timings, now: Timestamp) -> Intents {
    intents_with_reserve(snapshot, timings, 0, now)
}

/// Returns the writes of one pass.
pub(crate) fn intents_with_reserve(
    snapshot: &Snapshot,
    timings: Timings,
    reserve_node_failures: usize,
    now: Timestamp,
) -> Intents {
    let plan = NodePlan::new(&observed(snapshot, timings, reserve_node_failures, now));
    Intents {
        writes: plan.steps.into_iter().map(write).collect(),
        requeue_after: plan.requeue_after,
    }
}

/// Returns the replicas that a drain leaves on the node, with the reasons.
pub(crate) fn drain_obstacles(
    snapshot: &Snapshot,
    node: &str,
    reserve_node_failures: usize,
    now: Timestamp,
) -> Vec<(ReplicaKey, String)> {
    plan::drain_obstacles(
        &observed(snapshot, Timings::default(), reserve_node_failures, now),
        node,
    )
}

fn observed(
    snapshot: &Snapshot,
    timings: Timings,
    reserve_node_failures: usize,
    now: Timestamp,
) -> Observed<'_> {
    Observed {
        nodes: snapshot.nodes.iter().map(Arc::as_ref).collect(),
        replicas: snapshot.replicas.iter().map(Arc::as_ref).collect(),
        deployments: snapshot.deployments.iter().map(Arc::as_ref).collect(),
        timings,
        reserve_node_failures,
        version: env!("CARGO_PKG_VERSION"),
        now,
    }
}

fn write(step: Step<'_>) -> PlannedWrite {
    match step {
        Step::NodeSilent {
            node,
            status,
            message,
        } => node_status(node, status).with_event(of_node(node, EventType::Warning, "NodeNotReady", message)),
        Step::ReplicaNotReady { replica, status } => {
            let node = replica.spec.node_name.as_deref().unwrap_or_default();
            let message = format!("{node} does not report; gateways send no requests to the replica");
            let event = of_replica(replica, EventType::Warning, "NodeNotReady", message);
            replica_status(replica, status).with_event(event)
        }
        Step::NodeDrained {
            node,
            status,
            drained,
        } => {
            let message = "no replicas left".to_owned();
            let event = drained.then(|| of_node(node, EventType::Normal, "Drained", message));
            with_events(node_status(node, status), event)
        }
        Step::NodeSkewed {
            node,
            status,
            message,
        } => {
            let event = message.map(|message| of_node(node, EventType::Warning, "VersionSkew", message));
            with_events(node_status(node, status), event)
        }
        Step::ReplicaLeaving {
            replica,
            status,
            cause,
        } => {
            let event = cause.map(|cause| {
                let message = format!("{cause}; the replica is deleted when its replacement is Ready");
                of_replica(replica, EventType::Normal, "ReplacementRequested", message)
            });
            with_events(replica_status(replica, status), event)
        }
        Step::Evict { replica, message } => {
            let (of, why) = (Version::of(replica), Deletion::Eviction);
            let message = format!("Evicted: {message}");
            PlannedWrite::from(Intent::DeleteReplica { of, why }).with_event(of_replica(
                replica,
                EventType::Warning,
                "Evicted",
                message,
            ))
        }
        Step::Release { replica, message } => {
            let of = Version::of(replica);
            let message = format!("Released: {message}");
            PlannedWrite::from(Intent::ReleaseReplica { of }).with_event(of_replica(
                replica,
                EventType::Warning,
                "NodeDeleted",
                message,
            ))
        }
    }
}

fn node_status(node: &FleetNode, status: Box<FleetNodeStatus>) -> PlannedWrite {
    let of = Version::of(node);
    Intent::NodeStatus { of, status }.into()
}

fn replica_status(replica: &ModelReplica, status: Box<ModelReplicaStatus>) -> PlannedWrite {
    let of = Version::of(replica);
    Intent::ReplicaStatus { of, status }.into()
}

fn with_events(mut write: PlannedWrite, events: Option<PlannedEvent>) -> PlannedWrite {
    write.events.extend(events);
    write
}

fn of_node(node: &FleetNode, kind: EventType, reason: &str, message: String) -> PlannedEvent {
    event(Regarding::Node(Version::of(node)), kind, reason, message)
}

fn of_replica(replica: &ModelReplica, kind: EventType, reason: &str, message: String) -> PlannedEvent {
    event(Regarding::Replica(Version::of(replica)), kind, reason, message)
}

fn event(regarding: Regarding, kind: EventType, reason: &str, message: String) -> PlannedEvent {
    PlannedEvent {
        regarding,
        kind,
        reason: reason.to_owned(),
        message,
        on: EmitOn::Change,
    }
}
