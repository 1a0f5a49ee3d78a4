//! Measurements as the field publishes them, one CSV row each, and what the predictor says of them.

use std::collections::BTreeMap;

use super::chip::{self, ChipVariant, UnknownChip};
use super::dimensions::KvBits;
use super::predict::{Engine, EngineBuild, Hardware, Interval, ModelCost, Parameters, Prediction, Workload};
use super::shapes::{ShapeError, ShapeFile};
use super::weights::{UnknownWeightFormat, WeightFormat, Weights};
use crate::units::Bytes;

/// Columns that are read, by name; others are kept and ignored.
const CHIP: &str = "chip";
const GPU_CORES: &str = "gpu_cores";
const MEMORY: &str = "ram_gb";
const ENGINE: &str = "engine";
const RELEASE: &str = "engine_version";
const KIND: &str = "kind";
const NOTE: &str = "note";
const MODEL: &str = "model_key";
const FORMAT: &str = "quant";
const PROMPT: &str = "prompt_tokens";
const GENERATED: &str = "gen_tokens";
const CONTEXT: &str = "ctx_avg";
const BATCH: &str = "batch";
const BANDWIDTH: &str = "bandwidth_gbs";
const WEIGHTS: &str = "weights_gb_stated";

/// Tables round a bandwidth by so much: 68 or 68.25, 800 or 819.
const BANDWIDTH_ROUNDING: f64 = 0.03;

/// Size of a file over what its format's name says.
const PLAUSIBLE_SIZE: std::ops::Range<f64> = 0.8..1.25;

/// Columns without which no row can be predicted.
pub(crate) const REQUIRED: [&str; 4] = [CHIP, ENGINE, MODEL, FORMAT];

/// One row, understood.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Case {
    pub(crate) chip: &'static ChipVariant,
    pub(crate) build: EngineBuild,
    pub(crate) model: ModelCost,
    pub(crate) workload: Workload,
    /// Whether the row says how long the prompt was.
    pub(crate) prompt_known: bool,
    pub(crate) reported: ReportedRate,
}

/// What a table means by a decode rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ReportedRate {
    /// What one sequence gets while it decodes.
    PerStream,
    /// What a batch gets together.
    Aggregate,
    /// Tokens of an answer over the whole time it took, prefill included.
    WallClock { generated: f64 },
    /// Tokens of a server's answers to a batch of requests, over the time from the first request to the last answer.
    Requests { generated: f64 },
}

impl ReportedRate {
    fn parse(kind: &str, note: &str, batch: u32, generated: u32) -> Self {
        let answered = f64::from(generated);
        match kind {
            "e2e_wall" if generated > 0 => Self::WallClock { generated: answered },
            "batch_aggregate" if generated > 0 && note.contains("e2e") => {
                Self::Requests { generated: answered }
            }
            _ if batch > 1 => Self::Aggregate,
            _ => Self::PerStream,
        }
    }
}

/// Why a row cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaseError {
    #[error("column `{column}` is missing or empty")]
    Missing { column: &'static str },
    #[error("column `{column}` is `{value}`, expected {expected}")]
    Invalid {
        column: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error(transparent)]
    Chip(#[from] UnknownChip),
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Format(#[from] UnknownWeightFormat),
}

/// A row's cells by column name.
pub(crate) type Row = BTreeMap<String, String>;

impl Case {
    pub(crate) fn parse(row: &Row, shapes: &ShapeFile) -> Result<Self, CaseError> {
        let chip = chip(row)?;
        let program = required(row, ENGINE)?;
        let release = optional(row, RELEASE).unwrap_or_default();
        let format: WeightFormat = required(row, FORMAT)?.parse()?;
        let build = EngineBuild::named(engine(program, format)?, program, release);
        let dimensions = shapes.dimensions(required(row, MODEL)?)?;
        let weights = Weights::estimate(&dimensions, format);
        // K mixes differ from file to file under one name. A size far off is that of something else.
        let stated = decimal(row, WEIGHTS)?.map(|gigabytes| gigabytes * 1e9 / weights.resident().0 as f64);
        let weights = match stated {
            Some(share) if PLAUSIBLE_SIZE.contains(&share) => weights.scaled(share),
            Some(_) | None => weights,
        };
        let prompt_tokens = number(row, PROMPT)?;
        let generated = number(row, GENERATED)?.unwrap_or(0);
        let context_tokens =
            number(row, CONTEXT)?.unwrap_or_else(|| prompt_tokens.unwrap_or(0) + generated / 2);
        let batch = number(row, BATCH)?.unwrap_or(1).max(1);
        Ok(Self {
            chip,
            build,
            model: ModelCost { dimensions, weights },
            workload: Workload {
                batch,
                context_tokens,
                prompt_tokens: prompt_tokens.unwrap_or(1),
                cached_tokens: 0,
                kv_bits: KvBits::HALF,
            },
            prompt_known: prompt_tokens.is_some(),
            reported: ReportedRate::parse(
                optional(row, KIND).unwrap_or_default(),
                optional(row, NOTE).unwrap_or_default(),
                batch,
                generated,
            ),
        })
    }

    /// The decode rate that the row's table would show.
    pub(crate) fn reported_rate(&self, prediction: &Prediction, parameters: &Parameters) -> Interval {
        let rate = prediction.decode.tokens_per_second;
        let together = prediction.decode.aggregate_tokens_per_second;
        match self.reported {
            ReportedRate::PerStream => rate,
            ReportedRate::Aggregate => together,
            ReportedRate::WallClock { generated } => {
                let waiting = prediction.prefill.first_token_seconds.p50;
                rate.scale(generated / (generated + waiting * rate.p50))
            }
            ReportedRate::Requests { generated } => {
                let waiting = f64::from(self.workload.batch) * parameters.decode.request_ms / 1e3;
                together.scale(generated / (generated + waiting * rate.p50))
            }
        }
    }

    pub(crate) fn predict(&self, parameters: &Parameters) -> Prediction {
        Prediction::new(
            parameters,
            Hardware::Chip(self.chip),
            self.build.clone(),
            &self.model,
            self.workload,
        )
    }
}

/// The bin by name, GPU cores and memory; where they leave several, by the bandwidth that the row gives.
fn chip(row: &Row) -> Result<&'static ChipVariant, CaseError> {
    let gpu_cores = number(row, GPU_CORES)?;
    let memory = number(row, MEMORY)?.map(|gib| Bytes::gib(u64::from(gib)));
    let bandwidth = decimal(row, BANDWIDTH)?;
    let found = chip::find(required(row, CHIP)?, gpu_cores, memory);
    let (Err(UnknownChip::Ambiguous { name, .. }), Some(bandwidth)) = (&found, bandwidth) else {
        return Ok(found?);
    };
    let near = |chip: &&ChipVariant| {
        let stated = bandwidth * 1e9;
        chip.name == *name && (chip.bandwidth.0 / stated - 1.0).abs() < BANDWIDTH_ROUNDING
    };
    match chip::catalogue()
        .iter()
        .filter(near)
        .max_by_key(|chip| chip.gpu_cores)
    {
        Some(chip) => Ok(chip),
        None => Ok(found?),
    }
}

/// The kernels that a program of this name runs. Several programs wrap the same two; where a name does not tell which, the
/// format of the weights does.
fn engine(name: &str, format: WeightFormat) -> Result<Engine, CaseError> {
    let lower = name.to_ascii_lowercase();
    if lower.contains("mlx") {
        return Ok(Engine::Mlx);
    }
    if lower.contains("llama") {
        return Ok(Engine::LlamaCpp);
    }
    if let WeightFormat::Affine { .. } = format {
        return Ok(Engine::Mlx);
    }
    if format.is_gguf() {
        return Ok(Engine::LlamaCpp);
    }
    Err(CaseError::Invalid {
        column: ENGINE,
        value: name.to_owned(),
        expected: "one that runs on MLX or llama.cpp",
    })
}

pub(super) fn optional<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    row.get(column)
        .map(|value| value.trim())
        .filter(|value| !value.is_empty())
}

fn required<'a>(row: &'a Row, column: &'static str) -> Result<&'a str, CaseError> {
    optional(row, column).ok_or(CaseError::Missing { column })
}

/// A count. Published tables write some as fractions (`64.5`), which are rounded.
fn number(row: &Row, column: &'static str) -> Result<Option<u32>, CaseError> {
    Ok(decimal(row, column)?.map(|number| number.round() as u32))
}

pub(super) fn decimal(row: &Row, column: &'static str) -> Result<Option<f64>, CaseError> {
    let Some(value) = optional(row, column) else {
        return Ok(None);
    };
    match value.parse::<f64>() {
        Ok(number) if (0.0..4e9).contains(&number) => Ok(Some(number)),
        _ => Err(CaseError::Invalid {
            column,
            value: value.to_owned(),
            expected: "a number of zero or more",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: &str = r#"{"tiny": {"L": 2, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2, "tied": 1}}"#;

    fn row(cells: &[(&str, &str)]) -> Row {
        let full = [
            ("chip", "M4"),
            ("gpu_cores", "10"),
            ("engine", "mlx-lm"),
            ("model_key", "tiny"),
            ("quant", "mlx4"),
        ];
        full.iter()
            .chain(cells)
            .map(|(column, value)| ((*column).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_row_needs_few_columns_and_names_a_bad_one() {
        let shapes = ShapeFile::parse(SHAPES).unwrap();
        let case = Case::parse(&row(&[("prompt_tokens", "512"), ("gen_tokens", "128")]), &shapes).unwrap();
        assert_eq!(case.workload.context_tokens, 576);
        assert_eq!(case.workload.batch, 1);
        let resident = |gigabytes: &str| {
            let cells = [("weights_gb_stated", gigabytes)];
            Case::parse(&row(&cells), &shapes)
                .unwrap()
                .model
                .weights
                .resident()
                .0 as f64
        };
        let named = resident("");
        let tenth_more = resident(&format!("{:.9}", named * 1.1e-9));
        assert!((tenth_more / named - 1.1).abs() < 1e-3, "a file's size counts");
        assert_eq!(resident("4.9"), named, "that is another file");

        let message = |cells: &[(&str, &str)]| Case::parse(&row(cells), &shapes).unwrap_err().to_string();
        assert!(message(&[("quant", "q9")]).contains("`q9` is not a known weight format"));
        assert!(message(&[("model_key", "huge")]).contains("there are: tiny"));
        assert!(message(&[("batch", "many")]).contains("column `batch` is `many`"));
        let max = |cells: &[(&str, &str)]| {
            let bin = [("chip", "M4 Max"), ("gpu_cores", "")];
            Case::parse(&row(&[&bin[..], cells].concat()), &shapes).map(|case| case.chip.gpu_cores)
        };
        assert_eq!(max(&[("bandwidth_gbs", "546")]).unwrap(), 40);
        assert_eq!(max(&[("bandwidth_gbs", "400")]).unwrap(), 32);
        let err = max(&[("bandwidth_gbs", "273")]).unwrap_err().to_string();
        assert!(err.contains("different bandwidths"), "{err}");
        assert!(message(&[("engine", "")]).contains("column `engine` is missing or empty"));
    }

    #[test]
    fn a_rate_over_whole_requests_has_their_waiting_in_it() {
        let shapes = ShapeFile::parse(SHAPES).unwrap();
        let parameters = Parameters::built_in();
        let rate = |kind: &str, note: &str, batch: &str| {
            let cells = [
                ("kind", kind),
                ("note", note),
                ("batch", batch),
                ("gen_tokens", "256"),
            ];
            let case = Case::parse(&row(&cells), &shapes).unwrap();
            case.reported_rate(&case.predict(parameters), parameters).p50
        };
        let (decoding, requests) = (
            rate("batch_aggregate", "", "5"),
            rate("batch_aggregate", "e2e aggregate", "5"),
        );
        // 1280 tokens at the one rate, and five waits.
        let seconds = 1280.0 / decoding + 5.0 * parameters.decode.request_ms / 1e3;
        assert!(
            (requests * seconds / 1280.0 - 1.0).abs() < 1e-9,
            "{requests} {decoding}"
        );
        assert_eq!(rate("decode", "e2e aggregate", "5"), decoding);
    }
}
