//! Published measurements, one CSV row each, and their predictions.

use std::collections::BTreeMap;

use crate::chip::chip_match::{ChipMatch, Description};
use crate::chip::{ChipVariant, UnknownChip};
use crate::predict::{Engine, EngineBuild, Hardware, Interval, ModelCost, Parameters, Prediction, Workload};
use rooflet_base::units::{Bytes, BytesPerSecond};
use rooflet_model::dimensions::ModelDimensions;
use rooflet_model::kv_cache::KvBits;
use rooflet_model::library;
use rooflet_model::library::Spelling;
use rooflet_model::shapes::{ShapeError, ShapeFile};
use rooflet_model::weights::{NamedFormat, UnknownWeightFormat, WeightFormat, Weights};

/// Names of the columns that are used.
const CHIP: &str = "chip";
const GPU_CORES: &str = "gpu_cores";
const MEMORY: &str = "ram_gb";
const ENGINE: &str = "engine";
const RELEASE: &str = "engine_version";
const KIND: &str = "kind";
const NOTE: &str = "note";
const MODEL: &str = "model_key";
/// Published name of the model. It replaces `model_key` and `quant` if they are empty.
const PUBLISHED: &str = "model";
const FORMAT: &str = "quant";
const PROMPT: &str = "prompt_tokens";
const GENERATED: &str = "gen_tokens";
const CONTEXT: &str = "ctx_avg";
const BATCH: &str = "batch";
const BANDWIDTH: &str = "bandwidth_gbs";
const WEIGHTS: &str = "weights_gb_stated";

/// Plausible ratio of a file's size to the size that its format implies. Other sizes belong to
/// another file.
const PLAUSIBLE_SIZE: std::ops::Range<f64> = 0.8..1.25;
/// Plausible ratio if the surplus is not read. Vision towers may be as large as the rest of a small
/// model.
const PLAUSIBLE_SURPLUS: std::ops::Range<f64> = 1.0..2.0;

/// Half-width, as a logarithm, if a row identifies neither MLX nor llama.cpp. The value is an
/// assumption.
const UNKNOWN_ENGINE: f64 = 0.15;

/// Half-width, as a logarithm, if a rate counts whole requests. Tables of such rates state neither
/// prompts nor the order of the requests. The value is an assumption.
const WHOLE_REQUESTS: f64 = 0.4;

/// Columns that every row needs.
pub const REQUIRED: [&str; 4] = [CHIP, ENGINE, MODEL, FORMAT];

/// Parsed row.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub chip: &'static ChipVariant,
    pub build: EngineBuild,
    pub model: ModelCost,
    pub workload: Workload,
    /// True if the row states the length of the prompt.
    pub prompt_known: bool,
    pub reported: ReportedRate,
    /// Assumptions about values that the row omits.
    pub remarks: Vec<String>,
    /// Combined half-width of all assumptions, as a logarithm.
    uncertainty: f64,
}

/// Definition of a table's decode rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReportedRate {
    /// Rate of one sequence during decode.
    PerStream,
    /// Total rate of a batch.
    Aggregate,
    /// Tokens of an answer over its total time, including prefill. All tables of llmfit count in
    /// this way, except those of Ollama.
    WallClock { generated: f64 },
    /// Tokens of a server's answers to a batch of requests, over the time from the first request to
    /// the last answer.
    Requests { generated: f64 },
}

impl ReportedRate {
    /// Returns the definition of the rate of `batch` sequences that each generate `generated` tokens,
    /// or 0 if their number is unknown.
    fn parse(kind: RateKind, batch: u32, generated: u32, build: &EngineBuild) -> Self {
        let answered = f64::from(generated);
        match kind {
            RateKind::WallClock if generated > 0 => Self::WallClock { generated: answered },
            RateKind::WholeRequests if generated > 0 && batch == 1 => Self::WallClock { generated: answered },
            RateKind::WholeRequests | RateKind::RequestsOfBatch if generated > 0 => {
                Self::Requests { generated: answered }
            }
            RateKind::Decode
            | RateKind::WallClock
            | RateKind::WholeRequests
            | RateKind::RequestsOfBatch
            | RateKind::Unknown => {
                if batch > 1 {
                    Self::Aggregate
                } else if generated > 0 && build.measures_whole_answers() {
                    Self::WallClock { generated: answered }
                } else {
                    Self::PerStream
                }
            }
        }
    }
}

/// Contents of the column `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RateKind {
    /// `decode`, `batch_aggregate`, or empty.
    Decode,
    /// `e2e_wall`: one answer over its total time.
    WallClock,
    /// `e2e`: one answer, or the answers to a batch, over the total time.
    WholeRequests,
    /// `batch_aggregate` with a note of `e2e`.
    RequestsOfBatch,
    Unknown,
}

impl RateKind {
    fn parse(kind: &str, note: &str) -> Self {
        match kind.to_ascii_lowercase().as_str() {
            "" | "decode" => Self::Decode,
            "e2e_wall" => Self::WallClock,
            "e2e" => Self::WholeRequests,
            "batch_aggregate" if note.to_ascii_lowercase().contains("e2e") => Self::RequestsOfBatch,
            "batch_aggregate" => Self::Decode,
            _ => Self::Unknown,
        }
    }

    /// Returns what is unknown about the rate. `generated` is 0 if the row does not state it.
    fn remark(self, kind: &str, generated: u32) -> Option<String> {
        match self {
            Self::Unknown => Some(format!(
                "column `{KIND}` is `{kind}`, expected decode, batch_aggregate, e2e or e2e_wall; decode is assumed"
            )),
            Self::WallClock | Self::WholeRequests | Self::RequestsOfBatch if generated == 0 => Some(format!(
                "the rate counts whole requests, but column `{GENERATED}` is empty; decode is assumed"
            )),
            Self::Decode | Self::WallClock | Self::WholeRequests | Self::RequestsOfBatch => None,
        }
    }
}

/// Reason why a row has no prediction.
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
    #[error("column `{column}` is `{value}`, more than the maximum of {most}")]
    TooLarge {
        column: &'static str,
        value: String,
        most: f64,
    },
    #[error(transparent)]
    Chip(#[from] UnknownChip),
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Format(#[from] UnknownWeightFormat),
}

/// Cells of a row by column name.
pub type Row = BTreeMap<String, String>;

impl Case {
    pub fn parse(row: &Row, shapes: &ShapeFile) -> Result<Self, CaseError> {
        let mut assumptions = Assumptions::default();
        let chip = chip(row, &mut assumptions)?;
        let program = optional(row, ENGINE).unwrap_or_default();
        let release = optional(row, RELEASE).unwrap_or_default();
        let published = optional(row, PUBLISHED);
        let model = match (optional(row, MODEL), published) {
            (Some(key), _) => key,
            (None, Some(name)) => name,
            (None, None) => return Err(CaseError::Missing { column: MODEL }),
        };
        let stored = stored(row, published.unwrap_or(model), &mut assumptions)?;
        let (engine, format) = engine(program, &stored, &mut assumptions)?;
        let note = optional(row, NOTE).unwrap_or_default();
        let build = build(engine, program, release, note);
        let dimensions = dimensions(model, shapes, &mut assumptions)?;
        let dimensions = if build.ignores_windows(&dimensions) {
            dimensions.without_windows()
        } else {
            dimensions
        };
        let ignored = shapes.unknown_fields(model);
        if !ignored.is_empty() {
            assumptions.remark(format!(
                "unknown fields of shape `{model}`: {}",
                ignored.join(", ")
            ));
        }
        let weights = Weights::estimate(&dimensions, format);
        let weights = match assumptions.decimal(row, WEIGHTS) {
            Some(gigabytes) => adjusted_to_file(weights, gigabytes * 1e9, format),
            None => weights,
        };
        let weights = Weights {
            native_floats: weights.native_floats
                || format != WeightFormat::BFloat16 && (build.stores_float16() || names_float16(row)),
            ..weights
        };
        // A prompt length of 0 means that the length is unknown.
        let prompt_tokens = assumptions.number(row, PROMPT).filter(|tokens| *tokens > 0);
        let generated = assumptions.number(row, GENERATED).unwrap_or(0);
        let context_tokens = assumptions.number(row, CONTEXT);
        let context_tokens = context_tokens.unwrap_or_else(|| prompt_tokens.unwrap_or(0) + generated / 2);
        let batch = assumptions.number(row, BATCH).unwrap_or(1).max(1);
        let kind = optional(row, KIND).unwrap_or_default();
        let rate_kind = RateKind::parse(kind, note);
        if let Some(remark) = rate_kind.remark(kind, generated) {
            assumptions.remark(remark);
        }
        let reported = ReportedRate::parse(rate_kind, batch, generated, &build);
        if matches!(reported, ReportedRate::Requests { .. }) {
            let remark = "the rate counts whole requests, whose prompts are unknown";
            assumptions.assume(remark.to_owned(), WHOLE_REQUESTS);
        }
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
            reported,
            remarks: assumptions.remarks,
            uncertainty: assumptions.uncertainty,
        })
    }

    /// Returns the predicted decode rate by the definition of the row's table.
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
            *interval = interval.widened(self.uncertainty);
        }
        prediction
    }
}

/// Returns the build. A note may state that the rate is that of a server, or that the engine rested
/// before each request (`cooldown`).
fn build(engine: Engine, program: &str, release: &str, note: &str) -> EngineBuild {
    let lower = note.to_ascii_lowercase();
    let states = |word: &str| {
        lower
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|w| w == word)
    };
    let build = EngineBuild::named(engine, program, release);
    let build = if build.program() == Some("mlx-lm") && states("server") {
        EngineBuild::named(engine, "mlx-lm server", release)
    } else {
        build
    };
    if states("cooldown") { build.idle() } else { build }
}

/// Returns whether the model's name contains float16.
fn names_float16(row: &Row) -> bool {
    let name = optional(row, "model").unwrap_or_default().to_ascii_lowercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| matches!(word, "fp16" | "f16" | "float16"))
}

/// Returns the weights, adjusted to the size of their file in bytes if the size is plausible.
///
/// A mix of formats differs from file to file under one name, so its weights are scaled. Other
/// formats have the number of bits that their name states. Bytes beyond that belong to image and
/// audio towers, which text generation does not read.
fn adjusted_to_file(weights: Weights, bytes: f64, format: WeightFormat) -> Weights {
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

/// Assumptions and remarks collected while a row is parsed.
#[derive(Debug, Default)]
struct Assumptions {
    remarks: Vec<String>,
    uncertainty: f64,
}

impl Assumptions {
    fn remark(&mut self, remark: String) {
        self.remarks.push(remark);
    }

    fn assume(&mut self, remark: String, uncertainty: f64) {
        self.remark(remark);
        self.uncertainty = self.uncertainty.hypot(uncertainty);
    }

    /// Returns an optional cell. An invalid cell adds a remark and counts as empty.
    fn decimal(&mut self, row: &Row, column: &'static str) -> Option<f64> {
        decimal(row, column).unwrap_or_else(|err| {
            self.remark(format!("{err}; treated as unknown"));
            None
        })
    }

    /// Returns an optional count. Published tables contain fractions (`64.5`), which are rounded.
    fn number(&mut self, row: &Row, column: &'static str) -> Option<u32> {
        self.decimal(row, column).map(|number| number.round() as u32)
    }
}

/// Finds the bin by name, GPU cores and memory, and by the row's bandwidth if several bins match.
fn chip(row: &Row, assumptions: &mut Assumptions) -> Result<&'static ChipVariant, CaseError> {
    let positive = |number: f64| (number > 0.0).then_some(number);
    let chip_match = ChipMatch::of(Description {
        name: required(row, CHIP)?,
        gpu_cores: assumptions.number(row, GPU_CORES).filter(|cores| *cores > 0),
        memory: assumptions
            .number(row, MEMORY)
            .filter(|gib| *gib > 0)
            .map(|gib| Bytes::gib(u64::from(gib))),
        bandwidth: assumptions
            .decimal(row, BANDWIDTH)
            .and_then(positive)
            .map(|gigabytes| BytesPerSecond(gigabytes * 1e9)),
    })?;
    if let Some(assumed) = chip_match.assumed {
        assumptions.assume(assumed.remark, assumed.uncertainty);
    }
    Ok(chip_match.chip)
}

/// Returns the dimensions from the shape file, or else of the published model with this name.
fn dimensions(
    model: &str,
    shapes: &ShapeFile,
    assumptions: &mut Assumptions,
) -> Result<ModelDimensions, CaseError> {
    let found = shapes.dimensions(model);
    match (&found, library::dimensions(&Spelling::new(model))) {
        (Err(ShapeError::Unknown { .. }), Some((key, dimensions))) => {
            assumptions.remark(format!(
                "there is no shape `{model}`; the published shape of {key} is used"
            ));
            Ok(dimensions)
        }
        (_, _) => Ok(found?),
    }
}

/// Returns the weight format from its column, or else from the name of the model.
fn stored(row: &Row, name: &str, assumptions: &mut Assumptions) -> Result<String, CaseError> {
    if let Some(stated) = optional(row, FORMAT) {
        return Ok(stated.to_owned());
    }
    let spelling = Spelling::new(name);
    if let Some(format) = spelling.format {
        assumptions.remark(format!(
            "column `{FORMAT}` is empty; the name `{name}` contains {format}"
        ));
        return Ok(format);
    }
    let format = library::trained_format_of(&spelling).ok_or(CaseError::Missing { column: FORMAT })?;
    assumptions.remark(format!(
        "column `{FORMAT}` is empty; `{name}` was published in {format}"
    ));
    Ok(format)
}

/// Returns the engine behind a program, and the weight format. Several programs wrap the same two
/// engines. If the name does not identify the engine, the weight format decides.
fn engine(
    program: &str,
    stored: &str,
    assumptions: &mut Assumptions,
) -> Result<(Engine, WeightFormat), CaseError> {
    let named = engine_of_name(program);
    let named_format = NamedFormat::parse(stored, named)?;
    let format = named_format.format;
    let identified = match (format, named) {
        // Ollama runs both engines, but these formats only with MLX.
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
    if let Some(uncertainty) = named_format.uncertainty {
        let remark = format!("`{stored}` is not a format with known bits and speed; {format} is assumed");
        assumptions.assume(remark, uncertainty);
    }
    let engine = identified.unwrap_or_else(|| {
        // Most GGUF files in floats are converted to F16. MLX files keep the publisher's BF16.
        let likely = if format == WeightFormat::BFloat16 {
            Engine::Mlx
        } else {
            Engine::LlamaCpp
        };
        let remark =
            format!("neither `{program}` nor `{stored}` identifies MLX or llama.cpp; {likely} is assumed");
        assumptions.assume(remark, UNKNOWN_ENGINE);
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

/// Returns the maximum number of a column. Sums and products of larger counts would not fit their
/// types.
fn maximum(column: &str) -> f64 {
    match column {
        PROMPT | GENERATED | CONTEXT => 1e9,
        GPU_CORES => 10_000.0,
        BATCH | MEMORY | BANDWIDTH | WEIGHTS => 1e6,
        _ => 4e9,
    }
}

/// Values that mean unknown.
const UNKNOWN: [&str; 8] = ["-", "–", "?", "n/a", "na", "nan", "none", "unknown"];

/// Parses a number in common notations: `≈1,024 tokens`, `32 GB`, `4k`.
pub fn decimal(row: &Row, column: &'static str) -> Result<Option<f64>, CaseError> {
    let Some(value) = optional(row, column) else {
        return Ok(None);
    };
    let lower = value.to_ascii_lowercase();
    if UNKNOWN.contains(&lower.as_str()) {
        return Ok(None);
    }
    let invalid = |expected| CaseError::Invalid {
        column,
        value: value.to_owned(),
        expected,
    };
    let marked = lower
        .trim_start_matches(['~', '≈', '<', '>', ' '])
        .replace('_', "");
    let unit = marked.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',')));
    let (number, unit) = marked.split_at(unit.unwrap_or(marked.len()));
    let number =
        without_thousands_separators(number).ok_or_else(|| invalid("a number such as 1,024 or 12.5"))?;
    let scale = match unit.trim() {
        "" | "gb" | "gib" | "g" | "gb/s" | "gbps" | "tokens" | "token" | "tok" | "t" | "t/s" | "tok/s"
        | "tps" | "ms" | "core" | "cores" | "c" => 1.0,
        "k" => 1024.0,
        "tb" | "tib" => 1024.0,
        exponent if exponent.starts_with('e') => format!("1{exponent}").parse().unwrap_or(f64::NAN),
        _ => f64::NAN,
    };
    let most = maximum(column);
    match number.parse::<f64>().map(|number| number * scale) {
        Ok(number) if (0.0..=most).contains(&number) => Ok(Some(number)),
        Ok(number) if number > most => Err(CaseError::TooLarge {
            column,
            value: value.to_owned(),
            most,
        }),
        _ => Err(invalid("a number of zero or more")),
    }
}

/// Removes commas between groups of three digits. Returns `None` if a comma is at another place, as in
/// the decimal comma of `12,5` and `0,125`.
fn without_thousands_separators(number: &str) -> Option<String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    let is_grouped = groups.clone().next().is_none()
        || (1..=3).contains(&first.len()) && !first.starts_with('0') && groups.all(|group| group.len() == 3);
    (is_grouped && !fraction.contains(',')).then(|| number.replace(',', ""))
}

#[cfg(test)]
mod tests;
