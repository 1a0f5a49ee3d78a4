//! Writes of one pass of the deployment reconciler.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use super::admission::{HubAnswer, named};
use super::observed::Observed;
use super::ownership::{Owned, adoption};
use super::plan::DeploymentPlan;
use super::replica::awaits_first_report;
use super::revision::RevisionStep;
use super::rollout::DeleteReason;
use super::served_names::ServedNames;
use crate::intent::{
    Batch, Deletion, Dependency, EmitOn, Intent, Intents, PlannedEvent, PlannedWrite, Regarding, Snapshot,
    Version,
};
use rooflet_api::v1alpha1::{HubModel, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_client::{EventType, ObjectKey};
use rooflet_scheduler::Fleet;

/// Callback that returns the hub's answer for a template without a revision, or `None` without a
/// hub.
pub(super) type AskHub<'h> = dyn FnMut(&Observed<'_, '_>, &HubModel) -> Option<HubAnswer> + 'h;

/// Returns the writes of one pass without a hub. `fleet` contains the objects of the snapshot.
pub fn intents(fleet: &Fleet, snapshot: &Snapshot, now: Timestamp) -> Intents {
    intents_of(fleet, snapshot, |_| true, now, &mut |_, _| None)
}

/// Returns the writes of a pass for one deployment, without a query of the hub.
pub(crate) fn intents_for(fleet: &Fleet, snapshot: &Snapshot, key: &ObjectKey, now: Timestamp) -> Intents {
    let is_planned = |deployment: &_| ObjectKey::of(deployment) == *key;
    let mut answer = |observed: &Observed<'_, '_>, model: &HubModel| {
        Some(match observed.deployment.spec.paused {
            true => HubAnswer::paused(model),
            false => HubAnswer::not_queried(model),
        })
    };
    intents_of(fleet, snapshot, is_planned, now, &mut answer)
}

/// Returns the writes of one pass over the deployments for which `is_planned` returns true: first
/// those of the deployments that delete replicas, last the adoptions.
pub(super) fn intents_of(
    fleet: &Fleet,
    snapshot: &Snapshot,
    is_planned: impl Fn(&ModelDeployment) -> bool,
    now: Timestamp,
    ask_hub: &mut AskHub<'_>,
) -> Intents {
    let (revisions, replicas) = (Owned::new(&snapshot.revisions), Owned::new(&snapshot.replicas));
    let names = ServedNames::new(&snapshot.deployments);
    let mut intents = Intents::default();
    let (mut others, mut adoptions) = (Vec::new(), Vec::new());
    let planned = snapshot.deployments.iter().map(Arc::as_ref);
    for deployment in planned.filter(|deployment| is_planned(deployment)) {
        let mut adoptable = replicas.orphans_of(deployment);
        adoptable.retain(|replica| !awaits_first_report(replica));
        let orphans = Orphans {
            revisions: revisions.orphans_of(deployment),
            replicas: adoptable,
        };
        if !orphans.is_empty() {
            // The next pass plans for the adopted objects.
            adoptions.extend(orphans.writes(deployment));
            continue;
        }
        let mut observed = Observed {
            deployment,
            revisions: revisions.of(deployment),
            replicas: replicas.of(deployment),
            foreign: revisions.foreign_in_namespace_of(deployment),
            namesake: names.older_than(deployment),
            fleet,
            hub: None,
            now,
        };
        if let Some(model) = observed.unknown_model() {
            observed.hub = ask_hub(&observed, &model);
        }
        let Some(plan) = DeploymentPlan::new(&observed) else {
            continue;
        };
        intents.requeue_after = intents.requeue_after.into_iter().chain(plan.requeue_after).min();
        match plan.delete.is_empty() {
            true => others.extend(plan.writes(&observed)),
            false => intents.writes.extend(plan.writes(&observed)),
        }
    }
    intents.writes.extend(others);
    intents.writes.extend(adoptions);
    intents
}

/// Objects with the deployment's label and without a controller.
struct Orphans<'a> {
    revisions: Vec<&'a ModelRevision>,
    replicas: Vec<&'a ModelReplica>,
}

impl Orphans<'_> {
    fn is_empty(&self) -> bool {
        self.revisions.is_empty() && self.replicas.is_empty()
    }

    /// Returns the adoption of each orphan, after a check that the deployment exists on the server.
    /// The deletion of this deployment may have caused the orphans, and the watches of different
    /// kinds are not synchronised.
    fn writes(&self, deployment: &ModelDeployment) -> Vec<PlannedWrite> {
        let batch = Batch::of(deployment);
        let of = Version::of(deployment);
        let confirmation = PlannedWrite::from(Intent::ConfirmDeployment { of })
            .after(Dependency::Prerequisite(batch.clone()));
        let revisions = self.revisions.iter().map(|revision| Intent::AdoptRevision {
            of: Version::of(*revision),
            patch: adoption(deployment, *revision),
        });
        let replicas = self.replicas.iter().map(|replica| Intent::AdoptReplica {
            of: Version::of(*replica),
            patch: adoption(deployment, *replica),
        });
        let adopt = |intent| PlannedWrite::from(intent).after(Dependency::Dependent(batch.clone()));
        let mut writes = vec![confirmation];
        writes.extend(revisions.chain(replicas).map(adopt));
        let revisions = self.revisions.iter().map(|revision| revision.name_any());
        let replicas = self.replicas.iter().map(|replica| replica.name_any());
        let names = named(revisions.chain(replicas).collect());
        let message = format!("Adopted objects without a controller: {names}");
        let adopted = event(deployment, "Adopted", message, EmitOn::Success);
        // The event reports the whole batch, so the last write of the batch emits it.
        writes
            .last_mut()
            .into_iter()
            .for_each(|last| last.events.push(adopted.clone()));
        writes
    }
}

impl DeploymentPlan<'_> {
    /// Returns the writes of the plan. Replicas are created only if the writes of the revision and
    /// of all deletions succeeded. Otherwise more replicas than the surge permits could exist.
    pub(super) fn writes(self, observed: &Observed<'_, '_>) -> Vec<PlannedWrite> {
        let deployment = observed.deployment;
        let batch = Batch::of(deployment);
        let prerequisite = || Dependency::Prerequisite(batch.clone());
        let mut writes = Vec::new();
        let prune = self.prune.iter().map(|revision| Version::of(*revision));
        writes.extend(prune.map(|of| PlannedWrite::from(Intent::DeleteRevision(of))));
        let revision = revision_write(self.revision, observed);
        writes.extend(revision.map(|write| write.after(prerequisite())));
        for (replica, reason) in &self.delete {
            let (of, why) = (Version::of(*replica), Deletion::Deployment);
            let message = deletion_message(replica, *reason);
            let deletion = PlannedWrite::from(Intent::DeleteReplica { of, why })
                .with_event(event(deployment, "ReplicaDeleted", message, EmitOn::Success))
                .after(prerequisite());
            writes.push(deletion);
        }
        for replica in self.create {
            let message = "Created replica ".to_owned();
            let creation = PlannedWrite::from(Intent::CreateReplica(Box::new(replica)))
                .with_event(event(deployment, "ReplicaCreated", message, EmitOn::Creation))
                .after(Dependency::Dependent(batch.clone()));
            writes.push(creation);
        }
        for (replica, patch) in self.amend {
            let of = Version::of(replica);
            writes.push(Intent::AmendReplica { of, patch }.into());
        }
        if deployment.status.as_ref() != Some(&self.status) {
            let of = Version::of(deployment);
            let status = Box::new(self.status);
            let mut write = PlannedWrite::from(Intent::DeploymentStatus { of, status });
            write.events = self
                .events
                .into_iter()
                .map(|(kind, reason, message)| PlannedEvent {
                    kind,
                    ..event(deployment, &reason, message, EmitOn::Change)
                })
                .collect();
            writes.push(write);
        }
        writes
    }
}

fn revision_write(step: RevisionStep, observed: &Observed<'_, '_>) -> Option<PlannedWrite> {
    let deployment = observed.deployment;
    let known = |name: &str| {
        let mut revisions = observed.revisions.iter();
        let found = revisions.find(|known| known.metadata.name.as_deref() == Some(name))?;
        Some(Version::of(*found))
    };
    match step {
        RevisionStep::Keep => None,
        RevisionStep::Create(revision) => {
            let (number, name) = (revision.spec.revision, revision.name_any());
            let message = format!("Created revision {number} ({name})");
            let created = event(deployment, "RevisionCreated", message, EmitOn::Success);
            Some(PlannedWrite::from(Intent::CreateRevision(revision)).with_event(created))
        }
        RevisionStep::Renumber { name, revision } => {
            let of = known(&name)?;
            let message = format!("Returned to the template of {name}, now revision {revision}");
            let reused = event(deployment, "RevisionReused", message, EmitOn::Change);
            Some(PlannedWrite::from(Intent::RenumberRevision { of, revision }).with_event(reused))
        }
        RevisionStep::ChangeCause { name, cause } => {
            let of = known(&name)?;
            Some(Intent::SetChangeCause { of, cause }.into())
        }
    }
}

fn deletion_message(replica: &ModelReplica, reason: DeleteReason) -> String {
    let name = replica.name_any();
    match reason {
        DeleteReason::Surplus => format!("Deleted replica {name}: more than spec.replicas"),
        DeleteReason::Outdated => format!("Deleted replica {name}: outdated revision or placement"),
        DeleteReason::Refused => format!("Deleted replica {name}: its node refused it"),
    }
}

fn event(deployment: &ModelDeployment, reason: &str, message: String, on: EmitOn) -> PlannedEvent {
    PlannedEvent {
        regarding: Regarding::Deployment(Version::of(deployment)),
        kind: EventType::Normal,
        reason: reason.to_owned(),
        message,
        on,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use rooflet_api::conditions::{Truth, condition_type, set_condition};
    use rooflet_api::meta::{DEPLOYMENT_LABEL, RESTORED_ANNOTATION};
    use rooflet_api::v1alpha1::ModelReplicaStatus;

    /// Before its first report, a restored replica looks unready. The deployment would delete it
    /// before its own replica is ready.
    #[test]
    fn restored_replica_is_adopted_after_its_first_report() {
        let mut deployment = ModelDeployment::test("guide", json!({}));
        deployment.metadata.uid = Some("u".to_owned());
        let mut restored = ModelReplica::test("guide-1-x", json!({ "nodeName": "mini" }));
        restored.metadata.labels = Some([(DEPLOYMENT_LABEL.to_owned(), "guide".to_owned())].into());
        restored.metadata.annotations = Some([(RESTORED_ANNOTATION.to_owned(), "u1".to_owned())].into());
        let is_adopted = |replica: &ModelReplica| {
            let snapshot = Snapshot {
                deployments: vec![Arc::new(deployment.clone())],
                replicas: vec![Arc::new(replica.clone())],
                ..Snapshot::default()
            };
            let writes = intents(&Fleet::default(), &snapshot, Timestamp::UNIX_EPOCH).writes;
            writes
                .iter()
                .any(|write| matches!(write.intent, Intent::AdoptReplica { .. }))
        };
        assert!(!is_adopted(&restored));
        let mut status = ModelReplicaStatus::default();
        let now = Timestamp::UNIX_EPOCH;
        set_condition(
            &mut status.conditions,
            condition_type::READY,
            Truth::True,
            "Serving",
            "",
            None,
            now,
        );
        restored.status = Some(status);
        assert!(is_adopted(&restored));
    }
}
