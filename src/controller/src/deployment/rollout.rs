//! Which replicas come and which go. Kubernetes' Deployment arithmetic: available replicas never fall below
//! `replicas - maxUnavailable`, there are never more than `replicas + maxSurge`; and what is predicted for the available
//! ones never falls below `minThroughput`.

use std::cmp::Reverse;

use kube::ResourceExt;

use super::bounds::Bounds;
use super::idle::{Idleness, InUse};
use super::preparation::Preparation;
use super::replica::{is_of, is_ready, is_unplaceable};
use super::throughput::{AtFloor, Chips, Floor, Throughput};
use rooflet_api::v1alpha1::{ModelDeploymentSpec, ModelReplica, StrategyType};

/// Replicas created in one pass; the next pass goes on.
const MAX_CREATED_AT_ONCE: usize = 100;

/// How the number of replicas changes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Scaling<'a> {
    /// Replicas of the target revision to create.
    pub(super) create: usize,
    /// Replicas of the stable revision to create, while a canary goes on beside it.
    pub(super) create_stable: usize,
    /// Replicas to delete, and why.
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
    /// Nothing more can be replaced without giving up what `minThroughput` holds.
    pub(super) at_floor: Option<AtFloor>,
    /// Nothing more can be replaced before these are in use no more.
    pub(super) in_use: Option<InUse>,
    /// Replicas that would be replaced if their nodes had the model that follows.
    pub(super) unprepared: Vec<&'a ModelReplica>,
    /// Nothing more can be replaced before one of them has it.
    pub(super) awaits_preparation: bool,
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

/// How far replicas may be replaced in this pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of them, as `spec.strategy` says.
    All,
    /// So many percent; the rest stays of the stable revision.
    Canary(u8),
    /// None: only the number of replicas is seen to.
    Held,
}

/// Limits for replacing replicas in this pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct RolloutLimits<'a> {
    /// Whether there is a revision that replicas should be of.
    pub(super) has_target: bool,
    /// The one they were of when all were of one, if it is another.
    pub(super) stable: Option<&'a str>,
    pub(super) extent: Extent,
    pub(super) floor: Floor,
    pub(super) chips: Chips<'a>,
    /// Replicas that are there beside these, until their replacements have come.
    pub(super) leaving: usize,
    /// What is ready goes only when it is idle.
    pub(super) idleness: Option<Idleness>,
    /// What is ready and would be missed goes only when its node has what follows.
    pub(super) preparation: Option<Preparation<'a>>,
}

impl RolloutLimits<'_> {
    fn may_go(&self, replica: &ModelReplica) -> bool {
        let is_idle = |idleness: Idleness| idleness.is_idle(replica);
        !is_ready(replica) || self.idleness.is_none_or(is_idle)
    }

    fn is_prepared(&self, replica: &ModelReplica) -> bool {
        !is_ready(replica)
            || self
                .preparation
                .is_none_or(|preparation| preparation.is_done(replica))
    }

    fn in_use(&self, replicas: &[&ModelReplica]) -> Option<InUse> {
        InUse::new(self.idleness?, replicas)
    }
}

/// `is_new` tells what is of the target revision and may stay where it is. `active` are the replicas that are neither ending nor refused; `ending_old` how many of old revisions are ending.
pub(super) fn scale<'a>(
    spec: &ModelDeploymentSpec,
    limits: RolloutLimits<'_>,
    is_new: &dyn Fn(&ModelReplica) -> bool,
    active: &[&'a ModelReplica],
    ending_old: usize,
) -> Scaling<'a> {
    let mut bounds = Bounds::of(spec);
    bounds.max_total = bounds.max_total.saturating_sub(limits.leaving).max(bounds.wanted);
    let (new, old): (Vec<_>, Vec<_>) = active.iter().copied().partition(|replica| is_new(replica));
    let mut scaling = match (limits.has_target, limits.extent) {
        // There is nothing to roll out to, so what runs stays.
        (false, _) => Scaling {
            create: 0,
            ..just_scale(bounds, old)
        },
        (true, Extent::Held) => {
            // Beside a lone replica a canary needs no surge.
            let is_beside = spec.strategy.kind == StrategyType::Canary && bounds.wanted == 1;
            let beside = usize::from(is_beside).saturating_sub(limits.leaving);
            hold(bounds, bounds.surge().max(beside), limits, new, old)
        }
        (true, Extent::Canary(weight)) => {
            let goal = Goal::of_canary(bounds, weight, &new);
            replace(bounds, goal, limits, new, old)
        }
        (true, Extent::All) => match spec.strategy.kind {
            StrategyType::RollingUpdate | StrategyType::Canary => {
                replace(bounds, Goal::all(bounds), limits, new, old)
            }
            StrategyType::Recreate => recreate(bounds, limits, new, old, ending_old),
        },
    };
    scaling.create = scaling.create.min(MAX_CREATED_AT_ONCE);
    scaling.create_stable = scaling.create_stable.min(MAX_CREATED_AT_ONCE);
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
        ..Scaling::default()
    }
}

/// Only the number changes: both revisions stay, and what is missing comes from the one that has proved itself. What a surge
/// has brought to a node stays as well: somebody looks at it, or it is what the rollout was stopped for, which would be
/// forgotten without it.
fn hold<'a>(
    bounds: Bounds,
    surge: usize,
    limits: RolloutLimits<'_>,
    new: Vec<&'a ModelReplica>,
    old: Vec<&'a ModelReplica>,
) -> Scaling<'a> {
    let is_begun = |replica: &ModelReplica| {
        let is_new = new.iter().any(|one| std::ptr::eq(*one, replica));
        is_new && replica.spec.node_name.is_some() && !old.is_empty()
    };
    let mut total = new.len() + old.len();
    let mut begun = new.iter().filter(|replica| is_begun(replica)).count();
    let mut delete = Vec::new();
    for replica in dispensable_first([new.as_slice(), &old].concat()) {
        if total <= bounds.wanted + surge.min(begun) {
            break;
        }
        total -= 1;
        begun -= usize::from(is_begun(replica));
        delete.push((replica, DeleteReason::Surplus));
    }
    let missing = bounds.wanted.saturating_sub(total);
    let (create, create_stable) = match limits.stable {
        Some(_) => (0, missing),
        None => (missing, 0),
    };
    Scaling {
        create,
        create_stable,
        delete,
        ..Scaling::default()
    }
}

fn recreate<'a>(
    bounds: Bounds,
    limits: RolloutLimits<'_>,
    new: Vec<&'a ModelReplica>,
    old: Vec<&'a ModelReplica>,
    ending_old: usize,
) -> Scaling<'a> {
    let mut scaling = just_scale(bounds, new);
    if !old.is_empty() || ending_old > 0 {
        scaling.create = 0;
    }
    let unprepared = old.iter().copied().filter(|replica| !limits.is_prepared(replica));
    scaling.unprepared = unprepared.collect();
    scaling.awaits_preparation = !scaling.unprepared.is_empty();
    if scaling.awaits_preparation {
        return scaling;
    }
    let used: Vec<_> = old
        .iter()
        .copied()
        .filter(|replica| !limits.may_go(replica))
        .collect();
    scaling.in_use = limits.in_use(&used);
    if scaling.in_use.is_some() {
        // All go at once or none does.
        return scaling;
    }
    let count = old.len();
    scaling.delete.extend(take(old, count, DeleteReason::Outdated));
    scaling
}

/// How many replicas there should be of each revision.
#[derive(Debug, Clone, Copy)]
struct Goal {
    new: usize,
    stable: usize,
}

impl Goal {
    fn all(bounds: Bounds) -> Self {
        Self {
            new: bounds.wanted,
            stable: 0,
        }
    }

    /// The stable revision keeps what a surge has room for beside the new one.
    fn of_canary(bounds: Bounds, weight: u8, new: &[&ModelReplica]) -> Self {
        let canaries = bounds.canaries(weight);
        let rest = bounds.wanted - canaries;
        // With one replica a canary needs room for a second.
        let least = usize::from(canaries > 0 && weight < 100).min(bounds.wanted);
        // Where no node has room for one more, it is made by one less.
        let surge = if new.iter().any(|replica| is_unplaceable(replica)) {
            0
        } else {
            bounds.max_total - bounds.wanted
        };
        let stable = if weight >= 100 { 0 } else { rest + surge };
        Self {
            new: canaries,
            stable: stable
                .min(bounds.wanted)
                .max(if weight >= 100 { 0 } else { least }),
        }
    }
}

fn replace<'a>(
    bounds: Bounds,
    goal: Goal,
    limits: RolloutLimits<'_>,
    new: Vec<&'a ModelReplica>,
    old: Vec<&'a ModelReplica>,
) -> Scaling<'a> {
    let surplus = new.len().saturating_sub(bounds.wanted);
    let mut delete = take(new.clone(), surplus, DeleteReason::Surplus);
    let is_gone = |gone: &[(&ModelReplica, DeleteReason)], replica: &ModelReplica| {
        gone.iter().any(|(deleted, _)| std::ptr::eq(*deleted, replica))
    };
    let mut new = new;
    new.retain(|replica| !is_gone(&delete, replica));
    let (stable, outdated): (Vec<_>, Vec<_>) = old
        .into_iter()
        .partition(|replica| limits.stable.is_some_and(|revision| is_of(replica, revision)));

    // Beyond the goal: what may go as far as what is left is enough.
    let mut excess = [
        outdated.len(),
        stable.len().saturating_sub(goal.stable),
        new.len().saturating_sub(goal.new),
    ];
    let mut candidates: Vec<(usize, &ModelReplica)> = [&outdated, &stable, &new]
        .into_iter()
        .enumerate()
        .flat_map(|(class, replicas)| {
            let sorted = dispensable_first(replicas.clone());
            sorted.into_iter().map(move |replica| (class, replica))
        })
        .collect();
    let rank = |replica: &ModelReplica| {
        let is_used = !limits.may_go(replica);
        (replica.spec.node_name.is_some(), is_ready(replica), is_used)
    };
    candidates.sort_by_key(|(_, replica)| rank(replica));

    let all = || new.iter().chain(&stable).chain(&outdated).copied();
    let new_unavailable = new.iter().filter(|replica| !is_ready(replica)).count();
    let mut ready = all().filter(|replica| is_ready(replica)).count();
    let mut throughput = Throughput::of(limits.chips, all());
    // New ones that are not available yet are counted on: while they come, nothing more may go.
    let mut may_go = all()
        .count()
        .saturating_sub(bounds.min_available)
        .saturating_sub(new_unavailable);
    let mut at_floor: Option<AtFloor> = None;
    let (mut used, mut unprepared) = (Vec::new(), Vec::new());
    for (class, replica) in candidates {
        if excess[class] == 0 || may_go == 0 {
            continue;
        }
        if is_ready(replica) {
            if ready <= bounds.min_available {
                continue;
            }
            let (now, left) = (throughput.total(), throughput.total_without(replica));
            if !limits.floor.holds(left) && left < now {
                let nearest = at_floor.map_or(f64::NEG_INFINITY, |at| at.would_leave);
                at_floor = Some(AtFloor {
                    now,
                    would_leave: left.max(nearest),
                });
                continue;
            }
            if ready <= bounds.wanted && !limits.is_prepared(replica) {
                unprepared.push(replica);
                continue;
            }
            if !limits.may_go(replica) {
                used.push(replica);
                continue;
            }
            throughput.remove(replica);
            ready -= 1;
        }
        excess[class] -= 1;
        may_go -= 1;
        delete.push((replica, DeleteReason::Outdated));
    }

    let left = |replicas: &[&ModelReplica]| {
        let stays = |replica: &&&ModelReplica| !is_gone(&delete, replica);
        replicas.iter().filter(stays).count()
    };
    let (new_left, stable_left) = (left(&new), left(&stable));
    // A canary beside a lone replica waits while another one is beside it, in place of one that leaves.
    let beside = (goal.new + goal.stable).saturating_sub(limits.leaving);
    let max_total = bounds.max_total.max(beside);
    let room = max_total.saturating_sub(new_left + stable_left + left(&outdated));
    let create_stable = goal.stable.saturating_sub(stable_left).min(room);
    let create = goal.new.saturating_sub(new_left).min(room - create_stable);
    // While something comes, the floor may yet be passed.
    let nothing_comes = create + create_stable == 0
        && all().all(|replica| is_ready(replica) || is_unplaceable(replica) || is_gone(&delete, replica));
    Scaling {
        create,
        create_stable,
        at_floor: at_floor.filter(|_| nothing_comes && used.is_empty() && unprepared.is_empty()),
        in_use: limits.in_use(&used).filter(|_| nothing_comes),
        awaits_preparation: nothing_comes && !unprepared.is_empty(),
        unprepared,
        delete,
    }
}
