//! The least that has to be bought so that a demand is carried, from offers with prices.

use super::exact::{self, Goal, Search};
use super::greedy;
use super::instance::{Instance, Placement};
use super::question::{Judged, Question};
use super::relaxation;
use super::search;
use crate::api::v1alpha1::{PlanPurchase, PlanPurchaseItem};

/// How much more than the demand the relaxation is asked to carry, step by step, until what it buys is enough.
const SURPLUS: f64 = 1.03;
const MAX_STEPS: i32 = 40;

/// What to buy besides the fleet. Where an offer has no price, the fewest Macs.
pub(super) fn recommend(question: &Question) -> PlanPurchase {
    let judged = Judged::new(question, true);
    let instance = &judged.instance;
    let owned = question.classes.len();
    let priced = question.offers.iter().all(|offer| offer.price.is_some());
    let bound = relaxation::least_price(instance).map(|(price, _)| price);
    let found = bound.and_then(|bound| cheapest(instance, bound));
    let mut purchase = PlanPurchase {
        minimises: if priced { "Price" } else { "Nodes" }.to_owned(),
        proven: bound.is_none(),
        ..PlanPurchase::default()
    };
    let Some((counts, lower_bound)) = found else {
        return purchase;
    };
    let mut bought = instance.clone();
    for (class, count) in bought.classes.iter_mut().zip(&counts) {
        class.nodes = *count;
    }
    let price = cost(instance, &counts);
    let items = question
        .offers
        .iter()
        .zip(&counts[owned..])
        .filter(|(_, count)| **count > 0);
    purchase.items = items
        .map(|(offer, count)| PlanPurchaseItem {
            name: offer.name.clone(),
            count: *count,
            price: offer.price,
        })
        .collect();
    purchase.found = true;
    purchase.nodes = counts[owned..].iter().sum();
    purchase.price = priced.then_some(price);
    // Of Macs there are whole numbers only.
    let lower_bound = lower_bound.min(price);
    purchase.lower_bound = if priced {
        lower_bound
    } else {
        (lower_bound - 1e-3 * f64::from(purchase.nodes)).ceil().max(0.0)
    };
    purchase.proven = lower_bound >= price * (1.0 - 1e-6) - 1e-6;
    purchase.demand_factor = search::capacity(&bought).factor;
    purchase.survives_node_loss = (0..bought.classes.len())
        .filter(|class| bought.classes[*class].nodes > 0)
        .all(|class| search::without_one(&bought, class).is_ok());
    purchase
}

fn cost(instance: &Instance, counts: &[u32]) -> f64 {
    let each = instance.classes.iter().zip(counts);
    each.map(|(class, count)| class.price * f64::from(*count)).sum()
}

/// Nodes of each class, those that are there all counted in, and a price that nothing goes below.
fn cheapest(instance: &Instance, bound: f64) -> Option<(Vec<u32>, f64)> {
    let known = by_relaxation(instance);
    let start = known
        .as_ref()
        .map(|(counts, placement)| (placement.clone(), -cost(instance, counts)));
    let (placement, lower_bound) = match exact::solve(instance, Goal::LeastPrice, start) {
        Search::Found(answer) => (answer.placement, (-answer.bound).max(bound)),
        Search::Impossible => return None,
        Search::TooLarge => (known?.1, bound),
    };
    let mut counts: Vec<u32> = instance
        .classes
        .iter()
        .map(|class| if class.price > 0.0 { 0 } else { class.nodes })
        .collect();
    for group in &placement.groups {
        if instance.classes[group.class].price > 0.0 {
            counts[group.class] += group.nodes;
        }
    }
    Some((counts, lower_bound))
}

/// What the relaxation buys, rounded up, for ever more than the demand until a placement is found; then whatever can
/// be left out again is.
fn by_relaxation(instance: &Instance) -> Option<(Vec<u32>, Placement)> {
    let with = |counts: &[u32]| {
        let mut part = instance.clone();
        for (class, count) in part.classes.iter_mut().zip(counts) {
            class.nodes = *count;
        }
        greedy::place(&part, 1.0).ok()
    };
    let enough = (0..MAX_STEPS).find_map(|step| {
        let mut more = instance.clone();
        for model in &mut more.models {
            model.rate *= SURPLUS.powi(step);
        }
        let (_, nodes) = relaxation::least_price(&more)?;
        let round = |(class, nodes): (&super::instance::ClassSupply, &f64)| {
            if class.price > 0.0 {
                ((nodes - 1e-6).ceil().max(0.0) as u32).min(class.nodes)
            } else {
                class.nodes
            }
        };
        let counts: Vec<u32> = instance.classes.iter().zip(&nodes).map(round).collect();
        with(&counts).map(|placement| (counts, placement))
    });
    let all: Vec<u32> = instance.classes.iter().map(|class| class.nodes).collect();
    let (mut counts, mut placement) = match enough {
        Some(found) => found,
        None => with(&all).map(|placement| (all, placement))?,
    };
    let mut dearest: Vec<usize> = (0..counts.len())
        .filter(|class| instance.classes[*class].price > 0.0)
        .collect();
    dearest.sort_by(|a, b| instance.classes[*b].price.total_cmp(&instance.classes[*a].price));
    for class in dearest {
        while counts[class] > 0 {
            let mut fewer = counts.clone();
            fewer[class] -= 1;
            let Some(found) = with(&fewer) else {
                break;
            };
            (counts, placement) = (fewer, found);
        }
    }
    Some((counts, placement))
}
