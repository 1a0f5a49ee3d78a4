//! Report of `rooflet plan` as one HTML file without scripts or external resources.

mod colors;
mod placement;
mod roofline;
mod sections;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use maud::{Markup, html};

use super::table::alternatives_text;
use crate::cli::ui::digits::{amount, number};
use crate::cli::ui::html::{Anchor, Drawing, page};
use colors::Colors;
use rooflet_api::v1alpha1::{PlanHeadroom, PlanVerdict};
use rooflet_base::units::Bytes;

/// Returns the whole file. `now` is the date of the report.
pub(super) fn report(verdict: &PlanVerdict, now: Timestamp) -> String {
    let colors = Colors::new(verdict);
    let headline = headline(verdict);
    let (class, badge) = if verdict.feasible {
        ("good", "It fits")
    } else {
        ("bad", "It does not fit")
    };
    let body = html! {
        div class="eyebrow" {
            span class={ "badge " (class) } { (badge) }
            span { "Capacity plan, " (now.strftime("%-d %B %Y").to_string()) }
        }
        h1 { (headline) }
        p class="lead" { (verdict.summary) }
        (tiles(verdict))
        (sections::assumptions(verdict))
        (sections::purchase(verdict))
        (sections::obstacles(verdict))
        (headroom(verdict))
        (sections::demand(verdict, &colors))
        @if let Some(map) = placement::map(verdict, &colors) {
            h2 { "Placement" }
            (colors.legend())
            (map)
            (sections::placements(verdict))
        }
        (sections::breaks_first(verdict))
        @if let Some(panels) = roofline::panels(verdict, &colors) {
            h2 { "Speed of each node class" }
            p class="note" {
                "The line is the limit of the memory: bandwidth ÷ bytes that a token moves. A dot is the predicted \
                 speed of a model at full context. The bar is the interval from the 10th to the 90th percentile, \
                 and a red dash is the objective. The plan uses the lower end of the bar."
            }
            (panels)
        }
        (sections::losses(verdict))
        (footer(verdict))
    };
    page(&format!("Capacity plan: {headline}"), body)
}

/// Returns the result in one sentence.
fn headline(verdict: &PlanVerdict) -> String {
    let macs = match verdict.nodes {
        0 => return "The plan has no Macs for the demand.".to_owned(),
        1 => "This Mac".to_owned(),
        nodes => format!("These {nodes} Macs"),
    };
    let (carries, does_not) = if verdict.nodes == 1 {
        ("carries", "does not carry")
    } else {
        ("carry", "do not carry")
    };
    if verdict.feasible {
        let spare = verdict.demand_factor - 1.0;
        return if verdict.demand_factor >= 1000.0 {
            format!("{macs} {carries} the demand, with more capacity than it could use.")
        } else if spare >= 1.0 {
            format!(
                "{macs} {carries} the demand {} times over.",
                number(verdict.demand_factor)
            )
        } else if spare >= 0.01 {
            format!(
                "{macs} {carries} the demand, with capacity for {:.0} % more.",
                (100.0 * spare).floor()
            )
        } else {
            format!("{macs} {carries} the demand, without spare capacity.")
        };
    }
    match verdict.unservable.as_slice() {
        [] => format!(
            "{macs} {does_not} the demand, only {:.0} % of it.",
            (100.0 * verdict.demand_factor).floor()
        ),
        [one] => format!("{macs} {does_not} the demand: no Mac can serve {one}."),
        many => format!(
            "{macs} {does_not} the demand: no Mac can serve {} of the models.",
            many.len()
        ),
    }
}

fn tiles(verdict: &PlanVerdict) -> Markup {
    let tile = |value: &str, class: &str, label: &str| {
        html! {
            div class="tile" { b class=(class) { (value) } span { (label) } }
        }
    };
    let class = if verdict.feasible { "good" } else { "bad" };
    let bound = if verdict.proven {
        "of the demand carried (proven)".to_owned()
    } else {
        format!(
            "of the demand carried (at most {} ×)",
            number(verdict.demand_factor_bound)
        )
    };
    let (survival_class, survives) = if verdict.survives_node_loss {
        ("good", "yes")
    } else {
        ("warn", "no")
    };
    html! {
        div class="tiles" {
            (tile(&format!("{} ×", number(verdict.demand_factor)), class, &bound))
            (tile(verdict.binding.as_deref().unwrap_or("nothing"), "", "first limit"))
            @if verdict.feasible {
                (tile(survives, survival_class, "survives the loss of any one Mac"))
            }
            (tile(&format!("{} of {}", verdict.nodes_used, verdict.nodes), "", "Macs in use"))
            @if let Some(price) = verdict.price {
                (tile(&amount(price), "", "total price"))
            }
            @if let Some(watts) = verdict.watts {
                (tile(&format!("{} W", number(watts)), "", "total power"))
            }
        }
    }
}

/// Draws three bars: memory, chip time, tokens per second.
fn headroom(verdict: &PlanVerdict) -> Markup {
    if verdict.nodes == 0 {
        return html! {};
    }
    let PlanHeadroom {
        memory_used_bytes,
        memory_limit_bytes,
        busy_percent,
        busy_limit_percent,
        tokens_per_second,
        max_tokens_per_second,
        ..
    } = verdict.headroom;
    const LEFT: f64 = 190.0;
    const BAR: f64 = 480.0;
    let mut drawing = Drawing::new(960.0, 104.0);
    let mut bar = |row: f64, label: &str, share: f64, figures: &str| {
        let y = 6.0 + 33.0 * row;
        drawing.text("", (LEFT - 10.0, y + 15.0), Anchor::End, label);
        drawing.rect("empty", (LEFT, y, BAR, 22.0), "free");
        drawing.rect("m0", (LEFT, y, BAR * share.clamp(0.0, 1.0), 22.0), figures);
        drawing.text("soft", (LEFT + BAR + 12.0, y + 15.0), Anchor::Start, figures);
    };
    let memory = memory_used_bytes as f64 / memory_limit_bytes.max(1) as f64;
    let figures = format!(
        "{:.0} %: {} of {}",
        100.0 * memory,
        Bytes(memory_used_bytes),
        Bytes(memory_limit_bytes)
    );
    bar(0.0, "Memory reserved", memory, &figures);
    let figures = format!("{busy_percent:.0} % on average, {busy_limit_percent:.0} % allowed");
    bar(1.0, "Chip time", busy_percent / 100.0, &figures);
    // If the demand is not met, the used capacity is also the maximum.
    let most = max_tokens_per_second.max(tokens_per_second);
    let share = if most > 0.0 { tokens_per_second / most } else { 0.0 };
    let figures = format!(
        "{} of {} possible in this mix",
        number(tokens_per_second),
        number(most)
    );
    bar(2.0, "Answer tokens/s", share, &figures);
    let limit = LEFT + BAR * busy_limit_percent / 100.0;
    drawing.line("limit", (limit, 37.0), (limit, 63.0));
    html! {
        h2 { "Utilization" }
        (drawing.finish("Memory, chip time and tokens per second in use"))
        p { (alternatives_text(verdict).trim_end()) }
    }
}

fn footer(verdict: &PlanVerdict) -> Markup {
    let nominal = verdict.classes.iter().any(|class| class.basis == "Nominal");
    html! {
        footer class="note" {
            p {
                @if nominal {
                    "Some speeds come from data sheets (Nominal), not from measurements. A probe of the machine \
                     narrows their intervals. "
                }
                "The plan uses the pessimistic end of each prediction: the 10th percentile of the decode speed and \
                 the 90th percentile of the time to first token, with all streams at full context, unless an assumption \
                 is listed above. Bursts beyond random arrivals, downloads, loading and the network are not modelled. The limit \
                 on the use of a chip leaves capacity for them. The user provided prices and watts."
            }
            p { "Created by rooflet " (env!("CARGO_PKG_VERSION")) ". docs/planner.md has the formulas." }
        }
    }
}
