//! How the predictor's constants are found: `cargo xtask fit-roofline` runs this over the
//! measurements beside this file.
//!
//! The constants are the most probable ones given `prior.json` and `measurements.csv`. Bins,
//! releases and programs that were measured have effects of their own, which are pulled towards
//! none: so a chip with sixty rows does not decide for all, and what many share is told from what
//! is peculiar to one. So does every bin with every release, which most often is one person's
//! machine.

mod least_squares;
mod leaves;
mod plot;
mod report;
mod rows;
mod validate;

use std::collections::BTreeMap;

use serde_json::Value;

use self::leaves::Leaves;
use self::rows::Measurement;
use rooflet_model::shapes::ShapeFile;
use rooflet_roofline::cases::ReportedRate;
use rooflet_roofline::predict::parameters::{
    DecodeParameters, Machines, Parameters, PrefillParameters, RowCounts, SCHEMA_VERSION,
};

/// What the fit makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// Text of `parameters.json`.
    pub parameters: String,
    /// Text of `docs/roofline.md`'s part on errors.
    pub report: String,
    /// Plots by file name.
    pub plots: Vec<(String, String)>,
}

/// Fits to a table of measurements and validates by leaving out chips, models and releases.
pub fn run(table: &str, shapes: &str, prior: &str) -> Result<Fitted, String> {
    let shapes = ShapeFile::parse(shapes).map_err(|err| err.to_string())?;
    let beliefs: Value = serde_json::from_str(prior).map_err(|err| err.to_string())?;
    let rows = rows::parse(table, &shapes)?;
    let all: Vec<&Measurement> = rows.iter().collect();
    let start = constants(&all, &beliefs, None);
    let validation = validate::Validation::new(&rows, &beliefs, &start);
    let parameters = Parameters {
        schema_version: SCHEMA_VERSION,
        rows: RowCounts {
            decode: rows.iter().filter(|row| row.decode_rate.is_some()).count(),
            prefill: rows.iter().filter(|row| row.prefill_seconds.is_some()).count(),
        },
        decode: start.decode,
        prefill: start.prefill,
        spread: validation.spreads(),
    };
    Ok(Fitted {
        parameters: rounded(&parameters),
        report: report::write(&rows, &validation),
        plots: plot::all(&rows, &validation),
    })
}

/// The two sets of constants.
#[derive(Debug, Clone, PartialEq)]
struct Constants {
    decode: DecodeParameters,
    prefill: PrefillParameters,
}

/// Fitted to `rows`, from `start` where a similar fit exists.
fn constants(rows: &[&Measurement], beliefs: &Value, start: Option<&Constants>) -> Constants {
    let prefill = fit_prefill(rows, &beliefs["prefill"], start.map(|start| &start.prefill));
    let decode = fit_decode(
        rows,
        &beliefs["decode"],
        &prefill,
        start.map(|start| &start.decode),
    );
    Constants { decode, prefill }
}

fn fit_prefill(
    rows: &[&Measurement],
    beliefs: &Value,
    start: Option<&PrefillParameters>,
) -> PrefillParameters {
    let observed: Vec<(&Measurement, f64)> = rows
        .iter()
        .filter_map(|row| row.prefill_seconds.map(|seconds| (*row, seconds.ln())))
        .collect();
    let mut empty = start
        .cloned()
        .unwrap_or_else(|| means(beliefs, &["serverMs", "releases", "machines"]));
    empty.releases = effects(
        observed.iter().map(|(row, _)| *row),
        |row| row.case.build.release(),
        &empty.releases,
    );
    empty.machines = machines(observed.iter().map(|(row, _)| *row), &empty.machines);
    empty.server_ms = effects(
        observed.iter().map(|(row, _)| *row),
        |row| Some(row.program.as_str()).filter(|_| row.case.build.is_warm_server()),
        &empty.server_ms,
    );
    let leaves = Leaves::new(&empty, beliefs);
    let found = least_squares::solve(&leaves.priors, leaves.logarithms(), |logarithms| {
        let parameters: PrefillParameters = leaves.with(logarithms);
        observed
            .iter()
            .map(|(row, seconds)| {
                let predicted = parameters.time(&row.prefill, row.chip(), &row.case.build).total();
                (predicted.ln() - seconds) / row.prefill_deviation
            })
            .collect()
    });
    leaves.with(&found)
}

fn fit_decode(
    rows: &[&Measurement],
    beliefs: &Value,
    prefill: &PrefillParameters,
    start: Option<&DecodeParameters>,
) -> DecodeParameters {
    let observed: Vec<(&Measurement, f64)> = rows
        .iter()
        .filter_map(|row| row.step_seconds().map(|seconds| (*row, seconds.ln())))
        .collect();
    let mut empty = start
        .cloned()
        .unwrap_or_else(|| means(beliefs, &["programMs", "chips", "releases", "machines"]));
    let measured = || observed.iter().map(|(row, _)| *row);
    empty.releases = effects(measured(), |row| row.case.build.release(), &empty.releases);
    empty.machines = machines(measured(), &empty.machines);
    // Programs that are their kernels' own have nothing to add.
    let wraps = |row: &Measurement| !matches!(row.program.as_str(), "llama.cpp" | "mlx-lm");
    empty.program_ms = effects(
        measured(),
        |row| Some(row.program.as_str()).filter(|_| wraps(row)),
        &empty.program_ms,
    );
    let before = std::mem::take(&mut empty.chips);
    for row in measured() {
        let chip = row.chip();
        let known = before.get(&chip.name).and_then(|bins| bins.get(&chip.gpu_cores));
        empty
            .chips
            .entry(chip.name.clone())
            .or_default()
            .insert(chip.gpu_cores, known.copied().unwrap_or(1.0));
    }
    let leaves = Leaves::new(&empty, beliefs);
    let found = least_squares::solve(&leaves.priors, leaves.logarithms(), |logarithms| {
        let parameters: DecodeParameters = leaves.with(logarithms);
        observed
            .iter()
            .map(|(row, seconds)| {
                (reported_step(row, &parameters, prefill).ln() - seconds) / row.decode_deviation
            })
            .collect()
    });
    leaves.with(&found)
}

/// Seconds of one step by what the row's table counts.
fn reported_step(row: &Measurement, decode: &DecodeParameters, prefill: &PrefillParameters) -> f64 {
    let step = row.predicted_step(decode, prefill).total;
    match row.case.reported {
        ReportedRate::PerStream | ReportedRate::Aggregate => step,
        ReportedRate::WallClock { generated } => {
            step + prefill.time(&row.prefill, row.chip(), &row.case.build).total() / generated
        }
        ReportedRate::Requests { generated } => step + row.step.batch * decode.request_ms / 1e3 / generated,
    }
}

/// Parameters at the priors' means, with these maps empty.
fn means<P: serde::de::DeserializeOwned>(beliefs: &Value, maps: &[&str]) -> P {
    fn mean(belief: &Value) -> Value {
        if let Some(mean) = belief.get("mean") {
            return mean.clone();
        }
        match belief {
            Value::Object(map) => map
                .iter()
                .map(|(key, belief)| (key.clone(), mean(belief)))
                .collect(),
            Value::Array(list) => list.iter().map(mean).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => belief.clone(),
        }
    }
    let mut tree = mean(beliefs);
    for map in maps {
        tree[*map] = Value::Object(serde_json::Map::new());
    }
    serde_json::from_value(tree).expect("prior.json has the shape of the parameters")
}

/// One effect for each name that occurs, from a similar fit where there was one. The prior pulls it
/// from there.
fn effects<'a>(
    rows: impl Iterator<Item = &'a Measurement>,
    name: impl Fn(&'a Measurement) -> Option<&'a str>,
    before: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    rows.filter_map(name)
        .map(|name| (name.to_owned(), before.get(name).copied().unwrap_or(1.0)))
        .collect()
}

/// The same for each bin with each release.
fn machines<'a>(rows: impl Iterator<Item = &'a Measurement>, before: &Machines) -> Machines {
    let mut known = Machines::default();
    for row in rows {
        if let Some(release) = row.case.build.release() {
            known.insert(release, row.chip(), before.of(release, row.chip()));
        }
    }
    known
}

/// JSON with four significant digits: more is not known.
fn rounded(parameters: &Parameters) -> String {
    fn round(value: &mut Value) {
        match value {
            Value::Object(map) => map.values_mut().for_each(round),
            Value::Array(list) => list.iter_mut().for_each(round),
            Value::Number(number) if number.is_f64() => {
                let digits = format!("{:.3e}", number.as_f64().unwrap_or_default());
                *value = Value::from(digits.parse::<f64>().unwrap_or_default());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut tree = serde_json::to_value(parameters).expect("parameters are plain data");
    round(&mut tree);
    let mut text = serde_json::to_string_pretty(&tree).expect("a tree of JSON is JSON");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the predictor, its priors or the measurements asks for
    /// `cargo xtask fit-roofline`.
    #[test]
    fn the_built_in_constants_are_those_of_the_measurements() {
        let shapes = ShapeFile::parse(include_str!("../../model/src/shapes.json")).unwrap();
        let beliefs: Value = serde_json::from_str(include_str!("prior.json")).unwrap();
        let rows = rows::parse(include_str!("measurements.csv"), &shapes).unwrap();
        let fitted = constants(&rows.iter().collect::<Vec<_>>(), &beliefs, None);
        let committed = Parameters::built_in().clone();
        let anew = Parameters {
            decode: fitted.decode,
            prefill: fitted.prefill,
            ..committed.clone()
        };
        assert_eq!(
            rounded(&anew),
            rounded(&committed),
            "run cargo xtask fit-roofline"
        );
    }
}
