//! Tables of the report.

use maud::{Markup, html};

use super::super::table::{basket, rejected, still_carried};
use super::colors::Colors;
use crate::cli::ui::digits::{amount, number};
use crate::cli::ui::html::{Cell, table};
use rooflet_api::v1alpha1::{PlanBasket, PlanFit, PlanModel, PlanRejectedOffer, PlanVerdict};
use rooflet_base::units::{Bytes, BytesPerSecond};

/// Number of visible rows. Further rows are collapsed.
const OPEN_ROWS: usize = 25;
/// Maximum number of reasons and suggestions per model that does not fit.
const MAX_REASONS: usize = 3;

pub(super) fn purchase(verdict: &PlanVerdict) -> Markup {
    let Some(purchase) = &verdict.purchase else {
        return html! {};
    };
    let Some(best) = &purchase.best else {
        return html! {
            h2 { "What to buy" }
            div class="card" { (purchase.shortfall.as_deref().unwrap_or_default()) }
            (rejected_offers(&purchase.rejected_offers))
        };
    };
    let what = if purchase.minimises == "Price" {
        "The lowest price"
    } else {
        "The fewest Macs"
    };
    let (found, proof) = if purchase.proven {
        ("", "proven minimum".to_owned())
    } else {
        let proof = format!("lower bound {}", amount(purchase.lower_bound));
        (" found", proof)
    };
    let (basket, why) = if best.items.is_empty() {
        (
            "Nothing".to_owned(),
            "The existing Macs carry the demand".to_owned(),
        )
    } else {
        (basket(best), format!("{what}{found}; {proof}"))
    };
    let fate = if best.survives_node_loss {
        "survives"
    } else {
        "does not survive"
    };
    let row = |other: &PlanBasket| {
        let items = other
            .items
            .iter()
            .map(|item| format!("{} × {}", item.count, item.name));
        vec![
            Cell::name(&items.collect::<Vec<_>>().join(", ")),
            Cell::figure(other.price.map_or("–".to_owned(), amount)),
            Cell::figure(other.watts.map_or("–".to_owned(), number)),
            Cell::figure(format!("{} ×", number(other.demand_factor))),
            Cell::text(if other.survives_node_loss { "yes" } else { "no" }),
        ]
    };
    let headings = [
        "Purchase",
        "#Price",
        "#Watts",
        "#Demand carried",
        "Survives the loss of one Mac",
    ];
    html! {
        h2 { "What to buy" }
        div class="card" {
            b { (basket) }
            p {
                (why) ". The fleet then carries " (number(best.demand_factor))
                " times the demand and " (fate) " the loss of one Mac."
            }
        }
        @if !purchase.alternatives.is_empty() {
            (table(&headings, std::iter::once(best).chain(&purchase.alternatives).map(row)))
        }
        (rejected_offers(&purchase.rejected_offers))
    }
}

fn rejected_offers(offers: &[PlanRejectedOffer]) -> Markup {
    html! {
        @if !offers.is_empty() {
            p { "Rejected offers:" }
            ul { @for offer in offers { li { (rejected(offer)) } } }
        }
    }
}

/// Assumptions of the demand that admission does not make.
pub(super) fn assumptions(verdict: &PlanVerdict) -> Markup {
    html! {
        @if !verdict.assumptions.is_empty() {
            h2 { "Assumptions" }
            ul { @for assumption in &verdict.assumptions { li { (assumption) } } }
        }
    }
}

/// Models that no node can serve, with reasons and remedies.
pub(super) fn obstacles(verdict: &PlanVerdict) -> Markup {
    if verdict.unservable.is_empty() {
        return html! {};
    }
    let stuck = verdict
        .models
        .iter()
        .filter(|model| verdict.unservable.contains(&model.name));
    let list = |texts: Vec<&String>| {
        html! {
            @if texts.is_empty() {
                "–"
            } @else {
                ul { @for text in texts { li { (text) } } }
            }
        }
    };
    let row = |model: &PlanModel| {
        let reasons = model.fits.iter().flat_map(|fit| {
            fit.refusals
                .iter()
                .map(move |refusal| format!("{}: {refusal}", fit.class))
        });
        let reasons: Vec<String> = reasons.take(MAX_REASONS).collect();
        let mut changes: Vec<&String> = model.fits.iter().flat_map(|fit| &fit.suggestions).collect();
        changes.dedup();
        changes.truncate(MAX_REASONS);
        vec![
            Cell::name(&model.name),
            Cell::markup(list(reasons.iter().collect())),
            Cell::markup(list(changes)),
        ]
    };
    html! {
        h2 { "Models that do not fit" }
        (table(&["Model", "Reasons", "Each of these changes would help"], stuck.map(row)))
    }
}

pub(super) fn demand(verdict: &PlanVerdict, colors: &Colors<'_>) -> Markup {
    let row = |model: &PlanModel| {
        let fit = usual(verdict, model);
        let speed = fit.and_then(|fit| fit.tokens_per_second);
        let first = fit.and_then(|fit| fit.time_to_first_token_seconds);
        let (class, served) = match (model.served, verdict.unservable.contains(&model.name)) {
            (true, _) => ("good", "yes"),
            (false, true) => ("bad", "nowhere"),
            (false, false) => ("warn", "partly"),
        };
        vec![
            Cell::markup(html! { i class={ "dot " (colors.of(&model.name)) } {} (model.name) }),
            Cell::figure(number(model.requests_per_second)),
            Cell::figure(format!("{} + {}", model.prompt_tokens, model.answer_tokens)),
            Cell::figure(model.replicas.to_string()),
            Cell::short(fit.map_or("–", |fit| fit.class.as_str())),
            Cell::figure(fit.map_or("–".to_owned(), |fit| Bytes(fit.memory_bytes).to_string())),
            Cell::figure(speed.map_or("–".to_owned(), |rate| {
                format!("{} ({}–{})", number(rate.p50), number(rate.p10), number(rate.p90))
            })),
            Cell::figure(
                model
                    .objective_tokens_per_second
                    .map_or("–".to_owned(), |rate| format!("≥ {}", number(rate))),
            ),
            Cell::figure(first.map_or("–".to_owned(), |time| format!("{} s", number(time.p90)))),
            Cell::figure(
                model
                    .objective_first_token_seconds
                    .map_or("–".to_owned(), |time| format!("≤ {} s", number(time))),
            ),
            Cell::markup(html! { span class={ (class) " w" } { (served) } }),
        ]
    };
    let headings = [
        "Model",
        "#Requests/s",
        "#Prompt + answer",
        "#Replicas",
        "Mostly on",
        "#Memory",
        "#Tokens/s a stream",
        "#Objective",
        "#First token",
        "#Objective",
        "Served",
    ];
    // Models that are not fully served come first, then those with the highest demand.
    let mut models: Vec<&PlanModel> = verdict.models.iter().collect();
    models
        .sort_by(|a, b| (a.served.cmp(&b.served)).then(b.tokens_per_second.total_cmp(&a.tokens_per_second)));
    let requests: f64 = models.iter().map(|model| model.requests_per_second).sum();
    let tokens: f64 = models.iter().map(|model| model.tokens_per_second).sum();
    html! {
        h2 { "The demand" }
        p class="note" {
            (models.len()) " models, " (number(requests)) " requests and " (number(tokens))
            " answer tokens per second in total. Speed of a stream: median (10th to 90th percentile), all streams \
             busy at full context. First token: time for the average prompt, 90th percentile, without waiting."
        }
        (folded(&headings, models.into_iter().map(row).collect(), "models"))
    }
}

/// Returns the node class with most of a model's replicas, or else a class that fits.
fn usual<'a>(verdict: &PlanVerdict, model: &'a PlanModel) -> Option<&'a PlanFit> {
    let nodes = |fit: &PlanFit| -> u32 {
        let runs = verdict.placements.iter().filter(|placement| {
            placement.class == fit.class && placement.replicas.iter().any(|one| one.model == model.name)
        });
        runs.map(|placement| placement.nodes).sum()
    };
    let fits = model.fits.iter().filter(|fit| fit.admitted);
    // The first of several equal classes.
    fits.rev().max_by_key(|fit| nodes(fit))
}

pub(super) fn placements(verdict: &PlanVerdict) -> Markup {
    let rows = verdict.placements.iter().flat_map(|placement| {
        placement
            .replicas
            .iter()
            .enumerate()
            .map(move |(index, replica)| {
                let nodes = format!("{} × {}", placement.nodes, placement.class);
                vec![
                    Cell::name(if index == 0 { &nodes } else { "" }),
                    Cell::text(&replica.model),
                    Cell::figure(Bytes(replica.memory_bytes).to_string()),
                    Cell::figure(number(replica.requests_per_second)),
                    Cell::figure(format!("{} %", number(replica.utilization_percent))),
                    Cell::figure(
                        replica
                            .mean_time_to_first_token_seconds
                            .map_or("–".to_owned(), |time| format!("{} s", number(time))),
                    ),
                ]
            })
    });
    let headings = [
        "Nodes",
        "Replica",
        "#Memory",
        "#Requests/s",
        "#Chip time",
        "#Mean first token",
    ];
    html! {
        details { summary { "All replicas with their load" } (table(&headings, rows)) }
    }
}

pub(super) fn breaks_first(verdict: &PlanVerdict) -> Markup {
    if verdict.classes.is_empty() {
        return html! {};
    }
    let rows = verdict
        .classes
        .iter()
        .filter(|class| class.nodes > 0)
        .map(|class| {
            vec![
                Cell::name(&class.name),
                Cell::figure(format!("{} of {}", class.nodes_used, class.nodes)),
                Cell::figure(class.bandwidth_bytes_per_second.map_or("–".to_owned(), |rate| {
                    format!("{} ({})", BytesPerSecond(rate), class.basis.to_lowercase())
                })),
                Cell::figure(format!(
                    "{} of {}",
                    Bytes(class.memory_used_bytes),
                    Bytes(class.memory_limit_bytes)
                )),
                Cell::figure(format!("{} %", number(class.utilization_percent))),
                Cell::figure(format!("{} %", number(class.reserved_percent))),
                Cell::figure(number(class.tokens_per_second)),
                Cell::text(class.binding.as_deref().unwrap_or("–")),
                Cell::figure(
                    class
                        .breaks_at
                        .map_or("–".to_owned(), |at| format!("{} ×", number(at))),
                ),
            ]
        });
    let headings = [
        "Node",
        "#Used",
        "#Bandwidth of one",
        "#Fullest memory",
        "#Busiest",
        "#Reserved",
        "#Total tokens/s",
        "First limit",
        "#At demand",
    ];
    html! {
        h2 { "Limits" }
        p class="note" {
            "Limits that are reached as the demand grows, with the placement above. Reserved: the largest share of \
             a chip's time that objectives reserve."
        }
        (table(&headings, rows))
    }
}

pub(super) fn losses(verdict: &PlanVerdict) -> Markup {
    if verdict.node_losses.is_empty() {
        return html! {};
    }
    let rows = verdict.node_losses.iter().map(|loss| {
        let class = if loss.survives { "good" } else { "warn" };
        vec![
            Cell::name(&loss.class),
            Cell::markup(html! { span class=(class) { (still_carried(loss)) } }),
            Cell::text(if loss.interrupted.is_empty() {
                "–".to_owned()
            } else {
                loss.interrupted.join(", ")
            }),
        ]
    });
    let headings = [
        "Loss of one",
        "The remaining Macs carry the demand",
        "Interrupted until its only replica has moved",
    ];
    html! {
        h2 { "Loss of one Mac" }
        (table(&headings, rows))
    }
}

/// Returns a table whose rows beyond the first [`OPEN_ROWS`] are collapsed.
fn folded(headings: &[&str], mut rows: Vec<Vec<Cell>>, what: &str) -> Markup {
    if rows.len() <= OPEN_ROWS + 5 {
        return table(headings, rows);
    }
    let rest = rows.split_off(OPEN_ROWS);
    html! {
        (table(headings, rows))
        details {
            summary { (rest.len()) " more " (what) }
            (table(headings, rest))
        }
    }
}
