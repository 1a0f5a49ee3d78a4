//! Search for a placement and its bound: exact for small instances, otherwise greedy with the bound
//! of the relaxation.

use super::exact::{self, Goal, Search};
use super::greedy::{self, Effort};
use super::instance::{Instance, MAX_FACTOR, Placement, TOLERANCE};
use super::relaxation;

/// Best known placement, and an upper bound.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Capacity {
    /// `None` if the required replicas were not placed.
    pub(super) placement: Option<Placement>,
    /// Multiple of the demand that the placement carries.
    pub(super) factor: f64,
    /// Upper bound over all placements.
    pub(super) bound: f64,
}

impl Capacity {
    pub(super) fn carries_demand(&self) -> bool {
        self.placement.is_some() && self.factor >= 1.0 - TOLERANCE
    }

    /// Returns whether the factor is proven optimal.
    pub(super) fn proven(&self) -> bool {
        self.bound <= self.factor * (1.0 + 10.0 * TOLERANCE) + TOLERANCE
    }
}

/// Returns the multiple of the demand that `instance` can carry.
pub(super) fn capacity(instance: &Instance) -> Capacity {
    let bound = bound(instance);
    let found = greedy::most_demand(instance, bound, Effort::FULL);
    let known = found.map(|placement| (placement.factor(instance), placement));
    let exact = exact::solve(
        instance,
        Goal::MostDemand,
        known.clone().map(|(factor, placement)| (placement, factor)),
    );
    match exact {
        Search::Found(answer) => Capacity {
            factor: answer.placement.factor(instance),
            bound: answer.bound.min(bound),
            placement: Some(answer.placement),
        },
        Search::Impossible => Capacity {
            placement: None,
            factor: 0.0,
            bound: 0.0,
        },
        Search::TooLarge => match known {
            Some((factor, placement)) => Capacity {
                placement: Some(placement),
                factor,
                bound: bound.max(factor),
            },
            None => Capacity {
                placement: None,
                factor: 0.0,
                bound,
            },
        },
    }
}

/// Returns an upper bound of the multiple of the demand that `instance` can carry.
pub(super) fn bound(instance: &Instance) -> f64 {
    // Without a solution of the relaxation, there is no bound.
    relaxation::most_demand(instance).unwrap_or(MAX_FACTOR)
}

/// Returns a placement for the demand with few replicas; `best` is a placement that carries it.
pub(super) fn frugal(instance: &Instance, best: &Placement) -> Placement {
    let greedy = greedy::place(instance, 1.0).ok();
    let fits = best.clone().scaled(instance, 1.0);
    let known = greedy
        .filter(|placement| placement.total_replicas() <= fits.total_replicas())
        .unwrap_or(fits);
    let worth = -f64::from(known.total_replicas()) - 0.02;
    match exact::solve(instance, Goal::FewestReplicas, Some((known.clone(), worth))) {
        Search::Found(answer) => answer.placement,
        Search::Impossible | Search::TooLarge => known,
    }
}

/// Demand that the fleet carries after the loss of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Remaining {
    /// The complete demand.
    All,
    /// Part of the demand, and whether the complete demand is proven impossible.
    Part { factor: f64, proven: bool },
}

/// Returns the demand carried after the loss of one node of `class`; `bound` is the bound of all
/// nodes.
pub(super) fn without_one(instance: &Instance, class: usize, bound: f64) -> Remaining {
    let rest = instance.without_node(class);
    if greedy::place(&rest, 1.0).is_ok() {
        return Remaining::All;
    }
    let best = found(&rest, bound, Effort::FULL);
    if best.factor >= 1.0 - TOLERANCE {
        return Remaining::All;
    }
    Remaining::Part {
        factor: best.factor,
        proven: best.bound.is_some_and(|bound| bound < 1.0 - TOLERANCE),
    }
}

/// Returns whether the complete demand is carried after the loss of one node of `class`. Faster
/// than [`without_one`].
pub(super) fn survives_without_one(instance: &Instance, class: usize) -> bool {
    let rest = instance.without_node(class);
    if bound(&rest) < 1.0 - TOLERANCE {
        return false;
    }
    greedy::place(&rest, 1.0).is_ok()
        || match exact::solve(&rest, Goal::MostDemand, None) {
            Search::Found(answer) => answer.placement.factor(&rest) >= 1.0 - TOLERANCE,
            Search::Impossible | Search::TooLarge => false,
        }
}

/// Returns a multiple of the demand that `instance` carries, searched up to `ceiling`.
pub(super) fn reachable(instance: &Instance, ceiling: f64) -> f64 {
    found(instance, ceiling.min(MAX_FACTOR), Effort::QUICK).factor
}

struct Best {
    /// 0 if the required replicas were not placed.
    factor: f64,
    /// Upper bound over all placements, if the instance is small enough.
    bound: Option<f64>,
}

fn found(instance: &Instance, bound: f64, effort: Effort) -> Best {
    let known = greedy::most_demand(instance, bound, effort).map(|placement| {
        let factor = placement.factor(instance);
        (placement, factor)
    });
    let factor = known.as_ref().map_or(0.0, |(_, factor)| *factor);
    match exact::solve(instance, Goal::MostDemand, known) {
        Search::Found(answer) => Best {
            factor: answer.placement.factor(instance),
            bound: Some(answer.bound),
        },
        Search::Impossible => Best {
            factor: 0.0,
            bound: Some(0.0),
        },
        Search::TooLarge => Best { factor, bound: None },
    }
}
