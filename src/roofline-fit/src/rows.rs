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

const ID: &str = "id";
/// Data set of a row. Each set was collected after the one before, from sources that it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DataSet {
    First,
    Second,
    Third,
}

impl DataSet {
    /// Sets that were predicted before they were part of the fit.
    pub(crate) const LATER: [Self; 2] = [Self::Second, Self::Third];

    /// Returns the set by the start of a row's id.
    fn of(id: &str) -> Self {
        match id.chars().next() {
            Some('n') => Self::Second,
            Some('t') => Self::Third,
            _ => Self::First,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::First => "first set",
            Self::Second => "second set",
            Self::Third => "third set",
        }
    }
}

/// Rows that contradict their own source.
const CONTRADICTORY: [(&str, &str); 4] = [
    ("83", FASTER_THAN_SHORTER),
    ("196", "the file of the source describes another model (27B)"),
    (
        "308",
        "the same source lists eight times the rate for the same case (row 314)",
    ),
    ("201", "23 % slower than both longer contexts of the same table"),
];

const FASTER_THAN_SHORTER: &str = "15 % faster than both shorter contexts of the same table";

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
    /// Publication that the row is from.
    pub source: String,
    pub set: DataSet,
    pub case: Case,
    pub step: StepWork,
    /// Work of a step with one sequence.
    alone: StepWork,
    pub prefill: PrefillWork,
    pub decode_rate: Option<f64>,
    /// Seconds of the prefill.
    pub prefill_seconds: Option<f64>,
    /// True if these seconds are those from the request to the first token.
    from_request: bool,
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
            source: optional(row, "source").unwrap_or_default().to_owned(),
            set: DataSet::of(optional(row, ID).unwrap_or_default()),
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
            from_request: rate.is_none(),
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

    /// Returns the predicted seconds of the prefill, or to the first token if the row has those.
    pub(super) fn predicted_prefill(&self, prefill: &PrefillParameters) -> f64 {
        let (chip, build) = (self.chip(), &self.case.build);
        if self.from_request {
            prefill.first_token(&self.prefill, chip, build)
        } else {
            prefill.time(&self.prefill, chip, build).total()
        }
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

/// Row that is not part of the fit, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Excluded {
    pub id: String,
    pub row: String,
    pub reason: &'static str,
}

/// Parsed table.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub rows: Vec<Measurement>,
    pub excluded: Vec<Excluded>,
}

/// Returns why a row is not part of the fit. The reasons do not depend on the error of a prediction.
fn exclusion(row: &Row) -> Option<&'static str> {
    if optional(row, "engine").is_some_and(|engine| engine.contains("bug")) {
        return Some("a build with a known bug");
    }
    let id = optional(row, ID)?;
    let listed = CONTRADICTORY.iter().find(|(known, _)| *known == id);
    listed.map(|(_, reason)| *reason)
}

/// Parses the table.
pub(crate) fn parse(table: &str, shapes: &ShapeFile) -> Result<Table> {
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let columns = reader.headers()?.clone();
    let (mut rows, mut excluded) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record?;
        let row: Row = columns
            .iter()
            .zip(&record)
            .map(|(column, value)| (column.to_owned(), value.to_owned()))
            .collect();
        let cell = |column| optional(&row, column).unwrap_or_default();
        if let Some(reason) = exclusion(&row) {
            excluded.push(Excluded {
                id: cell(ID).to_owned(),
                row: format!(
                    "{}, {}, {} {}",
                    cell("chip"),
                    cell("engine"),
                    cell("model_key"),
                    cell("quant")
                ),
                reason,
            });
            continue;
        }
        rows.push(Measurement::parse(&row, shapes).with_context(|| format!("row `{}`", cell(ID)))?);
    }
    share_weight(&mut rows);
    Ok(Table { rows, excluded })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_of_an_id_names_the_set() {
        let sets = ["329", "n148", "t0", ""].map(DataSet::of);
        let (first, second, third) = (DataSet::First, DataSet::Second, DataSet::Third);
        assert_eq!(sets, [first, second, third, first]);
    }
}
