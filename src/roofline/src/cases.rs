//! Measurements as the field publishes them, one CSV row each, and what the predictor says of them.

use std::collections::BTreeMap;

use crate::chip::likeness::{Description, Likeness};
use crate::chip::{ChipVariant, UnknownChip};
use crate::predict::{Engine, EngineBuild, Hardware, Interval, ModelCost, Parameters, Prediction, Workload};
use rooflet_base::units::{Bytes, BytesPerSecond};
use rooflet_model::dimensions::ModelDimensions;
use rooflet_model::kv_cache::KvBits;
use rooflet_model::library;
use rooflet_model::library::Spelling;
use rooflet_model::shapes::{ShapeError, ShapeFile};
use rooflet_model::weights::{NamedFormat, UnknownWeightFormat, WeightFormat, Weights};

/// Columns that are read, by name; others are kept and ignored.
const CHIP: &str = "chip";
const GPU_CORES: &str = "gpu_cores";
const MEMORY: &str = "ram_gb";
const ENGINE: &str = "engine";
const RELEASE: &str = "engine_version";
const KIND: &str = "kind";
const NOTE: &str = "note";
const MODEL: &str = "model_key";
/// The model's name as published: what the other two columns of the model leave empty may be read
/// from it.
const PUBLISHED: &str = "model";
const FORMAT: &str = "quant";
const PROMPT: &str = "prompt_tokens";
const GENERATED: &str = "gen_tokens";
const CONTEXT: &str = "ctx_avg";
const BATCH: &str = "batch";
const BANDWIDTH: &str = "bandwidth_gbs";
const WEIGHTS: &str = "weights_gb_stated";

/// Size of a file over what its format's name says; beyond, it is that of something else.
const PLAUSIBLE_SIZE: std::ops::Range<f64> = 0.8..1.25;
/// The same where the surplus is not read: towers for images may be as large as the rest of a small
/// model.
const PLAUSIBLE_SURPLUS: std::ops::Range<f64> = 1.0..2.0;

/// Half-width, as a logarithm, of what is open where the row does not tell MLX from llama.cpp;
/// assumed.
const UNTOLD_ENGINE: f64 = 0.15;

/// Columns without which no row can be predicted.
pub const REQUIRED: [&str; 4] = [CHIP, ENGINE, MODEL, FORMAT];

/// One row, understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub chip: &'static ChipVariant,
    pub build: EngineBuild,
    pub model: ModelCost,
    pub workload: Workload,
    /// Whether the row says how long the prompt was.
    pub prompt_known: bool,
    pub reported: ReportedRate,
    /// What was assumed because the row leaves it open.
    pub remarks: Vec<String>,
    /// Half-width, as a logarithm, of the assumptions together.
    doubt: f64,
}

/// What a table means by a decode rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReportedRate {
    /// What one sequence gets while it decodes.
    PerStream,
    /// What a batch gets together.
    Aggregate,
    /// Tokens of an answer over the whole time it took, prefill included.
    WallClock { generated: f64 },
    /// Tokens of a server's answers to a batch of requests, over the time from the first request to
    /// the last answer.
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
pub enum CaseError {
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
pub type Row = BTreeMap<String, String>;

impl Case {
    pub fn parse(row: &Row, shapes: &ShapeFile) -> Result<Self, CaseError> {
        let mut open = Open::default();
        let chip = chip(row, &mut open)?;
        let program = optional(row, ENGINE).unwrap_or_default();
        let release = optional(row, RELEASE).unwrap_or_default();
        let published = optional(row, PUBLISHED);
        let model = match (optional(row, MODEL), published) {
            (Some(key), _) => key,
            (None, Some(name)) => name,
            (None, None) => return Err(CaseError::Missing { column: MODEL }),
        };
        let stored = stored(row, published.unwrap_or(model), &mut open)?;
        let (engine, format) = engine(program, &stored, &mut open)?;
        let build = EngineBuild::named(engine, program, release);
        let dimensions = dimensions(model, shapes, &mut open)?;
        let ignored = shapes.unknown_fields(model);
        if !ignored.is_empty() {
            open.remark(format!(
                "fields of shape `{model}` that mean nothing here: {}",
                ignored.join(", ")
            ));
        }
        let weights = Weights::estimate(&dimensions, format);
        let weights = match open.decimal(row, WEIGHTS) {
            Some(gigabytes) => in_file_of(weights, gigabytes * 1e9, format),
            None => weights,
        };
        let weights = Weights {
            native_floats: weights.native_floats
                || format != WeightFormat::BFloat16 && (build.is_of_float16() || tells_float16(row)),
            ..weights
        };
        // No prompt is empty: a nought says that nobody wrote it down.
        let prompt_tokens = open.number(row, PROMPT).filter(|tokens| *tokens > 0);
        let generated = open.number(row, GENERATED).unwrap_or(0);
        let context_tokens = open.number(row, CONTEXT);
        let context_tokens = context_tokens.unwrap_or_else(|| prompt_tokens.unwrap_or(0) + generated / 2);
        let batch = open.number(row, BATCH).unwrap_or(1).max(1);
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
            remarks: open.remarks,
            doubt: open.doubt,
        })
    }

    /// The decode rate that the row's table would show.
    pub fn reported_rate(&self, prediction: &Prediction, parameters: &Parameters) -> Interval {
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

    pub fn predict(&self, parameters: &Parameters) -> Prediction {
        let mut prediction = Prediction::new(
            parameters,
            Hardware::Chip(self.chip),
            self.build.clone(),
            &self.model,
            self.workload,
        );
        let Prediction { decode, prefill } = &mut prediction;
        for interval in [
            &mut decode.tokens_per_second,
            &mut decode.aggregate_tokens_per_second,
            &mut prefill.tokens_per_second,
            &mut prefill.first_token_seconds,
        ] {
            *interval = interval.widened(self.doubt);
        }
        prediction
    }
}

/// Whether the model's name says that its floats are float16.
fn tells_float16(row: &Row) -> bool {
    let name = optional(row, "model").unwrap_or_default().to_ascii_lowercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| matches!(word, "fp16" | "f16" | "float16"))
}

/// Weights adjusted to the size of their file in bytes, if the size is plausible.
///
/// A mix of formats differs from file to file under one name, so its weights are scaled. Other
/// formats have the number of bits that their name states. Bytes beyond that belong to image and
/// audio towers, which text generation does not read.
fn in_file_of(weights: Weights, bytes: f64, format: WeightFormat) -> Weights {
    let share = bytes / weights.resident().0.max(1) as f64;
    if format.is_mix() && PLAUSIBLE_SIZE.contains(&share) {
        weights.scaled(share)
    } else if !format.is_mix() && PLAUSIBLE_SURPLUS.contains(&share) {
        let surplus = bytes - weights.resident().0 as f64;
        Weights {
            idle: weights.idle + Bytes(surplus.round() as u64),
            ..weights
        }
    } else {
        weights
    }
}

/// What a row leaves open, as it is read.
#[derive(Debug, Default)]
struct Open {
    remarks: Vec<String>,
    doubt: f64,
}

impl Open {
    fn remark(&mut self, remark: String) {
        self.remarks.push(remark);
    }

    fn assume(&mut self, remark: String, doubt: f64) {
        self.remark(remark);
        self.doubt = self.doubt.hypot(doubt);
    }

    /// A cell that need not be there: what cannot be read is told, and as good as empty.
    fn decimal(&mut self, row: &Row, column: &'static str) -> Option<f64> {
        decimal(row, column).unwrap_or_else(|err| {
            self.remark(format!("{err}; it is taken for unknown"));
            None
        })
    }

    /// A count. Published tables write some as fractions (`64.5`), which are rounded.
    fn number(&mut self, row: &Row, column: &'static str) -> Option<u32> {
        self.decimal(row, column).map(|number| number.round() as u32)
    }
}

/// The bin by name, GPU cores and memory; where they leave several, by the bandwidth that the row
/// gives.
fn chip(row: &Row, open: &mut Open) -> Result<&'static ChipVariant, CaseError> {
    let positive = |number: f64| (number > 0.0).then_some(number);
    let likeness = Likeness::of(Description {
        name: required(row, CHIP)?,
        gpu_cores: open.number(row, GPU_CORES).filter(|cores| *cores > 0),
        memory: open
            .number(row, MEMORY)
            .filter(|gib| *gib > 0)
            .map(|gib| Bytes::gib(u64::from(gib))),
        bandwidth: open
            .decimal(row, BANDWIDTH)
            .and_then(positive)
            .map(|gigabytes| BytesPerSecond(gigabytes * 1e9)),
    })?;
    if let Some(assumed) = likeness.assumed {
        open.assume(assumed.remark, assumed.doubt);
    }
    Ok(likeness.chip)
}

/// Of the file, or of a published model that is known by this name.
fn dimensions(model: &str, shapes: &ShapeFile, open: &mut Open) -> Result<ModelDimensions, CaseError> {
    let found = shapes.dimensions(model);
    match (&found, library::dimensions(&Spelling::new(model))) {
        (Err(ShapeError::Unknown { .. }), Some((key, dimensions))) => {
            open.remark(format!(
                "there is no shape `{model}`; that of {key} is taken, as published"
            ));
            Ok(dimensions)
        }
        (_, _) => Ok(found?),
    }
}

/// As its column says, or the name that the model has.
fn stored(row: &Row, name: &str, open: &mut Open) -> Result<String, CaseError> {
    if let Some(told) = optional(row, FORMAT) {
        return Ok(told.to_owned());
    }
    let format = Spelling::new(name)
        .format
        .ok_or(CaseError::Missing { column: FORMAT })?;
    open.remark(format!("column `{FORMAT}` is empty; `{name}` says {format}"));
    Ok(format)
}

/// The kernels that a program of this name runs, and what its weights are stored as. Several
/// programs wrap the same two engines; where a name does not tell which, the format of the weights
/// does.
fn engine(program: &str, stored: &str, open: &mut Open) -> Result<(Engine, WeightFormat), CaseError> {
    let named = engine_of_name(program);
    let understood = NamedFormat::understand(stored, named)?;
    let format = understood.format;
    let told = match (format, named) {
        // Ollama runs both; these formats only with MLX.
        (WeightFormat::Affine { .. } | WeightFormat::Nvfp4 | WeightFormat::Mxfp8, None) => Some(Engine::Mlx),
        (WeightFormat::Affine { .. } | WeightFormat::Nvfp4 | WeightFormat::Mxfp8, Some(_))
            if program.eq_ignore_ascii_case("ollama") =>
        {
            Some(Engine::Mlx)
        }
        (_, Some(engine)) => Some(engine),
        (format, None) if format.is_gguf() => Some(Engine::LlamaCpp),
        (_, None) => None,
    };
    if let Some(doubt) = understood.doubt {
        let remark =
            format!("`{stored}` names no format whose bits and speed are known; {format} is assumed");
        open.assume(remark, doubt);
    }
    let engine = told.unwrap_or_else(|| {
        // GGUF files in floats are converted to F16 most often, and MLX's are kept in the
        // publisher's BF16.
        let likely = if format == WeightFormat::BFloat16 {
            Engine::Mlx
        } else {
            Engine::LlamaCpp
        };
        let remark =
            format!("neither `{program}` nor `{stored}` tells MLX from llama.cpp; {likely} is assumed");
        open.assume(remark, UNTOLD_ENGINE);
        likely
    });
    Ok((engine, format))
}

fn engine_of_name(program: &str) -> Option<Engine> {
    let lower = program.to_ascii_lowercase();
    if lower.contains("mlx") {
        Some(Engine::Mlx)
    } else if ["llama", "gguf", "ggml", "kobold"]
        .iter()
        .any(|word| lower.contains(word))
    {
        Some(Engine::LlamaCpp)
    } else {
        None
    }
}

pub fn optional<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    row.get(column)
        .map(|value| value.trim())
        .filter(|value| !value.is_empty())
}

fn required<'a>(row: &'a Row, column: &'static str) -> Result<&'a str, CaseError> {
    optional(row, column).ok_or(CaseError::Missing { column })
}

/// More than any cell can mean; no count beyond it fits its type.
const MOST: f64 = 4e9;

/// Ways to leave a cell open.
const UNKNOWN: [&str; 8] = ["-", "–", "?", "n/a", "na", "nan", "none", "unknown"];

/// A number as people write it: `≈1,024 tokens`, `32 GB`, `4k`.
pub fn decimal(row: &Row, column: &'static str) -> Result<Option<f64>, CaseError> {
    let Some(value) = optional(row, column) else {
        return Ok(None);
    };
    let lower = value.to_ascii_lowercase();
    if UNKNOWN.contains(&lower.as_str()) {
        return Ok(None);
    }
    let bare = lower
        .trim_start_matches(['~', '≈', '<', '>', ' '])
        .replace([',', '_'], "");
    let unit = bare.find(|c: char| !(c.is_ascii_digit() || c == '.'));
    let (number, unit) = bare.split_at(unit.unwrap_or(bare.len()));
    let scale = match unit.trim() {
        "" | "gb" | "gib" | "g" | "gb/s" | "gbps" | "tokens" | "token" | "tok" | "t" | "t/s" | "tok/s"
        | "tps" | "ms" | "core" | "cores" | "c" => 1.0,
        "k" => 1024.0,
        "tb" | "tib" => 1024.0,
        exponent => format!("1{exponent}").parse().unwrap_or(f64::NAN),
    };
    match number.parse::<f64>().map(|number| number * scale) {
        Ok(number) if (0.0..MOST).contains(&number) => Ok(Some(number)),
        _ => Err(CaseError::Invalid {
            column,
            value: value.to_owned(),
            expected: "a number of zero or more",
        }),
    }
}

#[cfg(test)]
mod tests;
