//! Number of replicas that may be evicted from each deployment.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::deployment::{Bounds, is_leaving, is_of, is_unschedulable, refusal};
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_scheduler::{ReplicaKey, deployment_of};

/// Budgets of all deployments.
pub(super) struct Budgets(BTreeMap<ReplicaKey, Budget>);

/// Remaining evictions and replacements of one deployment.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    /// Revision of the canary beside a single replica. The canary has another revision and only a part of
    /// the requests, so it neither replaces the replica nor counts below. It can always be evicted.
    canary: Option<String>,
    desired: usize,
    min_available: usize,
    /// Number of Ready replicas.
    ready: usize,
    /// Number of replicas beyond the desired count that are bound, or not known to be
    /// unschedulable.
    surplus: usize,
    /// True if the strategy permits a surge.
    surges: bool,
    /// Number of replacements that may still be requested.
    replacements_left: usize,
    /// True if the deployment has an unschedulable replica.
    has_unschedulable: bool,
    /// Time limit until a replacement is Ready (`spec.progressDeadlineSeconds`).
    pub(super) replacement_timeout: Duration,
}

impl Budgets {
    pub(super) fn new(deployments: &[&ModelDeployment], replicas: &[&ModelReplica]) -> Self {
        let mut budgets: BTreeMap<_, _> = deployments
            .iter()
            .map(|deployment| (ReplicaKey::of(*deployment), Budget::of(deployment)))
            .collect();
        let mut active: BTreeMap<ReplicaKey, usize> = BTreeMap::new();
        for replica in replicas
            .iter()
            .filter(|replica| replica.metadata.deletion_timestamp.is_none())
        {
            let key = deployment_of(replica);
            let Some((key, budget)) = key.and_then(|key| {
                let budget = budgets.get_mut(&key)?;
                Some((key, budget))
            }) else {
                continue;
            };
            let is_replaced = usize::from(is_leaving(replica));
            budget.replacements_left = budget.replacements_left.saturating_sub(is_replaced);
            if budget.is_canary(replica) {
                continue;
            }
            budget.ready += usize::from(is_ready(replica));
            budget.has_unschedulable |= is_unschedulable(replica);
            if refusal(replica).is_none() && !is_unschedulable(replica) {
                *active.entry(key).or_default() += 1;
            }
        }
        for (key, budget) in &mut budgets {
            let active = active.get(key).copied().unwrap_or(0);
            budget.surplus = active.saturating_sub(budget.desired);
        }
        Self(budgets)
    }

    /// Returns the budget of the replica's deployment, or `None` if the deployment does not exist.
    pub(super) fn of(&self, replica: &ModelReplica) -> Option<Budget> {
        self.0.get(&deployment_of(replica)?).cloned()
    }

    /// Requests a replacement for the replica. Returns false if the deployment has no surge left.
    pub(super) fn request_replacement(&mut self, replica: &ModelReplica) -> bool {
        if is_leaving(replica) {
            return true;
        }
        let budget = deployment_of(replica).and_then(|key| self.0.get_mut(&key));
        let Some(budget) = budget.filter(|budget| budget.replacements_left > 0) else {
            return false;
        };
        budget.replacements_left -= 1;
        true
    }

    pub(super) fn record_eviction(&mut self, replica: &ModelReplica) {
        if let Some(budget) = deployment_of(replica).and_then(|key| self.0.get_mut(&key))
            && !budget.is_canary(replica)
        {
            budget.surplus = budget.surplus.saturating_sub(1);
            budget.ready = budget.ready.saturating_sub(usize::from(is_ready(replica)));
        }
    }
}

impl Budget {
    fn of(deployment: &ModelDeployment) -> Self {
        let bounds = Bounds::of(&deployment.spec);
        let timeout = u64::try_from(deployment.spec.progress_deadline_seconds).unwrap_or(0);
        Self {
            canary: canary_beside(deployment).map(str::to_owned),
            desired: bounds.desired,
            min_available: bounds.min_available,
            ready: 0,
            surplus: 0,
            surges: bounds.max_total > bounds.desired,
            replacements_left: bounds.max_total - bounds.desired,
            has_unschedulable: false,
            replacement_timeout: Duration::from_secs(timeout),
        }
    }

    /// Returns whether the eviction keeps `min_available` Ready replicas. A replica that is not
    /// Ready can always be evicted.
    pub(super) fn can_spare(&self, replica: &ModelReplica) -> bool {
        !is_ready(replica) || self.is_canary(replica) || self.ready > self.min_available
    }

    /// Returns whether a replica beyond the desired count exists, which can be the replacement.
    pub(super) fn has_replacement(&self) -> bool {
        self.surplus > 0
    }

    /// Returns whether the desired number of replicas is Ready without this one.
    pub(super) fn is_complete_without(&self, replica: &ModelReplica) -> bool {
        !is_ready(replica) || self.ready > self.desired
    }

    /// Returns whether the replacement of the replica must be Ready before the eviction.
    pub(super) fn replaces_first(&self, replica: &ModelReplica) -> bool {
        self.surges && !self.has_unschedulable && is_ready(replica) && !self.is_canary(replica)
    }

    fn is_canary(&self, replica: &ModelReplica) -> bool {
        self.canary
            .as_deref()
            .is_some_and(|canary| is_of(replica, canary))
    }
}

/// Returns the revision of a canary that runs beside the single replica of a deployment.
fn canary_beside(deployment: &ModelDeployment) -> Option<&str> {
    let status = deployment.status.as_ref()?;
    let canary = status.rollout.revision.as_deref()?;
    let mut shares = status.traffic.iter();
    let is_partial = shares.any(|share| share.revision == canary && share.weight < 100);
    (deployment.spec.replicas == 1 && is_partial).then_some(canary)
}

/// Returns whether the replica is Ready and not being deleted.
pub(super) fn is_ready(replica: &ModelReplica) -> bool {
    let conditions = replica
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    replica.metadata.deletion_timestamp.is_none() && is_true(conditions, condition_type::READY)
}
