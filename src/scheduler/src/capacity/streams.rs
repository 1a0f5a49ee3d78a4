//! Numbers of streams per replica that a plan compares.
//!
//! `maxConcurrency` is an upper limit. For one model, the number of streams with which a node
//! carries most is the best. Several models on one node share its memory, so fewer streams of one
//! model may be better. A plan compares limits per model. The limits are powers of two, so a higher
//! `maxConcurrency` only adds combinations, and never makes a purchase more expensive.

use super::instance::Need;
use super::question::{Fit, Judged, NodeClass, PlannedModel, Question};

/// Minimum ratio of carried requests at which a larger number of streams is chosen despite its
/// additional memory.
const MORE: f64 = 1.001;
/// Number of streams up to which every number is tried. Above it, each tried number is a quarter
/// larger than the previous one.
const EVERY_STREAM: u32 = 16;
/// Maximum number of models and of node classes for which all combinations of limits are compared.
/// Larger plans compare common limits of all models.
const MAX_COMBINED_MODELS: usize = 3;
const MAX_COMBINED_CLASSES: usize = 40;

/// Evaluation of every model on every class, for several limits of its streams.
pub(super) struct StreamChoices<'a> {
    question: &'a Question,
    /// Classes with the price of a node; existing nodes cost nothing.
    classes: Vec<(&'a NodeClass, f64)>,
    /// Limits of each model that lead to different numbers of streams, in ascending order.
    levels: Vec<Vec<Level>>,
}

/// Evaluation of a model with up to `limit` streams.
struct Level {
    limit: u32,
    /// Evaluations by class.
    fits: Vec<Fit>,
}

impl<'a> StreamChoices<'a> {
    /// Evaluates the fleet, followed by the offers if `with_offers`.
    pub(super) fn new(question: &'a Question, with_offers: bool) -> Self {
        let classes = question.priced_classes(with_offers);
        let levels = question.models.iter().map(|model| {
            let limits = limits(model, question.models.len() == 1);
            let by_class: Vec<Vec<Fit>> = classes
                .iter()
                .map(|(class, _)| fits_by_limit(model, class, &limits, question.utilization))
                .collect();
            let level = |(index, limit): (usize, &u32)| Level {
                limit: *limit,
                fits: by_class.iter().map(|fits| fits[index].clone()).collect(),
            };
            let mut levels: Vec<Level> = limits.iter().enumerate().map(level).collect();
            // Keep the largest of the limits with equal streams.
            levels.reverse();
            levels.dedup_by(|lower, kept| lower.streams() == kept.streams());
            levels.reverse();
            levels
        });
        Self {
            levels: levels.collect(),
            question,
            classes,
        }
    }

    /// Returns the limits of each model that the plan compares, largest first.
    pub(super) fn combinations(&self) -> Vec<Vec<u32>> {
        if self.levels.len() <= MAX_COMBINED_MODELS && self.classes.len() <= MAX_COMBINED_CLASSES {
            return self.levels.iter().fold(vec![Vec::new()], |chosen, levels| {
                let with = |limits: Vec<u32>| {
                    let more = levels.iter().rev();
                    more.map(move |level| limits.iter().copied().chain([level.limit]).collect())
                };
                chosen.into_iter().flat_map(with).collect()
            });
        }
        let mut common: Vec<u32> = self.levels.iter().flatten().map(|level| level.limit).collect();
        common.sort_unstable_by(|a, b| b.cmp(a));
        common.dedup();
        let own = |limit: &u32| {
            let levels = (0..self.levels.len()).map(|model| self.level(model, *limit).limit);
            levels.collect()
        };
        let mut combinations: Vec<Vec<u32>> = common.iter().map(own).collect();
        combinations.dedup();
        combinations
    }

    /// Returns the evaluation with these limits of the models.
    pub(super) fn judged(&self, limits: &[u32]) -> Judged<'_> {
        let fits = limits.iter().enumerate();
        let fits = fits.map(|(model, limit)| self.level(model, *limit).fits.as_slice());
        Judged::new(self.question, &self.classes, fits.collect())
    }

    /// Returns the largest level within `limit`, or the lowest level.
    fn level(&self, model: usize, limit: u32) -> &Level {
        let levels = &self.levels[model];
        let within = levels.iter().rev().find(|level| level.limit <= limit);
        within.unwrap_or(&levels[0])
    }
}

impl Level {
    fn streams(&self) -> Vec<u32> {
        self.fits.iter().map(|fit| fit.streams).collect()
    }
}

/// Returns the limits of a model's streams in ascending order.
fn limits(model: &PlannedModel, is_alone: bool) -> Vec<u32> {
    let most = model.demand.max_concurrency.max(1);
    if is_alone {
        return vec![most];
    }
    std::iter::successors(Some(1u32), |limit| limit.checked_mul(2))
        .take_while(|limit| *limit <= most)
        .collect()
}

/// Returns the numbers of streams that are tried, in ascending order. They do not depend on the
/// limit, so a higher limit only adds to them.
fn stream_counts() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1u32), |streams| {
        Some(if *streams < EVERY_STREAM {
            streams + 1
        } else {
            streams + streams / 4
        })
    })
}

/// Evaluates for each of the ascending `limits` the number of streams with which one node carries
/// the most requests. Of equally good numbers, the smallest is chosen, because it needs the least
/// memory.
fn fits_by_limit(model: &PlannedModel, class: &NodeClass, limits: &[u32], utilization: f64) -> Vec<Fit> {
    let of = |streams: u32| {
        let mut few = model.clone();
        few.demand.max_concurrency = streams;
        Fit::new(&few, class)
    };
    let carried = |need: &Need| class.supply(1.0).carried(need, utilization);
    let mut best = of(1);
    let mut carries = best.least.as_ref().map(carried);
    let mut counts = stream_counts().skip(1).peekable();
    let up_to = |limit: &u32| {
        while let Some(streams) = counts.next_if(|streams| streams <= limit) {
            let fit = of(streams);
            let least = match (best.least, fit.least) {
                (Some(least), Some(need)) => Some(least.at_most(&need)),
                (least, need) => least.or(need),
            };
            let more = fit.least.as_ref().map(carried);
            if more.is_some_and(|more| carries.is_none_or(|known| more > known * MORE)) {
                (best, carries) = (fit, more);
            }
            best.least = least;
        }
        best.clone()
    };
    limits.iter().map(up_to).collect()
}
