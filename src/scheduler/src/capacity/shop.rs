//! Search for the cheapest purchase that carries a demand, as counts of nodes by class. The counts
//! include existing nodes.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::exact::{self, Goal, Search};
use super::greedy;
use super::instance::{ClassSupply, Instance, Placement, TOLERANCE};
use super::linear::NoOptimum;
use super::relaxation::LeastPrice;
use super::search;

/// Growth of the demand in the relaxation per step, until its purchase suffices.
const SURPLUS: f64 = 1.03;
const MAX_STEPS: i32 = 40;
/// Maximum number of spare Macs that are added to survive the loss of a node.
const MAX_SPARE: u32 = 8;
/// Maximum number of offers that are tried alone, in the order of the catalogue.
const MAX_ALONE: usize = 6;

/// Fleet and offers.
pub(super) struct Shop<'a> {
    /// Instance with the fleet's classes, followed by the offers.
    instance: &'a Instance,
    owned: usize,
    least_price: LeastPrice,
    /// Cache of [`Self::survives`] by counts.
    surviving: RefCell<BTreeMap<Vec<u32>, bool>>,
    /// Cache of [`Self::alone`] by offer.
    single: RefCell<BTreeMap<usize, Option<Vec<u32>>>>,
}

/// Best purchase and alternatives.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub(super) best: Vec<u32>,
    /// Sorted by price.
    pub(super) others: Vec<Vec<u32>>,
    /// Lower bound of the price of any sufficient purchase.
    pub(super) lower_bound: f64,
}

impl<'a> Shop<'a> {
    /// Returns `Infeasible` if all offers together do not carry the demand.
    pub(super) fn new(instance: &'a Instance, owned: usize) -> Result<Self, NoOptimum> {
        Ok(Self {
            instance,
            owned,
            least_price: LeastPrice::new(instance)?,
            surviving: RefCell::default(),
            single: RefCell::default(),
        })
    }

    /// Returns a lower bound of the price of any sufficient purchase.
    pub(super) fn least_price(&self) -> f64 {
        self.least_price.answer().0
    }

    /// Returns a lower bound of the price of any sufficient purchase of whole nodes.
    pub(super) fn least_price_of_whole_nodes(&self) -> f64 {
        let least = self.least_price();
        match exact::solve(self.instance, Goal::LeastPrice, None) {
            Search::Found(answer) => least.max(-answer.bound),
            Search::Impossible | Search::TooLarge => least,
        }
    }

    /// Returns the best purchase and a lower bound of the price, or `None` if no sufficient purchase
    /// was found.
    pub(super) fn best(&self) -> Option<(Vec<u32>, f64)> {
        let everything: Vec<u32> = self.instance.classes.iter().map(|class| class.nodes).collect();
        let (mut best, lower_bound) = self.cheapest(&everything)?;
        if self.buys(&best) && lower_bound < self.price(&best) * (1.0 - TOLERANCE) {
            // If the best purchase is not proven optimal, a single offer may be cheaper.
            for counts in self.single_offers() {
                if self.price(&counts) < self.price(&best) {
                    best = counts;
                }
            }
        }
        // The number of Macs is an integer, so the bound may not exceed the price.
        let lower_bound = lower_bound.min(self.price(&best)).max(0.0);
        Some((best, lower_bound))
    }

    /// Adds alternatives to the best purchase.
    pub(super) fn choice(&self, best: Vec<u32>, lower_bound: f64) -> Choice {
        let others = if self.buys(&best) || !self.survives(&best) {
            self.alternatives(&best)
        } else {
            Vec::new()
        };
        Choice {
            best,
            others,
            lower_bound,
        }
    }

    /// Returns the instance with these counts of nodes.
    pub(super) fn with(&self, counts: &[u32]) -> Instance {
        let mut bought = self.instance.clone();
        for (class, count) in bought.classes.iter_mut().zip(counts) {
            class.nodes = *count;
        }
        bought
    }

    pub(super) fn price(&self, counts: &[u32]) -> f64 {
        let each = self.instance.classes.iter().zip(counts);
        each.map(|(class, count)| class.price * f64::from(*count)).sum()
    }

    /// Returns whether the fleet carries the demand after the loss of any one node.
    pub(super) fn survives(&self, counts: &[u32]) -> bool {
        if let Some(known) = self.surviving.borrow().get(counts) {
            return *known;
        }
        let bought = self.with(counts);
        let placed = greedy::place(&bought, 1.0).ok();
        // An unused node of the same class replaces the lost one.
        let all_used = |class: &usize| {
            placed
                .as_ref()
                .is_none_or(|placed| placed.nodes(*class) == counts[*class])
        };
        let survives = (0..counts.len())
            .filter(|class| counts[*class] > 0)
            .filter(all_used)
            .all(|class| search::survives_without_one(&bought, class));
        self.surviving.borrow_mut().insert(counts.to_vec(), survives);
        survives
    }

    fn buys(&self, counts: &[u32]) -> bool {
        counts[self.owned..].iter().any(|count| *count > 0)
    }

    /// Returns the cheapest purchase that survives the loss of a node, and the purchases of single
    /// offers, sorted by price.
    fn alternatives(&self, best: &[u32]) -> Vec<Vec<u32>> {
        let mut others = self.single_offers();
        if !self.survives(best) {
            others.extend(self.with_spare(best, &others));
        }
        others.retain(|counts| counts != best);
        others.sort_by(|a, b| {
            let prices = (self.price(a), self.price(b));
            prices.0.total_cmp(&prices.1).then_with(|| a.cmp(b))
        });
        others.dedup();
        others
    }

    /// Returns the smallest sufficient purchase of each of the first offers alone.
    fn single_offers(&self) -> Vec<Vec<u32>> {
        let offers = (self.owned..self.instance.classes.len()).take(MAX_ALONE);
        let mut known = self.single.borrow_mut();
        let of = |offer| known.entry(offer).or_insert_with(|| self.alone(offer)).clone();
        offers.filter_map(of).collect()
    }

    /// Returns the smallest sufficient purchase of one offer.
    fn alone(&self, offer: usize) -> Option<Vec<u32>> {
        let available = |(class, supply): (usize, &ClassSupply)| {
            if class < self.owned || class == offer {
                supply.nodes
            } else {
                0
            }
        };
        let available: Vec<u32> = self.instance.classes.iter().enumerate().map(available).collect();
        self.cheapest(&available).map(|(counts, _)| counts)
    }

    /// Returns a sufficient purchase plus spare Macs of one offer, to survive the loss of a node.
    fn with_spare(&self, best: &[u32], others: &[Vec<u32>]) -> Option<Vec<u32>> {
        let mut found: Option<(f64, Vec<u32>)> = None;
        let others = others.iter().map(Vec::as_slice).filter(|other| *other != best);
        for start in std::iter::once(best).chain(others) {
            for offer in self.owned..self.instance.classes.len() {
                let with = |spare: u32| {
                    let mut counts = start.to_vec();
                    counts[offer] += spare;
                    counts
                };
                let dear = |counts: &[u32]| {
                    found
                        .as_ref()
                        .is_some_and(|(known, _)| self.price(counts) >= *known)
                };
                let room = self.instance.classes[offer].nodes.saturating_sub(start[offer]);
                // If the maximum number of spares does not suffice, fewer do not either.
                if room == 0 || dear(&with(1)) || !self.survives(&with(MAX_SPARE.min(room))) {
                    continue;
                }
                let enough = (1..=MAX_SPARE.min(room))
                    .map(with)
                    .take_while(|counts| !dear(counts))
                    .find(|counts| self.survives(counts));
                if let Some(counts) = enough {
                    found = Some((self.price(&counts), counts));
                }
            }
        }
        found.map(|(_, counts)| counts)
    }

    /// Returns the cheapest sufficient selection of the available nodes, and a lower bound of its
    /// price.
    fn cheapest(&self, available: &[u32]) -> Option<(Vec<u32>, f64)> {
        let least_price = self.least_price.with(available, 1.0).ok()?;
        let (bound, _) = least_price.answer();
        let part = self.with(available);
        let known = self.by_relaxation(&least_price, available);
        let start = known
            .as_ref()
            .map(|(counts, placement)| (placement.clone(), -self.price(counts)));
        let (placement, lower_bound) = match exact::solve(&part, Goal::LeastPrice, start) {
            Search::Found(answer) => (answer.placement, (-answer.bound).max(bound)),
            Search::Impossible => return None,
            Search::TooLarge => (known?.1, bound),
        };
        let mut counts: Vec<u32> = part
            .classes
            .iter()
            .map(|class| if class.price > 0.0 { 0 } else { class.nodes })
            .collect();
        for group in &placement.groups {
            if part.classes[group.class].price > 0.0 {
                counts[group.class] += group.nodes;
            }
        }
        Some((counts, lower_bound))
    }

    /// Rounds up the purchase of the relaxation for an increasing demand until a placement exists.
    /// Then removes unnecessary nodes.
    fn by_relaxation(&self, least_price: &LeastPrice, available: &[u32]) -> Option<(Vec<u32>, Placement)> {
        let classes = &self.instance.classes;
        // Start each step from the previous optimum.
        let mut stepped = least_price.clone();
        let enough = (0..MAX_STEPS).find_map(|step| {
            stepped = stepped.with(available, SURPLUS.powi(step)).ok()?;
            let (_, nodes) = stepped.answer();
            let whole = |((available, nodes), class): ((&u32, &f64), &ClassSupply)| {
                if class.price > 0.0 {
                    ((nodes - 1e-6).ceil().max(0.0) as u32).min(*available)
                } else {
                    *available
                }
            };
            let counts: Vec<u32> = available.iter().zip(&nodes).zip(classes).map(whole).collect();
            self.place(&counts).map(|placement| (counts, placement))
        });
        let everything = || Some((available.to_vec(), self.place(available)?));
        let (mut counts, mut placement) = enough.or_else(everything)?;
        let mut dearest: Vec<usize> = (0..counts.len())
            .filter(|class| classes[*class].price > 0.0)
            .collect();
        dearest.sort_by(|a, b| classes[*b].price.total_cmp(&classes[*a].price));
        for class in dearest {
            // Exponential search: double the number of removed nodes on success, halve it on
            // failure.
            let (mut step, mut growing) = (1, true);
            while step > 0 {
                let fewer = counts[class].checked_sub(step).and_then(|left| {
                    let mut fewer = counts.clone();
                    fewer[class] = left;
                    // An infeasible relaxation has no placement.
                    if least_price
                        .with(&fewer, 1.0)
                        .is_err_and(|err| err == NoOptimum::Infeasible)
                    {
                        return None;
                    }
                    Some((self.place(&fewer)?, fewer))
                });
                match fewer {
                    Some(found) => (placement, counts) = found,
                    None => growing = false,
                }
                step = if growing { 2 * step } else { step / 2 };
            }
        }
        Some((counts, placement))
    }

    fn place(&self, counts: &[u32]) -> Option<Placement> {
        greedy::place(&self.with(counts), 1.0).ok()
    }
}
