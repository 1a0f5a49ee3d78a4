//! Text output of simulation results.

use crate::cli::ui::Table;
use rooflet_base::yaml;
use rooflet_simulation::{DemandOutcome, Outcome, format_duration};

/// Maximum number of listed changes of the replica count.
const MOST_CHANGES: usize = 24;

/// Returns all results, side by side if there are several.
pub(super) fn text(outcomes: &[Outcome]) -> anyhow::Result<String> {
    let mut text = String::new();
    if let Some(first) = outcomes.first() {
        text.push_str(&format!(
            "{} on {} simulated Macs, seed {}. Speeds are predicted from data sheets; nothing was measured.\n\n",
            format_duration(first.duration),
            first.nodes,
            first.seed
        ));
    }
    text.push_str(&requests(outcomes));
    text.push_str(&deployments(outcomes));
    text.push_str(&scaled(outcomes));
    text.push_str(&control(outcomes));
    text.push_str(&access(outcomes));
    for outcome in outcomes.iter().filter(|outcome| !outcome.journal.is_empty()) {
        text.push_str(&format!(
            "\nJOURNAL of {}\n{}\n",
            outcome.policy,
            outcome.journal.join("\n")
        ));
    }
    for outcome in outcomes {
        if let Some(violation) = &outcome.violation {
            text.push_str(&format!("\nVIOLATED GUARANTEE {violation}\n"));
            text.push_str("The required faults, for `faults:` of the scenario without `randomFaults:`:\n");
            text.push_str(&yaml::to_string(&outcome.faults)?);
        }
    }
    Ok(text)
}

fn requests(outcomes: &[Outcome]) -> String {
    if outcomes.iter().all(|outcome| outcome.demand.is_empty()) {
        return String::new();
    }
    let mut table = Table::new([
        "POLICY",
        "DEPLOYMENT",
        "REQUESTS",
        "ANSWERED",
        "DROPPED",
        "SLO",
        "TTFT P50/P95/P99",
        "TOK/S P10/P50",
        "TOK/S OF ALL",
    ]);
    for outcome in outcomes {
        for demand in &outcome.demand {
            table.add_row(request_row(&outcome.policy, demand));
        }
    }
    format!("{table}\n\n")
}

fn request_row(policy: &str, demand: &DemandOutcome) -> Vec<String> {
    let dropped: Vec<_> = demand
        .dropped
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    let first = demand.first_token_seconds.map_or("-".to_owned(), |first| {
        format!("{} / {} / {} s", first.p50, first.p95, first.p99)
    });
    let rate = demand
        .tokens_per_second
        .map_or("-".to_owned(), |rate| format!("{} / {}", rate.p10, rate.p50));
    vec![
        policy.to_owned(),
        demand.deployment.clone(),
        demand.requests.to_string(),
        demand.answered.to_string(),
        if dropped.is_empty() {
            "0".to_owned()
        } else {
            dropped.join(", ")
        },
        format!("{:.2} %", demand.slo_percent),
        first,
        rate,
        format!("{:.0}", demand.total_tokens_per_second),
    ]
}

fn deployments(outcomes: &[Outcome]) -> String {
    let mut table = Table::new([
        "POLICY",
        "DEPLOYMENT",
        "AVAILABLE",
        "READY (MEAN)",
        "READY AT END",
        "FIRST READY",
    ]);
    for outcome in outcomes {
        for deployment in &outcome.deployments {
            table.add_row(vec![
                outcome.policy.clone(),
                deployment.name.clone(),
                format!("{:.3} %", deployment.available_percent),
                format!("{:.2}", deployment.mean_ready),
                deployment.ready_at_end.to_string(),
                deployment
                    .first_ready_seconds
                    .map_or("never".to_owned(), |seconds| format!("{seconds} s")),
            ]);
        }
    }
    format!("{table}\n\n")
}

/// Changes of the desired replica count over time.
fn scaled(outcomes: &[Outcome]) -> String {
    let mut table = Table::new(["POLICY", "DEPLOYMENT", "REPLICAS WANTED"]);
    for outcome in outcomes {
        let scaled = outcome
            .deployments
            .iter()
            .filter(|deployment| !deployment.scaled.is_empty());
        for deployment in scaled {
            let changes = deployment.scaled.iter().take(MOST_CHANGES);
            let mut listed: Vec<_> = changes
                .map(|change| format!("{} from {}", change.replicas, format_duration(change.at)))
                .collect();
            if let Some(more) = deployment
                .scaled
                .len()
                .checked_sub(MOST_CHANGES)
                .filter(|more| *more > 0)
            {
                listed.push(format!("{more} more changes"));
            }
            table.add_row(vec![
                outcome.policy.clone(),
                deployment.name.clone(),
                listed.join(", "),
            ]);
        }
    }
    if table.is_empty() {
        return String::new();
    }
    format!("{table}\n\n")
}

fn control(outcomes: &[Outcome]) -> String {
    let mut table = Table::new([
        "POLICY",
        "PLACEMENTS",
        "MOVES",
        "WORKER STARTS",
        "FAULTS",
        "WRITES",
        "PASSES",
        "EVENTS",
    ]);
    for outcome in outcomes {
        let control = &outcome.control;
        table.add_row(vec![
            outcome.policy.clone(),
            control.placements.to_string(),
            control.moves.to_string(),
            control.worker_starts.to_string(),
            outcome.faults.len().to_string(),
            control.writes.to_string(),
            control.passes.to_string(),
            control.events.to_string(),
        ]);
    }
    format!("{table}\n")
}

/// Decisions on API keys and certificates.
fn access(outcomes: &[Outcome]) -> String {
    let mut table = Table::new([
        "POLICY",
        "ADMITTED",
        "REFUSED",
        "HANDSHAKES",
        "INTRUSIONS",
        "RENEWALS",
        "ROTATIONS",
        "REVOKED",
        "JOINED AGAIN",
        "GATEWAY RESTARTS",
    ]);
    for outcome in outcomes {
        let Some(access) = &outcome.access else { continue };
        let refused = access
            .refused
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"));
        table.add_row(vec![
            outcome.policy.clone(),
            access.admitted.to_string(),
            refused.collect::<Vec<_>>().join(", "),
            access.handshakes.to_string(),
            access.intrusions.to_string(),
            access.renewals.to_string(),
            access.rotations.to_string(),
            access.revocations.to_string(),
            access.rejoined.to_string(),
            access.gateway_restarts.to_string(),
        ]);
    }
    match table.is_empty() {
        true => String::new(),
        false => format!("\n{table}\n"),
    }
}
