//! Report of the errors in Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::rows::{Excluded, Measurement, Table};
use super::validate::{HeldOut, LaterSet, Prediction, Validation};
use rooflet_base::quantile::{median, quantile, sorted};
use rooflet_roofline::predict::spread::{ByFamiliarity, Familiarity, Sides, Stratum};

/// Number of bootstrap samples for a confidence interval.
const RESAMPLES: usize = 400;
/// Share of bandwidth in the rule of thumb.
const THUMB_SHARE: f64 = 0.70;

pub(super) fn write(table: &Table, validation: &Validation, later: &[LaterSet]) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = excluded_rows(&mut page, &table.excluded);
    let _ = tables(&mut page, &table.rows, validation);
    for later in later {
        let _ = later_set(&mut page, later);
    }
    let _ = coverage(&mut page, validation);
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
        ("this predictor", Box::new(Prediction::decode_excess)),
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
            Some(Stratum::Long),
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
        let errors = grouped(rows, of_class.iter().copied(), &Prediction::decode_excess);
        let bias = median(
            of_class
                .iter()
                .filter_map(|prediction| prediction.decode_excess()),
        );
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
            let errors = grouped(rows, held, &Prediction::decode_excess);
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

    Ok(())
}

/// Writes widths and coverage of the intervals.
fn coverage(page: &mut String, validation: &Validation) -> std::fmt::Result {
    writeln!(page, "\n### Intervals\n")?;
    writeln!(
        page,
        "Share of held-out rows inside p10–p90, with widths from the other folds (target: 80 %). The widths are\n\
         the distances of p10 and p90 from the median.\n"
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
    let inside = |familiarity| validation.prefill_coverage(familiarity, false);
    intervals(page, "first token", &spreads.prefill, inside)?;
    let inside = |familiarity| validation.prefill_coverage(familiarity, true);
    let of = "first token, prompt below 256 tokens";
    intervals(page, of, &spreads.short_prompts, inside)
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
        let sides = widths.of(familiarity);
        let slow = (-sides.slow).exp_m1() * 100.0;
        let fast = sides.fast.exp_m1() * 100.0;
        if all == 0 {
            write!(page, " no rows, {slow:+.0} {fast:+.0} % |")?;
        } else {
            let share = 100.0 * inside as f64 / all as f64;
            write!(page, " {share:.0} % of {all}, {slow:+.0} {fast:+.0} % |")?;
        }
    }
    writeln!(page)
}

/// Writes the errors on a later data set of constants that were fitted to the earlier sets, and the
/// share of rows in the intervals of that fit.
fn later_set(page: &mut String, later: &LaterSet) -> std::fmt::Result {
    let set = later.set.as_str();
    writeln!(page, "\n### The {set}, predicted from the earlier rows\n")?;
    writeln!(
        page,
        "The rows of the {set} are from other sources and were collected later. The constants and intervals\n\
         of this table were fitted to the earlier sets only ({} rows).\n",
        later.earlier_rows
    )?;
    writeln!(
        page,
        "| subset | rows | median \\|error\\| (90 % CI) | p90 (90 % CI) | inside p10–p90 | slower | faster |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    // Errors are relative to the measured figure: the rate of decode, the seconds of a first token.
    let decode = later.decode.iter().map(|subset| (subset, -1.0));
    let prefill = later.prefill.iter().map(|subset| (subset, 1.0));
    for ((subset, errors), sign) in decode.chain(prefill) {
        let groups: Vec<Vec<f64>> = errors
            .iter()
            .map(|(error, _)| vec![(sign * error).exp_m1().abs()])
            .collect();
        let count = |kept: fn(f64, Sides) -> bool| {
            let kept = errors.iter().filter(|(error, sides)| kept(*error, *sides));
            kept.count()
        };
        let slower = count(|error, sides| error < -sides.slow);
        let faster = count(|error, sides| error > sides.fast);
        let inside = 100.0 * (errors.len() - slower - faster) as f64 / errors.len().max(1) as f64;
        writeln!(
            page,
            "| {subset} | {} | {inside:.0} % | {slower} | {faster} |",
            cells(&groups)
        )?;
    }
    Ok(())
}

/// Writes the rows that are not part of the fit.
fn excluded_rows(page: &mut String, excluded: &[Excluded]) -> std::fmt::Result {
    writeln!(page, "### Excluded rows\n")?;
    writeln!(page, "| id | row | reason |\n|---|---|---|")?;
    for Excluded { id, row, reason } in excluded {
        writeln!(page, "| {id} | {row} | {reason} |")?;
    }
    writeln!(page)
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
