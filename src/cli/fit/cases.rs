//! `rooflet fit --cases`: a file of measurements with what the predictor says of each.

use anyhow::Context;
use camino::Utf8Path;

use crate::cli::{Failure, ui};
use crate::roofline::cases::{Case, CaseError, Row};
use crate::roofline::predict::{Parameters, Prediction};
use crate::roofline::shapes::ShapeFile;

/// Added to every row.
const ADDED: [&str; 6] = [
    "decode_tps_p10",
    "decode_tps_p50",
    "decode_tps_p90",
    "prefill_tps_p50",
    "ttft_ms_p50",
    "basis",
];

pub(super) fn run(cases: &Utf8Path, shapes: &Utf8Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(shapes).with_context(|| format!("reading {shapes}"))?;
    let shapes = ShapeFile::parse(&text).with_context(|| format!("reading {shapes}"))?;
    let mut reader = csv::Reader::from_path(cases).with_context(|| format!("reading {cases}"))?;
    let columns = reader
        .headers()
        .with_context(|| format!("reading the first line of {cases}"))?
        .clone();

    let mut writer = csv::Writer::from_writer(Vec::new());
    writer
        .write_record(columns.iter().chain(ADDED))
        .context("writing CSV")?;
    for record in reader.records() {
        let record = record.with_context(|| format!("reading {cases}"))?;
        let row: Row = columns
            .iter()
            .zip(&record)
            .map(|(column, value)| (column.to_owned(), value.to_owned()))
            .collect();
        let case = Case::parse(&row, &shapes);
        if let Err(err) = &case {
            let line = record.position().map_or(0, csv::Position::line);
            ui::progress(&format!(
                "warning: {cases}, line {line}: {err}; left without a prediction"
            ));
        }
        writer
            .write_record(record.iter().map(str::to_owned).chain(added(&case)))
            .context("writing CSV")?;
    }
    let bytes = writer.into_inner().context("writing CSV")?;
    ui::output_bytes(&bytes).context("writing CSV")?;
    Ok(())
}

/// Cells of [`ADDED`]; empty where nothing can be said.
fn added(case: &Result<Case, CaseError>) -> [String; 6] {
    let Ok(case) = case else {
        return Default::default();
    };
    let parameters = Parameters::built_in();
    let prediction = case.predict(parameters);
    let rate = case.reported_rate(&prediction, parameters);
    let Prediction { decode, prefill } = prediction;
    let known = |value: String| if case.prompt_known { value } else { String::new() };
    [
        format!("{:.3}", rate.p10),
        format!("{:.3}", rate.p50),
        format!("{:.3}", rate.p90),
        known(format!("{:.2}", prefill.tokens_per_second.p50)),
        known(format!("{:.2}", prefill.first_token_seconds.p50 * 1e3)),
        decode.basis.as_str().to_owned(),
    ]
}
