//! From a question in numbers to a placement and what is proven of it: exactly where the question is small, otherwise
//! greedily, with the relaxation's bound beside it.

use super::exact::{self, Goal, Search};
use super::greedy;
use super::instance::{Instance, Placement, TOLERANCE};
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
    let bound = relaxation::most_demand(instance).unwrap_or(super::instance::MAX_FACTOR);
    let found = greedy::most_demand(instance, bound);
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

/// Whether the demand is carried once one node of `class` is gone; if not, the models that stay out.
pub(super) fn without_one(instance: &Instance, class: usize) -> Result<(), Vec<usize>> {
    let mut rest = instance.clone();
    rest.classes[class].nodes -= 1;
    let unplaced = match greedy::place(&rest, 1.0) {
        Ok(_) => return Ok(()),
        Err(unplaced) => unplaced,
    };
    match exact::solve(&rest, Goal::MostDemand, None) {
        Search::Found(answer) if answer.placement.factor(&rest) >= 1.0 - TOLERANCE => Ok(()),
        Search::Found(_) | Search::Impossible | Search::TooLarge => Err(unplaced),
    }
}
