//! Benchmark results as Markdown tables for a terminal.

use super::{Report, counted};
use rooflet_benchmark::{CellReport, LEAST_ROUNDS, Metric, TargetFigures};

/// Significance level: a ratio counts as a difference below this probability.
const SIGNIFICANT: f64 = 0.05;

pub(super) fn table(report: &Report) -> String {
    let mut out = "| prompt, tokens | cache | concurrency | target | first token, ms | decode, tokens/s | throughput, tokens/s \
                   | whole answer, s |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for cell in &report.cells {
        for (at, figures) in cell.targets.iter().enumerate() {
            out += &row(report, cell, figures, at);
        }
        if !cell.ratios.is_empty() {
            out += &ratios(cell);
        }
    }
    out += "\nMedian (95 % confidence interval), then p95 and p99 if there are enough samples.\n";
    if let Some(few) = few_rounds(report) {
        out += &format!("{few}\n");
    }
    let notes = notes(report);
    if !notes.is_empty() {
        out += &format!("\n{notes}");
    }
    out
}

/// Returns a note about intervals if there were too few rounds for a confidence interval.
pub(super) fn few_rounds(report: &Report) -> Option<String> {
    let figures = report.cells.iter().flat_map(|cell| &cell.targets);
    let mut quantiles = figures.flat_map(|target| target.metrics.values());
    quantiles
        .any(|quantiles| quantiles.rounds < LEAST_ROUNDS)
        .then(|| {
            format!(
                "With fewer than {LEAST_ROUNDS} rounds, parentheses contain the smallest and the largest answer, not a 95 % interval."
            )
        })
}

fn row(report: &Report, cell: &CellReport, figures: &TargetFigures, at: usize) -> String {
    let prompt = figures.prompt_tokens.unwrap_or(cell.cell.context_tokens.into());
    let streamed = if cell.cell.streaming { "" } else { ", whole" };
    let marks = if figures.taints.is_empty() && figures.failures.is_empty() {
        ""
    } else {
        " !"
    };
    let column = |metric, factor, digits| shown(figures, metric, factor, digits);
    format!(
        "| {prompt} | {}{streamed} | {} | {}{marks} | {} | {} | {} | {} |\n",
        cell.cell.state,
        cell.cell.concurrency,
        label(report, at),
        column(Metric::TimeToFirstTokenSeconds, 1e3, 1),
        column(Metric::DecodeTokensPerSecond, 1.0, 1),
        column(Metric::ThroughputTokensPerSecond, 1.0, 1),
        column(Metric::TotalSeconds, 1.0, 2),
    )
}

/// Returns the label of a target: the model's name, or `A` and `B` for two targets.
pub(super) fn label(report: &Report, at: usize) -> String {
    match (report.targets.len(), at) {
        (1, _) => report.targets[0].model.clone(),
        (_, 0) => "A".to_owned(),
        (_, _) => "B".to_owned(),
    }
}

fn shown(figures: &TargetFigures, metric: Metric, factor: f64, digits: usize) -> String {
    let Some(quantiles) = figures.metrics.get(&metric) else {
        return "-".to_owned();
    };
    let number = |value: f64| format!("{:.digits$}", value * factor);
    let median = quantiles.median;
    let mut text = format!(
        "{} ({}-{})",
        number(median.value),
        number(median.low),
        number(median.high)
    );
    // With fewer samples, the quantile equals the largest value.
    if quantiles.samples >= 20 {
        text += &format!(", {}", number(quantiles.p95.value));
    }
    if quantiles.samples >= 100 {
        text += &format!(", {}", number(quantiles.p99.value));
    }
    text
}

fn ratios(cell: &CellReport) -> String {
    let column = |metric: Metric| {
        cell.ratios.get(&metric).map_or("-".to_owned(), |ratio| {
            let better = (ratio.of.value > 1.0) == metric.more_is_better();
            let verdict = match (ratio.p < SIGNIFICANT, better) {
                (false, _) if ratio.rounds < LEAST_ROUNDS => "too few rounds for a difference",
                (false, _) => "no significant difference",
                (true, true) => "B is better",
                (true, false) => "A is better",
            };
            format!(
                "{:.3} ({:.3}-{:.3}), p {:.3}: {verdict}",
                ratio.of.value, ratio.of.low, ratio.of.high, ratio.p
            )
        })
    };
    format!(
        "| | | | B / A | {} | {} | {} | {} |\n",
        column(Metric::TimeToFirstTokenSeconds),
        column(Metric::DecodeTokensPerSecond),
        column(Metric::ThroughputTokensPerSecond),
        column(Metric::TotalSeconds),
    )
}

/// Taints and failures, one line per cell and target.
pub(super) fn notes(report: &Report) -> String {
    let mut out = String::new();
    if let [first, second] = &report.targets[..] {
        out += &format!("A = {}, B = {}\n", first.name, second.name);
    }
    for cell in &report.cells {
        for (at, figures) in cell.targets.iter().enumerate() {
            let place = format!(
                "{} tokens, {}, {} at a time, {}",
                cell.cell.context_tokens,
                cell.cell.state,
                cell.cell.concurrency,
                label(report, at)
            );
            for (taint, count) in &figures.taints {
                out += &format!(
                    "! {place}: {} ({count} of {})\n",
                    taint.description(),
                    figures.samples.len()
                );
            }
            if let Some(failure) = figures.failures.first() {
                out += &format!(
                    "! {place}: {} failed: {failure}\n",
                    counted(figures.failures.len(), "request")
                );
            }
        }
    }
    out
}
