//! Gathers the signals, and writes `spec.replicas` where the plan says otherwise.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::conditions::conditions;
use super::demand::Gateways;
use super::first_token::{Answering, FirstToken};
use super::plan::{Decision, Memory, Signals, decide};
use crate::runtime::{PassStatus, Reconciler};
use crate::world::{World, controller};
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{
    AutoscalingSpec, MeasuredSpeed, ModelDeployment, ModelDeploymentStatus, ModelReplica,
};
use rooflet_client::EventType;

/// How often the signals are looked at.
pub(super) const PERIOD: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Autoscaler {
    world: World,
    gateways: Gateways,
    /// By uid.
    memories: HashMap<String, Memory>,
}

impl Autoscaler {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            gateways: Gateways::default(),
            memories: HashMap::new(),
        }
    }

    async fn scale(
        &self,
        deployment: &ModelDeployment,
        spec: &AutoscalingSpec,
        signals: Signals,
        memory: &mut Memory,
        pass: &mut PassStatus,
    ) {
        let current = deployment.spec.replicas;
        let max_concurrency = deployment.spec.serving.max_concurrency;
        let now = self.world.clock.now();
        let decision = decide(spec, current, max_concurrency, &signals, memory, now);
        let status = status(deployment, spec, &decision, now);
        let told = self
            .world
            .status(&self.world.deployments, deployment, &status)
            .await;
        pass.note(told);
        if decision.replicas == current {
            return;
        }
        // As it is after that; the next pass tries again where another one has written meanwhile.
        let namespace = deployment.namespace();
        let known = self
            .world
            .deployments
            .get(namespace.as_deref(), &deployment.name_any());
        let known = known.as_deref().unwrap_or(deployment);
        let patch = serde_json::json!({
            "metadata": { "resourceVersion": known.resource_version() },
            "spec": { "replicas": decision.replicas },
        });
        let written = self.world.patch(&self.world.deployments, known, &patch).await;
        if pass.note(written).is_some() {
            let reason = if decision.replicas > current {
                "ScaledUp"
            } else {
                "ScaledDown"
            };
            let message = format!("Scaled from {current} to {}: {}", decision.replicas, decision.why);
            self.world
                .recorder
                .publish(deployment, EventType::Normal, reason, message);
        }
    }
}

/// Whether its number of replicas follows what is asked.
pub(super) fn is_autoscaled(deployment: &ModelDeployment) -> bool {
    deployment.spec.autoscaling.is_some() && deployment.metadata.deletion_timestamp.is_none()
}

/// The deployment's status as the decision makes it.
pub(super) fn status(
    deployment: &ModelDeployment,
    spec: &AutoscalingSpec,
    decision: &Decision,
    now: Timestamp,
) -> ModelDeploymentStatus {
    let mut status = deployment.status.clone().unwrap_or_default();
    let generation = deployment.metadata.generation;
    status.conditions = conditions(status.conditions, spec, decision, generation, now);
    status
}

/// What the replicas of one deployment report, and what waits for it in the gateways.
fn signals<'a>(replicas: impl Iterator<Item = &'a ModelReplica>, waiting: u64) -> Signals {
    let mut signals = Signals {
        waiting,
        ..Signals::default()
    };
    for replica in replicas {
        let Some(status) = &replica.status else { continue };
        let requests = status.requests.clone().unwrap_or_default();
        signals.running += requests.running;
        signals.waiting += requests.waiting;
        signals.completed += requests.completed;
        if is_true(&status.conditions, condition_type::READY) {
            signals.answering.push(Answering {
                replica: replica.uid().unwrap_or_default(),
                completed: requests.completed,
                first_token: status.measured.as_ref().and_then(first_token),
            });
        }
    }
    signals
}

fn first_token(measured: &MeasuredSpeed) -> Option<FirstToken> {
    Some(FirstToken {
        seconds: measured.time_to_first_token_seconds.parse().ok()?,
        requests: measured.requests,
    })
}

impl Reconciler for Autoscaler {
    const NAME: &'static str = "autoscaler";
    const RESYNC: Duration = Duration::from_secs(300);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let deployments = self.world.deployments.list();
        if !deployments.iter().any(|deployment| is_autoscaled(deployment)) {
            self.memories.clear();
            return pass;
        }
        pass.requeue(Some(PERIOD));
        let leases = self.world.leases.list();
        let waiting = self
            .gateways
            .waiting(leases.iter().map(AsRef::as_ref), self.world.clock.instant());
        let replicas = self.world.replicas.list();
        let mut memories = std::mem::take(&mut self.memories);
        let mut kept = HashMap::new();
        for deployment in &deployments {
            let Some(spec) = deployment
                .spec
                .autoscaling
                .as_ref()
                .filter(|_| is_autoscaled(deployment))
            else {
                continue;
            };
            let (uid, name) = (deployment.uid().unwrap_or_default(), deployment.name_any());
            let own = replicas
                .iter()
                .map(AsRef::as_ref)
                .filter(|replica: &&ModelReplica| {
                    replica.labels().get(DEPLOYMENT_LABEL) == Some(&name)
                        && controller(&replica.metadata).is_some_and(|controller| controller.uid == uid)
                });
            let served = deployment.spec.serving.name.clone().unwrap_or(name.clone());
            let key = (deployment.namespace().unwrap_or_default(), served);
            let signals = signals(own, waiting.get(&key).copied().unwrap_or(0));
            let mut memory = memories.remove(&uid).unwrap_or_default();
            self.scale(deployment, spec, signals, &mut memory, &mut pass)
                .await;
            kept.insert(uid, memory);
        }
        self.memories = kept;
        pass
    }
}
