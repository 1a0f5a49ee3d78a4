//! Observation of deployments and execution of the planned writes.

use std::time::Duration;

use super::admission::HubAnswer;
use super::observed::Observed;
use super::writes::intents_with_hub;
use crate::executor::Executor;
use crate::intent::Snapshot;
use crate::runtime::{PassStatus, Reconciler};
use crate::world::World;
use rooflet_api::v1alpha1::HubModel;

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
        let (answer, requeue_after) = self.world.hub.resolve(model, is_refused);
        pass.requeue(requeue_after);
        answer
    }
}

impl Reconciler for DeploymentReconciler {
    const NAME: &'static str = "deployment";
    const RESYNC: Duration = Duration::from_secs(300);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let world = &self.world;
        let disruptions = world.disruptions.lock().await;
        let fleet = world.fleet.lock().await;
        let snapshot = Snapshot {
            deployments: world.deployments.list(),
            revisions: world.revisions.list(),
            replicas: fleet.replicas().to_vec(),
            ..Snapshot::default()
        };
        let now = world.clock.now();
        let mut intents = intents_with_hub(fleet.fleet(), &snapshot, now, &mut |observed, model| {
            Some(self.ask_hub(observed, model, &mut pass))
        });
        drop(fleet);
        pass.requeue(intents.requeue_after);
        let last = intents.writes.iter().rposition(|write| write.intent.disrupts());
        let others = intents.writes.split_off(last.map_or(0, |last| last + 1));
        let mut executor = Executor::new(world, &snapshot);
        pass.record_failures(executor.run(intents.writes).await);
        drop(disruptions);
        pass.record_failures(executor.run(others).await);
        pass
    }
}
