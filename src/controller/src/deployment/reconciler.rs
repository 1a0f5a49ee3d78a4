//! Observation of deployments and execution of the planned writes.

use std::time::Duration;

use super::admission::HubAnswer;
use super::observed::Observed;
use super::writes::intents_of;
use crate::executor::Executor;
use crate::intent::{Intents, Snapshot};
use crate::runtime::{KeyedReconciler, PassStatus};
use crate::world::World;
use rooflet_api::v1alpha1::HubModel;
use rooflet_client::ObjectKey;

/// Reconciler of the revisions, replicas and status of ModelDeployments.
pub(crate) struct DeploymentReconciler {
    world: World,
}

impl DeploymentReconciler {
    pub(crate) fn new(world: World) -> Self {
        Self { world }
    }

    /// Returns the hub's answer for a template without a revision.
    fn ask_hub(&self, observed: &Observed<'_, '_>, model: &HubModel, pass: &mut PassStatus) -> HubAnswer {
        if observed.deployment.spec.paused {
            return HubAnswer::paused(model);
        }
        let is_refused = |answer: &HubAnswer| observed.is_refused_with(answer);
        let asker = ObjectKey::of(observed.deployment);
        let (answer, requeue_after) = self.world.hub.resolve(model, asker, is_refused);
        pass.requeue(requeue_after);
        answer
    }

    /// Returns the objects of the deployment and the planned writes, or `None` if the deployment
    /// does not exist.
    async fn plan(&self, key: &ObjectKey, pass: &mut PassStatus) -> Option<(Snapshot, Intents)> {
        let index = self.world.index.lock().await;
        let snapshot = index.deployments.snapshot(key)?;
        let now = self.world.clock.now();
        let is_planned = |deployment: &_| ObjectKey::of(deployment) == *key;
        let fleet = index.fleet.fleet();
        let intents = intents_of(fleet, &snapshot, is_planned, now, &mut |observed, model| {
            Some(self.ask_hub(observed, model, pass))
        });
        pass.requeue(intents.requeue_after);
        Some((snapshot, intents))
    }
}

impl KeyedReconciler for DeploymentReconciler {
    const NAME: &'static str = "deployment";
    const RESYNC: Duration = Duration::from_secs(300);

    async fn reconcile(&self, key: &ObjectKey) -> Option<PassStatus> {
        let mut pass = PassStatus::default();
        let world = &self.world;
        let (mut snapshot, mut intents) = self.plan(key, &mut pass).await?;
        let mut disruptions = None;
        if intents.writes.iter().any(|write| write.intent.disrupts()) {
            disruptions = Some(world.disruptions.lock().await);
            // Another reconciler may have deleted replicas of the deployment meanwhile.
            (snapshot, intents) = self.plan(key, &mut pass).await?;
        }
        let last = intents.writes.iter().rposition(|write| write.intent.disrupts());
        let others = intents.writes.split_off(last.map_or(0, |last| last + 1));
        let mut executor = Executor::new(world, &snapshot);
        pass.record_failures(executor.run(intents.writes).await);
        drop(disruptions);
        pass.record_failures(executor.run(others).await);
        Some(pass)
    }
}
