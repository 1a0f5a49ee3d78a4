//! Replicas to create and delete, by the arithmetic of Kubernetes' Deployment.
//!
//! At least `replicas - maxUnavailable` replicas stay Ready, and at most `replicas + maxSurge`
//! exist. In addition, the predicted throughput of the Ready replicas stays at least
//! `minThroughput`.

use std::cmp::Reverse;

use kube::ResourceExt;

use super::bounds::Bounds;
use super::idle::{Idleness, InUse};
use super::preparation::Preparation;
use super::replica::{is_of, is_ready, is_unschedulable};
use super::throughput::{AtFloor, Chips, Floor, Throughput, predicted};
use rooflet_api::v1alpha1::{ModelDeploymentSpec, ModelReplica, StrategyType};

/// Maximum number of replicas created in one pass.
const MAX_CREATED_AT_ONCE: usize = 100;

/// Replicas to create and delete, and reasons why no more are replaced.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Scaling<'a> {
    /// Number of replicas of the target revision to create.
    pub(super) create: usize,
    /// Number of replicas of the stable revision to create beside a canary.
    pub(super) create_stable: usize,
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
    /// Set if the throughput floor prevents every further replacement.
    pub(super) at_floor: Option<AtFloor>,
    /// Replicas that must become idle before the next replacement.
    pub(super) in_use: Option<InUse>,
    /// Replicas whose nodes must download the new model before the replacement.
    pub(super) unprepared: Vec<&'a ModelReplica>,
    /// True if only a download allows the next replacement.
    pub(super) awaits_preparation: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeleteReason {
    /// The replica exceeds the desired count.
    Surplus,
    /// The replica has an old revision.
    Outdated,
    /// The agent of the node refused the replica.
    Refused,
}

/// Share of the replicas that may be replaced in this pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All replicas, within the limits of `spec.strategy`.
    All,
    /// This percentage. The remaining replicas keep the stable revision.
    Canary(u8),
    /// None. Only the replica count is corrected.
    Held,
}

/// Limits for replacing replicas in this pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct RolloutLimits<'a> {
    /// True if a target revision exists.
    pub(super) has_target: bool,
    /// Revision of the last complete rollout, if it is not the target revision.
    pub(super) stable: Option<&'a str>,
    pub(super) extent: Extent,
    pub(super) floor: Floor,
    pub(super) chips: Chips<'a>,
    /// Number of additional replicas that leave their nodes when their replacements are Ready.
    pub(super) leaving: usize,
    /// Share of the requests for the new revision while a canary is in progress, in percent. 0 after an
    /// abort.
    pub(super) weight: Option<u8>,
    /// If set, Ready replicas are replaced only when idle.
    pub(super) idleness: Option<Idleness>,
    /// If set, Ready replicas that are needed are replaced only after their nodes have the new
    /// model.
    pub(super) preparation: Option<Preparation<'a>>,
}

impl RolloutLimits<'_> {
    /// Returns whether a canary may run beside a single replica with a part of the requests. This canary is
    /// not the replacement of the replica. The node lifecycle decides in the same way.
    fn is_canary_beside(&self, bounds: Bounds) -> bool {
        bounds.desired == 1 && self.weight.is_some_and(|weight| weight < 100)
    }

    fn may_replace(&self, replica: &ModelReplica) -> bool {
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

/// Computes the replicas to create and delete.
///
/// `is_new` returns whether a replica has the target revision and may stay on its node. `active`
/// are the replicas that are neither terminating nor refused. `ending_old` is the number of
/// terminating replicas of old revisions.
pub(super) fn scale<'a>(
    spec: &ModelDeploymentSpec,
    limits: RolloutLimits<'_>,
    is_new: &dyn Fn(&ModelReplica) -> bool,
    active: &[&'a ModelReplica],
    ending_old: usize,
) -> Scaling<'a> {
    let mut bounds = Bounds::of(spec);
    bounds.max_total = bounds
        .max_total
        .saturating_sub(limits.leaving)
        .max(bounds.desired);
    let (new, old): (Vec<_>, Vec<_>) = active.iter().copied().partition(|replica| is_new(replica));
    let mut scaling = match (limits.has_target, limits.extent) {
        // Without a target revision, the existing replicas stay.
        (false, _) => Scaling {
            create: 0,
            ..scale_only(bounds, old)
        },
        (true, Extent::Held) if limits.is_canary_beside(bounds) => hold_canary(bounds, limits, active),
        (true, Extent::Held) => {
            // A single replica may have a canary beside it without a surge.
            let is_beside = spec.strategy.kind == StrategyType::Canary && bounds.desired == 1;
            let beside = usize::from(is_beside).saturating_sub(limits.leaving);
            scale_held(bounds, bounds.surge().max(beside), limits, new, old)
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

/// Sorts replicas by deletion order: unscheduled, then not Ready, then the slowest by its prediction,
/// then the newest.
fn in_deletion_order(mut replicas: Vec<&ModelReplica>) -> Vec<&ModelReplica> {
    replicas.sort_by_key(|replica| {
        (
            replica.spec.node_name.is_some(),
            is_ready(replica),
            // Whole tokens per second: smaller differences are noise of the calibration.
            predicted(replica).map_or(0, |figure| figure.round() as u64),
            Reverse(replica.metadata.creation_timestamp.clone()),
            Reverse(replica.name_any()),
        )
    });
    replicas
}

fn first_to_delete(
    replicas: Vec<&ModelReplica>,
    count: usize,
    why: DeleteReason,
) -> Vec<(&ModelReplica, DeleteReason)> {
    in_deletion_order(replicas)
        .into_iter()
        .take(count)
        .map(|replica| (replica, why))
        .collect()
}

fn scale_only(bounds: Bounds, replicas: Vec<&ModelReplica>) -> Scaling<'_> {
    let missing = bounds.desired.saturating_sub(replicas.len());
    let surplus = replicas.len().saturating_sub(bounds.desired);
    Scaling {
        create: missing,
        delete: first_to_delete(replicas, surplus, DeleteReason::Surplus),
        ..Scaling::default()
    }
}

/// Corrects the replica count only. Both revisions stay, and missing replicas get the stable one.
///
/// Surge replicas of the new revision that have a node stay too. A user may inspect them, or the
/// pause depends on their state.
fn scale_held<'a>(
    bounds: Bounds,
    surge: usize,
    limits: RolloutLimits<'_>,
    new: Vec<&'a ModelReplica>,
    old: Vec<&'a ModelReplica>,
) -> Scaling<'a> {
    let is_begun = |replica: &ModelReplica| {
        let is_new = new.iter().any(|other| std::ptr::eq(*other, replica));
        is_new && replica.spec.node_name.is_some() && !old.is_empty()
    };
    let mut total = new.len() + old.len();
    let mut begun = new.iter().filter(|replica| is_begun(replica)).count();
    let mut delete = Vec::new();
    for replica in in_deletion_order([new.as_slice(), &old].concat()) {
        if total <= bounds.desired + surge.min(begun) {
            break;
        }
        total -= 1;
        begun -= usize::from(is_begun(replica));
        delete.push((replica, DeleteReason::Surplus));
    }
    let missing = bounds.desired.saturating_sub(total);
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

/// Keeps a single stable replica and the canary beside it. A missing stable replica is created, because
/// the canary does not replace it.
///
/// As in [`scale_held`], a canary without a node is deleted.
fn hold_canary<'a>(bounds: Bounds, limits: RolloutLimits<'_>, active: &[&'a ModelReplica]) -> Scaling<'a> {
    let is_stable = |replica: &ModelReplica| limits.stable.is_some_and(|stable| is_of(replica, stable));
    let (stable, canaries): (Vec<_>, Vec<_>) = active.iter().copied().partition(|replica| is_stable(replica));
    let placed = canaries
        .iter()
        .filter(|replica| replica.spec.node_name.is_some())
        .count();
    let surplus = canaries.len() - placed.min(bounds.surge().max(1));
    let mut delete = first_to_delete(canaries, surplus, DeleteReason::Surplus);
    let surplus = stable.len().saturating_sub(bounds.desired);
    let create_stable = bounds.desired.saturating_sub(stable.len());
    delete.extend(first_to_delete(stable, surplus, DeleteReason::Surplus));
    Scaling {
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
    let mut scaling = scale_only(bounds, new);
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
        .filter(|replica| !limits.may_replace(replica))
        .collect();
    scaling.in_use = limits.in_use(&used);
    if scaling.in_use.is_some() {
        // Recreate deletes all old replicas at once.
        return scaling;
    }
    let count = old.len();
    scaling
        .delete
        .extend(first_to_delete(old, count, DeleteReason::Outdated));
    scaling
}

/// Desired number of replicas of each revision.
#[derive(Debug, Clone, Copy)]
struct Goal {
    new: usize,
    stable: usize,
}

impl Goal {
    fn all(bounds: Bounds) -> Self {
        Self {
            new: bounds.desired,
            stable: 0,
        }
    }

    /// Computes the goal of a canary step. A surge lets the stable revision keep more replicas.
    fn of_canary(bounds: Bounds, weight: u8, new: &[&ModelReplica]) -> Self {
        let canaries = bounds.canaries(weight);
        let rest = bounds.desired - canaries;
        // With one replica, the canary needs a second one beside it.
        let least = usize::from(canaries > 0 && weight < 100).min(bounds.desired);
        // If no node has room for a surge, the canary replaces a stable replica.
        let surge = if new.iter().any(|replica| is_unschedulable(replica)) {
            0
        } else {
            bounds.max_total - bounds.desired
        };
        let stable = if weight >= 100 { 0 } else { rest + surge };
        Self {
            new: canaries,
            stable: stable
                .min(bounds.desired)
                .max(if weight >= 100 { 0 } else { least }),
        }
    }
}

/// Returns the maximum number of replicas that do not leave their nodes. `others` is the number of
/// replicas without the stable revision that remain.
fn max_staying(bounds: Bounds, goal: Goal, limits: RolloutLimits<'_>, others: usize) -> usize {
    let goal = goal.new + goal.stable;
    let beside = match limits.leaving {
        0 => goal,
        // The canary of a single replica stays beside the leaving replica and its replacement, also if it
        // was aborted.
        _ if others > 0 && limits.is_canary_beside(bounds) => bounds.desired + 1,
        // A canary that does not exist yet waits until the surge is free again.
        leaving => goal.saturating_sub(leaving),
    };
    bounds.max_total.max(beside)
}

fn replace<'a>(
    bounds: Bounds,
    goal: Goal,
    limits: RolloutLimits<'_>,
    new: Vec<&'a ModelReplica>,
    old: Vec<&'a ModelReplica>,
) -> Scaling<'a> {
    let surplus = new.len().saturating_sub(bounds.desired);
    let mut delete = first_to_delete(new.clone(), surplus, DeleteReason::Surplus);
    let is_deleted = |deletions: &[(&ModelReplica, DeleteReason)], replica: &ModelReplica| {
        deletions
            .iter()
            .any(|(deleted, _)| std::ptr::eq(*deleted, replica))
    };
    let mut new = new;
    new.retain(|replica| !is_deleted(&delete, replica));
    let (stable, outdated): (Vec<_>, Vec<_>) = old
        .into_iter()
        .partition(|replica| limits.stable.is_some_and(|revision| is_of(replica, revision)));

    // Number of replicas beyond the goal, by class: outdated, stable, new.
    let mut excess = [
        outdated.len(),
        stable.len().saturating_sub(goal.stable),
        new.len().saturating_sub(goal.new),
    ];
    let mut candidates: Vec<(usize, &ModelReplica)> = [&outdated, &stable, &new]
        .into_iter()
        .enumerate()
        .flat_map(|(class, replicas)| {
            let sorted = in_deletion_order(replicas.clone());
            sorted.into_iter().map(move |replica| (class, replica))
        })
        .collect();
    let rank = |replica: &ModelReplica| {
        let is_used = !limits.may_replace(replica);
        (replica.spec.node_name.is_some(), is_ready(replica), is_used)
    };
    candidates.sort_by_key(|(_, replica)| rank(replica));

    let all = || new.iter().chain(&stable).chain(&outdated).copied();
    let new_unavailable = new.iter().filter(|replica| !is_ready(replica)).count();
    let mut ready = all().filter(|replica| is_ready(replica)).count();
    let mut throughput = Throughput::of(limits.chips, all());
    // New replicas that are not Ready yet count as unavailable until they are Ready.
    let mut replaceable = all()
        .count()
        .saturating_sub(bounds.min_available)
        .saturating_sub(new_unavailable);
    let mut at_floor: Option<AtFloor> = None;
    let (mut used, mut unprepared) = (Vec::new(), Vec::new());
    for (class, replica) in candidates {
        if excess[class] == 0 || replaceable == 0 {
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
            if ready <= bounds.desired && !limits.is_prepared(replica) {
                unprepared.push(replica);
                continue;
            }
            if !limits.may_replace(replica) {
                used.push(replica);
                continue;
            }
            throughput.remove(replica);
            ready -= 1;
        }
        excess[class] -= 1;
        replaceable -= 1;
        delete.push((replica, DeleteReason::Outdated));
    }

    let left = |replicas: &[&ModelReplica]| {
        let stays = |replica: &&&ModelReplica| !is_deleted(&delete, replica);
        replicas.iter().filter(stays).count()
    };
    let (new_left, stable_left, outdated_left) = (left(&new), left(&stable), left(&outdated));
    let max_total = max_staying(bounds, goal, limits, new_left + outdated_left);
    let room = max_total.saturating_sub(new_left + stable_left + outdated_left);
    let create_stable = goal.stable.saturating_sub(stable_left).min(room);
    let create = goal.new.saturating_sub(new_left).min(room - create_stable);
    // While a replica is starting, the limits may still change.
    let none_starting = create + create_stable == 0
        && all()
            .all(|replica| is_ready(replica) || is_unschedulable(replica) || is_deleted(&delete, replica));
    Scaling {
        create,
        create_stable,
        at_floor: at_floor.filter(|_| none_starting && used.is_empty() && unprepared.is_empty()),
        in_use: limits.in_use(&used).filter(|_| none_starting),
        awaits_preparation: none_starting && !unprepared.is_empty(),
        unprepared,
        delete,
    }
}
