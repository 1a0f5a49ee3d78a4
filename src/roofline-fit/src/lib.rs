//! Fit of the predictor's constants. `cargo xtask fit-roofline` runs it on the measurements beside
//! this file.
//!
//! The result is the most probable set of constants given `prior.json` and `measurements.csv`.
//! Measured bins, releases and programs have separate effects with a prior of no effect, so a chip
//! with sixty rows does not dominate, and shared effects are separated from individual ones. Each
//! combination of bin and release also has an effect, because it is mostly one person's machine.

mod least_squares;
mod parameter_vector;
mod plot;
mod replay;
mod report;
mod rows;
mod validate;

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use self::parameter_vector::ParameterVector;
use self::rows::{Measurement, Table};
use rooflet_model::shapes::ShapeFile;
use rooflet_roofline::cases::ReportedRate;
use rooflet_roofline::predict::parameters::{
    DecodeParameters, Machines, Parameters, PrefillParameters, RowCounts, SCHEMA_VERSION,
};

/// Result of the fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// Text of `parameters.json`.
    pub parameters: String,
    /// Text of the section on errors in `docs/roofline.md`.
    pub report: String,
    /// Text of the replay of calibration in `docs/roofline.md`.
    pub replay: String,
    /// Plots by file name.
    pub plots: Vec<(String, String)>,
}

/// Fits the constants to a table of measurements, and validates them by holding out chips, models,
/// releases, sources and tiers.
pub fn run(table: &str, shapes: &str, prior: &str) -> Result<Fitted> {
    let shapes = ShapeFile::parse(shapes)?;
    let priors: Value = serde_json::from_str(prior)?;
    let table = rows::parse(table, &shapes)?;
    let Table { rows, .. } = &table;
    let all: Vec<&Measurement> = rows.iter().collect();
    let start = constants(&all, &priors, None);
    let validation = validate::Validation::new(rows, &priors, &start);
    let later = rows::DataSet::LATER.map(|set| validate::LaterSet::new(set, rows, &priors));
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
        report: report::write(&table, &validation, &later),
        replay: replay::write(rows, &validation),
        plots: plot::all(rows, &validation),
    })
}

/// Constants of decode and prefill.
#[derive(Debug, Clone, PartialEq)]
struct Constants {
    decode: DecodeParameters,
    prefill: PrefillParameters,
}

/// Fits the constants to `rows`, starting at a similar fit if there is one.
fn constants(rows: &[&Measurement], priors: &Value, start: Option<&Constants>) -> Constants {
    let prefill = fit_prefill(rows, &priors["prefill"], start.map(|start| &start.prefill));
    let decode = fit_decode(
        rows,
        &priors["decode"],
        &prefill,
        start.map(|start| &start.decode),
    );
    Constants { decode, prefill }
}

fn fit_prefill(
    rows: &[&Measurement],
    priors: &Value,
    start: Option<&PrefillParameters>,
) -> PrefillParameters {
    let observed: Vec<(&Measurement, f64)> = rows
        .iter()
        .filter_map(|row| row.prefill_seconds.map(|seconds| (*row, seconds.ln())))
        .collect();
    let mut empty = start
        .cloned()
        .unwrap_or_else(|| means(priors, &["serverMs", "releases", "machines"]));
    empty.releases = effects(
        observed.iter().map(|(row, _)| *row),
        |row| row.case.build.release(),
        &empty.releases,
    );
    empty.machines = machines(observed.iter().map(|(row, _)| *row), &empty.machines);
    empty.server_ms = effects(
        observed.iter().map(|(row, _)| *row),
        |row| {
            row.case
                .build
                .program()
                .filter(|_| row.case.build.is_warm_server())
        },
        &empty.server_ms,
    );
    let vector = ParameterVector::new(&empty, priors);
    let found = least_squares::solve(&vector.priors, vector.logarithms(), |logarithms| {
        let parameters: PrefillParameters = vector.with(logarithms);
        observed
            .iter()
            .map(|(row, seconds)| (row.predicted_prefill(&parameters).ln() - seconds) / row.prefill_deviation)
            .collect()
    });
    vector.with(&found)
}

fn fit_decode(
    rows: &[&Measurement],
    priors: &Value,
    prefill: &PrefillParameters,
    start: Option<&DecodeParameters>,
) -> DecodeParameters {
    let observed: Vec<(&Measurement, f64)> = rows
        .iter()
        .filter_map(|row| row.step_seconds().map(|seconds| (*row, seconds.ln())))
        .collect();
    let mut empty = start
        .cloned()
        .unwrap_or_else(|| means(priors, &["programMs", "chips", "releases", "machines"]));
    let measured = || observed.iter().map(|(row, _)| *row);
    empty.releases = effects(measured(), |row| row.case.build.release(), &empty.releases);
    empty.machines = machines(measured(), &empty.machines);
    // Programs that consist of their kernels have no overhead.
    let wraps = |program: &&str| !matches!(*program, "llama.cpp" | "mlx-lm");
    empty.program_ms = effects(
        measured(),
        |row| row.case.build.program().filter(wraps),
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
    let vector = ParameterVector::new(&empty, priors);
    let found = least_squares::solve(&vector.priors, vector.logarithms(), |logarithms| {
        let parameters: DecodeParameters = vector.with(logarithms);
        observed
            .iter()
            .map(|(row, seconds)| {
                (reported_step(row, &parameters, prefill).ln() - seconds) / row.decode_deviation
            })
            .collect()
    });
    vector.with(&found)
}

/// Returns the seconds of one step by the definition of the row's rate.
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

/// Returns the parameters at the means of the priors, with empty `maps`.
fn means<P: serde::de::DeserializeOwned>(priors: &Value, maps: &[&str]) -> P {
    fn mean(prior: &Value) -> Value {
        if let Some(mean) = prior.get("mean") {
            return mean.clone();
        }
        match prior {
            Value::Object(map) => map
                .iter()
                .map(|(key, prior)| (key.clone(), mean(prior)))
                .collect(),
            Value::Array(list) => list.iter().map(mean).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => prior.clone(),
        }
    }
    let mut tree = mean(priors);
    for map in maps {
        tree[*map] = Value::Object(serde_json::Map::new());
    }
    serde_json::from_value(tree).expect("prior.json has the shape of the parameters")
}

/// Returns one effect per name, starting at that of a similar fit if there is one.
fn effects<'a>(
    rows: impl Iterator<Item = &'a Measurement>,
    name: impl Fn(&'a Measurement) -> Option<&'a str>,
    before: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    rows.filter_map(name)
        .map(|name| (name.to_owned(), before.get(name).copied().unwrap_or(1.0)))
        .collect()
}

/// Returns one effect per combination of bin and release.
fn machines<'a>(rows: impl Iterator<Item = &'a Measurement>, before: &Machines) -> Machines {
    let mut known = Machines::default();
    for row in rows {
        if let Some(release) = row.case.build.release() {
            known.insert(release, row.chip(), before.of(release, row.chip()));
        }
    }
    known
}

/// Formats the parameters as JSON with four significant digits, which is their precision.
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
    let mut text = serde_json::to_string_pretty(&tree).expect("a JSON value can be serialized");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the predictor, its priors or the measurements change, run `cargo xtask fit-roofline`.
    #[test]
    fn built_in_constants_match_the_measurements() {
        let shapes = ShapeFile::parse(include_str!("../../model/src/shapes.json")).unwrap();
        let priors: Value = serde_json::from_str(include_str!("prior.json")).unwrap();
        let rows = rows::parse(include_str!("measurements.csv"), &shapes)
            .unwrap()
            .rows;
        let fitted = constants(&rows.iter().collect::<Vec<_>>(), &priors, None);
        let committed = Parameters::built_in().clone();
        let refitted = Parameters {
            decode: fitted.decode,
            prefill: fitted.prefill,
            ..committed.clone()
        };
        assert_eq!(
            rounded(&refitted),
            rounded(&committed),
            "run cargo xtask fit-roofline"
        );
    }
}
