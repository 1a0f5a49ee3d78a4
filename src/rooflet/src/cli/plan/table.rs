//! Text output of `rooflet plan` for a terminal.

use crate::cli::ui::Table;
use crate::cli::ui::digits::{amount, number};
use rooflet_api::v1alpha1::{
    PlanBasket, PlanFit, PlanModel, PlanNodeLoss, PlanPurchase, PlanRejectedOffer, PlanVerdict,
};
use rooflet_base::units::{Bytes, BytesPerSecond};

/// Maximum number of rows in the table of models and node classes. Beyond it, only the rows of the
/// placement are shown.
const MAX_FIT_ROWS: usize = 60;

/// Share of the best fleet's demand from which a fleet counts as equal to it.
const ALIKE: f64 = 0.995;

/// Returns the whole output.
pub(super) fn text(verdict: &PlanVerdict) -> String {
    let mut out = format!("{}\n", verdict.summary);
    if !verdict.assumptions.is_empty() {
        out += &format!("\nASSUMPTIONS\n{}\n", verdict.assumptions.join("\n"));
    }
    out += &section("MODELS", models(verdict));
    out += &section("NODES", classes(verdict));
    if !verdict.placements.is_empty() {
        out += &section("PLACEMENT", placements(verdict));
    }
    if !verdict.node_losses.is_empty() {
        out += &section("IF ONE NODE IS LOST", losses(verdict));
    }
    if let Some(purchase) = &verdict.purchase {
        out += &format!("\nTO BUY\n{}\n", self::purchase(purchase));
    }
    let bound = if verdict.proven {
        "proven: no placement carries more".to_owned()
    } else {
        format!("upper bound: {} times", number(verdict.demand_factor_bound))
    };
    // Every multiple of no requests is possible.
    let has_multiple = demands_requests(verdict);
    if has_multiple && verdict.feasible {
        out += &format!(
            "\nThe fleet carries {} times the demand ({bound}); this placement carries {} times.\n",
            number(verdict.demand_factor),
            number(verdict.placement_factor)
        );
    } else if has_multiple && verdict.unservable.is_empty() {
        out += &format!(
            "\nThe fleet carries {} times the demand ({bound}); the placement covers that part of the demand.\n",
            number(verdict.demand_factor)
        );
    }
    out += &alternatives_text(verdict);
    if verdict.classes.iter().any(|class| class.basis == "Nominal") {
        out += "Speeds with basis Nominal come from data sheets and use the pessimistic end of the prediction.\n";
    }
    out
}

/// Returns whether the demand has requests.
fn demands_requests(verdict: &PlanVerdict) -> bool {
    verdict.models.iter().any(|model| model.requests_per_second > 0.0)
}

/// States the effect of more memory, speed or disk space.
pub(super) fn alternatives_text(verdict: &PlanVerdict) -> String {
    if verdict.feasible && !demands_requests(verdict) {
        return String::new();
    }
    let (Some(memory), Some(speed)) = (
        verdict.headroom.twice_memory_factor,
        verdict.headroom.twice_speed_factor,
    ) else {
        return String::new();
    };
    let disk = verdict.headroom.unlimited_disk_factor;
    if memory == 0.0 && speed == 0.0 && disk.is_none_or(|disk| disk == 0.0) {
        return "Neither twice the memory nor twice the speed would be enough.\n".to_owned();
    }
    let disk = disk.map_or(String::new(), |disk| {
        format!(", with unlimited disk space {} times", number(disk))
    });
    format!(
        "With twice the memory, the same Macs would carry {} times the demand; with twice the speed, {} times{disk}.\n",
        number(memory),
        number(speed)
    )
}

/// Compares fleets, one row each.
pub(super) fn comparison(verdicts: &[(String, PlanVerdict)]) -> String {
    let mut table = Table::new([
        "FLEET",
        "FEASIBLE",
        "CARRIES",
        "BINDING",
        "TOK/S PER STREAM",
        "TOTAL TOK/S",
        "MEMORY USED",
        "SURVIVES LOSS",
        "PRICE",
        "WATTS",
    ]);
    for (name, verdict) in verdicts {
        let streams: Vec<_> = verdict
            .models
            .iter()
            .flat_map(|model| &model.fits)
            .map(|fit| {
                if fit.admitted {
                    stream(fit)
                } else {
                    "does not fit".to_owned()
                }
            })
            .collect();
        let memory: Vec<_> = verdict
            .classes
            .iter()
            .map(|class| {
                format!(
                    "{} of {}",
                    Bytes(class.memory_used_bytes),
                    Bytes(class.memory_limit_bytes)
                )
            })
            .collect();
        table.add_row([
            name.clone(),
            yes(verdict.feasible),
            match demands_requests(verdict) {
                true => format!("{} x", number(verdict.demand_factor)),
                false => "-".to_owned(),
            },
            verdict.binding.clone().unwrap_or_default(),
            streams.join("; "),
            number(verdict.headroom.max_tokens_per_second),
            memory.join("; "),
            yes(verdict.survives_node_loss),
            verdict.price.map_or("-".to_owned(), amount),
            known(verdict.watts),
        ]);
    }
    let mut out = format!("{table}\n");
    for (name, verdict) in verdicts {
        out += &format!("\n{name}: {}\n", verdict.summary);
    }
    out += &format!("\n{}\n", best(verdicts));
    out
}

/// States which fleet is best.
pub(super) fn best(verdicts: &[(String, PlanVerdict)]) -> String {
    let feasible: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict.feasible).collect();
    let most = verdicts
        .iter()
        .max_by(|(_, a), (_, b)| a.demand_factor.total_cmp(&b.demand_factor));
    let cheapest = feasible
        .iter()
        .filter(|(_, verdict)| verdict.price.is_some())
        .min_by(|(_, a), (_, b)| {
            a.price
                .unwrap_or_default()
                .total_cmp(&b.price.unwrap_or_default())
        });
    let alike = |(_, verdict): &&(String, PlanVerdict)| {
        most.is_some_and(|(_, most)| verdict.demand_factor >= most.demand_factor * ALIKE)
    };
    let equal: Vec<_> = verdicts
        .iter()
        .filter(alike)
        .map(|(name, _)| name.as_str())
        .collect();
    let most_words = match &equal[..] {
        [] | [_] => "carries the most",
        _ => "carries as much as any other",
    };
    let priced = feasible.iter().all(|(_, verdict)| verdict.price.is_some());
    match (feasible.as_slice(), most, cheapest) {
        ([], Some((name, verdict)), _) if verdict.demand_factor > 0.0 => {
            format!("No fleet carries the demand; {name} comes closest.")
        }
        ([], _, _) => "No fleet carries the demand.".to_owned(),
        ([(only, _)], _, _) if verdicts.len() == 1 => format!("{only} carries the demand."),
        ([(only, _)], _, _) => format!("Only {only} carries the demand."),
        (_, _, Some((cheapest, _))) if priced && equal.contains(&cheapest.as_str()) => {
            format!("Of the fleets that carry the demand, {cheapest} costs the least and {most_words}.")
        }
        (_, Some((most, _)), Some((cheapest, _))) if priced => {
            format!("Of the fleets that carry the demand, {cheapest} costs the least; {most} {most_words}.")
        }
        (_, Some(_), _) if equal.len() > 1 => format!("{} carry the same.", equal.join(" and ")),
        (_, Some((most, _)), _) => format!("{most} carries the most."),
        (_, None, _) => String::new(),
    }
}

fn models(verdict: &PlanVerdict) -> Table {
    let mut table = Table::new([
        "MODEL",
        "REQ/S",
        "REPLICAS",
        "NODE",
        "FITS",
        "MEMORY",
        "STREAMS",
        "TOK/S PER STREAM",
        "FIRST TOKEN",
        "REQ/S PER NODE",
        "BOUND BY",
    ]);
    let rows: usize = verdict.models.iter().map(|model| model.fits.len()).sum();
    for model in &verdict.models {
        for (index, fit) in shown(verdict, model, rows > MAX_FIT_ROWS).into_iter().enumerate() {
            let once = |text: String| if index == 0 { text } else { String::new() };
            table.add_row([
                once(model.name.clone()),
                once(number(model.requests_per_second)),
                once(model.replicas.to_string()),
                fit.class.clone(),
                yes(fit.admitted),
                Bytes(fit.memory_bytes).to_string(),
                fit.streams.to_string(),
                stream(fit),
                fit.time_to_first_token_seconds
                    .map_or("-".to_owned(), |time| format!("{} s", number(time.p90))),
                number(fit.max_requests_per_second),
                fit.binding.clone().unwrap_or_default(),
            ]);
        }
    }
    table
}

/// Returns all node classes if the table stays readable. Otherwise those with the model, or the
/// first class if there is none.
fn shown<'a>(verdict: &'a PlanVerdict, model: &'a PlanModel, many: bool) -> Vec<&'a PlanFit> {
    let has = |fit: &&PlanFit| {
        verdict.placements.iter().any(|placement| {
            placement.class == fit.class && placement.replicas.iter().any(|one| one.model == model.name)
        })
    };
    let placed: Vec<_> = model.fits.iter().filter(has).collect();
    match (many, placed.is_empty()) {
        (false, _) => model.fits.iter().collect(),
        (true, false) => placed,
        (true, true) => model.fits.iter().take(1).collect(),
    }
}

/// Formats the pessimistic end of the interval, with the median in parentheses.
fn stream(fit: &PlanFit) -> String {
    fit.tokens_per_second.map_or("-".to_owned(), |rate| {
        format!("{} (median {})", number(rate.p10), number(rate.p50))
    })
}

fn classes(verdict: &PlanVerdict) -> Table {
    let has_disks = verdict.headroom.unlimited_disk_factor.is_some();
    let mut columns = vec![
        "NODE",
        "USED",
        "BANDWIDTH",
        "MEMORY",
        "DISK",
        "BUSY",
        "RESERVED",
        "TOK/S",
        "FIRST LIMIT",
        "AT",
    ];
    columns.retain(|column| has_disks || *column != "DISK");
    let mut table = Table::new(columns);
    for class in &verdict.classes {
        let disk = class.disk_used_bytes.zip(class.disk_limit_bytes);
        let disk = disk.map_or("-".to_owned(), |(used, limit)| {
            format!("{} of {}", Bytes(used), Bytes(limit))
        });
        let before = [
            class.name.clone(),
            format!("{}/{}", class.nodes_used, class.nodes),
            class.bandwidth_bytes_per_second.map_or("-".to_owned(), |rate| {
                format!("{} {}", BytesPerSecond(rate), class.basis)
            }),
            format!(
                "{} of {}",
                Bytes(class.memory_used_bytes),
                Bytes(class.memory_limit_bytes)
            ),
        ];
        let after = [
            percent(class.utilization_percent),
            percent(class.reserved_percent),
            number(class.tokens_per_second),
            class.binding.clone().unwrap_or("-".to_owned()),
            class
                .breaks_at
                .map_or("-".to_owned(), |factor| format!("{} x demand", number(factor))),
        ];
        table.add_row(before.into_iter().chain(has_disks.then_some(disk)).chain(after));
    }
    table
}

fn placements(verdict: &PlanVerdict) -> Table {
    let mut table = Table::new(["NODES", "EACH RUNS", "REQ/S", "BUSY", "MEAN FIRST TOKEN"]);
    for placement in &verdict.placements {
        for (index, replica) in placement.replicas.iter().enumerate() {
            let nodes = format!("{} x {}", placement.nodes, placement.class);
            table.add_row([
                if index == 0 { nodes } else { String::new() },
                replica.model.clone(),
                number(replica.requests_per_second),
                percent(replica.utilization_percent),
                replica
                    .mean_time_to_first_token_seconds
                    .map_or("-".to_owned(), |time| format!("{} s", number(time))),
            ]);
        }
    }
    table
}

fn losses(verdict: &PlanVerdict) -> Table {
    let mut table = Table::new(["NODE", "DEMAND STILL CARRIED", "INTERRUPTED MODELS"]);
    for loss in &verdict.node_losses {
        table.add_row([loss.class.clone(), still_carried(loss), list(&loss.interrupted)]);
    }
    table
}

pub(super) fn still_carried(loss: &PlanNodeLoss) -> String {
    match loss.demand_factor {
        None => "yes".to_owned(),
        Some(factor) if loss.proven => format!("no: {:.0} % of it", (100.0 * factor).floor()),
        Some(factor) => format!("not found: {:.0} % of it", (100.0 * factor).floor()),
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(", ")
    }
}

/// States what to buy.
pub(super) fn purchase(purchase: &PlanPurchase) -> String {
    let rejected = purchase.rejected_offers.iter();
    let rejected: String = rejected
        .map(|offer| format!("\nrejected: {}", self::rejected(offer)))
        .collect();
    let Some(best) = &purchase.best else {
        return purchase.shortfall.clone().unwrap_or_default() + &rejected;
    };
    let (found, proof) = if purchase.proven {
        ("", "proven".to_owned())
    } else {
        let proof = format!("lower bound {}", amount(purchase.lower_bound));
        (" found", proof)
    };
    let what = if purchase.minimises == "Price" {
        format!("lowest price{found}")
    } else {
        format!("fewest Macs{found} (not every offer has a price)")
    };
    let mut out = match best.items.as_slice() {
        [] => format!("Nothing: the fleet carries the demand. {}", effect(best)),
        [_, ..] => format!("{}: {what} ({proof}). {}", basket(best), effect(best)),
    };
    for other in &purchase.alternatives {
        out += &format!("\nor {}. {}", basket(other), effect(other));
    }
    out + &rejected
}

/// Formats an offer with the reason of its rejection.
pub(super) fn rejected(offer: &PlanRejectedOffer) -> String {
    let model = offer
        .model
        .as_ref()
        .map_or(String::new(), |model| format!(" for {model}"));
    format!("{}{model}: {}", offer.name, offer.message)
}

/// Formats a purchase, such as `2 x mini-32 for 1998, 80 W`.
pub(super) fn basket(basket: &PlanBasket) -> String {
    let items: Vec<_> = basket
        .items
        .iter()
        .map(|item| format!("{} x {}", item.count, item.name))
        .collect();
    let price = basket
        .price
        .map_or(String::new(), |price| format!(" for {}", amount(price)));
    let watts = basket
        .watts
        .map_or(String::new(), |watts| format!(", {} W", number(watts)));
    format!("{}{price}{watts}", items.join(", "))
}

fn effect(basket: &PlanBasket) -> String {
    format!(
        "The fleet then carries {} times the demand and {} the loss of one node.",
        number(basket.demand_factor),
        if basket.survives_node_loss {
            "survives"
        } else {
            "does not survive"
        }
    )
}

fn section(title: &str, table: Table) -> String {
    format!("\n{title}\n{table}\n")
}

fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

fn known(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), number)
}

fn yes(truth: bool) -> String {
    if truth { "yes" } else { "no" }.to_owned()
}
