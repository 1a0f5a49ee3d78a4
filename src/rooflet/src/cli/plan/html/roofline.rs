//! Roofline of each node class for decoding: memory bandwidth limits the token rate. Both axes are
//! logarithmic, so the roof `tokens/s = bandwidth ÷ bytes per token` is a straight line. Each model
//! is a mark below it.

use maud::{Markup, html};

use super::colors::Colors;
use crate::cli::ui::digits::number;
use crate::cli::ui::html::{Anchor, Drawing, clipped};
use rooflet_api::v1alpha1::{PlanClass, PlanFit, PlanModel, PlanVerdict};
use rooflet_base::units::BytesPerSecond;

/// Maximum number of panels. Classes with the most used nodes come first.
const MAX_PANELS: usize = 8;
/// Maximum number of marks with a name in a panel. Otherwise names appear only in legend and table.
const MAX_NAMES: usize = 5;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;

/// Model on a node class.
struct Mark<'a> {
    model: &'a PlanModel,
    bytes: f64,
    /// Tokens per second of all streams: 10th, 50th and 90th percentile.
    tokens: (f64, f64, f64),
    objective: Option<f64>,
}

/// Range of an axis in powers of ten.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    /// Returns an axis that contains all `values`, which are positive.
    fn around(values: impl Iterator<Item = f64>, spare: f64) -> Option<Self> {
        let (low, high) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        (high > 0.0).then(|| Self {
            from: (low / spare).log10(),
            to: (high * spare).log10(),
        })
    }

    /// Returns the position of a value: 0 at the start of the axis, 1 at its end.
    fn at(self, value: f64) -> f64 {
        ((value.log10() - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    /// Returns the multiples 1, 2 and 5 of powers of ten, or only the powers if there are many.
    fn ticks(self) -> Vec<f64> {
        let decades = (self.from.floor() as i32)..=(self.to.ceil() as i32);
        let steps: &[f64] = if self.to - self.from > 2.2 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        all.filter(|tick| (self.from..=self.to).contains(&tick.log10()))
            .collect()
    }
}

/// Returns one panel for each node class with a mark, on the same axes. `None` if no class has a
/// mark.
pub(super) fn panels(verdict: &PlanVerdict, colors: &Colors<'_>) -> Option<Markup> {
    let mut classes: Vec<(&PlanClass, Vec<Mark<'_>>)> = verdict
        .classes
        .iter()
        .filter(|class| class.nodes > 0)
        .map(|class| (class, marks(verdict, class)))
        .filter(|(class, marks)| !marks.is_empty() && class.bandwidth_bytes_per_second.is_some())
        .collect();
    classes.sort_by_key(|(class, _)| std::cmp::Reverse(class.nodes_used));
    let left_out = classes.len().saturating_sub(MAX_PANELS);
    classes.truncate(MAX_PANELS);
    let marks = || classes.iter().flat_map(|(_, marks)| marks);
    let bytes = Axis::around(marks().map(|mark| mark.bytes), 1.8);
    let roofs = classes.iter().flat_map(|(class, marks)| {
        let bandwidth = class.bandwidth_bytes_per_second.unwrap_or_default();
        marks.iter().map(move |mark| bandwidth / mark.bytes)
    });
    let tokens = marks()
        .flat_map(|mark| {
            [
                mark.tokens.0,
                mark.tokens.2,
                mark.objective.unwrap_or(mark.tokens.1),
            ]
        })
        .chain(roofs);
    let (bytes, tokens) = (bytes?, Axis::around(tokens, 1.25)?);
    Some(html! {
        div class="panels" {
            @for (class, marks) in &classes { (panel(class, marks, bytes, tokens, colors)) }
        }
        @if left_out > 0 {
            p class="note" { "The tables list " (left_out) " more node classes." }
        }
    })
}

/// Models that the placement puts on `class`. If there are none, all models that fit.
fn marks<'a>(verdict: &'a PlanVerdict, class: &PlanClass) -> Vec<Mark<'a>> {
    let unused = class.nodes_used == 0;
    let placed = |model: &PlanModel| {
        verdict.placements.iter().any(|placement| {
            placement.class == class.name && placement.replicas.iter().any(|one| one.model == model.name)
        })
    };
    let mark = |model: &'a PlanModel| {
        let fit: &PlanFit = model.fits.iter().find(|fit| fit.class == class.name)?;
        let (tokens, bytes) = (fit.tokens_per_second?, fit.bytes_per_token?);
        let streams = f64::from(model.max_concurrency);
        (fit.admitted && (unused || placed(model))).then(|| Mark {
            model,
            bytes,
            tokens: (tokens.p10 * streams, tokens.p50 * streams, tokens.p90 * streams),
            objective: model.objective_tokens_per_second.map(|rate| rate * streams),
        })
    };
    verdict.models.iter().filter_map(mark).collect()
}

fn panel(class: &PlanClass, marks: &[Mark<'_>], bytes: Axis, tokens: Axis, colors: &Colors<'_>) -> Markup {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x = |value: f64| LEFT + (right - LEFT) * bytes.at(value);
    let y = |value: f64| bottom - (bottom - TOP) * tokens.at(value);
    let bandwidth = class.bandwidth_bytes_per_second.unwrap_or_default();
    let mut drawing = Drawing::new(WIDTH, HEIGHT);
    let title = format!(
        "{}: {} ({}){}",
        clipped(&class.name, 30),
        BytesPerSecond(bandwidth),
        class.basis.to_lowercase(),
        if class.nodes_used == 0 {
            ", idle: models that fit"
        } else {
            ""
        }
    );
    drawing.text("", (LEFT, 16.0), Anchor::Start, &title);
    for tick in bytes.ticks() {
        drawing.line("grid", (x(tick), TOP), (x(tick), bottom));
        let label = number(tick / 1e9);
        drawing.text("soft", (x(tick), bottom + 15.0), Anchor::Middle, &label);
    }
    for tick in tokens.ticks() {
        drawing.line("grid", (LEFT, y(tick)), (right, y(tick)));
        drawing.text("soft", (LEFT - 6.0, y(tick) + 4.0), Anchor::End, &number(tick));
    }
    drawing.text(
        "soft",
        ((LEFT + right) / 2.0, HEIGHT - 6.0),
        Anchor::Middle,
        "GB moved per token; vertical: tokens/s of all streams",
    );
    // The roof, clipped to the drawing.
    let from = 10f64.powf(bytes.from.max(bandwidth.log10() - tokens.to));
    let to = 10f64.powf(bytes.to.min(bandwidth.log10() - tokens.from));
    if from < to {
        drawing.line("roof", (x(from), y(bandwidth / from)), (x(to), y(bandwidth / to)));
    }
    let names = marks.len() <= MAX_NAMES;
    let mut labels: Vec<(f64, f64, &str)> = Vec::new();
    for mark in marks {
        let color = colors.of(&mark.model.name);
        let at = x(mark.bytes);
        drawing.line(color, (at, y(mark.tokens.0)), (at, y(mark.tokens.2)));
        if let Some(objective) = mark.objective {
            drawing.line("limit", (at - 9.0, y(objective)), (at + 9.0, y(objective)));
        }
        let tooltip = format!(
            "{}: {} tokens/s of all streams ({} to {}); memory limit {}{}",
            mark.model.name,
            number(mark.tokens.1),
            number(mark.tokens.0),
            number(mark.tokens.2),
            number(bandwidth / mark.bytes),
            mark.objective.map_or(String::new(), |objective| format!(
                "; objective {}",
                number(objective)
            ))
        );
        let dot = if class.nodes_used == 0 {
            format!("{color} ring")
        } else {
            color.to_owned()
        };
        drawing.dot(&dot, (at, y(mark.tokens.1)), &tooltip);
        labels.push((at, y(mark.tokens.1), &mark.model.name));
    }
    if names {
        place_apart(&mut labels);
        for (at, level, name) in labels {
            // A mark is never left of the roof.
            let letters = name.chars().count().min(26) as f64;
            let (dx, anchor) = if at - 11.0 - 6.5 * letters > LEFT {
                (-11.0, Anchor::End)
            } else {
                (11.0, Anchor::Start)
            };
            drawing.text("", (at + dx, level + 4.0), anchor, &clipped(name, 26));
        }
    }
    drawing.finish(&format!("Roofline of {}", class.name))
}

/// Moves overlapping labels apart, from top to bottom.
fn place_apart(labels: &mut [(f64, f64, &str)]) {
    labels.sort_by(|a, b| a.1.total_cmp(&b.1));
    for index in 1..labels.len() {
        let above = labels[index - 1].1;
        labels[index].1 = labels[index].1.max(above + 14.0);
    }
}
