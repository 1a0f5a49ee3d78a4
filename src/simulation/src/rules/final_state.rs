//! Invariants of the state at the end of a run: the fleet has recovered and a further reconcile
//! pass changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;

use crate::network::Network;
use crate::rules::Rules;
use crate::rules::changes::max_replicas;
use crate::scenario::fault::FaultSpec;
use crate::world::World;
use crate::world::event::Reconciler;
use rooflet_api::meta::{CHANGE_CAUSE_ANNOTATION, DEPLOYMENT_LABEL};
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_controller::intent::Snapshot;
use rooflet_controller::{FollowedFleet, deployment_intents, is_template_of};

/// Returns reason and message of the condition Progressing.
fn progress(deployment: &ModelDeployment) -> String {
    let conditions = deployment.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.filter(|condition| condition.type_ == "Progressing");
    conditions.next().map_or_else(String::new, |condition| {
        format!("{}: {}", condition.reason, condition.message)
    })
}

impl Rules {
    /// Checks the state at the end of a run. With `mustHeal`, and if the last fault and the last
    /// change were at least [`RECOVERY_TIME`](crate::RECOVERY_TIME) ago, the fleet must have
    /// recovered.
    pub(crate) fn check_end(&mut self, world: &World<'_>, network: &Network<'_>) {
        self.check_silent_nodes(world, network);
        let end = world.scenario.duration;
        let has_ended = |fault: &FaultSpec| fault.at + fault.lasts + crate::RECOVERY_TIME <= end;
        let has_settled = world
            .scenario
            .changes
            .iter()
            .all(|change| change.at + crate::RECOVERY_TIME <= end);
        if !world.scenario.must_heal || !world.faults.iter().all(has_ended) || !has_settled {
            return;
        }
        for deployment in world.store.deployments.values() {
            self.check_recovered(world, deployment);
        }
        self.check_change_causes(world);
        self.check_settled(world);
    }

    fn check_recovered(&mut self, world: &World<'_>, deployment: &ModelDeployment) {
        let (name, desired) = (deployment.name_any(), deployment.spec.replicas.max(0));
        let is_ours = |replica: &&Arc<ModelReplica>| replica.labels().get(DEPLOYMENT_LABEL) == Some(&name);
        let replicas: Vec<_> = world.store.replicas.values().filter(is_ours).collect();
        let ready = replicas
            .iter()
            .filter(|replica| world.is_ready_and_running(replica))
            .count();
        // A rollout that is stopped at its throughput floor reports the reason and waits for a
        // user. It keeps its surge replicas.
        let conditions = deployment.status.iter().flat_map(|status| &status.conditions);
        let mut at_floor = conditions.filter(|condition| condition.reason == "ThroughputFloor");
        let max = match at_floor.next() {
            Some(_) => max_replicas(&deployment.spec),
            None => desired as usize,
        };
        if !(desired as usize..=max).contains(&ready) || replicas.len() != ready {
            let message = format!(
                "{name} has {} replicas, {ready} of them Ready, and {desired} are desired: {}",
                replicas.len(),
                progress(deployment)
            );
            self.report(
                world.now,
                "the fleet recovers without manual intervention",
                message,
            );
        }
    }

    /// Checks that the revision of each deployment's template has the deployment's change cause.
    fn check_change_causes(&mut self, world: &World<'_>) {
        let cause =
            |annotations: &BTreeMap<String, String>| annotations.get(CHANGE_CAUSE_ANNOTATION).cloned();
        for deployment in world.store.deployments.values() {
            let Some(expected) = cause(deployment.annotations()) else {
                continue;
            };
            let mut revisions = world.store.revisions.values();
            let revision = revisions.find(|revision| is_template_of(deployment, revision));
            if revision.is_some_and(|revision| cause(revision.annotations()).as_ref() != Some(&expected)) {
                let message = format!(
                    "the revision of {} does not have the change cause `{expected}`",
                    deployment.name_any()
                );
                self.report(world.now, "a revision records its change cause", message);
            }
        }
    }

    /// Checks that another pass of the reconcilers plans no write.
    fn check_settled(&mut self, world: &World<'_>) {
        let store = &world.store;
        let snapshot = Snapshot {
            nodes: store.nodes.values().cloned().collect(),
            deployments: store.deployments.values().cloned().collect(),
            revisions: store.revisions.values().cloned().collect(),
            replicas: store.replicas.values().cloned().collect(),
            ..Snapshot::default()
        };
        let now = world.clock();
        let mut fleet = FollowedFleet::default();
        fleet.follow(&snapshot.nodes, &snapshot.replicas);
        for (reconciler, intents) in [
            (
                Reconciler::Deployment,
                deployment_intents(fleet.fleet(), &snapshot, now),
            ),
            (Reconciler::Binder, world.policy.bind(&mut fleet, &snapshot, now)),
        ] {
            if let Some(write) = intents.writes.first() {
                let message = format!("{reconciler:?} would write {:?}", write.intent);
                self.report(
                    world.now,
                    "a second reconcile pass changes nothing",
                    message.chars().take(400).collect(),
                );
            }
        }
    }
}
