//! Benchmark report as one HTML file: times over prompt length, and all figures.

use jiff::Timestamp;
use maud::{Markup, html};

use super::table::{few_rounds, label, notes};
use super::{Cell, Report};
use crate::cli::ui::digits::number;
use crate::cli::ui::html as ui;
use crate::cli::ui::html::{Anchor, Drawing, page, table};
use rooflet_benchmark::{CellReport, Metric};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 40.0;

const PLOTS: [(Metric, &str); 3] = [
    (Metric::TimeToFirstTokenSeconds, "Time to first token, seconds"),
    (
        Metric::DecodeTokensPerSecond,
        "Decode speed, tokens per second and stream",
    ),
    (
        Metric::ThroughputTokensPerSecond,
        "Throughput of all streams, tokens per second",
    ),
];

pub(super) fn report(report: &Report, now: Timestamp) -> String {
    let names: Vec<&str> = report.targets.iter().map(|target| target.name.as_str()).collect();
    let title = format!("Benchmark of {}", names.join(" and "));
    let notes = notes(report);
    let body = html! {
        div class="eyebrow" {
            span { (report.machine) ", " (now.strftime("%-d %B %Y").to_string()) ", rooflet " (report.rooflet) }
        }
        h1 { (title) }
        @for (metric, heading) in PLOTS {
            @if let Some(plot) = plot(report, metric, heading) {
                h2 { (heading) }
                (plot)
            }
        }
        h2 { "All figures" }
        p class="note" {
            "Medians with their 95 % confidence intervals. " (few_rounds(report).unwrap_or_default())
        }
        (figures(report))
        @if !notes.is_empty() {
            h2 { "Limitations" }
            ul { @for line in notes.lines() { li { (line) } } }
        }
    };
    page(&title, body)
}

/// Line of a plot: one target in one cache state at one concurrency.
struct Line {
    name: String,
    /// Prompt length in tokens, and the figure.
    points: Vec<(f64, f64)>,
}

fn lines(report: &Report, metric: Metric) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for cell in report.cells.iter().filter(|cell| cell.cell.streaming) {
        for (at, figures) in cell.targets.iter().enumerate() {
            let Some(quantiles) = figures.metrics.get(&metric) else {
                continue;
            };
            let name = line_name(report, &cell.cell, at);
            let point = (f64::from(cell.cell.context_tokens), quantiles.median.value);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name,
                    points: vec![point],
                }),
            }
        }
    }
    lines
}

fn line_name(report: &Report, cell: &Cell, at: usize) -> String {
    let target = if report.targets.len() > 1 {
        format!("{} ", label(report, at))
    } else {
        String::new()
    };
    format!("{target}{} × {}", cell.state, cell.concurrency)
}

/// Returns a plot with two logarithmic axes, because prompts and times span orders of magnitude.
/// `None` if there is no figure.
fn plot(report: &Report, metric: Metric, heading: &str) -> Option<Markup> {
    let lines = lines(report, metric);
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let positive = all().filter(|(_, value)| *value > 0.0).count();
    if positive == 0 {
        return None;
    }
    let bounds = |of: fn((f64, f64)) -> f64| {
        let values = all().map(of);
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        (low / 1.3, high * 1.3)
    };
    let (x_range, y_range) = (bounds(|(x, _)| x), bounds(|(_, y)| y));
    let place = |value: f64, (low, high): (f64, f64)| (value / low).ln() / (high / low).ln();
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * place(value, x_range);
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * place(value, y_range);
    let mut drawing = Drawing::new(WIDTH, HEIGHT);
    for value in ticks(y_range) {
        drawing.line("grid", (LEFT, y(value)), (WIDTH - RIGHT, y(value)));
        drawing.text(
            "soft",
            (LEFT - 8.0, y(value) + 4.0),
            Anchor::End,
            &format!("{value}"),
        );
    }
    let mut contexts: Vec<f64> = all().map(|(context, _)| context).collect();
    contexts.sort_by(f64::total_cmp);
    contexts.dedup();
    for context in contexts {
        drawing.text(
            "soft",
            (x(context), HEIGHT - BOTTOM + 18.0),
            Anchor::Middle,
            &format!("{context}"),
        );
    }
    drawing.text(
        "soft",
        (f64::midpoint(LEFT, WIDTH - RIGHT), HEIGHT - 4.0),
        Anchor::Middle,
        "prompt length, tokens",
    );
    let is_single = lines.iter().all(|line| line.points.len() == 1);
    for (at, line) in lines.iter().enumerate() {
        let class = format!("m{}", at % 8);
        if let (true, Some((context, value))) = (is_single, line.points.first()) {
            // A single dot has no line that the legend could explain.
            let label = format!("{}: {}", line.name, number(*value));
            drawing.text(
                "soft",
                (x(*context) + 10.0, y(*value) + 4.0),
                Anchor::Start,
                &label,
            );
        }
        for pair in line.points.windows(2) {
            drawing.line(&class, (x(pair[0].0), y(pair[0].1)), (x(pair[1].0), y(pair[1].1)));
        }
        for (context, value) in &line.points {
            let tooltip = format!("{}: {value:.4} at {context} tokens", line.name);
            drawing.dot(&class, (x(*context), y(*value)), &tooltip);
        }
    }
    Some(html! {
        div class="legend" {
            @for (at, line) in lines.iter().enumerate() {
                span { i class={ "m" (at % 8) } {} (line.name) }
            }
        }
        (drawing.finish(heading))
    })
}

/// Minimum number of ticks of an axis.
const LEAST_TICKS: usize = 3;

/// Returns the multiples 1, 2 and 5 of powers of ten within a range. If the range contains too few,
/// as for a single figure, returns finer steps.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let decades = || low.log10().floor() as i32..=high.log10().ceil() as i32;
    let steps = |digits: &[u32], shift: i32| -> Vec<f64> {
        decades()
            .flat_map(|decade| {
                digits
                    .iter()
                    .map(move |digit| format!("{digit}e{}", decade - shift))
            })
            .filter_map(|text| text.parse().ok())
            .filter(|value| (low..=high).contains(value))
            .collect()
    };
    let fifths: Vec<u32> = (10..100).step_by(5).collect();
    let tenths: Vec<u32> = (10..100).collect();
    let choices: [(&[u32], i32); 4] = [
        (&[1, 2, 5], 0),
        (&[1, 2, 3, 4, 5, 6, 7, 8, 9], 0),
        (&fifths, 1),
        (&tenths, 1),
    ];
    let all = choices.map(|(digits, shift)| steps(digits, shift));
    let enough = all.iter().find(|ticks| ticks.len() >= LEAST_TICKS);
    enough.or(all.last()).cloned().unwrap_or_default()
}

fn figures(report: &Report) -> Markup {
    let shown = |cell: &CellReport, at: usize, metric, digits: usize| {
        cell.targets[at]
            .metrics
            .get(&metric)
            .map_or("-".to_owned(), |quantiles| {
                let median = quantiles.median;
                format!(
                    "{:.digits$} ({:.digits$}–{:.digits$})",
                    median.value, median.low, median.high
                )
            })
    };
    let rows = report.cells.iter().flat_map(|cell| {
        (0..cell.targets.len()).map(move |at| {
            vec![
                ui::Cell::text(format!("{}", cell.cell.context_tokens)),
                ui::Cell::text(line_name(report, &cell.cell, at)),
                ui::Cell::text(if cell.cell.streaming { "stream" } else { "whole" }),
                ui::Cell::figure(shown(cell, at, Metric::TimeToFirstTokenSeconds, 4)),
                ui::Cell::figure(shown(cell, at, Metric::DecodeTokensPerSecond, 1)),
                ui::Cell::figure(shown(cell, at, Metric::ThroughputTokensPerSecond, 1)),
                ui::Cell::figure(shown(cell, at, Metric::TotalSeconds, 3)),
            ]
        })
    });
    table(
        &[
            "prompt, tokens",
            "target, cache × concurrency",
            "answer",
            "#first token, s",
            "#decode, tokens/s",
            "#throughput, tokens/s",
            "#whole answer, s",
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_benchmark::{Estimate, Matrix, PromptState, Quantiles, TargetFigures};

    /// Returns a report of one target with one figure per prompt length.
    fn report_of(contexts: &[u32]) -> Report {
        let cells = contexts.iter().map(|context| {
            let median = Estimate {
                value: 27.0,
                low: 26.0,
                high: 28.0,
            };
            let quantiles = Quantiles {
                median,
                p95: median,
                p99: median,
                samples: 1,
                rounds: 1,
            };
            CellReport {
                cell: Cell {
                    context_tokens: *context,
                    state: PromptState::Cold,
                    concurrency: 1,
                    streaming: true,
                },
                targets: vec![TargetFigures {
                    prompt_tokens: None,
                    cached_tokens: None,
                    metrics: [(Metric::DecodeTokensPerSecond, quantiles)].into(),
                    taints: [].into(),
                    failures: Vec::new(),
                    samples: Vec::new(),
                }],
                ratios: [].into(),
            }
        });
        Report {
            rooflet: "0",
            machine: "m".to_owned(),
            targets: Vec::new(),
            cells: cells.collect(),
            matrix: Matrix::cache_study(),
        }
    }

    /// Returns the numbers of labels and of tooltips in a plot.
    fn labels(contexts: &[u32]) -> (usize, usize) {
        let plot = plot(&report_of(contexts), Metric::DecodeTokensPerSecond, "h");
        let plot = plot.expect("a plot").into_string();
        // The title of the axis also ends with this word.
        let tooltips = plot.matches(" tokens<").count() - 1;
        (plot.matches(">cold × 1: 27").count() - tooltips, tooltips)
    }

    #[test]
    fn single_context_has_a_label_with_its_figure() {
        assert_eq!(labels(&[128]), (1, 1));
        assert_eq!(labels(&[128, 1024]), (0, 2));
    }

    #[test]
    fn narrow_ranges_have_ticks() {
        assert_eq!(ticks((0.8, 12.0)), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(ticks((2.1, 5.5)), [3.0, 4.0, 5.0]);
        // A single figure of 27 tokens/s, with the margins of an axis.
        assert_eq!(ticks((27.0 / 1.3, 27.0 * 1.3)), [25.0, 30.0, 35.0]);
        for figure in [0.0031, 0.7, 1.0, 3.9, 62.0, 740.0, 9_999.0] {
            let found = ticks((figure / 1.3, figure * 1.3));
            assert!((LEAST_TICKS..=12).contains(&found.len()), "{figure}: {found:?}");
        }
    }
}
