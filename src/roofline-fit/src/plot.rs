//! SVG plots of the errors. Every point is predicted with its chip held out.

use std::fmt::Write;

use super::rows::Measurement;
use super::validate::{HeldOut, Prediction, Validation};
use rooflet_base::quantile::median;
use rooflet_roofline::predict::Engine;
use rooflet_roofline::predict::spread::{Familiarity, Stratum};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 440.0;
/// Margins for labels around the plot area.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 46.0;

/// Returns blue or orange of Okabe and Ito's palette, which colour-blind readers can distinguish.
fn colour(engine: Engine) -> &'static str {
    match engine {
        Engine::Mlx => "#0072b2",
        Engine::LlamaCpp => "#e69f00",
    }
}

/// Returns all plots by file name.
pub(super) fn all(rows: &[Measurement], validation: &Validation) -> Vec<(String, String)> {
    let chips: Vec<&Prediction> = validation
        .predictions
        .iter()
        .filter(|prediction| prediction.held_out == HeldOut::Chip && prediction.stratum != Stratum::Batched)
        .filter(|prediction| prediction.decode_error.is_some())
        .collect();
    vec![
        ("predicted.svg".to_owned(), predicted(rows, &chips)),
        ("chips.svg".to_owned(), by_chip(rows, &chips)),
        ("coverage.svg".to_owned(), coverage(validation)),
    ]
}

/// SVG document to which elements are added. Writing to a string cannot fail.
struct Drawing {
    body: String,
}

impl Drawing {
    fn new(title: &str) -> Self {
        let mut drawing = Self {
            body: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
                 font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#333\">\n\
                 <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
            ),
        };
        drawing.text(LEFT, 22.0, "start", title);
        drawing
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {style}/>",
            from.0, from.1, to.0, to.1
        );
    }

    fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        let _ = writeln!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\" fill-opacity=\"0.55\"/>"
        );
    }

    fn engines(&mut self) {
        for (index, engine) in [Engine::Mlx, Engine::LlamaCpp].into_iter().enumerate() {
            let x = WIDTH - RIGHT - 150.0 + 70.0 * index as f64;
            self.dot((x, 18.0), colour(engine));
            self.text(x + 8.0, 22.0, "start", engine.as_str());
        }
    }

    fn end(mut self) -> String {
        self.body.push_str("</svg>\n");
        self.body
    }
}

const GRID: &str = "stroke=\"#ddd\"";
const AXIS: &str = "stroke=\"#555\"";

/// Maps `value` linearly from `from..to` to `start..end`.
fn scale(value: f64, (from, to): (f64, f64), (start, end): (f64, f64)) -> f64 {
    start + (value.clamp(from, to) - from) / (to - from) * (end - start)
}

fn predicted(rows: &[Measurement], predictions: &[&Prediction]) -> String {
    let mut drawing = Drawing::new("Decode, tokens/s, each chip held out once");
    drawing.engines();
    let range = (3f64.ln(), 600f64.ln());
    let place = |measured: f64, predicted: f64| {
        (
            scale(measured.ln(), range, (LEFT, WIDTH - RIGHT)),
            scale(predicted.ln(), range, (HEIGHT - BOTTOM, TOP)),
        )
    };
    for tick in [3.0, 10.0, 30.0, 100.0, 300.0, 600.0] {
        drawing.line(place(tick, 3.0), place(tick, 600.0), GRID);
        drawing.line(place(3.0, tick), place(600.0, tick), GRID);
        let (x, y) = place(tick, tick);
        drawing.text(x, HEIGHT - BOTTOM + 16.0, "middle", &format!("{tick}"));
        drawing.text(LEFT - 8.0, y + 4.0, "end", &format!("{tick}"));
    }
    drawing.line(place(3.0, 3.0), place(600.0, 600.0), AXIS);
    drawing.text((LEFT + WIDTH) / 2.0, HEIGHT - 10.0, "middle", "measured");
    drawing.text(LEFT - 44.0, HEIGHT / 2.0, "end", "predicted");
    for prediction in predictions {
        let row = &rows[prediction.row];
        if let (Some(seconds), Some(error)) = (row.step_seconds(), prediction.decode_excess()) {
            let measured = seconds.recip();
            drawing.dot(
                place(measured, measured * error.exp()),
                colour(row.case.build.engine),
            );
        }
    }
    drawing.end()
}

fn by_chip(rows: &[Measurement], predictions: &[&Prediction]) -> String {
    let mut drawing = Drawing::new("Decode: error by chip, that chip held out");
    drawing.engines();
    let mut chips: Vec<&str> = predictions
        .iter()
        .map(|prediction| prediction.fold.as_str())
        .collect();
    chips.sort_unstable();
    chips.dedup();
    let range = (-0.5, 0.5);
    let x = |error: f64| scale(error, range, (LEFT, WIDTH - RIGHT));
    let y = |index: usize| TOP + (index as f64 + 0.5) * (HEIGHT - BOTTOM - TOP) / chips.len().max(1) as f64;
    for tick in [-0.4, -0.2, 0.0, 0.2, 0.4] {
        let style = if tick == 0.0 { AXIS } else { GRID };
        drawing.line((x(tick), TOP), (x(tick), HEIGHT - BOTTOM), style);
        drawing.text(
            x(tick),
            HEIGHT - BOTTOM + 16.0,
            "middle",
            &format!("{:+.0} %", tick * 100.0),
        );
    }
    drawing.text(
        (LEFT + WIDTH) / 2.0,
        HEIGHT - 10.0,
        "middle",
        "predicted / measured − 1",
    );
    for (index, chip) in chips.iter().enumerate() {
        let of_chip: Vec<_> = predictions
            .iter()
            .filter(|prediction| prediction.fold == *chip)
            .collect();
        drawing.text(
            LEFT - 8.0,
            y(index) + 4.0,
            "end",
            &format!("{chip} ({})", of_chip.len()),
        );
        for prediction in &of_chip {
            let error = prediction.decode_excess().map_or(0.0, f64::exp_m1);
            drawing.dot(
                (x(error), y(index)),
                colour(rows[prediction.row].case.build.engine),
            );
        }
        if let Some(median) = median(of_chip.iter().filter_map(|prediction| prediction.decode_excess())) {
            let at = x(median.exp_m1());
            drawing.line(
                (at, y(index) - 7.0),
                (at, y(index) + 7.0),
                "stroke=\"#000\" stroke-width=\"2\"",
            );
        }
    }
    drawing.end()
}

fn coverage(validation: &Validation) -> String {
    let mut drawing = Drawing::new("Share of held-out rows inside p10–p90 (target: 80 %)");
    let x = |share: f64| scale(share, (0.0, 1.0), (LEFT + 150.0, WIDTH - RIGHT - 20.0));
    let mut bars: Vec<(String, f64)> = Vec::new();
    for stratum in Stratum::ALL {
        for familiarity in Familiarity::ALL {
            let (inside, all) = validation.coverage(familiarity, stratum);
            if all > 0 {
                let label = format!("{}, {} ({all})", stratum.as_str(), familiarity.as_str());
                bars.push((label, inside as f64 / all as f64));
            }
        }
    }
    for familiarity in Familiarity::ALL {
        let (inside, all) = validation.prefill_coverage(familiarity, false);
        if all > 0 {
            let label = format!("first token, {} ({all})", familiarity.as_str());
            bars.push((label, inside as f64 / all as f64));
        }
    }
    let step = (HEIGHT - BOTTOM - TOP) / bars.len().max(1) as f64;
    for (index, (label, share)) in bars.iter().enumerate() {
        let y = TOP + (index as f64 + 0.5) * step;
        drawing.text(LEFT + 142.0, y + 4.0, "end", label);
        let style = format!("stroke=\"#0072b2\" stroke-width=\"{:.1}\"", step * 0.6);
        drawing.line((x(0.0), y), (x(*share), y), &style);
    }
    drawing.line((x(0.8), TOP), (x(0.8), HEIGHT - BOTTOM), AXIS);
    for tick in [0.0, 0.2, 0.4, 0.6, 0.8, 1.0] {
        drawing.text(
            x(tick),
            HEIGHT - BOTTOM + 16.0,
            "middle",
            &format!("{:.0} %", tick * 100.0),
        );
    }
    drawing.end()
}
