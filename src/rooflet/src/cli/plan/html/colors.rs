//! One colour per model, the same in every picture of a report.

use std::collections::{BTreeMap, HashMap};

use maud::{Markup, html};

use rooflet_api::v1alpha1::PlanVerdict;

/// Colours in report.css; the models beyond share a grey.
const CLASSES: [&str; 8] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"];
pub(super) const OTHERS: &str = "mx";

/// CSS classes by model.
pub(super) struct Colors<'a> {
    classes: HashMap<&'a str, &'static str>,
    legend: Vec<(&'a str, &'static str)>,
    others: usize,
}

impl<'a> Colors<'a> {
    /// The models that take most memory of the fleet get a colour of their own.
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

    /// Models with a colour of their own come first, in the order of the legend.
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
