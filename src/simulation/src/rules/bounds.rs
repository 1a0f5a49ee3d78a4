//! Bounds of a deployment that planned disruptions must keep.

use std::sync::Arc;
use std::time::Duration;

use crate::world::controller::is_silent;
use crate::world::event::Write;
use crate::world::store::Store;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::v1alpha1::{
    CountOrPercent, FleetNode, ModelDeployment, ModelDeploymentSpec, ModelReplica, TaintEffect,
};
use rooflet_controller::intent::{Deletion, Intent};

/// A replica that answered and does not any more.
#[derive(Debug)]
pub(crate) struct Missed {
    pub(crate) at: Duration,
    /// As it was.
    pub(crate) replica: Arc<ModelReplica>,
}

/// What a deployment was held to until a moment.
#[derive(Debug)]
pub(crate) struct Before {
    pub(crate) at: Duration,
    pub(crate) held_to: HeldTo,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeldTo {
    pub(crate) spec: ModelDeploymentSpec,
    /// What a replica is worth of which a floor is a share, in predicted tokens per second.
    pub(crate) reference: Option<f64>,
}

impl HeldTo {
    pub(crate) fn of(deployment: &ModelDeployment) -> Self {
        let rollout = deployment.status.as_ref().map(|status| &status.rollout);
        Self {
            spec: deployment.spec.clone(),
            reference: rollout.and_then(|rollout| rollout.reference_tokens_per_second),
        }
    }
}

/// A replica that answers, of which somebody is about to decide.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) replica: Arc<ModelReplica>,
    pub(crate) why: Deletion,
}

impl Taken {
    /// What a write would take away within a deployment's bounds.
    pub(crate) fn by(store: &Store, write: &Write) -> Option<Self> {
        let Write::Intent(Intent::DeleteReplica { of, why }, _) = write else {
            return None;
        };
        let replica = store.get::<ModelReplica>(of)?;
        let bounded = match why {
            Deletion::Deployment | Deletion::Eviction => true,
            // It makes room for what is more important than bounds.
            Deletion::Preemption => false,
        };
        (bounded && serves(&replica)).then_some(Self { replica, why: *why })
    }
}

/// It takes replicas away whatever their deployments can spare: a person says so, or nobody hears
/// of it.
pub(crate) fn expels(node: &FleetNode) -> bool {
    let taints = &node.spec.taints;
    is_silent(node) || taints.iter().any(|taint| taint.effect == TaintEffect::NoExecute)
}

/// It says that it answers, and stays.
pub(crate) fn serves(replica: &ModelReplica) -> bool {
    let ready = |status: &rooflet_api::v1alpha1::ModelReplicaStatus| {
        is_true(&status.conditions, condition_type::READY)
    };
    replica.metadata.deletion_timestamp.is_none() && replica.status.as_ref().is_some_and(ready)
}

/// In predicted tokens per second; nothing where a share is asked for of what nobody knows yet.
pub(crate) fn floor(held_to: &HeldTo) -> f64 {
    let HeldTo { spec, reference } = held_to;
    let rolling = spec.strategy.rolling_update.as_ref();
    match rolling.and_then(|rolling| rolling.min_throughput.as_ref()) {
        None => 0.0,
        Some(CountOrPercent::Count(rate)) => f64::from(*rate),
        Some(CountOrPercent::Percent(percent)) => {
            reference.unwrap_or(0.0) * f64::from(spec.replicas.max(0)) * f64::from(*percent) / 100.0
        }
    }
}
