//! A pass of the autoscaler as intents.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use super::apply::{PERIOD, is_autoscaled, status};
use super::plan::{Memory, Signals, decide};
use crate::intent::{Intent, Intents, Version};
use rooflet_api::v1alpha1::ModelDeployment;

/// What an autoscaler remembers from pass to pass.
#[derive(Debug, Default)]
pub struct Autoscaling {
    /// By uid.
    memories: HashMap<String, Memory>,
}

impl Autoscaling {
    /// What the autoscaler would write, by what is going on for each deployment.
    pub fn intents(
        &mut self,
        deployments: &[Arc<ModelDeployment>],
        signals: impl Fn(&ModelDeployment) -> Signals,
        now: Timestamp,
    ) -> Intents {
        let mut intents = Intents::default();
        let mut memories = std::mem::take(&mut self.memories);
        for deployment in deployments.iter().filter(|deployment| is_autoscaled(deployment)) {
            let Some(spec) = &deployment.spec.autoscaling else {
                continue;
            };
            let uid = deployment.uid().unwrap_or_default();
            let mut memory = memories.remove(&uid).unwrap_or_default();
            let current = deployment.spec.replicas;
            let streams = deployment.spec.serving.max_concurrency;
            let decision = decide(spec, current, streams, &signals(deployment), &mut memory, now);
            let next = status(deployment, spec, &decision, now);
            let of = Version::of(deployment.as_ref());
            if deployment.status.as_ref() != Some(&next) {
                let (of, status) = (of.clone(), Box::new(next));
                intents.writes.push(Intent::DeploymentStatus { of, status });
            }
            if decision.replicas != current {
                let replicas = decision.replicas;
                intents.writes.push(Intent::Scale { of, replicas });
            }
            intents.requeue_after = Some(PERIOD);
            self.memories.insert(uid, memory);
        }
        intents
    }
}
