//! Which replicas come and which go. Kubernetes' Deployment arithmetic: available replicas never fall below
//! `replicas - maxUnavailable`, and there are never more than `replicas + maxSurge`.

use std::cmp::Reverse;

use kube::ResourceExt;

use super::replica::is_ready;
use crate::api::v1alpha1::{ModelDeploymentSpec, ModelReplica, StrategyType};

/// Replicas created in one pass; the next pass goes on.
const MAX_CREATED_AT_ONCE: usize = 100;

/// How the number of replicas changes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Scaling<'a> {
    /// Replicas of the current revision to create.
    pub(super) create: usize,
    /// Replicas to delete, and why.
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeleteReason {
    /// More than wanted.
    Surplus,
    /// Of an old revision.
    Outdated,
    /// Its node has no memory for it.
    Refused,
}

/// What `spec.strategy` and `spec.replicas` come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::controller) struct Bounds {
    pub(super) wanted: usize,
    pub(in crate::controller) min_available: usize,
    pub(super) max_total: usize,
}

impl Bounds {
    pub(in crate::controller) fn of(spec: &ModelDeploymentSpec) -> Self {
        let count = |number: i32| usize::try_from(number).unwrap_or(0);
        let wanted = count(spec.replicas);
        match spec.strategy.kind {
            StrategyType::Recreate => Self {
                wanted,
                min_available: 0,
                max_total: wanted,
            },
            StrategyType::RollingUpdate => {
                let rolling = spec.strategy.rolling_update.clone().unwrap_or_default();
                let surge = rolling.max_surge.of_rounded_up(wanted);
                let mut unavailable = rolling.max_unavailable.of_rounded_down(wanted);
                if surge == 0 && unavailable == 0 {
                    // Percentages of few may both come to nothing; then nothing could ever be replaced.
                    unavailable = 1;
                }
                Self {
                    wanted,
                    min_available: wanted.saturating_sub(unavailable),
                    max_total: wanted.saturating_add(surge),
                }
            }
        }
    }
}

/// `is_new` tells what is of the current revision and may stay where it is; `None` where there is nothing to roll out to.
/// `active` are the replicas that are neither ending nor refused; `ending_old` how many of old revisions are ending.
pub(super) fn scale<'a>(
    spec: &ModelDeploymentSpec,
    is_new: Option<impl Fn(&ModelReplica) -> bool>,
    active: &[&'a ModelReplica],
    ending_old: usize,
) -> Scaling<'a> {
    let bounds = Bounds::of(spec);
    let (new, old): (Vec<_>, Vec<_>) = active
        .iter()
        .copied()
        .partition(|replica| is_new.as_ref().is_some_and(|is_new| is_new(replica)));
    let mut scaling = match &is_new {
        // There is nothing to roll out to, so what runs stays.
        None => just_scale(bounds, old),
        Some(_) if spec.paused => pause(bounds, new, old),
        Some(_) => match spec.strategy.kind {
            StrategyType::RollingUpdate => roll(bounds, new, old),
            StrategyType::Recreate => recreate(bounds, new, old, ending_old),
        },
    };
    if is_new.is_none() {
        scaling.create = 0;
    }
    scaling.create = scaling.create.min(MAX_CREATED_AT_ONCE);
    scaling
}

/// Those that are missed least come first: not placed, not ready, then the newest.
fn dispensable_first(mut replicas: Vec<&ModelReplica>) -> Vec<&ModelReplica> {
    replicas.sort_by_key(|replica| {
        (
            replica.spec.node_name.is_some(),
            is_ready(replica),
            Reverse(replica.metadata.creation_timestamp.clone()),
            Reverse(replica.name_any()),
        )
    });
    replicas
}

fn take(replicas: Vec<&ModelReplica>, count: usize, why: DeleteReason) -> Vec<(&ModelReplica, DeleteReason)> {
    dispensable_first(replicas)
        .into_iter()
        .take(count)
        .map(|replica| (replica, why))
        .collect()
}

fn just_scale(bounds: Bounds, replicas: Vec<&ModelReplica>) -> Scaling<'_> {
    let missing = bounds.wanted.saturating_sub(replicas.len());
    let surplus = replicas.len().saturating_sub(bounds.wanted);
    Scaling {
        create: missing,
        delete: take(replicas, surplus, DeleteReason::Surplus),
    }
}

/// Only the number changes: both revisions stay, and what is missing comes from the current one.
fn pause<'a>(bounds: Bounds, new: Vec<&'a ModelReplica>, old: Vec<&'a ModelReplica>) -> Scaling<'a> {
    just_scale(bounds, [new, old].concat())
}

fn recreate<'a>(
    bounds: Bounds,
    new: Vec<&'a ModelReplica>,
    old: Vec<&'a ModelReplica>,
    ending_old: usize,
) -> Scaling<'a> {
    let mut scaling = just_scale(bounds, new);
    if !old.is_empty() || ending_old > 0 {
        scaling.create = 0;
    }
    let count = old.len();
    scaling.delete.extend(take(old, count, DeleteReason::Outdated));
    scaling
}

fn roll<'a>(bounds: Bounds, new: Vec<&'a ModelReplica>, old: Vec<&'a ModelReplica>) -> Scaling<'a> {
    let surplus = new.len().saturating_sub(bounds.wanted);
    let mut delete = take(new.clone(), surplus, DeleteReason::Surplus);
    let gone = |replica: &&ModelReplica| delete.iter().any(|(deleted, _)| std::ptr::eq(*deleted, *replica));
    let new: Vec<_> = new.into_iter().filter(|replica| !gone(replica)).collect();

    let new_available = new.iter().filter(|replica| is_ready(replica)).count();
    let (old_available, old_unavailable): (Vec<_>, Vec<_>) =
        old.into_iter().partition(|replica| is_ready(replica));
    let total = new.len() + old_available.len() + old_unavailable.len();
    // New ones that are not available yet are counted on: while they come, nothing more may go.
    let may_go = total
        .saturating_sub(bounds.min_available)
        .saturating_sub(new.len() - new_available);
    let unavailable_going = old_unavailable.len().min(may_go);
    let available_going = old_available
        .len()
        .min(may_go - unavailable_going)
        .min((new_available + old_available.len()).saturating_sub(bounds.min_available));
    delete.extend(take(old_unavailable, unavailable_going, DeleteReason::Outdated));
    delete.extend(take(old_available, available_going, DeleteReason::Outdated));

    let left = total - unavailable_going - available_going;
    let create = bounds
        .wanted
        .saturating_sub(new.len())
        .min(bounds.max_total.saturating_sub(left));
    Scaling { create, delete }
}
