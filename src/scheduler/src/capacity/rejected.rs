//! Offers that the recommended purchase does not contain, with the reason and the distance.

use super::instance::Instance;
use super::linear::NoOptimum;
use super::question::{Fit, Judged, NodeClass, PlannedModel, Question};
use super::relaxation::{self, LeastPrice};
use rooflet_api::v1alpha1::{PlanBasket, PlanPurchase, PlanRejectedOffer};
use rooflet_roofline::admission::Refusal;
use rooflet_roofline::memory::MemoryRefusal;

/// Returns the offers that `purchase` does not contain, with the reason. `judged`: the evaluation
/// with the largest limits of streams; `least`: its instance with the least needs. Returns no offers
/// if nothing has to be bought.
pub(super) fn rejected_offers(
    question: &Question,
    judged: &Judged<'_>,
    least: &Instance,
    purchase: Option<&PlanPurchase>,
) -> Vec<PlanRejectedOffer> {
    let best = purchase.and_then(|purchase| purchase.best.as_ref());
    if best.is_some_and(|best| best.items.is_empty()) {
        return Vec::new();
    }
    let is_bought =
        |offer: &NodeClass| best.is_some_and(|best| best.items.iter().any(|item| item.name == offer.name));
    let of_offer = |(index, offer): (usize, &NodeClass)| {
        let class = question.classes.len() + index;
        let refused = refused(judged, class);
        if !refused.is_empty() {
            return refused;
        }
        let alone = purchase.and_then(|purchase| alone(purchase, &offer.name));
        vec![match (best, alone) {
            (Some(best), Some(alone)) => dearer(question, offer, best, alone),
            (_, _) => not_enough(question, least, index, best),
        }]
    };
    let offers = question.offers.iter().enumerate();
    offers
        .filter(|(_, offer)| !is_bought(offer))
        .flat_map(of_offer)
        .collect()
}

/// Returns the refusals of every model that a node of the class cannot serve, even with one stream.
fn refused(judged: &Judged<'_>, class: usize) -> Vec<PlanRejectedOffer> {
    let models = judged.models.iter().zip(&judged.fits);
    let of_model = |(model, fits): (&PlannedModel, &&[Fit])| {
        let fit = &fits[class];
        let offer = |reason: &str, distance: Distance| PlanRejectedOffer {
            name: judged.classes[class].name.clone(),
            model: Some(model.name.clone()),
            reason: reason.to_owned(),
            message: distance.message,
            available: distance.available,
            required: distance.required,
        };
        let refusals = &fit.verdict.refusals;
        let known = refusals
            .iter()
            .map(|refusal| offer(refusal.reason(), Distance::of(refusal)));
        let mut all: Vec<PlanRejectedOffer> = known.collect();
        if all.is_empty() && !fit.servable() {
            all.push(offer(
                Refusal::SpeedUnknown.reason(),
                Distance::of(&Refusal::SpeedUnknown),
            ));
        }
        all
    };
    models.flat_map(of_model).collect()
}

/// Available and required amount of a resource.
struct Distance {
    message: String,
    available: Option<f64>,
    required: Option<f64>,
}

impl Distance {
    fn new(message: String, available: f64, required: f64) -> Self {
        Self {
            message,
            available: Some(available),
            required: Some(required),
        }
    }

    fn of(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Memory(MemoryRefusal::NeverFits {
                requested,
                allocatable: free,
            })
            | Refusal::Memory(
                MemoryRefusal::Reserved { requested, free, .. }
                | MemoryRefusal::NotFreeNow { requested, free },
            ) => Self::new(
                format!("{free} of memory for models, {requested} needed"),
                free.0 as f64,
                requested.0 as f64,
            ),
            Refusal::Disk { requested, disk } => Self::new(
                format!("{} of disk space, {} needed", disk.free, requested.total()),
                disk.free.0 as f64,
                requested.total().0 as f64,
            ),
            Refusal::SpeedUnknown => Self {
                message: "its speed is unknown".to_owned(),
                available: None,
                required: None,
            },
            Refusal::TooSlow {
                objective, predicted, ..
            } => Self::new(
                format!("{:.1} tok/s at p10, {objective} needed", predicted.p10),
                predicted.p10,
                *objective,
            ),
            Refusal::FirstTokenTooLate {
                max_seconds,
                predicted,
                prompt_tokens,
                ..
            } => Self::new(
                format!(
                    "{:.2} s to the first token of {prompt_tokens} tokens at p90, {max_seconds} s allowed",
                    predicted.p90
                ),
                predicted.p90,
                *max_seconds,
            ),
            Refusal::Bandwidth {
                share, free_share, ..
            } => Self::new(
                format!(
                    "{:.0} % of the chip's time, {:.0} % needed",
                    100.0 * free_share,
                    100.0 * share
                ),
                *free_share,
                *share,
            ),
        }
    }
}

/// Returns the smallest known purchase of one offer alone.
fn alone<'a>(purchase: &'a PlanPurchase, name: &str) -> Option<&'a PlanBasket> {
    let mut others = purchase.alternatives.iter();
    others.find(|basket| matches!(basket.items.as_slice(), [item] if item.name == name))
}

/// Returns the quantity that the plan minimizes.
fn cost(question: &Question, basket: &PlanBasket) -> f64 {
    let price = basket.price.filter(|_| question.has_prices());
    price.unwrap_or(f64::from(basket.nodes))
}

/// Returns the reason for an offer that suffices alone, but not at the lowest price.
fn dearer(
    question: &Question,
    offer: &NodeClass,
    best: &PlanBasket,
    alone: &PlanBasket,
) -> PlanRejectedOffer {
    let (own, least) = (cost(question, alone), cost(question, best));
    let message = if question.has_prices() {
        format!(
            "{} x {} for {own}, the recommended purchase costs {least}",
            alone.nodes, offer.name
        )
    } else {
        format!("{own} Macs alone, the recommended purchase has {least}")
    };
    PlanRejectedOffer {
        name: offer.name.clone(),
        model: None,
        reason: "HigherPrice".to_owned(),
        message,
        available: Some(own),
        required: Some(least),
    }
}

/// Returns the reason for an offer of which no sufficient purchase is known.
fn not_enough(
    question: &Question,
    least: &Instance,
    index: usize,
    best: Option<&PlanBasket>,
) -> PlanRejectedOffer {
    let offer = &question.offers[index];
    let mut only = least.clone();
    for (class, supply) in only.classes.iter_mut().enumerate().skip(question.classes.len()) {
        if class != question.classes.len() + index {
            supply.nodes = 0;
        }
    }
    let rejected =
        |reason: &str, message: String, available: Option<f64>, required: Option<f64>| PlanRejectedOffer {
            name: offer.name.clone(),
            model: None,
            reason: reason.to_owned(),
            message,
            available,
            required,
        };
    match LeastPrice::new(&only) {
        Err(NoOptimum::Infeasible) => {
            let carried = relaxation::most_demand(&only);
            let part = carried.map_or(String::new(), |carried| format!(" at most {carried:.2} times"));
            let message = format!(
                "{} x {} with the fleet carry{part} the demand",
                offer.nodes, offer.name
            );
            rejected("InsufficientCount", message, carried, Some(1.0))
        }
        Ok(bound) if question.has_prices() && best.is_some() => {
            let (bound, least) = (bound.answer().0, best.map(|best| cost(question, best)));
            let message = format!(
                "alone, it costs at least {bound:.0}; the recommended purchase costs {}",
                least.unwrap_or_default()
            );
            rejected("HigherPrice", message, Some(bound), least)
        }
        Ok(_) | Err(NoOptimum::Unbounded | NoOptimum::Unknown) => {
            let message = "no sufficient purchase of this offer alone was found".to_owned();
            rejected("NoPurchaseFound", message, None, None)
        }
    }
}
