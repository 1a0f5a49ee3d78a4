//! Recommendation of the cheapest purchase that carries a demand.

use super::instance::MAX_FACTOR;
use super::linear::NoOptimum;
use super::question::{Judged, NodeClass, Question};
use super::relaxation::LeastPrice;
use super::search;
use super::shop::Shop;
use super::spec::MAX_COUNT;
use rooflet_api::v1alpha1::{PlanBasket, PlanPurchase, PlanPurchaseItem};

/// Returns the cheapest purchase in addition to the fleet. If an offer has no price, minimizes the
/// number of Macs.
pub(super) fn recommend(question: &Question) -> PlanPurchase {
    let priced = question.offers.iter().all(|offer| offer.price.is_some());
    let minimises = if priced { "Price" } else { "Nodes" }.to_owned();
    let mut all: Vec<Judged<'_>> = Vec::new();
    for most_streams in question.stream_limits() {
        let judged = Judged::new(question, true, most_streams);
        if all.iter().all(|known| known.streams() != judged.streams()) {
            all.push(judged);
        }
    }
    let owned = question.classes.len();
    let shops: Vec<Result<Shop<'_>, NoOptimum>> = all
        .iter()
        .map(|judged| Shop::new(&judged.instance, owned))
        .collect();
    let choices = shops
        .iter()
        .flatten()
        .filter_map(|shop| Some((shop, shop.choice()?)));
    let cheapest = choices.min_by(|(a, one), (b, other)| a.price(&one.best).total_cmp(&b.price(&other.best)));
    let Some((shop, choice)) = cheapest else {
        let beyond = |shop: &Result<Shop<'_>, NoOptimum>| matches!(shop, Err(NoOptimum::Infeasible));
        let (proven, shortfall) = shortfall(question, &all[0], shops.iter().all(beyond));
        return PlanPurchase {
            minimises,
            proven: proven && all.len() == 1 || !all[0].unservable().is_empty(),
            shortfall: Some(with_rejected(shortfall, &rejected(question, &all[0]))),
            ..PlanPurchase::default()
        };
    };
    let price = shop.price(&choice.best);
    let lower_bound = if all.len() == 1 {
        choice.lower_bound
    } else {
        // The first limit is the largest, so its least needs are those of all limits.
        let least = LeastPrice::new(&all[0].with_least_needs());
        least.map_or(0.0, |least| least.answer().0.clamp(0.0, price))
    };
    let basket = |counts: &[u32]| {
        let survives = shops.iter().flatten().any(|shop| shop.survives(counts));
        basket(question, shop, counts, survives)
    };
    let best = basket(&choice.best);
    PlanPurchase {
        minimises,
        proven: lower_bound >= price * (1.0 - 1e-6) - 1e-6,
        lower_bound: if priced {
            lower_bound
        } else {
            (lower_bound - 1e-3 * f64::from(best.nodes)).ceil().max(0.0)
        },
        alternatives: choice.others.iter().map(|counts| basket(counts)).collect(),
        best: Some(best),
        shortfall: None,
    }
}

/// Appends the rejected offers to the explanation.
fn with_rejected(shortfall: String, rejected: &[String]) -> String {
    match rejected {
        [] => shortfall,
        rejected => format!("{shortfall} Rejected offers: {}.", rejected.join("; ")),
    }
}

/// Returns the offers that cannot serve a model, with the first refusal of a replica with the
/// fewest streams. Refusals state the required and the available amount.
fn rejected(question: &Question, judged: &Judged<'_>) -> Vec<String> {
    let owned = question.classes.len();
    let of_offer = |(offer, class): (usize, &NodeClass)| {
        let models = question.models.iter().zip(&judged.fits);
        let refused: Vec<String> = models
            .filter(|(_, fits)| !fits[owned + offer].servable())
            .map(|(model, fits)| {
                let refusal = fits[owned + offer].verdict.refusals.first();
                let reason = refusal.map_or_else(|| "its speed is unknown".to_owned(), ToString::to_string);
                format!("{}: {}: {reason}", class.name, model.name)
            })
            .collect();
        refused
    };
    question.offers.iter().enumerate().flat_map(of_offer).collect()
}

/// Returns whether a sufficient purchase is proven impossible, and the explanation. `beyond`: all
/// tried offers together do not carry the demand.
fn shortfall(question: &Question, judged: &Judged<'_>, beyond: bool) -> (bool, String) {
    let unservable: Vec<String> = judged
        .unservable()
        .into_iter()
        .map(|model| question.models[model].name.clone())
        .collect();
    if !unservable.is_empty() {
        let models = unservable.join(", ");
        return (true, format!("No Mac in the catalogue can serve {models}."));
    }
    let limit = format!("{MAX_COUNT} Macs of an offer without a count");
    match (beyond, question.open_offers) {
        (true, false) => (
            true,
            "All available Macs of the catalogue together do not carry the demand.".to_owned(),
        ),
        (true, true) => {
            let sentence = format!(
                "{limit}, together with all other offers, do not carry the demand; larger purchases are not tried."
            );
            (false, sentence)
        }
        (false, false) => (
            false,
            "No purchase that carries the demand was found. A sufficient purchase may exist.".to_owned(),
        ),
        (false, true) => {
            let sentence = format!(
                "No purchase that carries the demand was found with up to {limit}. A sufficient purchase may exist."
            );
            (false, sentence)
        }
    }
}

fn basket(question: &Question, shop: &Shop<'_>, counts: &[u32], survives: bool) -> PlanBasket {
    let offered = &counts[question.classes.len()..];
    let bought = || {
        let offers = question.offers.iter().zip(offered);
        offers.filter(|(_, count)| **count > 0)
    };
    let sum = |value: fn(&NodeClass) -> Option<f64>| -> Option<f64> {
        bought()
            .map(|(offer, count)| Some(value(offer)? * f64::from(*count)))
            .try_fold(0.0, |sum, one: Option<f64>| Some(sum + one?))
    };
    PlanBasket {
        items: bought()
            .map(|(offer, count)| PlanPurchaseItem {
                name: offer.name.clone(),
                count: *count,
                price: offer.price,
                watts: offer.watts,
            })
            .collect(),
        nodes: offered.iter().sum(),
        price: sum(|offer| offer.price),
        watts: sum(|offer| offer.watts),
        // A placement for the complete demand is known, but the quick search may miss it.
        demand_factor: search::reachable(&shop.with(counts), MAX_FACTOR).max(1.0),
        survives_node_loss: survives,
    }
}
