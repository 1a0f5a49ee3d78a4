//! From a question in numbers to a placement and what is proven of it: exactly where the question
//! is small, otherwise greedily, with the relaxation's bound beside it.

use super::exact::{self, Goal, Search};
use super::greedy::{self, Effort};
use super::instance::{Instance, MAX_FACTOR, Placement, TOLERANCE};
use super::relaxation;

/// The best that was found, and what cannot be exceeded.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Capacity {
    /// `None`: not even one replica of each model was placed.
    pub(super) placement: Option<Placement>,
    /// The placement answers this many times the demand.
    pub(super) factor: f64,
    /// No placement answers more.
    pub(super) bound: f64,
}

impl Capacity {
    pub(super) fn carries_demand(&self) -> bool {
        self.placement.is_some() && self.factor >= 1.0 - TOLERANCE
    }

    /// The factor is the largest there is.
    pub(super) fn proven(&self) -> bool {
        self.bound <= self.factor * (1.0 + 10.0 * TOLERANCE) + TOLERANCE
    }
}

/// How much of the demand, or how many times as much, `instance` can carry.
pub(super) fn capacity(instance: &Instance) -> Capacity {
    // A program that was given up proves nothing.
    let bound = relaxation::most_demand(instance).unwrap_or(MAX_FACTOR);
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

/// A placement for the demand as it is, with few replicas; `best` is one that is known to carry it.
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

/// What is left of the demand once a node is gone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Remaining {
    /// All of it.
    All,
    /// So many times of it, and whether that is proven to be the most.
    Part { factor: f64, proven: bool },
}

/// What the others carry once one node of `class` is gone; `bound` is what all carry at most.
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

/// Whether the others carry the whole demand once one node of `class` is gone: [`without_one`] for
/// who needs no more than that.
pub(super) fn survives_without_one(instance: &Instance, class: usize) -> bool {
    let rest = instance.without_node(class);
    greedy::place(&rest, 1.0).is_ok()
        || match exact::solve(&rest, Goal::MostDemand, None) {
            Search::Found(answer) => answer.placement.factor(&rest) >= 1.0 - TOLERANCE,
            Search::Impossible | Search::TooLarge => false,
        }
}

/// A factor of the demand that `instance` carries, sought up to `ceiling`.
pub(super) fn reachable(instance: &Instance, ceiling: f64) -> f64 {
    found(instance, ceiling.min(MAX_FACTOR), Effort::QUICK).factor
}

struct Best {
    /// 0 where not even the replicas were placed.
    factor: f64,
    /// What no placement exceeds, where the question is small enough to tell.
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
