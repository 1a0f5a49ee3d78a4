//! A pass of the deployment reconciler as intents.

use jiff::Timestamp;

use super::observed::Observed;
use super::ownership::Owned;
use super::plan::DeploymentPlan;
use super::revision::RevisionStep;
use super::served_names::ServedNames;
use crate::intent::{Deletion, Intent, Intents, Snapshot, Version};
use rooflet_scheduler::Fleet;

/// What the deployment reconciler would write. `fleet` is of the same objects.
pub fn intents(fleet: &Fleet, snapshot: &Snapshot, now: Timestamp) -> Intents {
    // Without adoptions: the modelled store deletes what a deleted deployment controlled, and orphans nothing.
    let (revisions, replicas) = (Owned::new(&snapshot.revisions), Owned::new(&snapshot.replicas));
    let names = ServedNames::new(&snapshot.deployments);
    let mut intents = Intents::default();
    for deployment in &snapshot.deployments {
        let observed = Observed {
            deployment,
            revisions: revisions.of(deployment),
            replicas: replicas.of(deployment),
            foreign: revisions.foreign_beside(deployment),
            namesake: names.older_than(deployment),
            fleet,
            hub: None,
            now,
        };
        let Some(plan) = DeploymentPlan::new(&observed) else {
            continue;
        };
        let mut writes = Vec::new();
        writes.extend(
            plan.prune
                .iter()
                .map(|revision| Intent::DeleteRevision(Version::of(*revision))),
        );
        match plan.revision {
            // Nobody says anything of templates in the simulation.
            RevisionStep::Keep | RevisionStep::ChangeCause { .. } => {}
            RevisionStep::Create(revision) => writes.push(Intent::CreateRevision(revision)),
            RevisionStep::Renumber { name, revision } => {
                let known = observed
                    .revisions
                    .iter()
                    .find(|known| known.metadata.name.as_deref() == Some(&name));
                writes.extend(known.map(|known| Intent::RenumberRevision {
                    of: Version::of(*known),
                    revision,
                }));
            }
        }
        writes.extend(plan.delete.iter().map(|(replica, _)| Intent::DeleteReplica {
            of: Version::of(*replica),
            why: Deletion::Deployment,
        }));
        writes.extend(
            plan.create
                .into_iter()
                .map(|replica| Intent::CreateReplica(Box::new(replica))),
        );
        writes.extend(
            plan.amend
                .into_iter()
                .map(|(replica, patch)| Intent::AmendReplica {
                    of: Version::of(replica),
                    patch,
                }),
        );
        let told = deployment.status.as_ref() == Some(&plan.status);
        if !told || !writes.is_empty() {
            writes.push(Intent::DeploymentStatus {
                of: Version::of(deployment.as_ref()),
                status: Box::new(plan.status),
            });
        }
        intents.writes.extend(writes);
        intents.requeue_after = intents.requeue_after.into_iter().chain(plan.requeue_after).min();
    }
    intents
}
