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
const MODEL: &str = "model_key";
const FORMAT: &str = "quant";
const PROMPT: &str = "prompt_tokens";
const GENERATED: &str = "gen_tokens";
const CONTEXT: &str = "ctx_avg";
const BATCH: &str = "batch";

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
}

impl ReportedRate {
    fn parse(kind: &str, batch: u32, generated: u32) -> Self {
        match kind {
            "e2e_wall" if generated > 0 => Self::WallClock {
                generated: f64::from(generated),
            },
            _ if batch > 1 => Self::Aggregate,
            _ => Self::PerStream,
        }
    }

    /// The rate that such a table would show.
    pub(crate) fn of(self, prediction: &Prediction) -> Interval {
        let rate = prediction.decode.tokens_per_second;
        match self {
            Self::PerStream => rate,
            Self::Aggregate => prediction.decode.aggregate_tokens_per_second,
            Self::WallClock { generated } => {
                let waiting = prediction.prefill.first_token_seconds.p50;
                let over_all = generated / (generated / rate.p50 + waiting);
                rate.scale(over_all / rate.p50)
            }
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
        let gpu_cores = number(row, GPU_CORES)?;
        let memory = number(row, MEMORY)?.map(|gib| Bytes::gib(u64::from(gib)));
        let chip = chip::find(required(row, CHIP)?, gpu_cores, memory)?;
        let program = required(row, ENGINE)?;
        let release = optional(row, RELEASE).unwrap_or_default();
        let build = EngineBuild::named(engine(program)?, program, release);
        let format: WeightFormat = required(row, FORMAT)?.parse()?;
        let dimensions = shapes.dimensions(required(row, MODEL)?)?;
        let prompt_tokens = number(row, PROMPT)?;
        let generated = number(row, GENERATED)?.unwrap_or(0);
        let context_tokens =
            number(row, CONTEXT)?.unwrap_or_else(|| prompt_tokens.unwrap_or(0) + generated / 2);
        let batch = number(row, BATCH)?.unwrap_or(1).max(1);
        Ok(Self {
            chip,
            build,
            model: ModelCost {
                weights: Weights::estimate(&dimensions, format),
                dimensions,
            },
            workload: Workload {
                batch,
                context_tokens,
                prompt_tokens: prompt_tokens.unwrap_or(1),
                cached_tokens: 0,
                kv_bits: KvBits::HALF,
            },
            prompt_known: prompt_tokens.is_some(),
            reported: ReportedRate::parse(optional(row, KIND).unwrap_or_default(), batch, generated),
        })
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

/// The kernels that a program of this name runs. Several programs wrap the same two.
fn engine(name: &str) -> Result<Engine, CaseError> {
    let lower = name.to_ascii_lowercase();
    if lower.contains("mlx") {
        return Ok(Engine::Mlx);
    }
    if lower.contains("llama") {
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

        let message = |cells: &[(&str, &str)]| Case::parse(&row(cells), &shapes).unwrap_err().to_string();
        assert!(message(&[("quant", "q9")]).contains("`q9` is not a known weight format"));
        assert!(message(&[("model_key", "huge")]).contains("there are: tiny"));
        assert!(message(&[("batch", "many")]).contains("column `batch` is `many`"));
        assert!(message(&[("engine", "")]).contains("column `engine` is missing or empty"));
    }
}
