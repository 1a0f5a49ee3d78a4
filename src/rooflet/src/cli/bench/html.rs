//! The outcome as one HTML file: times to the first token over the length of prompts, and all figures.

use jiff::Timestamp;

use super::table::{few_rounds, label, notes};
use super::{Cell, Report};
use crate::benchmark::{CellReport, Metric};
use crate::cli::ui::html;
use crate::cli::ui::html::{Anchor, Drawing, escaped};

const STYLE: &str = include_str!("../ui/html.css");
/// Nothing may be loaded, whatever a name says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 40.0;

pub(super) fn report(report: &Report, now: Timestamp) -> String {
    let names: Vec<String> = report.targets.iter().map(|target| target.name.clone()).collect();
    let title = format!("Benchmark of {}", names.join(" and "));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <div class=\"eyebrow\"><span>{machine}, {date}, rooflet {version}</span></div>\n<h1>{title}</h1>\n",
        title = escaped(&title),
        machine = escaped(&report.machine),
        date = now.strftime("%-d %B %Y"),
        version = report.rooflet,
    );
    for (metric, heading) in [
        (
            Metric::TimeToFirstTokenSeconds,
            "Time to the first token, seconds",
        ),
        (
            Metric::DecodeTokensPerSecond,
            "Decoding, tokens per second and stream",
        ),
        (
            Metric::ThroughputTokensPerSecond,
            "Throughput of all streams, tokens per second",
        ),
    ] {
        let plot = plot(report, metric, heading);
        if !plot.is_empty() {
            out += &format!("<h2>{heading}</h2>\n{plot}");
        }
    }
    let few = few_rounds(report).unwrap_or_default();
    out += &format!(
        "<h2>All figures</h2>\n<p class=\"note\">Medians with their 95 % confidence intervals. {few}</p>\n"
    );
    out += &figures(report);
    let notes = notes(report);
    if !notes.is_empty() {
        let lines: Vec<String> = notes
            .lines()
            .map(|line| format!("<li>{}</li>", escaped(line)))
            .collect();
        out += &format!(
            "<h2>What speaks against figures</h2>\n<ul>\n{}\n</ul>\n",
            lines.join("\n")
        );
    }
    out + "</main>\n</body>\n</html>\n"
}

/// One line of a plot: a target in a state at a concurrency.
struct Line {
    name: String,
    /// Tokens of the prompt, and the figure.
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

/// Both axes logarithmic: prompts and times span orders of magnitude.
fn plot(report: &Report, metric: Metric, heading: &str) -> String {
    let lines = lines(report, metric);
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let positive = all().filter(|(_, value)| *value > 0.0).count();
    if positive == 0 {
        return String::new();
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
        "tokens of the prompt",
    );
    for (at, line) in lines.iter().enumerate() {
        let class = format!("m{}", at % 8);
        for pair in line.points.windows(2) {
            drawing.line(&class, (x(pair[0].0), y(pair[0].1)), (x(pair[1].0), y(pair[1].1)));
        }
        for (context, value) in &line.points {
            let told = format!("{}: {value:.4} at {context} tokens", line.name);
            drawing.dot(&class, (x(*context), y(*value)), &told);
        }
    }
    let names: Vec<String> = lines
        .iter()
        .enumerate()
        .map(|(at, line)| {
            format!(
                "<span><i class=\"m{}\"></i>{}</span>",
                at % 8,
                escaped(&line.name)
            )
        })
        .collect();
    let plot = drawing.finish(heading);
    format!("<div class=\"legend\">{}</div>\n{plot}", names.concat())
}

/// 1, 2 and 5 times powers of ten within a range.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    decades
        .flat_map(|decade| [1, 2, 5].map(|digit| format!("{digit}e{decade}")))
        .filter_map(|text| text.parse().ok())
        .filter(|value| (low..=high).contains(value))
        .collect()
}

fn figures(report: &Report) -> String {
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
                html::Cell::text(format!("{}", cell.cell.context_tokens)),
                html::Cell::text(line_name(report, &cell.cell, at)),
                html::Cell::text(if cell.cell.streaming { "stream" } else { "whole" }),
                html::Cell::figure(shown(cell, at, Metric::TimeToFirstTokenSeconds, 4)),
                html::Cell::figure(shown(cell, at, Metric::DecodeTokensPerSecond, 1)),
                html::Cell::figure(shown(cell, at, Metric::ThroughputTokensPerSecond, 1)),
                html::Cell::figure(shown(cell, at, Metric::TotalSeconds, 3)),
            ]
        })
    });
    html::table(
        &[
            "prompt, tokens",
            "target, cache × at a time",
            "answer",
            "#first token, s",
            "#decode, tokens/s",
            "#throughput, tokens/s",
            "#whole answer, s",
        ],
        rows,
    )
}
