//! Colors of the models, identical in every drawing of a report.

use std::collections::{BTreeMap, HashMap};

use maud::{Markup, html};

use rooflet_api::v1alpha1::PlanVerdict;

/// CSS classes in report.css. The remaining models share grey.
const CLASSES: [&str; 8] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"];
pub(super) const OTHERS: &str = "mx";

/// CSS class of each model.
pub(super) struct Colors<'a> {
    classes: HashMap<&'a str, &'static str>,
    legend: Vec<(&'a str, &'static str)>,
    others: usize,
}

impl<'a> Colors<'a> {
    /// Assigns colors to the models that use the most memory of the fleet.
    pub(super) fn new(verdict: &'a PlanVerdict) -> Self {
        let mut memory: BTreeMap<&str, u64> = BTreeMap::new();
        for placement in &verdict.placements {
            for replica in &placement.replicas {
                *memory.entry(&replica.model).or_default() +=
                    replica.memory_bytes * u64::from(placement.nodes);
            }
        }
        let mut models: Vec<&str> = verdict.models.iter().map(|model| model.name.as_str()).collect();
        let taken = |model: &str| memory.get(model).copied().unwrap_or(0);
        models.sort_by(|a, b| taken(b).cmp(&taken(a)).then(a.cmp(b)));
        let legend: Vec<_> = models.iter().copied().zip(CLASSES).collect();
        Self {
            classes: legend.iter().copied().collect(),
            others: models.len() - legend.len(),
            legend,
        }
    }

    pub(super) fn of(&self, model: &str) -> &'static str {
        self.classes.get(model).copied().unwrap_or(OTHERS)
    }

    /// Returns the sort key of a model: colored models come first, in the order of the legend.
    pub(super) fn rank(&self, model: &str) -> usize {
        let position = self.legend.iter().position(|(name, _)| *name == model);
        position.unwrap_or(self.legend.len())
    }

    pub(super) fn legend(&self) -> Markup {
        html! {
            div class="legend" {
                @for (model, class) in &self.legend {
                    span { i class=(class) {} (model) }
                }
                @if self.others > 0 {
                    span { i class=(OTHERS) {} (self.others) " other models" }
                }
            }
        }
    }
}
