//! Comparison of policies over several seeds: the median, with minimum and maximum in parentheses.

use crate::cli::ui::Table;
use rooflet_base::quantile::{median, sorted};
use rooflet_simulation::{Outcome, format_duration};

/// Returns one row per policy, in order of first appearance.
pub(super) fn text(outcomes: &[Outcome]) -> String {
    let Some(first) = outcomes.first() else {
        return String::new();
    };
    let mut policies: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !policies.contains(&outcome.policy.as_str()) {
            policies.push(&outcome.policy);
        }
    }
    let seeds = outcomes.len() / policies.len().max(1);
    let mut table = Table::new([
        "POLICY",
        "WITHIN SLO",
        "WORST DEPLOYMENT",
        "NOT ANSWERED",
        "TOK/S",
        "TOK/S WITHIN SLO",
        "REPLICAS (MEAN)",
    ]);
    for policy in policies {
        let runs: Vec<_> = outcomes
            .iter()
            .filter(|outcome| outcome.policy == policy)
            .collect();
        let spread = |digits: usize, of: &dyn Fn(&Outcome) -> f64| {
            let values = sorted(runs.iter().map(|run| of(run)));
            let (least, most) = (values[0], values[values.len() - 1]);
            let middle = median(values).unwrap_or_default();
            format!("{middle:.digits$} ({least:.digits$}-{most:.digits$})")
        };
        table.add_row(vec![
            policy.to_owned(),
            spread(1, &within_slo) + " %",
            spread(1, &worst) + " %",
            spread(1, &not_answered) + " %",
            spread(0, &|run| {
                run.demand
                    .iter()
                    .map(|demand| demand.total_tokens_per_second)
                    .sum()
            }),
            spread(0, &|run| {
                run.demand
                    .iter()
                    .map(|demand| demand.promised_tokens_per_second)
                    .sum()
            }),
            spread(1, &|run| {
                run.deployments
                    .iter()
                    .map(|deployment| deployment.mean_ready)
                    .sum()
            }),
        ]);
    }
    format!(
        "{} on {} simulated Macs, {seeds} seeds from {}. Speeds are predicted from data sheets; nothing was measured.\n\n{table}\n",
        format_duration(first.duration),
        first.nodes,
        first.seed,
    )
}

/// Returns the percentage of completed requests of all deployments that met their objectives.
fn within_slo(run: &Outcome) -> f64 {
    let good: u64 = run.demand.iter().map(|demand| demand.as_promised).sum();
    percent(good, ended(run))
}

fn worst(run: &Outcome) -> f64 {
    run.demand
        .iter()
        .map(|demand| demand.slo_percent)
        .fold(100.0, f64::min)
}

fn not_answered(run: &Outcome) -> f64 {
    let answered: u64 = run.demand.iter().map(|demand| demand.answered).sum();
    100.0 - percent(answered, ended(run))
}

fn ended(run: &Outcome) -> u64 {
    let ended = run
        .demand
        .iter()
        .map(|demand| demand.answered + demand.dropped.values().sum::<u64>());
    ended.sum()
}

fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 100.0,
        whole => 100.0 * part as f64 / whole as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_simulation::{RunOptions, Scenario, simulate};

    const SCENARIO: &str = "
duration: 10m
fleet: {macs: [{name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}]}
models: [{name: small, model: qwen3-4b, quantization: mlx4}]
deployments: [{name: chat, spec: {replicas: 2, model: {source: 'local://small'}, serving: {contextTokens: 2048}}}]
demand: [{deployment: chat, requestsPerSecond: 0.05, promptTokens: 200, answerTokens: 100, from: 1m}]
";

    #[test]
    fn each_policy_has_one_row_for_any_number_of_seeds() {
        let scenario = Scenario::parse(SCENARIO).expect("a valid scenario");
        let mut outcomes = Vec::new();
        for policy in ["default", "best-fit+random"] {
            for seed in 3..6 {
                let policy = policy.parse().expect("a valid policy");
                let options = RunOptions::new(seed, policy);
                outcomes.push(simulate(&scenario, &options).expect("it runs"));
            }
        }
        let text = text(&outcomes);
        assert!(
            text.starts_with("10m on 2 simulated Macs, 3 seeds from 3. "),
            "{text}"
        );
        let rows: Vec<_> = text.lines().skip(3).collect();
        assert_eq!(rows.len(), 2, "{text}");
        for (row, policy) in rows.into_iter().zip(["default", "best-fit+random"]) {
            assert_eq!(row.split_whitespace().next(), Some(policy), "{text}");
            assert!(row.contains("100.0 (100.0-100.0) %"), "{text}");
            assert!(row.ends_with("2.0 (2.0-2.0)"), "{text}");
        }
    }
}
