//! Recommendation of the cheapest purchase that carries a demand.

use super::instance::MAX_FACTOR;
use super::linear::NoOptimum;
use super::question::{Judged, NodeClass, Question, UNPRICED_BANDWIDTH};
use super::rejected::rejected_offers;
use super::search;
use super::shop::{Choice, Shop};
use super::spec::MAX_COUNT;
use super::streams::StreamChoices;
use rooflet_api::v1alpha1::{PlanBasket, PlanPurchase, PlanPurchaseItem};

/// Returns the cheapest purchase in addition to the fleet. If an offer has no price, minimizes the
/// number of Macs.
pub(super) fn recommend(question: &Question) -> PlanPurchase {
    let minimises = if question.has_prices() { "Price" } else { "Nodes" }.to_owned();
    let choices = StreamChoices::new(question, true);
    let combinations = choices.combinations();
    let all: Vec<Judged<'_>> = combinations.iter().map(|limits| choices.judged(limits)).collect();
    // The first limits are the largest, so their least needs are those of all limits.
    let least = all[0].with_least_needs();
    let owned = question.classes.len();
    let shops: Vec<Result<Shop<'_>, NoOptimum>> = all
        .iter()
        .map(|judged| Shop::new(&judged.instance, owned))
        .collect();
    let Some((shop, choice)) = cheapest(&shops) else {
        let beyond = |shop: &Result<Shop<'_>, NoOptimum>| matches!(shop, Err(NoOptimum::Infeasible));
        let (proven, shortfall) = shortfall(question, &all[0], shops.iter().all(beyond));
        return PlanPurchase {
            minimises,
            proven: proven && all.len() == 1 || !all[0].unservable().is_empty(),
            shortfall: Some(shortfall),
            rejected_offers: rejected_offers(question, &all[0], &least, None),
            ..PlanPurchase::default()
        };
    };
    let price = shop.price(&choice.best);
    let lower_bound = if all.len() == 1 {
        choice.lower_bound
    } else {
        // No choice of streams needs less.
        Shop::new(&least, owned).map_or(0.0, |shop| shop.least_price_of_whole_nodes().clamp(0.0, price))
    };
    let basket = |counts: &[u32]| {
        let survives = shops.iter().flatten().any(|shop| shop.survives(counts));
        basket(question, shop, counts, survives)
    };
    let best = basket(&choice.best);
    let mut purchase = PlanPurchase {
        minimises,
        proven: lower_bound >= price * (1.0 - 1e-6) - 1e-6,
        lower_bound: if question.has_prices() {
            lower_bound
        } else {
            (lower_bound - UNPRICED_BANDWIDTH * f64::from(best.nodes))
                .ceil()
                .max(0.0)
        },
        alternatives: choice.others.iter().map(|counts| basket(counts)).collect(),
        best: Some(best),
        ..PlanPurchase::default()
    };
    purchase.rejected_offers = rejected_offers(question, &all[0], &least, Some(&purchase));
    purchase
}

/// Returns the cheapest purchase over all limits of the streams.
fn cheapest<'a>(shops: &'a [Result<Shop<'a>, NoOptimum>]) -> Option<(&'a Shop<'a>, Choice)> {
    let mut open: Vec<&Shop<'_>> = shops.iter().flatten().collect();
    // The sort is stable, so among equal bounds the largest limits come first.
    open.sort_by(|a, b| a.least_price().total_cmp(&b.least_price()));
    let mut known: Option<(f64, &Shop<'_>, Vec<u32>, f64)> = None;
    for shop in open {
        if known
            .as_ref()
            .is_some_and(|(price, ..)| shop.least_price() >= *price)
        {
            break;
        }
        if let Some((counts, lower_bound)) = shop.best() {
            let price = shop.price(&counts);
            if known.as_ref().is_none_or(|(known, ..)| price < *known) {
                known = Some((price, shop, counts, lower_bound));
            }
        }
    }
    let (_, shop, best, lower_bound) = known?;
    Some((shop, shop.choice(best, lower_bound)))
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
