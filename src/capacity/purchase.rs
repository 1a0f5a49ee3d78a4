//! The least that has to be bought so that a demand is carried, from offers with prices.

use super::exact::{self, Goal, Search};
use super::greedy;
use super::instance::{Instance, MAX_FACTOR, Placement};
use super::question::{Judged, NodeClass, Question};
use super::relaxation;
use super::search;
use crate::api::v1alpha1::{PlanBasket, PlanPurchase, PlanPurchaseItem};

/// How much more than the demand the relaxation is asked to carry, step by step, until what it buys is enough.
const SURPLUS: f64 = 1.03;
const MAX_STEPS: i32 = 40;
/// Macs that are added so that one may be lost, before that is given up.
const MAX_SPARE: u32 = 8;
/// Offers that are tried by themselves, in the order of the catalogue.
const MAX_ALONE: usize = 6;

/// What to buy besides the fleet. Where an offer has no price, the fewest Macs.
pub(super) fn recommend(question: &Question) -> PlanPurchase {
    let judged = Judged::new(question, true);
    let shop = Shop {
        instance: &judged.instance,
        offers: &question.offers,
        owned: question.classes.len(),
        priced: question.offers.iter().all(|offer| offer.price.is_some()),
    };
    let bound = relaxation::least_price(shop.instance).map(|(price, _)| price);
    let mut purchase = PlanPurchase {
        minimises: if shop.priced { "Price" } else { "Nodes" }.to_owned(),
        proven: bound.is_none(),
        ..PlanPurchase::default()
    };
    let found = bound.and_then(|bound| cheapest(shop.instance, bound));
    let Some((mut counts, lower_bound)) = found else {
        return purchase;
    };
    let mut others = Vec::new();
    if shop.buys(&counts) {
        others = shop.alternatives(&counts);
        // Of what is not proven to be the least, one offer by itself may be less.
        if let Some(first) = others.first_mut()
            && cost(shop.instance, first) < cost(shop.instance, &counts)
        {
            std::mem::swap(first, &mut counts);
        }
    }
    let price = cost(shop.instance, &counts);
    let best = shop.basket(&counts);
    // Of Macs there are whole numbers only.
    let lower_bound = lower_bound.min(price);
    purchase.lower_bound = if shop.priced {
        lower_bound
    } else {
        (lower_bound - 1e-3 * f64::from(best.nodes)).ceil().max(0.0)
    };
    purchase.proven = lower_bound >= price * (1.0 - 1e-6) - 1e-6;
    purchase.alternatives = others.iter().map(|counts| shop.basket(counts)).collect();
    purchase.best = Some(best);
    purchase
}

/// A fleet, and what can be bought beside it.
struct Shop<'a> {
    /// Of the fleet's classes, then of the offers.
    instance: &'a Instance,
    offers: &'a [NodeClass],
    owned: usize,
    priced: bool,
}

impl Shop<'_> {
    /// The fleet with these counts of nodes.
    fn with(&self, counts: &[u32]) -> Instance {
        let mut bought = self.instance.clone();
        for (class, count) in bought.classes.iter_mut().zip(counts) {
            class.nodes = *count;
        }
        bought
    }

    fn survives(&self, counts: &[u32]) -> bool {
        let bought = self.with(counts);
        (0..counts.len())
            .filter(|class| counts[*class] > 0)
            .all(|class| search::survives_without_one(&bought, class))
    }

    fn basket(&self, counts: &[u32]) -> PlanBasket {
        let bought = || {
            self.offers
                .iter()
                .zip(&counts[self.owned..])
                .filter(|(_, count)| **count > 0)
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
            nodes: counts[self.owned..].iter().sum(),
            price: sum(|offer| offer.price),
            watts: sum(|offer| offer.watts),
            // A placement of all of it is known, else this were no answer; the quick search may miss that.
            demand_factor: search::reachable(&self.with(counts), MAX_FACTOR).max(1.0),
            survives_node_loss: self.survives(counts),
        }
    }

    fn buys(&self, counts: &[u32]) -> bool {
        counts[self.owned..].iter().any(|count| *count > 0)
    }

    /// The least that was found to survive the loss of a node, and each offer by itself; the cheapest first.
    fn alternatives(&self, best: &[u32]) -> Vec<Vec<u32>> {
        let offers = self.owned..self.instance.classes.len();
        let mut others: Vec<Vec<u32>> = offers
            .take(MAX_ALONE)
            .filter_map(|offer| self.alone(offer))
            .collect();
        if !self.survives(best) {
            others.extend(self.with_spare(best, &others));
        }
        others.retain(|counts| counts != best);
        others.sort_by(|a, b| {
            let prices = (cost(self.instance, a), cost(self.instance, b));
            prices.0.total_cmp(&prices.1).then_with(|| a.cmp(b))
        });
        others.dedup();
        others
    }

    /// The least of one offer that is enough.
    fn alone(&self, offer: usize) -> Option<Vec<u32>> {
        let counts: Vec<u32> = (0..self.instance.classes.len())
            .map(|class| {
                if class < self.owned || class == offer {
                    self.instance.classes[class].nodes
                } else {
                    0
                }
            })
            .collect();
        let part = self.with(&counts);
        let (bound, _) = relaxation::least_price(&part)?;
        cheapest(&part, bound).map(|(counts, _)| counts)
    }

    /// What is enough, and as many Macs of one offer more as it takes to survive the loss of a node.
    fn with_spare(&self, best: &[u32], others: &[Vec<u32>]) -> Option<Vec<u32>> {
        let mut found: Option<(f64, Vec<u32>)> = None;
        for start in std::iter::once(best).chain(others.iter().map(Vec::as_slice)) {
            for offer in self.owned..self.instance.classes.len() {
                let with = |spare: u32| {
                    let mut counts = start.to_vec();
                    counts[offer] += spare;
                    counts
                };
                let room = self.instance.classes[offer].nodes.saturating_sub(start[offer]);
                // What the most of it does not help, less of it does not.
                if !self.survives(&with(MAX_SPARE.min(room))) {
                    continue;
                }
                for spare in 1..=MAX_SPARE {
                    let counts = with(spare);
                    let price = cost(self.instance, &counts);
                    let dear = found.as_ref().is_some_and(|(known, _)| price >= *known);
                    if dear || counts[offer] > self.instance.classes[offer].nodes {
                        break;
                    }
                    if self.survives(&counts) {
                        found = Some((price, counts));
                        break;
                    }
                }
            }
        }
        found.map(|(_, counts)| counts)
    }
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
