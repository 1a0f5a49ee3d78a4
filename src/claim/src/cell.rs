//! Figure of a claim with its machine, model and conditions.

use super::InvalidClaim;
use super::field::{Least, read, read_memory, read_within};
use super::machine::Machine;
use super::model::{ClaimedFormat, KnownModel, format_of_name, impossible_group};
use super::stated::{Measure, Reading, Stated};
use super::statement::Statement;
use crate::figure_class::FigureClass as _;
use rooflet_api::v1alpha1::{
    ClaimBasis, ClaimedConditions, ClaimedFigure, ClaimedModel, FigureKind, FigurePer, PerformanceClaimSpec,
    Published,
};
use rooflet_model::shapes::ShapeFile;

/// Engines whose benchmarks report the tokens of all requests.
const BATCHING_ENGINES: [&str; 2] = ["vllm", "sglang"];

/// Parsed figure.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    /// Path of the figure in the spec.
    pub(super) field: String,
    pub(super) name: Option<String>,
    pub(super) kind: FigureKind,
    /// Text as published.
    pub(super) stated: String,
    pub(super) reading: Reading,
    /// True for a factor such as `1.02x`, and for a percentage.
    pub(super) is_factor: bool,
    pub(super) is_percent: bool,
    pub(super) machine: Machine,
    pub(super) model: Model,
    /// Conditions as stated by the claim.
    pub(super) conditions: ClaimedConditions,
    pub(super) engine: Option<String>,
    pub(super) workload: Workload,
    pub(super) basis: Option<ClaimBasis>,
    pub(super) presented_as: Option<ClaimBasis>,
    pub(super) per: Option<FigurePer>,
    pub(super) bytes: Option<Reading>,
}

/// Conditions as numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Workload {
    pub(super) prompt: Option<Reading>,
    pub(super) cached: Option<Reading>,
    pub(super) context: Option<Reading>,
    pub(super) generated: Option<Reading>,
    pub(super) batch: f64,
    /// True if tokens and seconds show that an unstated batch has one sequence.
    pub(super) is_one_sequence: bool,
    /// Bits of a cached element, if stated. Scales may add to them.
    pub(super) kv_bits: Option<f64>,
    pub(super) speculative: bool,
}

impl Workload {
    /// Returns the number of tokens in the KV cache during decode.
    pub(super) fn context_tokens(&self) -> f64 {
        self.context
            .or(self.prompt)
            .map_or(0.0, |tokens| tokens.low.max(0.0).ceil())
    }
}

/// Source of a model's properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SizeSource {
    /// All dimensions are known.
    Dimensions,
    /// The claim states the total and active parameters.
    Stated,
    /// Only the size in the name is known.
    Name,
}

/// The model of a figure.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) name: Option<String>,
    pub(super) known: Option<(KnownModel, SizeSource)>,
    pub(super) format: Option<ClaimedFormat>,
    /// Name of the format as written.
    pub(super) format_name: Option<String>,
    pub(super) file_size: Option<Reading>,
}

impl Model {
    /// Returns model and format, if both are known.
    pub(super) fn sized(&self) -> Option<(&KnownModel, SizeSource, ClaimedFormat)> {
        let (known, knowledge) = self.known.as_ref()?;
        Some((known, *knowledge, self.format?.of(known)))
    }
}

impl Cell {
    /// Returns a cell with the machine and model of the claim, for facts outside figures.
    pub(super) fn of_claim(spec: &PerformanceClaimSpec) -> Result<Self, InvalidClaim> {
        let zero = Reading {
            value: 0.0,
            low: 0.0,
            high: 0.0,
            is_range: false,
            significant: 1,
            standard_error: None,
        };
        Self::new(
            spec,
            &ClaimedConditions::default(),
            FigureKind::Other,
            "workload",
            String::new(),
            zero,
        )
    }

    pub(super) fn of_figure(
        spec: &PerformanceClaimSpec,
        figure: &ClaimedFigure,
        field: &str,
    ) -> Result<Self, InvalidClaim> {
        let value = format!("{field}.value");
        let stated = Stated::parse(&figure.value).map_err(|err| InvalidClaim::new(&value, err))?;
        let reading = stated
            .read(figure.kind.measure())
            .map_err(|err| InvalidClaim::new(&value, err))?;
        let reading = Least::of(figure.kind).check(reading, &figure.value, &value)?;
        let cell = Self::new(
            spec,
            &figure.under,
            figure.kind,
            field,
            stated.to_string(),
            reading,
        )?;
        Ok(Self {
            name: figure.name.clone(),
            is_factor: stated.is_factor(),
            is_percent: stated.is_percent(),
            basis: figure.basis,
            presented_as: figure.presented_as,
            per: figure.per,
            bytes: read(figure.bytes.as_ref(), Measure::Bytes, &format!("{field}.bytes"))?,
            ..cell
        })
    }

    /// Returns the result of a statement as a figure, if its label is a kind of figure or it
    /// computes the bytes of the weights.
    pub(super) fn of_statement(
        spec: &PerformanceClaimSpec,
        text: &str,
        field: &str,
    ) -> Result<Option<Self>, InvalidClaim> {
        let statement = Statement::new(text);
        let Some(stated) = statement.result() else {
            return Ok(None);
        };
        let stated_kind = statement
            .label
            .and_then(|label| serde_json::from_value::<FigureKind>(label.into()).ok())
            .filter(|kind| !kind.is_general());
        let kind = stated_kind.unwrap_or(FigureKind::WeightBytes);
        // If the result has another dimension, only the calculation is checked.
        let Some(reading) = stated
            .read(kind.measure())
            .ok()
            .filter(|reading| Least::of(kind).admits(*reading))
        else {
            return Ok(None);
        };
        let conditions = ClaimedConditions::default();
        let mut cell = Self::new(spec, &conditions, kind, field, stated.to_string(), reading)?;
        cell.workload.is_one_sequence = statement.divides_by_time() && !cell.may_count_several_requests();
        let parameters = cell.model.known.as_ref().map(|(model, _)| model.parameters);
        // Parameters × bytes are the weights, even without a label.
        let is_weights = || parameters.is_some_and(|parameters| statement.multiplies(parameters));
        Ok((stated_kind.is_some() || is_weights()).then_some(cell))
    }

    fn new(
        spec: &PerformanceClaimSpec,
        under: &ClaimedConditions,
        kind: FigureKind,
        field: &str,
        stated: String,
        reading: Reading,
    ) -> Result<Self, InvalidClaim> {
        let own = |name: &str| format!("{field}.under.{name}");
        let path = |name: &str, is_own: bool| {
            if is_own {
                own(name)
            } else {
                format!("workload.{name}")
            }
        };
        let conditions = under.or(&spec.workload);
        let tokens = |published: &Option<Published>, name: &str, is_own: bool| {
            read_within(
                published.as_ref(),
                Measure::Count,
                Least::Zero,
                &path(name, is_own),
            )
        };
        let engine = conditions.engine.clone().or_else(|| spec.engine.clone());

        let (chip, gpu_cores, memory) = if conditions.chip.is_some() {
            let memory = read_memory(
                conditions.memory.as_ref(),
                &path("memory", under.memory.is_some()),
            )?;
            (conditions.chip.as_deref(), conditions.gpu_cores, memory)
        } else {
            let memory = match &conditions.memory {
                Some(memory) => read_memory(Some(memory), &path("memory", under.memory.is_some()))?,
                None => read_memory(spec.hardware.memory.as_ref(), "hardware.memory")?,
            };
            let cores = conditions.gpu_cores.or(spec.hardware.gpu_cores);
            (spec.hardware.chip.as_deref(), cores, memory)
        };
        let machines = spec.hardware.machines.unwrap_or(1);
        let mut machine = Machine::new(chip, gpu_cores, memory, machines, engine.as_deref());
        if machine.bins.is_empty()
            && let Some(bandwidth) = read(
                spec.hardware.bandwidth.as_ref(),
                Measure::Bandwidth,
                "hardware.bandwidth",
            )?
        {
            machine.set_bandwidth(chip.unwrap_or_default(), bandwidth.high);
        }

        let model = Model::new(&spec.model, &conditions, engine.as_deref())?;
        let mentions_speculation = [
            engine.as_deref(),
            model.name.as_deref(),
            conditions.method.as_deref(),
            conditions.variant.as_deref(),
        ]
        .into_iter()
        .flatten()
        .any(is_speculation);
        let workload = Workload {
            prompt: tokens(&conditions.prompt, "prompt", under.prompt.is_some())?,
            cached: tokens(&conditions.cached, "cached", under.cached.is_some())?,
            context: tokens(&conditions.context, "context", under.context.is_some())?,
            generated: tokens(&conditions.generated, "generated", under.generated.is_some())?,
            batch: f64::from(conditions.batch.unwrap_or(1)),
            is_one_sequence: false,
            kv_bits: conditions.kv_bits.map(f64::from),
            speculative: conditions.speculative.unwrap_or(mentions_speculation),
        };
        if conditions.batch == Some(0) {
            return Err(InvalidClaim::new(
                path("batch", under.batch.is_some()),
                "`0` sequences generate no tokens; write the number of sequences decoded together, 1 or more",
            ));
        }
        if let (Some(cached), Some(prompt)) = (workload.cached, workload.prompt)
            && cached.low > prompt.high
        {
            let message = format!(
                "{:.0} cached tokens exceed the prompt of {:.0} tokens; count only cached tokens of the prompt",
                cached.value, prompt.value
            );
            return Err(InvalidClaim::new(path("cached", under.cached.is_some()), message));
        }
        Ok(Self {
            field: field.to_owned(),
            name: None,
            kind,
            stated,
            reading,
            is_factor: false,
            is_percent: false,
            machine,
            model,
            conditions,
            engine,
            workload,
            basis: None,
            presented_as: None,
            per: None,
            bytes: None,
        })
    }

    /// Returns a short form: `decodeTokensPerSecond = 77.7`.
    pub(super) fn subject(&self) -> String {
        let name = self
            .name
            .as_ref()
            .map_or_else(String::new, |name| format!("{name}: "));
        format!("{name}{} = {}", self.kind.spelling(), self.stated)
    }

    /// Returns whether the engine serves several requests at once, and the claim does not state how
    /// many. Its tokens may be those of all requests.
    pub(super) fn may_count_several_requests(&self) -> bool {
        let engine = self.engine.as_deref().unwrap_or_default().to_ascii_lowercase();
        self.conditions.batch.is_none() && BATCHING_ENGINES.iter().any(|name| engine.contains(name))
    }

    /// Returns whether both figures have the same conditions.
    pub(super) fn same_run(&self, other: &Self) -> bool {
        let cached = |cell: &Self| cell.conditions.cached.as_ref().map(ToString::to_string);
        self.conditions.state == other.conditions.state
            && cached(self) == cached(other)
            && self.same_run_in_any_cache_state(other)
    }

    /// Returns whether both figures have the same conditions, except for the prefix cache.
    pub(super) fn same_run_in_any_cache_state(&self, other: &Self) -> bool {
        let key = |cell: &Self| {
            let c = &cell.conditions;
            (
                (
                    c.chip.clone(),
                    c.gpu_cores,
                    c.memory.as_ref().map(ToString::to_string),
                ),
                (c.model.clone(), c.quantization.clone(), cell.engine.clone()),
                (c.batch, c.kv_bits, c.speculative),
                c.variant.clone(),
                [&c.prompt, &c.context].map(|tokens| tokens.as_ref().map(ToString::to_string)),
            )
        };
        key(self) == key(other)
    }

    /// Returns whether both figures state the same quantity under the same conditions.
    pub(super) fn same_quantity(&self, other: &Self) -> bool {
        let generated = |cell: &Self| cell.conditions.generated.as_ref().map(ToString::to_string);
        self.kind == other.kind
            && self.name == other.name
            && self.per == other.per
            && self.same_run(other)
            && generated(self) == generated(other)
            && (!self.kind.is_general() || self.name.is_some())
    }
}

/// Returns whether a text contains a term for speculative decoding.
fn is_speculation(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    lower.contains("speculat")
        || words.iter().any(|word| {
            matches!(
                *word,
                "mtp" | "draft" | "eagle" | "eagle2" | "eagle3" | "medusa" | "dflash" | "lookahead"
            )
        })
}

impl Model {
    fn new(
        claimed: &ClaimedModel,
        conditions: &ClaimedConditions,
        engine: Option<&str>,
    ) -> Result<Self, InvalidClaim> {
        let other = conditions.model.as_deref();
        let name = other.or(claimed.name.as_deref());
        let known = match other {
            Some(name) => by_name(name),
            None => described(claimed)?,
        };
        let written = conditions.quantization.clone();
        let of_claim = || claimed.quantization.clone().filter(|_| other.is_none());
        let format_name = written
            .or_else(of_claim)
            .or_else(|| name.and_then(format_of_name))
            .or_else(|| claimed.quantization.clone())
            .or_else(|| published_as(name, engine).map(str::to_owned));
        if let Some((format, group)) = format_name
            .as_deref()
            .and_then(|format| Some((format, impossible_group(format)?)))
        {
            let message =
                format!("`{format}`: unsupported group size {group}; weights have groups of 32, 64 or 128");
            return Err(InvalidClaim::new("model.quantization", message));
        }
        let format = match &format_name {
            Some(format) => Some(ClaimedFormat::parse(format, engine).ok_or_else(|| {
                InvalidClaim::new(
                    "model.quantization",
                    format!(
                        "`{format}` is not a weight format; write for example mlx4, 4bit, 8bit, bf16, q4_k_m or mxfp4"
                    ),
                )
            })?),
            None => None,
        };
        Ok(Self {
            name: name.map(str::to_owned),
            known,
            format,
            format_name,
            file_size: read(
                claimed.file_size.as_ref().filter(|_| other.is_none()),
                Measure::Bytes,
                "model.fileSize",
            )?,
        })
    }
}

/// Returns the default format of a model: MXFP4 for gpt-oss, Q4_K_M for ollama tags.
fn published_as(name: Option<&str>, engine: Option<&str>) -> Option<&'static str> {
    if name?.to_ascii_lowercase().contains("gpt-oss") {
        return Some("mxfp4");
    }
    let engine = engine?.to_ascii_lowercase();
    (engine.contains("ollama") && !engine.contains("mlx")).then_some("q4_k_m")
}

fn by_name(name: &str) -> Option<(KnownModel, SizeSource)> {
    let known = KnownModel::find(name)?;
    let knowledge = if known.dimensions.is_some() {
        SizeSource::Dimensions
    } else {
        SizeSource::Name
    };
    Some((known, knowledge))
}

fn described(claimed: &ClaimedModel) -> Result<Option<(KnownModel, SizeSource)>, InvalidClaim> {
    let name = claimed.name.as_deref();
    if let Some(shape) = &claimed.shape {
        let text = serde_json::json!({ "claimed": shape }).to_string();
        let dimensions = ShapeFile::parse(&text)
            .and_then(|shapes| shapes.dimensions("claimed"))
            .map_err(|err| InvalidClaim::new("model.shape", rooflet_base::error::Chain(&err)))?;
        let model = KnownModel::of_dimensions(name.unwrap_or("the model"), dimensions);
        return Ok(Some((model, SizeSource::Dimensions)));
    }
    let found = name.and_then(by_name);
    if matches!(found, Some((_, SizeSource::Dimensions))) {
        return Ok(found);
    }
    let parameters = read(claimed.parameters.as_ref(), Measure::Count, "model.parameters")?;
    let active = read(
        claimed.active_parameters.as_ref(),
        Measure::Count,
        "model.activeParameters",
    )?;
    if let (Some(active), Some(parameters)) = (active, parameters)
        && active.low > parameters.high
    {
        return Err(InvalidClaim::new(
            "model.activeParameters",
            "must not exceed model.parameters; write the parameters that one token uses",
        ));
    }
    let mixture = claimed.experts.is_some() && active.is_none();
    match parameters {
        Some(parameters) => Ok(Some((
            KnownModel {
                name: name.unwrap_or("the model").to_owned(),
                dimensions: None,
                parameters: parameters.value,
                active: match (active, &found) {
                    (Some(active), _) => Some(active.value),
                    (None, Some((found, _))) if found.active.is_some() => found.active,
                    (None, _) => (!mixture).then_some(parameters.value),
                },
            },
            SizeSource::Stated,
        ))),
        None => Ok(found.map(|(mut found, knowledge)| {
            found.active = active.map(|active| active.value).or(found.active);
            (found, knowledge)
        })),
    }
}
