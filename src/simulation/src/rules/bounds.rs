//! Availability bounds of a deployment that planned disruptions must keep.

use std::sync::Arc;
use std::time::Duration;

use crate::world::controller::is_silent;
use crate::world::event::Write;
use crate::world::store::Store;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::v1alpha1::{
    CountOrPercent, FleetNode, ModelDeployment, ModelDeploymentSpec, ModelReplica, StrategyType, TaintEffect,
};
use rooflet_controller::intent::{Deletion, Intent};

/// Replica that stopped serving.
#[derive(Debug)]
pub(crate) struct LostReplica {
    pub(crate) at: Duration,
    /// Last version of the object while it served.
    pub(crate) replica: Arc<ModelReplica>,
}

/// Bounds that a deployment had until a point in time.
#[derive(Debug)]
pub(crate) struct PreviousBounds {
    pub(crate) until: Duration,
    pub(crate) bounds: Bounds,
}

/// Fields of a deployment that determine its bounds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bounds {
    spec: ModelDeploymentSpec,
    /// Predicted tokens per second of one replica. A percentage in `minThroughput` refers to it.
    reference: Option<f64>,
}

impl Bounds {
    pub(crate) fn of(deployment: &ModelDeployment) -> Self {
        let rollout = deployment.status.as_ref().map(|status| &status.rollout);
        Self {
            spec: deployment.spec.clone(),
            reference: rollout.and_then(|rollout| rollout.reference_tokens_per_second),
        }
    }

    /// Returns the number of replicas that must serve during planned disruptions.
    pub(crate) fn min_available(&self) -> usize {
        let spec = &self.spec;
        let desired = usize::try_from(spec.replicas).unwrap_or(0);
        if spec.strategy.kind == StrategyType::Recreate {
            return 0;
        }
        let rolling = spec.strategy.rolling_update.clone().unwrap_or_default();
        let (surge, unavailable) = (&rolling.max_surge, &rolling.max_unavailable);
        let least = match (surge, unavailable) {
            (CountOrPercent::Count(0) | CountOrPercent::Percent(0), _) => 1,
            _ => 0,
        };
        let unavailable = match unavailable {
            CountOrPercent::Count(count) => usize::try_from(*count).unwrap_or(usize::MAX),
            CountOrPercent::Percent(percent) => {
                desired * usize::try_from(*percent).unwrap_or(usize::MAX) / 100
            }
        };
        desired.saturating_sub(unavailable.max(least))
    }

    /// Returns the throughput floor in predicted tokens per second; 0 if the floor is a percentage
    /// and the reference is unknown.
    pub(crate) fn throughput_floor(&self) -> f64 {
        let rolling = self.spec.strategy.rolling_update.as_ref();
        match rolling.and_then(|rolling| rolling.min_throughput.as_ref()) {
            None => 0.0,
            Some(CountOrPercent::Count(rate)) => f64::from(*rate),
            Some(CountOrPercent::Percent(percent)) => {
                self.reference.unwrap_or(0.0) * f64::from(self.spec.replicas.max(0)) * f64::from(*percent)
                    / 100.0
            }
        }
    }
}

/// Planned removal of a serving replica.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) replica: Arc<ModelReplica>,
    pub(crate) why: Deletion,
}

impl Removal {
    /// Returns the removal if the write deletes a serving replica and the bounds apply to it.
    pub(crate) fn by(store: &Store, write: &Write) -> Option<Self> {
        let Write::Intent(Intent::DeleteReplica { of, why }, _) = write else {
            return None;
        };
        let replica = store.get::<ModelReplica>(of)?;
        let bounded = match why {
            Deletion::Deployment | Deletion::Eviction => true,
            // A replica of higher priority takes precedence over the bounds.
            Deletion::Preemption => false,
        };
        (bounded && is_serving(&replica)).then_some(Self { replica, why: *why })
    }
}

/// Returns true if the node's replicas are evicted regardless of disruption budgets: the node is
/// silent, or a user has set a taint with the effect NoExecute.
pub(crate) fn evicts_unconditionally(node: &FleetNode) -> bool {
    let taints = &node.spec.taints;
    is_silent(node) || taints.iter().any(|taint| taint.effect == TaintEffect::NoExecute)
}

/// Returns true if the replica is Ready and is not being deleted.
pub(crate) fn is_serving(replica: &ModelReplica) -> bool {
    let ready = |status: &rooflet_api::v1alpha1::ModelReplicaStatus| {
        is_true(&status.conditions, condition_type::READY)
    };
    replica.metadata.deletion_timestamp.is_none() && replica.status.as_ref().is_some_and(ready)
}
