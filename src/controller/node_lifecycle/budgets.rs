//! How much may be taken from the deployments at a time.

use std::collections::BTreeMap;

use crate::api::conditions::{condition_type, is_true};
use crate::api::v1alpha1::{ModelDeployment, ModelReplica};
use crate::controller::deployment::Bounds;
use crate::scheduler::{ReplicaKey, deployment_of};

/// How many ready replicas each deployment can spare.
pub(super) struct Budgets(BTreeMap<ReplicaKey, usize>);

impl Budgets {
    pub(super) fn new(deployments: &[&ModelDeployment], replicas: &[&ModelReplica]) -> Self {
        let mut ready: BTreeMap<ReplicaKey, usize> = BTreeMap::new();
        for replica in replicas.iter().filter(|replica| is_serving(replica)) {
            if let Some(deployment) = deployment_of(replica) {
                *ready.entry(deployment).or_default() += 1;
            }
        }
        let spare = deployments.iter().map(|deployment| {
            let key = ReplicaKey::of(*deployment);
            let ready = ready.get(&key).copied().unwrap_or(0);
            let spare = ready.saturating_sub(Bounds::of(&deployment.spec).min_available);
            (key, spare)
        });
        Self(spare.collect())
    }

    /// One that does not serve is missed by nobody.
    pub(super) fn allow(&self, replica: &ModelReplica) -> bool {
        let spare = deployment_of(replica).and_then(|deployment| self.0.get(&deployment));
        !is_serving(replica) || spare.is_none_or(|spare| *spare > 0)
    }

    pub(super) fn spend(&mut self, replica: &ModelReplica) {
        let spare = deployment_of(replica).and_then(|deployment| self.0.get_mut(&deployment));
        if let Some(spare) = spare.filter(|_| is_serving(replica)) {
            *spare = spare.saturating_sub(1);
        }
    }
}

/// It answers requests, and goes on doing so.
fn is_serving(replica: &ModelReplica) -> bool {
    let conditions = replica
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    replica.metadata.deletion_timestamp.is_none() && is_true(conditions, condition_type::READY)
}
