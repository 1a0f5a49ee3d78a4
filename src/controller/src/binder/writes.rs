//! Writes of one pass of the binder.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::advice::Advice;
use super::{Step, confirmation, plan, unscheduled};
use crate::fleet::{FollowedFleet, object_key};
use crate::intent::{
    Batch, Deletion, Dependency, EmitOn, Intent, Intents, PlannedEvent, PlannedWrite, Regarding, Snapshot,
    Version,
};
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaStatus};
use rooflet_client::{EventType, ObjectKey};
use rooflet_scheduler::{ReplicaKey, Rival};

/// Returns the writes of one pass of the binder. `fleet` follows the objects of the snapshot.
pub fn intents(fleet: &mut FollowedFleet, snapshot: &Snapshot, now: Timestamp) -> Intents {
    let candidates: BTreeSet<_> = fleet
        .candidates(now)
        .iter()
        .map(|replica| ObjectKey::of(replica.as_ref()))
        .collect();
    let replicas = snapshot.replicas.iter().map(Arc::as_ref);
    let replicas: Vec<_> = replicas
        .filter(|replica| candidates.contains(&ObjectKey::of(*replica)))
        .collect();
    let (batches, unplaced) = fleet.trial(|fleet, objects| {
        let find = |key: &ReplicaKey| objects.get(&object_key(key)).map(Arc::as_ref);
        let (steps, unplaced) = plan(fleet, &replicas, find, now);
        (batches(steps), unplaced)
    });
    fleet.set_unschedulable(unplaced, now);
    Intents {
        writes: batches.into_iter().flatten().collect(),
        requeue_after: None,
    }
}

/// Returns the writes of each step. Batches do not depend on one another.
pub(super) fn batches(steps: Vec<Step<'_>>) -> Vec<Vec<PlannedWrite>> {
    steps.into_iter().map(writes).collect()
}

fn writes(step: Step<'_>) -> Vec<PlannedWrite> {
    match step {
        Step::Bind {
            replica,
            node,
            message,
        } => {
            let scheduled = event(replica, EventType::Normal, "Scheduled", message, EmitOn::Success);
            let [bind, confirm] = bind(replica, node);
            vec![bind.with_event(scheduled), confirm]
        }
        Step::Preempt {
            replica,
            status,
            victims,
            message,
        } => preempt(replica, status, &victims, message),
        Step::Report {
            replica,
            status,
            message,
        } => {
            let kind = EventType::Warning;
            let waits = event(replica, kind, "FailedScheduling", message, EmitOn::Change);
            vec![report(replica, status).with_event(waits)]
        }
        Step::Confirm { replica, status } => vec![report(replica, status)],
    }
}

fn bind(replica: &ModelReplica, node: String) -> [PlannedWrite; 2] {
    let (of, batch) = (Version::of(replica), Batch::of(replica));
    let bind = Intent::Bind {
        of: of.clone(),
        node: node.clone(),
    };
    [
        PlannedWrite::from(bind).after(Dependency::Prerequisite(batch.clone())),
        PlannedWrite::from(Intent::ConfirmBinding { of, node }).after(Dependency::Dependent(batch)),
    ]
}

/// Returns the nomination of the node and the deletions of the victims.
///
/// The nomination is first: it keeps other replicas from the memory that the victims release.
fn preempt(
    replica: &ModelReplica,
    status: Box<ModelReplicaStatus>,
    victims: &[&ModelReplica],
    message: String,
) -> Vec<PlannedWrite> {
    let batch = Batch::of(replica);
    let preempting = event(replica, EventType::Normal, "Preempting", message, EmitOn::Success);
    let nomination = report(replica, status)
        .with_event(preempting)
        .after(Dependency::Prerequisite(batch.clone()));
    let deletions = victims.iter().map(|victim| {
        let (of, why) = (Version::of(*victim), Deletion::Preemption);
        let message = format!(
            "Preempted by {} of priority {}, which fits on no other node",
            ReplicaKey::of(replica),
            replica.spec.priority
        );
        let preempted = event(victim, EventType::Warning, "Preempted", message, EmitOn::Success);
        PlannedWrite::from(Intent::DeleteReplica { of, why })
            .with_event(preempted)
            .after(Dependency::Dependent(batch.clone()))
    });
    [nomination].into_iter().chain(deletions).collect()
}

fn report(replica: &ModelReplica, status: Box<ModelReplicaStatus>) -> PlannedWrite {
    let of = Version::of(replica);
    Intent::ReplicaStatus { of, status }.into()
}

fn event(replica: &ModelReplica, kind: EventType, reason: &str, message: String, on: EmitOn) -> PlannedEvent {
    PlannedEvent {
        regarding: Regarding::Replica(Version::of(replica)),
        kind,
        reason: reason.to_owned(),
        message,
        on,
    }
}

/// Returns the writes of a binder that uses the placement rule of `rival` instead of the scheduler.
pub fn rival(fleet: &mut FollowedFleet, snapshot: &Snapshot, rival: Rival, now: Timestamp) -> Intents {
    let replicas: Vec<_> = snapshot.replicas.iter().map(Arc::as_ref).collect();
    let unscheduled = unscheduled(&replicas);
    let advice = Advice::of(&replicas, now);
    let requests: Vec<_> = unscheduled
        .iter()
        .map(|replica| advice.request(replica))
        .collect();
    let placed = fleet.trial(|fleet, _| rival.place_all(&requests, fleet));
    let mut intents = Intents::default();
    for (replica, node) in unscheduled.into_iter().zip(placed) {
        let writes = node.map(|node| bind(replica, node));
        intents.writes.extend(writes.into_iter().flatten());
    }
    let confirmations = replicas.iter().filter_map(|replica| confirmation(replica, now));
    intents.writes.extend(confirmations.flat_map(writes));
    intents
}
