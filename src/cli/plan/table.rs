//! A plan's answer as text for a terminal.

use comfy_table::Table;

use crate::api::v1alpha1::{PlanFit, PlanPurchase, PlanVerdict};
use crate::units::{Bytes, BytesPerSecond};

/// The whole answer.
pub(super) fn text(verdict: &PlanVerdict) -> String {
    let mut out = format!("{}\n", verdict.summary);
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
        format!(
            "no placement carries more than {} times",
            number(verdict.demand_factor_bound)
        )
    };
    out += &format!(
        "\nThe fleet carries {} times the demand ({bound}); the placement as it is {} times.\n",
        number(verdict.demand_factor),
        number(verdict.placement_factor)
    );
    if verdict.classes.iter().any(|class| class.basis == "Nominal") {
        out += "Speeds rest on data sheets (Nominal) and are judged at their pessimistic end; measured nodes are better known.\n";
    }
    out
}

/// Several fleets side by side, one row each.
pub(super) fn comparison(verdicts: &[(String, PlanVerdict)]) -> String {
    let mut table = table([
        "FLEET",
        "FEASIBLE",
        "CARRIES",
        "BINDING",
        "TOK/S A STREAM",
        "MEMORY USED",
        "SURVIVES LOSS",
        "PRICE",
        "WATTS",
    ]);
    for (name, verdict) in verdicts {
        let fits = || verdict.models.iter().flat_map(|model| &model.fits);
        let streams: Vec<_> = fits().map(stream).collect();
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
            format!("{} x", number(verdict.demand_factor)),
            verdict.binding.clone().unwrap_or_default(),
            streams.join("; "),
            memory.join("; "),
            yes(verdict.survives_node_loss),
            known(verdict.price),
            known(verdict.watts),
        ]);
    }
    let mut out = format!("{}\n", trimmed(&table));
    for (name, verdict) in verdicts {
        out += &format!("\n{name}: {}\n", verdict.summary);
    }
    out
}

fn models(verdict: &PlanVerdict) -> Table {
    let mut table = table([
        "MODEL",
        "REQ/S",
        "REPLICAS",
        "NODE",
        "FITS",
        "MEMORY",
        "TOK/S A STREAM",
        "FIRST TOKEN",
        "REQ/S A NODE",
        "BOUND BY",
    ]);
    for model in &verdict.models {
        for (index, fit) in model.fits.iter().enumerate() {
            let once = |text: String| if index == 0 { text } else { String::new() };
            table.add_row([
                once(model.name.clone()),
                once(number(model.requests_per_second)),
                once(model.replicas.to_string()),
                fit.class.clone(),
                yes(fit.admitted),
                Bytes(fit.memory_bytes).to_string(),
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

/// The pessimistic end, and the median behind it.
fn stream(fit: &PlanFit) -> String {
    fit.tokens_per_second.map_or("-".to_owned(), |rate| {
        format!("{} (median {})", number(rate.p10), number(rate.p50))
    })
}

fn classes(verdict: &PlanVerdict) -> Table {
    let mut table = table([
        "NODE",
        "USED",
        "BANDWIDTH",
        "MEMORY",
        "BUSY",
        "PROMISED",
        "TOK/S",
        "FIRST LIMIT",
        "AT",
    ]);
    for class in &verdict.classes {
        table.add_row([
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
            percent(class.utilization_percent),
            percent(class.reserved_percent),
            number(class.tokens_per_second),
            class.binding.clone().unwrap_or("-".to_owned()),
            class
                .breaks_at
                .map_or("-".to_owned(), |factor| format!("{} x demand", number(factor))),
        ]);
    }
    table
}

fn placements(verdict: &PlanVerdict) -> Table {
    let mut table = table(["NODES", "EACH RUNS", "REQ/S", "BUSY", "MEAN FIRST TOKEN"]);
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
    let mut table = table([
        "NODE",
        "STILL CARRIED",
        "NOT SERVED WHOLE",
        "INTERRUPTED UNTIL MOVED",
    ]);
    for loss in &verdict.node_losses {
        table.add_row([
            loss.class.clone(),
            yes(loss.survives),
            list(&loss.broken),
            list(&loss.interrupted),
        ]);
    }
    table
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(", ")
    }
}

/// What to buy, in sentences.
pub(super) fn purchase(purchase: &PlanPurchase) -> String {
    if !purchase.found {
        return "Nothing in the catalogue, as often as it can be had, carries the demand.".to_owned();
    }
    if purchase.items.is_empty() {
        return "Nothing: the fleet carries the demand.".to_owned();
    }
    let items: Vec<_> = purchase
        .items
        .iter()
        .map(|item| format!("{} x {}", item.count, item.name))
        .collect();
    let cost = purchase
        .price
        .map_or(String::new(), |price| format!(" for {}", number(price)));
    let what = if purchase.minimises == "Price" {
        "the least price"
    } else {
        "the fewest Macs (not every offer has a price)"
    };
    let proof = if purchase.proven {
        "proven".to_owned()
    } else {
        format!("nothing below {} is enough", number(purchase.lower_bound))
    };
    format!(
        "{}{cost}: {what} ({proof}). They carry {} times the demand; the loss of one node {}.",
        items.join(", "),
        number(purchase.demand_factor),
        if purchase.survives_node_loss {
            "is survived"
        } else {
            "breaks it"
        }
    )
}

fn section(title: &str, table: Table) -> String {
    format!("\n{title}\n{}\n", trimmed(&table))
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header);
    table
}

fn trimmed(table: &Table) -> String {
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Three significant digits: more would pretend.
pub(super) fn number(value: f64) -> String {
    let digits = if value == 0.0 {
        0
    } else {
        2 - value.abs().log10().floor() as i32
    };
    let text = format!("{value:.*}", digits.clamp(0, 4) as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
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
