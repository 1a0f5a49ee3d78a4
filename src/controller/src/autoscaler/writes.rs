//! Writes of one pass of the autoscaler.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::conditions::conditions;
use super::plan::{Decision, History, Signals, bounds, decide};
use crate::intent::{EmitOn, Intent, Intents, PlannedEvent, PlannedWrite, Regarding, Version};
use rooflet_api::v1alpha1::{AutoscalingSpec, ModelDeployment, ModelDeploymentStatus};
use rooflet_client::EventType;

/// Period of the autoscaler's passes.
const PERIOD: Duration = Duration::from_secs(5);

/// State that the autoscaler keeps from pass to pass.
#[derive(Debug, Default)]
pub struct Autoscaling {
    /// By UID of the deployment.
    histories: HashMap<String, History>,
}

impl Autoscaling {
    /// Returns the writes of one pass. `signals` returns the current load of a deployment.
    pub fn intents(
        &mut self,
        deployments: &[Arc<ModelDeployment>],
        signals: impl Fn(&ModelDeployment) -> Signals,
        now: Timestamp,
    ) -> Intents {
        let mut intents = Intents::default();
        let mut histories = std::mem::take(&mut self.histories);
        for deployment in deployments.iter().filter(|deployment| is_autoscaled(deployment)) {
            let Some(spec) = &deployment.spec.autoscaling else {
                continue;
            };
            let uid = deployment.uid().unwrap_or_default();
            let mut history = histories.remove(&uid).unwrap_or_default();
            let current = deployment.spec.replicas;
            let streams = deployment.spec.serving.max_concurrency;
            let decision = decide(spec, current, streams, &signals(deployment), &mut history, now);
            let next = status(deployment, spec, &decision, now);
            let of = Version::of(deployment.as_ref());
            if deployment.status.as_ref() != Some(&next) {
                let (of, status) = (of.clone(), Box::new(next));
                intents
                    .writes
                    .push(Intent::DeploymentStatus { of, status }.into());
            }
            if decision.replicas != current {
                intents.writes.push(scale(of, current, &decision));
            }
            intents.requeue_after = Some(PERIOD);
            self.histories.insert(uid, history);
        }
        intents
    }
}

fn scale(of: Version, current: i32, decision: &Decision) -> PlannedWrite {
    let replicas = decision.replicas;
    let reason = match replicas > current {
        true => "ScaledUp",
        false => "ScaledDown",
    };
    let event = PlannedEvent {
        regarding: Regarding::Deployment(of.clone()),
        kind: EventType::Normal,
        reason: reason.to_owned(),
        message: format!("Scaled from {current} to {replicas}: {}", decision.why),
        on: EmitOn::Success,
    };
    PlannedWrite::from(Intent::Scale { of, replicas }).with_event(event)
}

/// Returns whether the autoscaler sets the deployment's replica count.
fn is_autoscaled(deployment: &ModelDeployment) -> bool {
    deployment.spec.autoscaling.is_some() && deployment.metadata.deletion_timestamp.is_none()
}

/// Returns the deployment's status with the conditions of the decision.
fn status(
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
/// Returns the bounds within which the autoscaler changes `spec.replicas`, or `None` without autoscaling.
pub(crate) fn bounds_of(deployment: &ModelDeployment, now: Timestamp) -> Option<RangeInclusive<i32>> {
    let spec = deployment.spec.autoscaling.as_ref()?;
    Some(bounds(spec, now).0)
}
