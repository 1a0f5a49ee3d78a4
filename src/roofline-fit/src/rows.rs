//! Measurements of the fit.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use rooflet_model::shapes::ShapeFile;
use rooflet_roofline::cases::{Case, CaseError, ReportedRate, Row, decimal, optional};
use rooflet_roofline::chip::ChipVariant;
use rooflet_roofline::predict::Workload;
use rooflet_roofline::predict::decode::{StepTime, StepWork};
use rooflet_roofline::predict::parameters::{DecodeParameters, PrefillParameters};
use rooflet_roofline::predict::prefill::PrefillWork;

/// Scale of a row's error, as a logarithm: of a table with its method, and of an anecdote.
const DEVIATION_A: f64 = 0.03;
const DEVIATION_B: f64 = 0.08;
/// Scale of first-token times without a prefill rate, which are measured through a server's
/// interface.
const DEVIATION_SERVER: f64 = 0.3;
/// Factor of the scale for batches, whose measurements vary more.
const BATCH_FACTOR: f64 = 1.5;

/// Parsed row with its figures.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub model: String,
    pub format: String,
    /// `A` for a table with its method, `B` for an anecdote.
    pub quality: String,
    pub program: String,
    pub case: Case,
    pub step: StepWork,
    /// Work of a step with one sequence.
    alone: StepWork,
    pub prefill: PrefillWork,
    pub decode_rate: Option<f64>,
    /// Seconds of the prefill.
    pub prefill_seconds: Option<f64>,
    /// Scale of the error, as a logarithm.
    pub(super) decode_deviation: f64,
    pub(super) prefill_deviation: f64,
}

impl Measurement {
    fn parse(row: &Row, shapes: &ShapeFile) -> Result<Self, CaseError> {
        let case = Case::parse(row, shapes)?;
        let deviation = if optional(row, "quality") == Some("A") {
            DEVIATION_A
        } else {
            DEVIATION_B
        };
        let decode_rate = decimal(row, "decode_tps")?.filter(|rate| *rate > 0.0);
        let rate = decimal(row, "prefill_tps")?.filter(|rate| *rate > 0.0);
        let first_token = decimal(row, "ttft_ms")?.filter(|ms| *ms > 0.0);
        let prompt = case.prompt_known && case.workload.prompt_tokens > 1;
        let prefill_seconds = rate
            .map(|rate| f64::from(case.workload.prompt_tokens) / rate)
            .or(first_token.map(|ms| ms / 1e3))
            .filter(|_| prompt);
        let batch_factor = if case.workload.batch > 1 {
            BATCH_FACTOR
        } else {
            1.0
        };
        Ok(Self {
            model: optional(row, "model_key").unwrap_or_default().to_owned(),
            format: optional(row, "quant").unwrap_or_default().to_owned(),
            quality: optional(row, "quality").unwrap_or_default().to_owned(),
            program: optional(row, "engine").unwrap_or_default().to_owned(),
            step: StepWork::new(&case.model, case.workload),
            alone: StepWork::new(
                &case.model,
                Workload {
                    batch: 1,
                    ..case.workload
                },
            ),
            prefill: PrefillWork::new(&case.model, case.workload),
            decode_rate,
            prefill_seconds,
            decode_deviation: deviation * batch_factor,
            prefill_deviation: if rate.is_some() {
                deviation
            } else {
                DEVIATION_SERVER
            },
            case,
        })
    }

    pub(crate) fn chip(&self) -> &'static ChipVariant {
        self.case.chip
    }

    /// Returns the predicted decode step.
    pub(super) fn predicted_step(&self, decode: &DecodeParameters, prefill: &PrefillParameters) -> StepTime {
        decode.batch_time(prefill, self.chip(), &self.case.build, (&self.step, &self.alone))
    }

    /// Returns the seconds of one decode step; for a wall-clock row, the seconds per token.
    pub(super) fn step_seconds(&self) -> Option<f64> {
        let together = match self.case.reported {
            ReportedRate::Aggregate | ReportedRate::Requests { .. } => self.step.batch,
            ReportedRate::PerStream | ReportedRate::WallClock { .. } => 1.0,
        };
        self.decode_rate.map(|rate| together / rate)
    }
}

/// Parses the table. Rows of builds with a known bug are excluded.
pub(crate) fn parse(table: &str, shapes: &ShapeFile) -> Result<Vec<Measurement>> {
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let columns = reader.headers()?.clone();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record?;
        let row: Row = columns
            .iter()
            .zip(&record)
            .map(|(column, value)| (column.to_owned(), value.to_owned()))
            .collect();
        let measurement =
            Measurement::parse(&row, shapes).with_context(|| format!("row {}", rows.len() + 1))?;
        if !measurement.program.contains("bug") {
            rows.push(measurement);
        }
    }
    share_weight(&mut rows);
    Ok(rows)
}

/// Reduces the weight of dependent rows. n rows of one bin, release and model weigh as much as √n
/// rows, and as one row for prefill, which shares the throttling of the machine.
fn share_weight(rows: &mut [Measurement]) {
    let key = |row: &Measurement| {
        let chip = row.chip();
        (
            chip.name.clone(),
            chip.gpu_cores,
            format!("{:?}", row.case.build),
            row.model.clone(),
        )
    };
    let mut sizes: BTreeMap<_, f64> = BTreeMap::new();
    for row in rows.iter() {
        *sizes.entry(key(row)).or_default() += 1.0;
    }
    for row in rows {
        let factor = sizes[&key(row)].sqrt().sqrt();
        row.decode_deviation *= factor;
        row.prefill_deviation *= factor * factor;
    }
}
