//! Verdict of a plan: feasibility, placement, headroom, bottleneck, and the effect of a lost node.

use std::cmp::Ordering;

use serde_json::Value;

use super::binding::{self, Binding, WhatIfs};
use super::instance::{Instance, MAX_FACTOR, TOLERANCE};
use super::loss::node_losses;
use super::purchase;
use super::question::{Judged, NodeClass, PlannedModel, Question};
use super::search::{self, Capacity};
use super::streams::StreamChoices;
use super::working::Working;
use rooflet_api::v1alpha1::{PlanHeadroom, PlanVerdict};

/// Maximum number of names in a list; further ones are counted.
const MAX_NAMES: usize = 3;

/// Returns the verdict for a question.
pub fn answer(question: &Question) -> PlanVerdict {
    let choices = StreamChoices::new(question, false);
    let Evaluated {
        judged,
        limits,
        unservable,
        others,
        capacity,
        compared,
    } = Evaluated::best(&choices);
    let carried = capacity.carries_demand();
    let feasible = carried && unservable.is_empty() && judged.instance.nodes() > 0;
    let most = capacity.placement.clone().unwrap_or_default();
    let part = capacity.factor.min(1.0);
    // If the capacity is too low, show the placement for the same part of every demand.
    let shown = if carried {
        search::frugal(&others, &most)
    } else {
        most.scaled(&others, part)
    };
    let working = Working {
        judged: &judged,
        placement: &shown,
        part,
    };
    let factor = if unservable.is_empty() {
        capacity.factor
    } else {
        0.0
    };
    let classes = working.classes();
    let node_losses = if feasible {
        node_losses(&working, capacity.bound, compared)
    } else {
        Vec::new()
    };
    let bound = if unservable.is_empty() {
        capacity.bound
    } else {
        0.0
    };
    let what_ifs = (judged.instance.nodes() > 0)
        .then(|| WhatIfs::new(question, &judged, &limits, factor, capacity.bound));
    let binding = what_ifs.and_then(|what_ifs| match unservable.first() {
        Some(model) => binding::unservable(&working, *model),
        None => binding::binding(&working, &capacity, what_ifs),
    });
    let served = (0..question.models.len()).filter(|model| !unservable.contains(model));
    let tokens: f64 = served
        .map(|model| &question.models[model])
        .map(|model| model.requests_per_second * f64::from(model.answer_tokens))
        // `sum` of an empty iterator returns −0.
        .fold(0.0, |sum, one| sum + one);
    let mut verdict = PlanVerdict {
        feasible,
        summary: String::new(),
        binding: binding
            .as_ref()
            .map(|binding| binding.constraint.as_str().to_owned()),
        demand_factor: factor,
        demand_factor_bound: bound,
        proven: !unservable.is_empty() || capacity.proven(),
        placement_factor: working.placement_factor(&classes).unwrap_or(part),
        unservable: unservable.iter().map(|model| working.name(*model)).collect(),
        others_factor: (!unservable.is_empty() && unservable.len() < question.models.len())
            .then_some(capacity.factor),
        nodes: judged.instance.nodes(),
        nodes_used: shown.groups.iter().map(|group| group.nodes).sum(),
        survives_node_loss: feasible && node_losses.iter().all(|loss| loss.survives),
        assumptions: question
            .models
            .iter()
            .flat_map(PlannedModel::assumptions)
            .collect(),
        models: working.models(),
        classes,
        placements: working.placements(),
        headroom: PlanHeadroom {
            max_tokens_per_second: capacity.factor * tokens,
            twice_memory_factor: what_ifs.map(|what_ifs| what_ifs.twice_memory),
            twice_speed_factor: what_ifs.map(|what_ifs| what_ifs.twice_speed),
            unlimited_disk_factor: what_ifs.and_then(|what_ifs| what_ifs.unlimited_disk),
            ..working.headroom()
        },
        node_losses,
        price: of_fleet(question, |class| class.price),
        watts: of_fleet(question, |class| class.watts),
        purchase: (!question.offers.is_empty()).then(|| purchase::recommend(question)),
    };
    let demands = question
        .models
        .iter()
        .any(|model| model.requests_per_second > 0.0);
    verdict.summary = if verdict.feasible && !demands {
        nothing_demanded(&verdict)
    } else {
        summary(&verdict, binding.as_ref(), &capacity)
    };
    rounded(&verdict)
}

/// Fleet with one combination of limits of the streams per replica.
struct Evaluated<'a> {
    judged: Judged<'a>,
    /// Maximum streams of each model.
    limits: Vec<u32>,
    /// Models that no node can serve.
    unservable: Vec<usize>,
    /// Instance without the unservable models.
    others: Instance,
    capacity: Capacity,
    /// True if other limits were compared.
    compared: bool,
}

impl<'a> Evaluated<'a> {
    fn new(choices: &'a StreamChoices<'_>, limits: Vec<u32>) -> Self {
        let judged = choices.judged(&limits);
        let unservable = judged.unservable();
        let others = judged.instance.without(&unservable);
        let capacity = search::capacity(&others);
        Self {
            judged,
            limits,
            unservable,
            others,
            capacity,
            compared: false,
        }
    }

    /// Compares the limits of the streams. Returns the combination with the largest factor, or a
    /// sufficient one that survives the loss of any node.
    fn best(choices: &'a StreamChoices<'_>) -> Self {
        let mut combinations = choices.combinations();
        if combinations.len() == 1 {
            return Self::new(choices, combinations.remove(0));
        }
        // The first limits are the largest, so their least needs are those of all limits.
        let largest = choices.judged(&combinations[0]);
        let least = largest.with_least_needs().without(&largest.unservable());
        let bounded = |limits: Vec<u32>| {
            let judged = choices.judged(&limits);
            let bound = search::bound(&judged.instance.without(&judged.unservable()));
            (bound, limits)
        };
        let mut open: Vec<(f64, Vec<u32>)> = combinations.into_iter().map(bounded).collect();
        // The sort is stable, so among equal bounds the largest limits come first.
        open.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut open = open.into_iter().peekable();
        let mut all: Vec<Self> = Vec::new();
        let key = |one: &Self| (one.capacity.placement.is_some(), one.capacity.factor);
        let most = |all: &[Self]| {
            all.iter()
                .map(key)
                .max_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal))
        };
        while let Some((_, limits)) =
            open.next_if(|(bound, _)| most(&all).is_none_or(|(placed, most)| !placed || *bound > most))
        {
            all.push(Self::new(choices, limits));
        }
        all.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap_or(Ordering::Equal));
        let mut survivor = all.iter().position(Self::survives);
        if survivor.is_none() && all[0].capacity.carries_demand() {
            // Only limits that carry the demand can survive a loss.
            let rest = open.take_while(|(bound, _)| *bound >= 1.0 - TOLERANCE);
            if let Some(found) = rest
                .map(|(_, limits)| Self::new(choices, limits))
                .find(Self::survives)
            {
                survivor = Some(all.len());
                all.push(found);
            }
        }
        let mut best = all.swap_remove(survivor.unwrap_or(0));
        best.compared = true;
        best.capacity.bound = search::bound(&least).max(best.capacity.factor);
        best
    }

    /// Returns whether the fleet carries the demand after the loss of any one node.
    fn survives(&self) -> bool {
        let classes = self.judged.instance.classes.iter().enumerate();
        self.capacity.carries_demand()
            && self.unservable.is_empty()
            && classes
                .filter(|(_, supply)| supply.nodes > 0)
                .all(|(class, _)| search::survives_without_one(&self.judged.instance, class))
    }
}

/// Absolute value below which a number is set to 0. Smaller numbers may change in a JSON round
/// trip.
const NEGLIGIBLE: f64 = 1e-13;

/// Rounds all numbers to nine digits. Such numbers survive a JSON round trip, so that an unchanged
/// status compares as equal.
fn rounded(verdict: &PlanVerdict) -> PlanVerdict {
    let mut value = serde_json::to_value(verdict).expect("a verdict has only string keys");
    round(&mut value);
    serde_json::from_value(value).expect("rounding changes no type")
}

fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let short = number
                .as_f64()
                .map(|float| if float.abs() < NEGLIGIBLE { 0.0 } else { float })
                .and_then(|float| format!("{float:.8e}").parse::<f64>().ok());
            *value = short.map_or(Value::Null, Value::from);
        }
        Value::Array(list) => list.iter_mut().for_each(round),
        Value::Object(map) => map.values_mut().for_each(round),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the sum over all machines, or `None` if a value is unknown.
fn of_fleet(question: &Question, value: fn(&NodeClass) -> Option<f64>) -> Option<f64> {
    let each = question.classes.iter().filter(|class| class.nodes > 0);
    let all: Option<Vec<f64>> = each
        .map(|class| Some(value(class)? * f64::from(class.nodes)))
        .collect();
    all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

fn summary(verdict: &PlanVerdict, binding: Option<&Binding>, capacity: &Capacity) -> String {
    if verdict.nodes == 0 {
        return "The fleet has no nodes.".to_owned();
    }
    let why = binding.map_or(String::new(), |binding| format!(" {}.", binding.why));
    if verdict.feasible {
        return format!(
            "The demand fits: {} of {} nodes are used, and the fleet carries it {}.{why} {}.",
            verdict.nodes_used,
            verdict.nodes,
            times(verdict.demand_factor),
            loss_of_a_node(verdict)
        );
    }
    if !verdict.unservable.is_empty() {
        let others = match verdict.others_factor {
            None => String::new(),
            Some(factor) if factor >= 1.0 - TOLERANCE => {
                format!(" The fleet carries the other models alone {}.", times(factor))
            }
            Some(factor) => format!(
                " The fleet carries {:.0} % of the other models alone.",
                100.0 * factor
            ),
        };
        return format!(
            "The demand does not fit: no node can serve {}.{why}{others}",
            list(&verdict.unservable)
        );
    }
    let proof = if verdict.demand_factor_bound < 1.0 - TOLERANCE {
        "No placement carries the complete demand".to_owned()
    } else {
        format!(
            "No placement for the complete demand was found; the upper bound is {}",
            times(verdict.demand_factor_bound)
        )
    };
    let most = if capacity.placement.is_none() || verdict.demand_factor <= 0.0 {
        "not even the required replicas".to_owned()
    } else {
        // Round down: 99.9 % is not the complete demand.
        format!("{} % of it", (verdict.demand_factor * 100.0).floor())
    };
    format!("The demand does not fit: the fleet carries {most}. {proof}.{why}")
}

/// Returns the summary of a plan without requests, for which a multiple of the demand is
/// meaningless.
fn nothing_demanded(verdict: &PlanVerdict) -> String {
    format!(
        "No requests are demanded. All required replicas are placed: {} of {} nodes are used. {}.",
        verdict.nodes_used,
        verdict.nodes,
        loss_of_a_node(verdict)
    )
}

/// Describes the effect of the loss of one node.
fn loss_of_a_node(verdict: &PlanVerdict) -> String {
    let interrupted: Vec<String> = verdict
        .node_losses
        .iter()
        .flat_map(|loss| loss.interrupted.iter().cloned())
        .collect();
    let until = match interrupted.as_slice() {
        [] => String::new(),
        [one] => format!("; {one} has a single replica and is unavailable while that moves"),
        many => format!(
            "; {} have a single replica each and are unavailable while that moves",
            list(many)
        ),
    };
    if verdict.survives_node_loss {
        return format!(
            "The fleet survives the loss of any one node: the other nodes carry the demand after its replicas have moved{until}"
        );
    }
    let breaks = verdict.node_losses.iter().filter(|loss| !loss.survives);
    let classes: Vec<String> = breaks
        .clone()
        .map(|loss| {
            let left = loss.demand_factor.unwrap_or_default();
            let found = if loss.proven { "is" } else { "was found to be" };
            format!(
                "{} (then {:.0} % {found} carried)",
                loss.class,
                (100.0 * left).floor()
            )
        })
        .collect();
    format!(
        "The fleet does not survive the loss of one node of {}{until}",
        list(&classes)
    )
}

/// Formats a list of names: `a, b, c and 4 more`.
fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let listed = &names[..names.len() - more];
    match more {
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    }
}

/// Formats a multiple: `1.60 times`.
fn times(factor: f64) -> String {
    if factor >= MAX_FACTOR {
        format!("more than {factor:.0} times")
    } else if factor >= 10.0 {
        format!("{factor:.0} times")
    } else {
        format!("{factor:.2} times")
    }
}

#[cfg(test)]
mod tests;
