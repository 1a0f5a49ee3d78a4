//! Recommendation of the cheapest purchase that carries a demand.

use super::instance::MAX_FACTOR;
use super::linear::NoOptimum;
use super::question::{Judged, NodeClass, Question};
use super::search;
use super::shop::Shop;
use super::spec::MAX_COUNT;
use rooflet_api::v1alpha1::{PlanBasket, PlanPurchase, PlanPurchaseItem};

/// Returns the cheapest purchase in addition to the fleet. If an offer has no price, minimizes the
/// number of Macs.
pub(super) fn recommend(question: &Question) -> PlanPurchase {
    let judged = Judged::new(question, true);
    let priced = question.offers.iter().all(|offer| offer.price.is_some());
    let shop = Shop::new(&judged.instance, question.classes.len());
    let choice = shop.as_ref().ok().and_then(|shop| Some((shop, shop.choice()?)));
    let minimises = if priced { "Price" } else { "Nodes" }.to_owned();
    let Some((shop, choice)) = choice else {
        let beyond = shop.is_err_and(|err| err == NoOptimum::Infeasible);
        let (proven, shortfall) = shortfall(question, &judged, beyond);
        return PlanPurchase {
            minimises,
            proven,
            shortfall: Some(shortfall),
            ..PlanPurchase::default()
        };
    };
    let price = shop.price(&choice.best);
    let best = basket(question, shop, &choice.best);
    PlanPurchase {
        minimises,
        lower_bound: if priced {
            choice.lower_bound
        } else {
            (choice.lower_bound - 1e-3 * f64::from(best.nodes))
                .ceil()
                .max(0.0)
        },
        proven: choice.lower_bound >= price * (1.0 - 1e-6) - 1e-6,
        alternatives: choice
            .others
            .iter()
            .map(|counts| basket(question, shop, counts))
            .collect(),
        best: Some(best),
        shortfall: None,
    }
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

fn basket(question: &Question, shop: &Shop<'_>, counts: &[u32]) -> PlanBasket {
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
        survives_node_loss: shop.survives(counts),
    }
}
