//! Calibration of predictions by runs on a node: errors of decode and of the first token, by model
//! and context.
//!
//! [`shrinkage`] has the estimate: corrections are shared by the models of a node, more by the
//! models of an architecture class, and most by the runs of a model. A node has one chip; a new
//! release of its engine or operating system resets the calibration.

pub mod shrinkage;

use k8s_openapi::jiff::Timestamp;

use self::shrinkage::{Estimate, ModelId, Sample, Shrinkage};
use super::{Interval, ModelCost};
use rooflet_base::units::Bytes;
use rooflet_model::dimensions::{Attention, ModelDimensions};

/// Maximum number of runs of a model at similar contexts, which are within a factor of two.
const MAX_RUNS: usize = 8;
/// Maximum number of a model's runs.
const MAX_RUNS_OF_MODEL: usize = 32;
/// Maximum number of models of a node.
const MAX_MODELS: usize = 8;
/// Time after which a run counts half, in days. Assumed, because no series of runs of one machine
/// is published: twice the validity of a probe.
const HALF_LIFE_DAYS: f64 = 14.0;
/// Weight below which a run is deleted, after about eight weeks.
const MIN_WEIGHT: f64 = 0.0625;
const DAY_SECONDS: f64 = 86_400.0;
/// Standard deviations between the median and the tenth percentile.
const DEVIATIONS_TO_P10: f64 = 1.2816;
/// Minimum tokens of a run. Shorter answers are dominated by the first step.
const MIN_TOKENS: u64 = 32;
/// Minimum tokens of a prompt. Shorter prompts are dominated by the fixed part of the first token.
const MIN_PROMPT_TOKENS: u64 = 256;
/// Maximum ratio of measured and predicted time, and of a correction. A larger one belongs to
/// another machine or model.
const MAX_FACTOR: f64 = 4.0;
/// Active parameters, in 10⁹, below which launches dominate the time of a dense model.
const SMALL_MODEL_BILLIONS: f64 = 2.5;

/// Deviations of a measured quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measure {
    shrinkage: Shrinkage,
    /// Deviation that no number of runs removes: temperatures and loads of one node differ.
    open_deviation: f64,
}

/// Deviations for decode: the best of those that the replay of `cargo xtask fit-roofline` compares.
pub const DECODE: Shrinkage = Shrinkage {
    node_share: 0.5,
    class_share: 0.3,
    slope: 0.03,
    run: 0.03,
};

const DECODE_MEASURE: Measure = Measure {
    shrinkage: DECODE,
    open_deviation: 0.015,
};
/// The deviations of a run and of the open part are assumptions, because no such runs are
/// published. The shares are those of decode.
const FIRST_TOKEN_MEASURE: Measure = Measure {
    shrinkage: Shrinkage { run: 0.05, ..DECODE },
    open_deviation: 0.05,
};

/// Class of architectures whose predictions have similar errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArchitectureClass {
    Dense,
    /// Without experts and with few parameters, so that kernel launches dominate.
    Small,
    /// Linear (recurrent) attention in some layers.
    Linear,
    Experts,
    /// Experts, and linear attention in some layers.
    LinearExperts,
    /// Multi-head latent attention.
    Latent,
}

impl ArchitectureClass {
    /// Typical size of a prediction's error, relative to that of dense models. These are the rounded
    /// ratios of the widths of intervals ([`super::spread`]).
    fn error_scale(self) -> f64 {
        match self {
            Self::Dense | Self::Linear => 1.0,
            Self::Small | Self::Experts | Self::LinearExperts | Self::Latent => 1.5,
        }
    }

    pub fn of(dimensions: &ModelDimensions) -> Self {
        let any = |is: fn(&Attention) -> bool| dimensions.layers.iter().any(|layer| is(&layer.attention));
        let is_latent = any(|attention| matches!(attention, Attention::Latent { .. }));
        let is_linear = any(|attention| matches!(attention, Attention::GatedDelta { .. }));
        let has_experts = dimensions.expert_parameters() > 0;
        let is_small = (dimensions.active_parameters() as f64) < SMALL_MODEL_BILLIONS * 1e9;
        match (has_experts, is_linear) {
            _ if is_latent => Self::Latent,
            (true, true) => Self::LinearExperts,
            (true, false) => Self::Experts,
            (false, _) if is_small => Self::Small,
            (false, true) => Self::Linear,
            (false, false) => Self::Dense,
        }
    }
}

/// Measured run of a model on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Tokens per second: measured, and predicted without calibration.
    pub measured: f64,
    pub predicted: f64,
    /// Number of measured tokens.
    pub tokens: u64,
    /// Mean number of cached tokens of a sequence.
    pub context_tokens: f64,
    /// Maximum rate by the bandwidth of the data sheet. `None` without a data sheet.
    pub ceiling: Option<f64>,
}

/// Measured prefill of prompts on a node, one at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillRun {
    /// Seconds from the start of a request's processing to the first token: measured, and predicted
    /// without calibration.
    pub measured: f64,
    pub predicted: f64,
    /// Number of prompt tokens of a request.
    pub prompt_tokens: f64,
}

/// Reason why a run is not used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum UnusableRun {
    #[error("it generated {tokens} tokens, fewer than {MIN_TOKENS}")]
    TooShort { tokens: u64 },
    #[error("its prompts have {tokens:.0} tokens, fewer than {MIN_PROMPT_TOKENS}")]
    ShortPrompts { tokens: f64 },
    #[error("{measured:.1} tokens/s is more than the memory's bandwidth allows, {ceiling:.1}")]
    AboveRoofline { measured: f64, ceiling: f64 },
    #[error("measured {measured:.2}, predicted {predicted:.2}: not the same machine or model")]
    Implausible { measured: f64, predicted: f64 },
}

impl UnusableRun {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooShort { .. } | Self::ShortPrompts { .. } => "TooFewTokens",
            Self::AboveRoofline { .. } => "AboveRoofline",
            Self::Implausible { .. } => "Implausible",
        }
    }
}

/// Error of a past run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Mean context of decode, or length of the prompts.
    pub tokens: f64,
    /// ln(measured / predicted time).
    pub log_time_ratio: f64,
    /// `None` for a run of an earlier version, which recorded no times.
    pub observed_at: Option<Timestamp>,
    /// Number of current runs that this run counts as, 0 to 1; see [`Calibration::age`].
    pub weight: f64,
}

impl Observation {
    fn is_possible(&self) -> bool {
        self.log_time_ratio.abs() <= MAX_FACTOR.ln()
            && self.tokens.is_finite()
            && (0.0..=1.0).contains(&self.weight)
    }

    /// Returns a number that is equal for contexts within a factor of two.
    fn octave(&self) -> i32 {
        self.tokens.max(1.0).log2().floor() as i32
    }

    fn sample(&self, model: ModelId) -> Sample {
        Sample {
            model,
            tokens: self.tokens,
            error: self.log_time_ratio,
            weight: self.weight,
        }
    }
}

/// Runs of one model on a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// `None` for runs of an earlier version, which did not record the model: they apply to models
    /// with the same weight bits.
    pub architecture: Option<ArchitectureClass>,
    /// Weights in memory, which identify the model together with its class. Models with equal
    /// weights are equally fast.
    pub weights: Bytes,
    /// Weight format; see [`weight_bits`].
    pub weight_bits: u32,
    decode: Vec<Observation>,
    first_token: Vec<Observation>,
}

/// Returns the weight format: integer bits of the weights that every step reads, such as 4 for 4
/// bits with scales.
pub(crate) fn weight_bits(model: &ModelCost) -> u32 {
    let parameters = model.dimensions.core_parameters() as f64;
    (model.weights.every_step.0 as f64 * 8.0 / parameters).floor() as u32
}

impl Calibration {
    fn new(model: &ModelCost) -> Self {
        Self {
            architecture: Some(ArchitectureClass::of(&model.dimensions)),
            weights: model.weights.resident(),
            weight_bits: weight_bits(model),
            decode: Vec::new(),
            first_token: Vec::new(),
        }
    }

    /// Creates a calibration from published runs, oldest first. Impossible values are dropped.
    pub(crate) fn published(
        architecture: ArchitectureClass,
        weights: Bytes,
        weight_bits: u32,
        decode: impl IntoIterator<Item = Observation>,
        first_token: impl IntoIterator<Item = Observation>,
    ) -> Self {
        Self {
            architecture: Some(architecture),
            weights,
            weight_bits,
            decode: possible(decode),
            first_token: possible(first_token),
        }
    }

    /// Creates a calibration from the published figures of an earlier version: one list of errors
    /// per weight format.
    pub(crate) fn of_weight_bits(weight_bits: u32, decode: &[f64], first_token: &[f64]) -> Self {
        let runs = |errors: &[f64]| {
            let run = |error: &f64| Observation {
                tokens: 0.0,
                log_time_ratio: *error,
                observed_at: None,
                weight: 1.0,
            };
            possible(errors.iter().map(run))
        };
        Self {
            architecture: None,
            weights: Bytes::ZERO,
            weight_bits,
            decode: runs(decode),
            first_token: runs(first_token),
        }
    }

    /// Returns whether the runs belong to this model.
    fn is_of(&self, model: &ModelCost) -> bool {
        self.architecture == Some(ArchitectureClass::of(&model.dimensions))
            && self.weights == model.weights.resident()
    }

    /// Returns the runs of decode, oldest first.
    pub fn decode(&self) -> &[Observation] {
        &self.decode
    }

    /// Returns the runs of the first token, oldest first.
    pub fn first_token(&self) -> &[Observation] {
        &self.first_token
    }

    fn is_empty(&self) -> bool {
        self.decode.is_empty() && self.first_token.is_empty()
    }

    fn last_observed(&self) -> Option<Timestamp> {
        let runs = self.decode.iter().chain(&self.first_token);
        runs.filter_map(|run| run.observed_at).max()
    }

    /// Updates the weights of all runs, in steps of one day, and deletes those that no longer
    /// count. Runs without a time count as observed now.
    fn age(&mut self, now: Timestamp) {
        for runs in [&mut self.decode, &mut self.first_token] {
            for run in runs.iter_mut() {
                let observed_at = *run.observed_at.get_or_insert(now);
                let days = (now.duration_since(observed_at).as_secs_f64() / DAY_SECONDS).floor();
                let weight = 0.5f64.powf(days.max(0.0) / HALF_LIFE_DAYS);
                run.weight = (weight * 1e3).round() / 1e3;
            }
            runs.retain(|run| run.weight > MIN_WEIGHT);
        }
    }
}

/// Updates the weights of all runs of a node and deletes outdated ones.
pub fn age(calibrations: &mut Vec<Calibration>, now: Timestamp) {
    for calibration in calibrations.iter_mut() {
        calibration.age(now);
    }
    calibrations.retain(|calibration| !calibration.is_empty());
}

/// Adds a run of a model. If the run is unusable, the calibrations do not change.
pub fn observe(
    calibrations: &mut Vec<Calibration>,
    model: &ModelCost,
    run: &Run,
    now: Timestamp,
) -> Result<(), UnusableRun> {
    let Run {
        measured, predicted, ..
    } = *run;
    if run.tokens < MIN_TOKENS {
        return Err(UnusableRun::TooShort { tokens: run.tokens });
    }
    if let Some(ceiling) = run.ceiling.filter(|ceiling| measured > *ceiling) {
        return Err(UnusableRun::AboveRoofline { measured, ceiling });
    }
    let observation = observed(run.context_tokens, predicted / measured, now)
        .ok_or(UnusableRun::Implausible { measured, predicted })?;
    push(&mut of_model(calibrations, model).decode, observation);
    Ok(())
}

/// Adds a measured prefill of a model. If it is unusable, the calibrations do not change.
pub fn observe_prefill(
    calibrations: &mut Vec<Calibration>,
    model: &ModelCost,
    run: &PrefillRun,
    now: Timestamp,
) -> Result<(), UnusableRun> {
    let PrefillRun {
        measured,
        predicted,
        prompt_tokens,
    } = *run;
    if prompt_tokens < MIN_PROMPT_TOKENS as f64 {
        return Err(UnusableRun::ShortPrompts {
            tokens: prompt_tokens,
        });
    }
    let observation = observed(prompt_tokens, measured / predicted, now)
        .ok_or(UnusableRun::Implausible { measured, predicted })?;
    push(&mut of_model(calibrations, model).first_token, observation);
    Ok(())
}

/// Returns the calibration of a model, which is added if needed. At the maximum number of models,
/// it replaces the model whose last run is the oldest.
fn of_model<'a>(calibrations: &'a mut Vec<Calibration>, model: &ModelCost) -> &'a mut Calibration {
    let known = calibrations
        .iter()
        .position(|calibration| calibration.is_of(model));
    let index = known.unwrap_or_else(|| {
        // Runs of the model itself replace those of an earlier version.
        let bits = weight_bits(model);
        calibrations.retain(|known| known.architecture.is_some() || known.weight_bits != bits);
        while calibrations.len() >= MAX_MODELS {
            let oldest = (0..calibrations.len()).min_by_key(|index| calibrations[*index].last_observed());
            calibrations.remove(oldest.unwrap_or_default());
        }
        calibrations.push(Calibration::new(model));
        calibrations.len() - 1
    });
    &mut calibrations[index]
}

/// Returns the decode rate of a model at this context, corrected by the runs of the node, or `None`
/// if no run applies.
pub(crate) fn calibrated_rate(
    calibrations: &[Calibration],
    model: &ModelCost,
    context_tokens: u32,
    rate: Interval,
) -> Option<Interval> {
    let samples = samples(calibrations, model, Calibration::decode);
    let Estimate { mean, deviation } =
        DECODE_MEASURE.correction(&samples, model, f64::from(context_tokens), rate)?;
    Some(Interval::around(rate.p50 * (-mean).exp(), deviation, deviation))
}

/// Returns the time to the first token of a prompt of this length, corrected by the runs of the
/// node, or `None` if no run applies.
pub(crate) fn calibrated_first_token(
    calibrations: &[Calibration],
    model: &ModelCost,
    prompt_tokens: u32,
    seconds: Interval,
) -> Option<Interval> {
    let samples = samples(calibrations, model, Calibration::first_token);
    let Estimate { mean, deviation } =
        FIRST_TOKEN_MEASURE.correction(&samples, model, f64::from(prompt_tokens), seconds)?;
    Some(Interval::around(seconds.p50 * mean.exp(), deviation, deviation))
}

impl Measure {
    /// Returns the correction of a predicted time, and the half-width of the corrected interval.
    fn correction(
        &self,
        samples: &[Sample],
        model: &ModelCost,
        tokens: f64,
        predicted: Interval,
    ) -> Option<Estimate> {
        if samples.is_empty() {
            return None;
        }
        let half_width = (predicted.p90 / predicted.p10).ln() / 2.0;
        let prior = (half_width / DEVIATIONS_TO_P10).max(self.open_deviation);
        let Estimate { mean, deviation } = self.shrinkage.estimate(samples, model_id(model), tokens, prior);
        Some(Estimate {
            mean: mean.clamp(-MAX_FACTOR.ln(), MAX_FACTOR.ln()),
            deviation: DEVIATIONS_TO_P10 * deviation.hypot(self.open_deviation).min(prior),
        })
    }
}

/// Returns the runs that apply to a model. Runs without a known model apply to models with the same
/// weight bits as if they were runs of that model.
fn samples(
    calibrations: &[Calibration],
    model: &ModelCost,
    runs: fn(&Calibration) -> &[Observation],
) -> Vec<Sample> {
    if calibrations.is_empty() {
        return Vec::new();
    }
    let (own, bits) = (model_id(model), weight_bits(model));
    let id = |calibration: &Calibration| match calibration.architecture {
        Some(class) => Some(ModelId {
            class,
            number: calibration.weights.0,
        }),
        None => (calibration.weight_bits == bits).then_some(own),
    };
    calibrations
        .iter()
        .filter_map(|calibration| Some((id(calibration)?, runs(calibration))))
        .flat_map(|(id, runs)| runs.iter().map(move |run| run.sample(id)))
        .collect()
}

fn model_id(model: &ModelCost) -> ModelId {
    ModelId {
        class: ArchitectureClass::of(&model.dimensions),
        number: model.weights.resident().0,
    }
}

/// Returns a run that took `ratio` times the predicted time, or `None` if it is implausible.
fn observed(tokens: f64, ratio: f64, now: Timestamp) -> Option<Observation> {
    let observation = Observation {
        tokens: tokens.round(),
        log_time_ratio: ratio.ln(),
        observed_at: Some(now),
        weight: 1.0,
    };
    observation.is_possible().then_some(observation)
}

/// Returns the possible runs up to their maximum numbers.
fn possible(runs: impl IntoIterator<Item = Observation>) -> Vec<Observation> {
    let mut kept = Vec::new();
    for run in runs.into_iter().filter(Observation::is_possible) {
        push(&mut kept, run);
    }
    kept
}

/// Adds the newest run. At a maximum, the run replaces the oldest run at a similar context, or else
/// the oldest one.
fn push(runs: &mut Vec<Observation>, run: Observation) {
    let is_similar = |known: &Observation| known.octave() == run.octave();
    if runs.iter().filter(|known| is_similar(known)).count() >= MAX_RUNS {
        let oldest = runs.iter().position(is_similar).unwrap_or_default();
        runs.remove(oldest);
    }
    if runs.len() >= MAX_RUNS_OF_MODEL {
        runs.remove(0);
    }
    runs.push(run);
}

#[cfg(test)]
mod tests;
