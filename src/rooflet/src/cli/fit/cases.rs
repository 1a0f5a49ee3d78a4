//! `rooflet fit --cases`: adds predictions to a file of measurements.
//!
//! The output keeps every row and its order. A row without a prediction gets empty cells, and
//! standard error shows its line, column and remedy. It does not affect other rows.

use anyhow::{Context, bail};
use camino::Utf8Path;
use csv::ByteRecord;

use crate::cli::{Failure, ui};
use rooflet_base::error::ExitStatus;
use rooflet_model::shapes::ShapeFile;
use rooflet_roofline::cases::{Case, CaseError, REQUIRED, Row};
use rooflet_roofline::predict::{Parameters, Prediction};

/// Columns added to every row.
const ADDED: [&str; 10] = [
    "decode_tps_p10",
    "decode_tps_p50",
    "decode_tps_p90",
    "prefill_tps_p10",
    "prefill_tps_p50",
    "prefill_tps_p90",
    "ttft_ms_p10",
    "ttft_ms_p50",
    "ttft_ms_p90",
    "basis",
];

pub(super) fn run(cases: &Utf8Path, shapes: &Utf8Path) -> Result<(), Failure> {
    let predicted = read(cases, shapes).map_err(|err| Failure::new(ExitStatus::Config, err))?;
    for (line, problem) in &predicted.problems {
        ui::progress(&format!("warning: {cases}, line {line}: {problem}"));
    }
    // A closed standard output is not an error.
    let _ = ui::output_bytes(&predicted.csv).context("writing CSV")?;
    Ok(())
}

fn read(cases: &Utf8Path, shapes: &Utf8Path) -> anyhow::Result<Predicted> {
    let text = std::fs::read_to_string(shapes).with_context(|| format!("reading {shapes}"))?;
    let shapes = ShapeFile::parse(&text).with_context(|| format!("reading {shapes}"))?;
    let table = std::fs::read(cases).with_context(|| format!("reading {cases}"))?;
    Predicted::new(&table, &shapes).with_context(|| format!("reading {cases}"))
}

/// Table with added predictions.
#[derive(Debug, PartialEq)]
struct Predicted {
    csv: Vec<u8>,
    /// Remarks and errors of rows, with line numbers starting at 1.
    problems: Vec<(usize, String)>,
}

impl Predicted {
    fn new(table: &[u8], shapes: &ShapeFile) -> anyhow::Result<Self> {
        if table.starts_with(&[0xff, 0xfe]) || table.starts_with(&[0xfe, 0xff]) {
            bail!("the file is UTF-16: save it as UTF-8");
        }
        // Rows with a wrong number of cells or invalid UTF-8 are handled row by row.
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(table);
        let columns = reader.byte_headers().context("line 1: not CSV")?.clone();
        let names: Vec<String> = columns.iter().map(|name| text(name).to_lowercase()).collect();
        let missing: Vec<&str> = REQUIRED
            .into_iter()
            .filter(|column| !names.iter().any(|name| name == column))
            .collect();
        if !missing.is_empty() {
            for (separator, name) in [(';', "semicolons"), ('\t', "tabs")] {
                if names.iter().any(|name| name.contains(separator)) {
                    bail!("line 1 uses {name} as separators: save the file with commas");
                }
            }
            bail!(
                "line 1 has no column `{}`; a table of cases needs `{}`",
                missing.join("`, `"),
                REQUIRED.join("`, `")
            );
        }

        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(columns.iter().chain(ADDED.map(str::as_bytes)))?;
        let mut problems = Vec::new();
        for record in reader.byte_records() {
            let mut record = record?;
            let (cells, remarks) = predicted(&names, &record, shapes).unwrap_or_else(|problem| {
                let message = format!("{problem}; no prediction");
                (Default::default(), vec![message])
            });
            if !remarks.is_empty() {
                problems.push((line(table, &record), remarks.join("; ")));
            }
            // The added cells align with their columns, whatever the row's length is.
            record.truncate(names.len());
            let padding = std::iter::repeat_n(&b""[..], names.len() - record.len());
            writer.write_record(
                record
                    .iter()
                    .chain(padding)
                    .chain(cells.iter().map(String::as_bytes)),
            )?;
        }
        let csv = writer
            .into_inner()
            .map_err(csv::IntoInnerError::into_error)
            .context("writing CSV")?;
        Ok(Self { csv, problems })
    }
}

/// Error that prevents the prediction of a row.
#[derive(Debug, thiserror::Error)]
enum RowError {
    /// Number of cells of the row and of line 1.
    #[error("the row has {0} cells but line 1 has {1}: quote cells that contain commas")]
    Cells(usize, usize),
    #[error(transparent)]
    Case(#[from] CaseError),
}

/// Returns the cells of [`ADDED`] with remarks.
fn predicted(
    names: &[String],
    record: &ByteRecord,
    shapes: &ShapeFile,
) -> Result<([String; ADDED.len()], Vec<String>), RowError> {
    if record.len() != names.len() {
        return Err(RowError::Cells(record.len(), names.len()));
    }
    let row: Row = names.iter().cloned().zip(record.iter().map(text)).collect();
    let case = Case::parse(&row, shapes)?;
    let parameters = Parameters::built_in();
    let prediction = case.predict(parameters);
    let rate = case.reported_rate(&prediction, parameters);
    let Prediction { decode, prefill } = prediction;
    let known = |value: f64| {
        if case.prompt_known {
            format!("{value:.2}")
        } else {
            String::new()
        }
    };
    let first_token = prefill.first_token_seconds.scale(1e3);
    let cells = [
        format!("{:.3}", rate.p10),
        format!("{:.3}", rate.p50),
        format!("{:.3}", rate.p90),
        known(prefill.tokens_per_second.p10),
        known(prefill.tokens_per_second.p50),
        known(prefill.tokens_per_second.p90),
        known(first_token.p10),
        known(first_token.p50),
        known(first_token.p90),
        decode.basis.as_str().to_owned(),
    ];
    Ok((cells, case.remarks))
}

fn text(cell: &[u8]) -> String {
    String::from_utf8_lossy(cell).trim().to_owned()
}

/// Returns the line number at which a record starts. The reader's own count is one too low for CR
/// LF line ends, because it assigns the LF to the next record.
fn line(table: &[u8], record: &ByteRecord) -> usize {
    let start = record.position().map_or(0, |position| position.byte() as usize);
    let breaks = table[start..]
        .iter()
        .take_while(|byte| matches!(byte, b'\r' | b'\n'))
        .count();
    1 + table[..start + breaks]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
}

#[cfg(test)]
mod tests;
