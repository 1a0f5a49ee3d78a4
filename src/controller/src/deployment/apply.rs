//! Carries plans out. Decides nothing; a step that fails does not keep the others from being done.

use std::time::Duration;

use kube::ResourceExt;
use serde_json::{Value, json};

use super::admission::{HubAnswer, named};
use super::observed::Observed;
use super::ownership::{Owned, adoption};
use super::plan::DeploymentPlan;
use super::revision::RevisionStep;
use super::rollout::DeleteReason;
use super::served_names::ServedNames;
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::meta::CHANGE_CAUSE_ANNOTATION;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, ModelRevision, ModelSource};
use rooflet_client::{ApiError, EventType};

/// Makes every ModelDeployment's revisions, replicas and status be as its spec says.
pub(crate) struct DeploymentReconciler {
    world: World,
}

impl DeploymentReconciler {
    pub(crate) fn new(world: World) -> Self {
        Self { world }
    }

    async fn apply(&self, deployment: &ModelDeployment, plan: DeploymentPlan<'_>, pass: &mut PassStatus) {
        pass.requeue(plan.requeue_after);
        for revision in &plan.prune {
            pass.note(self.world.delete(&self.world.revisions, *revision).await);
        }
        let has_revision = pass
            .note(self.revision(deployment, &plan.revision).await)
            .is_some();
        let mut all_deleted = true;
        for (replica, why) in &plan.delete {
            let deleted = pass.note(self.world.delete(&self.world.replicas, *replica).await);
            all_deleted &= deleted.is_some();
            if deleted.is_some() {
                let name = replica.name_any();
                let message = match why {
                    DeleteReason::Surplus => format!("Deleted replica {name}: more than spec.replicas"),
                    DeleteReason::Outdated => format!("Deleted replica {name}: of an older revision"),
                    DeleteReason::Refused => {
                        format!("Deleted replica {name}: its node refused it")
                    }
                };
                self.tell(deployment, EventType::Normal, "ReplicaDeleted", message);
            }
        }
        // The new ones were counted on the place of those that go: there would be more than the surge allows.
        if has_revision && all_deleted {
            for replica in &plan.create {
                let created = self.world.create(&self.world.replicas, replica).await;
                match pass.note(created) {
                    Some(created) => {
                        let message = format!("Created replica {}", created.name_any());
                        self.tell(deployment, EventType::Normal, "ReplicaCreated", message);
                    }
                    // The others would fail alike.
                    None => break,
                }
            }
        }
        for (replica, patch) in &plan.amend {
            pass.note(self.world.patch(&self.world.replicas, *replica, patch).await);
        }
        let status = self
            .world
            .status(&self.world.deployments, deployment, &plan.status)
            .await;
        if pass.note(status) == Some(true) {
            for (kind, reason, message) in plan.events {
                self.tell(deployment, kind, &reason, message);
            }
        }
    }

    async fn adopt(
        &self,
        deployment: &ModelDeployment,
        revisions: &[&ModelRevision],
        replicas: &[&ModelReplica],
    ) -> Result<(), ApiError> {
        // Watches are not of the same moment: this may be the very deployment whose deletion left the orphans.
        if !self.world.is_there(deployment).await? {
            return Ok(());
        }
        for revision in revisions {
            let patch = adoption(deployment, *revision);
            self.world.patch(&self.world.revisions, *revision, &patch).await?;
        }
        for replica in replicas {
            let patch = adoption(deployment, *replica);
            self.world.patch(&self.world.replicas, *replica, &patch).await?;
        }
        let revisions = revisions.iter().map(|revision| revision.name_any());
        let replicas = replicas.iter().map(|replica| replica.name_any());
        let names = named(revisions.chain(replicas).collect());
        let message = format!("Took over what no deployment controlled: {names}");
        self.tell(deployment, EventType::Normal, "Adopted", message);
        Ok(())
    }

    async fn revision(&self, deployment: &ModelDeployment, step: &RevisionStep) -> Result<(), ApiError> {
        match step {
            RevisionStep::Keep => {}
            RevisionStep::Create(revision) => {
                self.world
                    .create(&self.world.revisions, revision.as_ref())
                    .await?;
                // The next template is of what its branch is then.
                if let Ok(ModelSource::Hub(model)) = deployment.spec.model.parse() {
                    self.world.hub.forget(&model);
                }
                let message = format!(
                    "Created revision {} ({})",
                    revision.spec.revision,
                    revision.name_any()
                );
                self.tell(deployment, EventType::Normal, "RevisionCreated", message);
            }
            RevisionStep::Renumber { name, revision } => {
                let change = json!({ "spec": { "revision": revision } });
                if self.change(deployment, name, change).await? {
                    let message = format!("Back to the template of {name}, now revision {revision}");
                    self.tell(deployment, EventType::Normal, "RevisionReused", message);
                }
            }
            RevisionStep::ChangeCause { name, cause } => {
                let change = json!({ "metadata": { "annotations": { CHANGE_CAUSE_ANNOTATION: cause } } });
                self.change(deployment, name, change).await?;
            }
        }
        Ok(())
    }

    /// Changes a revision that nobody has written meanwhile. Whether it is there.
    async fn change(
        &self,
        deployment: &ModelDeployment,
        name: &str,
        mut patch: Value,
    ) -> Result<bool, ApiError> {
        let Some(found) = self.world.revisions.get(deployment.namespace().as_deref(), name) else {
            return Ok(false);
        };
        patch["metadata"]["resourceVersion"] = json!(found.resource_version());
        self.world
            .patch(&self.world.revisions, found.as_ref(), &patch)
            .await?;
        Ok(true)
    }

    fn tell(&self, deployment: &ModelDeployment, kind: EventType, reason: &str, message: String) {
        self.world.recorder.publish(deployment, kind, reason, message);
    }
}

impl Reconciler for DeploymentReconciler {
    const NAME: &'static str = "deployment";
    const RESYNC: Duration = Duration::from_secs(300);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let disruptions = self.world.disruptions.lock().await;
        let fleet = self.world.fleet.lock().await;
        let deployments = self.world.deployments.list();
        let revisions = self.world.revisions.list();
        let replicas = fleet.replicas().to_vec();
        let (revisions, replicas) = (Owned::new(&revisions), Owned::new(&replicas));
        let names = ServedNames::new(&deployments);
        let mut plans = Vec::new();
        let mut adoptions = Vec::new();
        for deployment in &deployments {
            let orphans = (revisions.orphans_of(deployment), replicas.orphans_of(deployment));
            if orphans != (Vec::new(), Vec::new()) {
                // What is to be done is decided when they are its own.
                adoptions.push((deployment, orphans));
                continue;
            }
            let mut observed = Observed {
                deployment,
                revisions: revisions.of(deployment),
                replicas: replicas.of(deployment),
                foreign: revisions.foreign_beside(deployment),
                namesake: names.older_than(deployment),
                fleet: fleet.fleet(),
                hub: None,
                now: self.world.clock.now(),
            };
            if let Some(model) = observed.unknown_model() {
                observed.hub = Some(match deployment.spec.paused {
                    true => HubAnswer::paused(&model),
                    false => {
                        let is_refused = |answer: &HubAnswer| observed.is_refused_with(answer);
                        let (answer, again) = self.world.hub.ask(&model, is_refused);
                        pass.requeue(again);
                        answer
                    }
                });
            }
            plans.extend(DeploymentPlan::new(&observed).map(|plan| (deployment, plan)));
        }
        drop(fleet);
        let (disruptive, others): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|(_, plan)| !plan.delete.is_empty());
        for (deployment, plan) in disruptive {
            self.apply(deployment, plan, &mut pass).await;
        }
        drop(disruptions);
        for (deployment, plan) in others {
            self.apply(deployment, plan, &mut pass).await;
        }
        for (deployment, (revisions, replicas)) in adoptions {
            pass.note(self.adopt(deployment, &revisions, &replicas).await);
        }
        pass
    }
}
