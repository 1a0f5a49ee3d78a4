//! How much may be taken from the deployments at a time, and what they have beyond that.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::deployment::{Bounds, is_leaving, is_unplaceable, refusal};
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_scheduler::{ReplicaKey, deployment_of};

/// What is left of each deployment.
pub(super) struct Budgets(BTreeMap<ReplicaKey, Budget>);

/// What is left of one deployment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    wanted: usize,
    min_available: usize,
    /// Replicas that answer requests.
    ready: usize,
    /// Replicas beyond the wanted number that have a node, or will find one.
    surplus: usize,
    /// Whether its strategy allows replacements that come first.
    surges: bool,
    /// How many more replacements may be asked for.
    room: usize,
    /// A replica of it waits, and no node takes it.
    stuck: bool,
    /// How long a replacement may take.
    pub(super) patience: Duration,
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
            budget.ready += usize::from(is_serving(replica));
            budget.stuck |= is_unplaceable(replica);
            budget.room = budget.room.saturating_sub(usize::from(is_leaving(replica)));
            if refusal(replica).is_none() && !is_unplaceable(replica) {
                *active.entry(key).or_default() += 1;
            }
        }
        for (key, budget) in &mut budgets {
            let active = active.get(key).copied().unwrap_or(0);
            budget.surplus = active.saturating_sub(budget.wanted);
        }
        Self(budgets)
    }

    /// `None` for a replica whose deployment is not there: nobody holds it to anything.
    pub(super) fn of(&self, replica: &ModelReplica) -> Option<Budget> {
        self.0.get(&deployment_of(replica)?).copied()
    }

    /// Asks for a replacement, if one more may be asked for.
    pub(super) fn ask(&mut self, replica: &ModelReplica) -> bool {
        if is_leaving(replica) {
            return true;
        }
        let budget = deployment_of(replica).and_then(|key| self.0.get_mut(&key));
        let Some(budget) = budget.filter(|budget| budget.room > 0) else {
            return false;
        };
        budget.room -= 1;
        true
    }

    pub(super) fn spend(&mut self, replica: &ModelReplica) {
        if let Some(budget) = deployment_of(replica).and_then(|key| self.0.get_mut(&key)) {
            budget.surplus = budget.surplus.saturating_sub(1);
            budget.ready = budget.ready.saturating_sub(usize::from(is_serving(replica)));
        }
    }
}

impl Budget {
    fn of(deployment: &ModelDeployment) -> Self {
        let bounds = Bounds::of(&deployment.spec);
        let patience = u64::try_from(deployment.spec.progress_deadline_seconds).unwrap_or(0);
        Self {
            wanted: bounds.wanted,
            min_available: bounds.min_available,
            ready: 0,
            surplus: 0,
            surges: bounds.max_total > bounds.wanted,
            room: bounds.max_total - bounds.wanted,
            stuck: false,
            patience: Duration::from_secs(patience),
        }
    }

    /// One that does not serve is missed by nobody.
    pub(super) fn can_spare(&self, replica: &ModelReplica) -> bool {
        !is_serving(replica) || self.ready > self.min_available
    }

    /// There is one more than wanted, which may be its replacement.
    pub(super) fn has_replacement(&self) -> bool {
        self.surplus > 0
    }

    /// Without it as many answer as are wanted.
    pub(super) fn is_complete_without(&self, replica: &ModelReplica) -> bool {
        !is_serving(replica) || self.ready > self.wanted
    }

    /// Whether its replacement is to come before the replica goes.
    pub(super) fn replaces_first(&self, replica: &ModelReplica) -> bool {
        self.surges && !self.stuck && is_serving(replica)
    }
}

/// It answers requests, and goes on doing so.
pub(super) fn is_serving(replica: &ModelReplica) -> bool {
    let conditions = replica
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    replica.metadata.deletion_timestamp.is_none() && is_true(conditions, condition_type::READY)
}
