//! Measurements that the constants are fitted on.

use std::collections::BTreeMap;

use rooflet_model::shapes::ShapeFile;
use rooflet_roofline::cases::{Case, CaseError, ReportedRate, Row, decimal, optional};
use rooflet_roofline::chip::ChipVariant;
use rooflet_roofline::predict::Workload;
use rooflet_roofline::predict::decode::{StepTime, StepWork};
use rooflet_roofline::predict::parameters::{DecodeParameters, PrefillParameters};
use rooflet_roofline::predict::prefill::PrefillWork;

/// Scale of the errors of one row, as a logarithm: of a table with its method, and of a single
/// remark.
const DEVIATION_A: f64 = 0.03;
const DEVIATION_B: f64 = 0.08;
/// First-token times without a prefill rate come through a server's interface.
const DEVIATION_SERVER: f64 = 0.3;
/// Batches are rarely measured twice alike.
const BATCH_FACTOR: f64 = 1.5;

/// A row, understood, with its figures.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub model: String,
    pub format: String,
    /// `A`: a table with its method; `B`: an anecdote.
    pub quality: String,
    pub program: String,
    pub case: Case,
    pub step: StepWork,
    /// What a step of one of its sequences does.
    alone: StepWork,
    pub prefill: PrefillWork,
    pub decode_rate: Option<f64>,
    /// Seconds of prefill.
    pub prefill_seconds: Option<f64>,
    /// Of the logarithm's error.
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
        let crowd = if case.workload.batch > 1 {
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
            decode_deviation: deviation * crowd,
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

    /// One decode step, as it would be predicted.
    pub(super) fn predicted_step(&self, decode: &DecodeParameters, prefill: &PrefillParameters) -> StepTime {
        decode.batch_time(prefill, self.chip(), &self.case.build, (&self.step, &self.alone))
    }

    /// Seconds of one decode step; of a wall-clock row, those per token.
    pub(super) fn step_seconds(&self) -> Option<f64> {
        let together = match self.case.reported {
            ReportedRate::Aggregate | ReportedRate::Requests { .. } => self.step.batch,
            ReportedRate::PerStream | ReportedRate::WallClock { .. } => 1.0,
        };
        self.decode_rate.map(|rate| together / rate)
    }
}

/// Reads the table. Rows of builds that are known to be broken are left out: a bug is no
/// measurement of a chip.
pub(crate) fn parse(table: &str, shapes: &ShapeFile) -> Result<Vec<Measurement>, String> {
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let columns = reader.headers().map_err(|err| err.to_string())?.clone();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|err| err.to_string())?;
        let row: Row = columns
            .iter()
            .zip(&record)
            .map(|(column, value)| (column.to_owned(), value.to_owned()))
            .collect();
        let measurement =
            Measurement::parse(&row, shapes).map_err(|err| format!("row {}: {err}", rows.len() + 1))?;
        if !measurement.program.contains("bug") {
            rows.push(measurement);
        }
    }
    share_weight(&mut rows);
    Ok(rows)
}

/// Rows of one bin, release and model are not independent: n of them weigh as much as √n, and as
/// one where they are prompts, which share how the machine was throttled.
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
