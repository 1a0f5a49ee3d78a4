//! Report of the errors in Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::rows::Measurement;
use super::validate::{HeldOut, Prediction, Validation};
use rooflet_base::quantile::{median, quantile, sorted};
use rooflet_roofline::cases::ReportedRate;
use rooflet_roofline::predict::spread::{ByFamiliarity, Familiarity, Stratum};

/// Number of bootstrap samples for a confidence interval.
const RESAMPLES: usize = 400;
/// Share of bandwidth in the rule of thumb.
const THUMB_SHARE: f64 = 0.70;
/// Contexts within the same step of this many tokens are compared.
const FLOOR_CONTEXT_TOKENS: u32 = 400;

pub(super) fn write(rows: &[Measurement], validation: &Validation) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = tables(&mut page, rows, validation);
    page
}

/// Prediction method with its error on a row.
type Method<'a> = (&'a str, Box<dyn Fn(&Prediction) -> Option<f64> + 'a>);

fn tables(page: &mut String, rows: &[Measurement], validation: &Validation) -> std::fmt::Result {
    let measured = |row: &Measurement| row.step_seconds().map(f64::recip);
    let naive = |row: &Measurement, bytes: f64, share: f64| {
        measured(row).map(|rate| (row.chip().bandwidth.0 * share / bytes / rate).ln())
    };
    let methods: [Method; 3] = [
        ("this predictor", Box::new(|prediction| prediction.decode_error)),
        (
            "0.70 × BW ÷ active bytes",
            Box::new(move |prediction| {
                let row = &rows[prediction.row];
                naive(row, row.step.dense + row.step.experts, THUMB_SHARE)
            }),
        ),
        (
            "BW ÷ file size",
            Box::new(move |prediction| {
                naive(&rows[prediction.row], rows[prediction.row].prefill.resident, 1.0)
            }),
        ),
    ];

    writeln!(page, "### Decode, batch 1\n")?;
    writeln!(
        page,
        "| held out | subset | method | rows | median \\|error\\| (90 % CI) | p90 (90 % CI) |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    for held_out in HeldOut::ALL {
        for stratum in [
            None,
            Some(Stratum::Dense),
            Some(Stratum::Small),
            Some(Stratum::Experts),
        ] {
            for (name, error) in &methods {
                let is_selected = |prediction: &&Prediction| {
                    prediction.held_out == held_out
                        && prediction.stratum != Stratum::Batched
                        && stratum.is_none_or(|stratum| prediction.stratum == stratum)
                };
                let errors = grouped(rows, validation.predictions.iter().filter(is_selected), error);
                let of = stratum.map_or("all", Stratum::as_str);
                writeln!(
                    page,
                    "| {} | {of} | {name} | {} |",
                    held_out.as_str(),
                    cells(&errors)
                )?;
            }
        }
    }

    writeln!(page, "\n### Decode by engine and tier, each chip held out\n")?;
    writeln!(
        page,
        "| engine | tier | rows | median \\|error\\| (90 % CI) | p90 (90 % CI) | median error |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    let mut classes: Vec<_> = rows.iter().map(class).collect();
    classes.sort();
    classes.dedup();
    for wanted in classes {
        let of_class: Vec<&Prediction> = validation
            .predictions
            .iter()
            .filter(|prediction| {
                prediction.held_out == HeldOut::Chip && prediction.stratum != Stratum::Batched
            })
            .filter(|prediction| class(&rows[prediction.row]) == wanted)
            .collect();
        let errors = grouped(rows, of_class.iter().copied(), &|prediction| {
            prediction.decode_error
        });
        let bias = median(of_class.iter().filter_map(|prediction| prediction.decode_error));
        let (engine, tier) = &wanted;
        let bias = bias.map_or(String::new(), |bias| format!("{:+.1} %", bias.exp_m1() * 100.0));
        writeln!(page, "| {engine} | {tier} | {} | {bias} |", cells(&errors))?;
    }

    writeln!(page, "\n### Decode by quality of the source\n")?;
    writeln!(
        page,
        "| held out | quality | rows | median \\|error\\| (90 % CI) | p90 (90 % CI) |"
    )?;
    writeln!(page, "|---|---|---|---|---|")?;
    for held_out in HeldOut::ALL {
        for (quality, name) in [("A", "table with method"), ("B", "anecdote")] {
            let held = validation.predictions.iter().filter(|prediction| {
                prediction.held_out == held_out
                    && prediction.stratum != Stratum::Batched
                    && rows[prediction.row].quality == quality
            });
            let errors = grouped(rows, held, &|prediction| prediction.decode_error);
            writeln!(page, "| {} | {name} | {} |", held_out.as_str(), cells(&errors))?;
        }
    }

    writeln!(page, "\n### Time to the first token\n")?;
    writeln!(
        page,
        "| held out | rows | median \\|error\\| (90 % CI) | p90 (90 % CI) |"
    )?;
    writeln!(page, "|---|---|---|---|")?;
    for held_out in HeldOut::ALL {
        let held = validation
            .predictions
            .iter()
            .filter(|prediction| prediction.held_out == held_out);
        let errors = grouped(rows, held, &|prediction| prediction.prefill_error);
        writeln!(page, "| {} | {} |", held_out.as_str(), cells(&errors))?;
    }

    floor(page, rows)?;

    writeln!(page, "\n### Intervals\n")?;
    writeln!(
        page,
        "Share of held-out rows inside p10–p90, with half-widths from the other folds (target: 80 %).\n"
    )?;
    writeln!(
        page,
        "| | bin and release known | release known | neither known | tier never measured |"
    )?;
    writeln!(page, "|---|---|---|---|---|")?;
    let spreads = validation.spreads();
    for stratum in Stratum::ALL {
        let inside = |familiarity| validation.coverage(familiarity, stratum);
        intervals(page, stratum.as_str(), spreads.stratum(stratum), inside)?;
    }
    let inside = |familiarity| validation.prefill_coverage(familiarity);
    intervals(page, "first token", &spreads.prefill, inside)
}

fn intervals(
    page: &mut String,
    of: &str,
    widths: &ByFamiliarity,
    inside: impl Fn(Familiarity) -> (usize, usize),
) -> std::fmt::Result {
    write!(page, "| {of} |")?;
    for familiarity in Familiarity::ALL {
        let (inside, all) = inside(familiarity);
        let width = widths.of(familiarity).exp_m1() * 100.0;
        if all == 0 {
            write!(page, " no rows, ±{width:.0} % |")?;
        } else {
            let share = 100.0 * inside as f64 / all as f64;
            write!(page, " {share:.0} % of {all}, ±{width:.0} % |")?;
        }
    }
    writeln!(page)
}

/// Writes the differences between two measurements of the same configuration. A predictor without
/// the source as an input cannot be closer than half of the difference.
fn floor(page: &mut String, rows: &[Measurement]) -> std::fmt::Result {
    // Logarithms of rates by machine, kernels, model, weights and context, then by release.
    let mut configurations: BTreeMap<_, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.case.workload.batch == 1) {
        let requests = matches!(row.case.reported, ReportedRate::Requests { .. });
        let (Some(seconds), false) = (row.step_seconds(), requests) else {
            continue;
        };
        let chip = row.chip();
        let build = &row.case.build;
        let context = row.case.workload.context_tokens / FLOOR_CONTEXT_TOKENS;
        let key = (
            &chip.name,
            chip.gpu_cores,
            build.engine,
            &row.model,
            &row.format,
            context,
        );
        let release = build.release().unwrap_or_default();
        let releases = configurations.entry(key).or_default();
        releases.entry(release).or_default().push(-seconds.ln());
    }
    let apart: Vec<Vec<f64>> = configurations
        .values()
        .map(|releases| {
            let figures: Vec<f64> = releases
                .values()
                .filter_map(|rates| median(rates.iter().copied()))
                .collect();
            let earlier = |index: usize| figures[..index].iter();
            figures
                .iter()
                .enumerate()
                .flat_map(|(index, figure)| earlier(index).map(move |other| (figure - other).abs() / 2.0))
                .map(f64::exp_m1)
                .collect()
        })
        .filter(|pairs: &Vec<f64>| !pairs.is_empty())
        .collect();
    writeln!(page, "\n### Noise floor\n")?;
    writeln!(
        page,
        "Half of the difference between two measurements of the same bin, kernels, model and format, made\n\
         with two programs or releases and contexts within {FLOOR_CONTEXT_TOKENS} tokens. A predictor can be closer to such rows\n\
         only if the source is one of its inputs.\n"
    )?;
    writeln!(page, "| pairs | median (90 % CI) | p90 (90 % CI) |")?;
    writeln!(page, "|---|---|---|")?;
    writeln!(page, "| {} |", cells(&apart))
}

pub(super) fn class(row: &Measurement) -> (String, String) {
    (
        row.case.build.engine.to_string(),
        format!("{:?}", row.chip().tier),
    )
}

/// Returns absolute relative errors by groups of dependent rows: one bin, release and model.
fn grouped<'a>(
    rows: &[Measurement],
    predictions: impl Iterator<Item = &'a Prediction>,
    error: &dyn Fn(&Prediction) -> Option<f64>,
) -> Vec<Vec<f64>> {
    let mut groups: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for prediction in predictions {
        let row = &rows[prediction.row];
        if let Some(error) = error(prediction) {
            let chip = row.chip();
            let group = (&chip.name, chip.gpu_cores, row.case.build.release(), &row.model);
            groups.entry(group).or_default().push(error.exp_m1().abs());
        }
    }
    groups.into_values().collect()
}

/// Formats `rows | median (interval) | p90 (interval)`.
fn cells(groups: &[Vec<f64>]) -> String {
    let all = sorted(groups.iter().flatten().copied());
    let count = all.len();
    if count == 0 {
        return "0 | – | –".to_owned();
    }
    let draws: Vec<Vec<f64>> = resamples(groups).into_iter().map(sorted).collect();
    let cell = |share: f64| {
        let figure = quantile(&all, share).unwrap_or_default() * 100.0;
        let drawn = sorted(draws.iter().filter_map(|draw| quantile(draw, share)));
        let end = |share| quantile(&drawn, share).unwrap_or_default() * 100.0;
        format!("{figure:.1} % ({:.1}–{:.1})", end(0.05), end(0.95))
    };
    format!("{count} | {} | {}", cell(0.5), cell(0.9))
}

/// Draws bootstrap samples of whole groups with a fixed sequence of pseudo-random numbers
/// (xorshift64).
fn resamples(groups: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut state: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..RESAMPLES)
        .map(|_| {
            (0..groups.len())
                .flat_map(|_| groups[(next() % groups.len() as u64) as usize].iter().copied())
                .collect()
        })
        .collect()
}
