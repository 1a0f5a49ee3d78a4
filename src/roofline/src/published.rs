//! Conversion between API objects and the types of the performance model. The scheduler computes
//! with the figures that an agent publishes.

mod model;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use serde_json::Value;

use crate::admission::{AdmissionRequest, FirstTokenObjective, Objectives, Speed, Suggestion, Verdict};
use crate::chip;
use crate::disk::DiskDemand;
use crate::memory::{Demand, Reservation, ServedModel, largest_where};
use crate::predict::calibration::{ArchitectureClass, Calibration, Observation};
use crate::predict::{Engine, Hardware, Interval, MeasuredMachine, Parameters};
use rooflet_api::conditions::{PROBE_EXPIRED, condition_type};
use rooflet_api::v1alpha1 as api;
use rooflet_api::v1alpha1::{FleetNodeStatus, NodeSpeed, ObjectivesSpec, PlausibilityVerdict};
use rooflet_base::quantity;
use rooflet_base::units::Bytes;

/// Returns the basis for predicting the speed of a node's models. `None` if nothing is measured and
/// the chip is not in the catalogue. An expired probe widens the intervals.
pub fn hardware(status: &FleetNodeStatus) -> Option<Hardware> {
    let expired = status
        .conditions
        .iter()
        .any(|condition| condition.type_ == condition_type::PROBE_FRESH && condition.reason == PROBE_EXPIRED);
    let memory = quantity::parse_bytes(&status.capacity.memory).ok();
    hardware_of(&status.chip, memory, speed(status).as_ref(), expired)
}

/// Returns the measured speed of a node. Earlier agents publish the figures of the probe instead.
pub fn speed(status: &FleetNodeStatus) -> Option<NodeSpeed> {
    let of_probe = || status.probe.as_ref().map(measured_speed);
    status.speed.clone().or_else(of_probe)
}

/// Returns the speed to publish for the figures of a probe.
pub fn measured_speed(probe: &api::Probe) -> NodeSpeed {
    let figures = &probe.measurements;
    NodeSpeed {
        basis: api::Basis::Measured,
        engine: probe.engine.clone(),
        measured_at: probe.measured_at.clone(),
        verdict: probe
            .plausibility
            .as_ref()
            .map_or(PlausibilityVerdict::NotJudged, |judged| judged.verdict),
        read_bytes_per_second: figures.read.median_bytes_per_second,
        decode_bytes_per_second: figures.qmv.median_bytes_per_second,
        disk_read_bytes_per_second: disk_read(figures).map(|disk| api::Percentiles {
            p10: disk.p10,
            p50: disk.p50,
            p90: disk.p90,
        }),
        thermal_state: figures.thermal_state,
        power_source: figures.power_source,
        factors: None,
        packed_factors: MeasuredMachine::new(figures).map(|machine| pack(&machine.factors())),
    }
}

/// Returns a published value as JSON on one line, with numbers of six digits.
fn pack(value: &impl Serialize) -> String {
    fn rounded(value: Value) -> Value {
        match value {
            Value::Object(members) => members
                .into_iter()
                .map(|(name, value)| (name, rounded(value)))
                .collect(),
            Value::Number(number) if number.is_f64() => number
                .as_f64()
                .and_then(|value| format!("{value:.5e}").parse::<f64>().ok())
                .map_or(Value::Null, Value::from),
            other
            @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => other,
        }
    }
    let value = serde_json::to_value(value).expect("published values serialise");
    rounded(value).to_string()
}

/// Returns the entry of a model for the status of a node. Its cost is one line of text, so that
/// `kubectl describe` stays short.
pub fn packed_model(model: &api::NodeModel) -> api::NodeModel {
    api::NodeModel {
        activation_bytes: 0,
        packed_cost: model
            .cost
            .as_ref()
            .map(pack)
            .or_else(|| model.packed_cost.clone()),
        cost: None,
        ..model.clone()
    }
}

/// Returns the measured read speed of the machine's disk in bytes per second. A measurement that
/// the page cache may have served is ignored.
pub fn disk_read(measured: &api::Measurements) -> Option<Interval> {
    let disk = measured.disk_read.as_ref().filter(|disk| disk.past_cache)?;
    let figure = &disk.figure;
    (figure.p10_bytes_per_second > 0.0).then_some(Interval {
        p10: figure.p10_bytes_per_second,
        p50: figure.median_bytes_per_second,
        p90: figure.p90_bytes_per_second,
    })
}

/// Returns the measured read speed of a node's disk in bytes per second.
pub fn node_disk_read(status: &FleetNodeStatus) -> Option<Interval> {
    let disk = speed(status)?.disk_read_bytes_per_second?;
    (disk.p10 > 0.0).then_some(Interval {
        p10: disk.p10,
        p50: disk.p50,
        p90: disk.p90,
    })
}

/// Like [`hardware`], for a node without a published status.
pub fn hardware_of(
    chip: &api::Chip,
    memory: Option<Bytes>,
    speed: Option<&NodeSpeed>,
    expired: bool,
) -> Option<Hardware> {
    let measured = speed.and_then(measured);
    let measured = measured.map(|machine| if expired { machine.stale() } else { machine });
    if measured.is_some() || chip.development {
        return measured.map(Hardware::Measured);
    }
    chip::find(&chip.name, chip.gpu_cores, memory)
        .ok()
        .map(Hardware::Chip)
}

/// Returns the machine of a measured speed.
///
/// If the figures are too slow for the chip, another program used the machine. They apply with a
/// wider interval, because the data sheet would predict more than was observed. Figures above the
/// data sheet do not measure the memory and are ignored.
fn measured(speed: &NodeSpeed) -> Option<MeasuredMachine> {
    let packed = speed.packed_factors.as_deref();
    let unpacked: Option<api::SpeedFactors> = packed.and_then(|text| serde_json::from_str(text).ok());
    let factors = unpacked.as_ref().or(speed.factors.as_ref());
    let machine = factors.and_then(MeasuredMachine::of_factors);
    match speed.verdict {
        PlausibilityVerdict::Plausible | PlausibilityVerdict::NotJudged => machine,
        PlausibilityVerdict::TooLow => machine.map(MeasuredMachine::stale),
        PlausibilityVerdict::TooHigh => None,
    }
}

impl From<&ObjectivesSpec> for Objectives {
    fn from(spec: &ObjectivesSpec) -> Self {
        Self {
            decode: spec.decode_tokens_per_second,
            first_token: spec.time_to_first_token.as_ref().and_then(|objective| {
                Some(FirstTokenObjective {
                    // The schema accepts only durations.
                    max_seconds: quantity::parse_duration(&objective.max)?.as_secs_f64(),
                    prompt_tokens: objective.at_prompt_tokens,
                })
            }),
        }
    }
}

/// Returns `ModelReplica.status.admission`. `model_tokens` is the context length of the model.
pub fn admission_status(
    request: &AdmissionRequest<'_>,
    model_tokens: u32,
    verdict: &Verdict,
    suggestions: &[Suggestion],
) -> api::AdmissionStatus {
    let Verdict {
        reservation,
        limit,
        free,
        disk,
        speed,
        share,
        free_share,
        refusals,
    } = verdict;
    api::AdmissionStatus {
        admitted: verdict.admitted(),
        binding: verdict.binding().map(|binding| binding.as_str().to_owned()),
        context: Some(api::ContextWorking {
            asked_tokens: request.demand.context_tokens,
            model_tokens,
            fits_tokens: largest_where(1, model_tokens, |context_tokens| {
                let demand = Demand {
                    context_tokens,
                    ..request.demand
                };
                Reservation::new(request.model, demand).total() <= *free
            }),
        }),
        memory: api::MemoryWorking {
            weights_bytes: reservation.weights.0,
            kv_bytes: reservation.kv_cache.0,
            activation_bytes: reservation.activations.0,
            runtime_bytes: reservation.runtime.0,
            limit_bytes: limit.0,
            free_bytes: free.0,
        },
        disk: (request.disk.total() > Bytes::ZERO).then(|| api::DiskWorking {
            required_bytes: request.disk.total().0,
            download_bytes: Some(request.disk.download.0).filter(|bytes| *bytes > 0),
            limit_bytes: disk.map(|disk| disk.limit.0),
            free_bytes: disk.map(|disk| disk.free.0),
        }),
        speed: speed.as_ref().map(speed_working),
        chip_time_percent: three_digits(share * 100.0),
        free_chip_time_percent: three_digits(free_share * 100.0),
        refusals: refusals.iter().map(ToString::to_string).collect(),
        suggestions: suggestions.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the speed of an admission decision.
pub fn speed_working(speed: &Speed) -> api::SpeedWorking {
    api::SpeedWorking {
        tokens_per_second: percentiles(speed.decode),
        bytes_per_token: speed.bytes_per_token.round(),
        time_to_first_token_seconds: percentiles(speed.first_token),
        prompt_tokens: speed.prompt_tokens,
        sustained_percent: speed.sustained.map(|kept| three_digits(kept * 100.0)),
        basis: speed.basis.as_str().to_owned(),
        time_to_first_token_basis: speed.first_token_basis.as_str().to_owned(),
    }
}

/// Load of a replica by real requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Average number of concurrently decoded sequences.
    pub streams: f64,
    /// Median number of prompt tokens.
    pub prompt_tokens: f64,
    /// Average number of cached tokens per sequence.
    pub context_tokens: f64,
}

impl Load {
    /// Returns the load of one request at a time with a prompt of this length.
    pub fn of_prompt(tokens: f64) -> Self {
        Self {
            streams: 1.0,
            prompt_tokens: tokens,
            context_tokens: tokens,
        }
    }

    pub fn batch(self) -> u32 {
        self.streams.round().max(1.0) as u32
    }
}

/// Returns the predicted speed of requests under this load on an otherwise idle chip, without
/// calibration.
pub fn speed_under_load(load: Load, hardware: Hardware, model: &ServedModel) -> Speed {
    let request = AdmissionRequest {
        model,
        engine: Engine::Mlx,
        demand: Demand {
            context_tokens: load.context_tokens.round().max(1.0) as u32,
            max_concurrency: load.batch(),
        },
        disk: DiskDemand::default(),
        objectives: Objectives {
            decode: None,
            // Length of the measured prompts. The bound is not used.
            first_token: Some(FirstTokenObjective {
                max_seconds: f64::INFINITY,
                prompt_tokens: Some(load.prompt_tokens.round().max(1.0) as u32),
            }),
        },
    };
    Speed::new(&request, hardware, Parameters::built_in())
}

/// Returns the prediction beside measured requests in `ModelReplica.status.measured`.
pub fn predicted_speed(load: Load, speed: &Speed) -> api::PredictedSpeed {
    api::PredictedSpeed {
        tokens_per_second: percentiles(speed.decode),
        time_to_first_token_seconds: percentiles(speed.first_token),
        streams: three_digits(load.streams),
        prompt_tokens: three_digits(load.prompt_tokens),
        context_tokens: three_digits(load.context_tokens),
        basis: speed.basis.as_str().to_owned(),
    }
}

/// Returns the prediction beside measured prompts in `ModelReplica.status.measured`.
pub fn predicted_prefill(prompt_tokens: f64, speed: &Speed) -> api::PredictedPrefill {
    api::PredictedPrefill {
        seconds: percentiles(speed.first_token),
        prompt_tokens: three_digits(prompt_tokens),
        basis: speed.first_token_basis.as_str().to_owned(),
    }
}

/// Returns an entry of `FleetNode.status.calibrations`.
pub fn publish_calibration(calibration: &Calibration) -> api::Calibration {
    let (decode, first_token) = (calibration.decode(), calibration.first_token());
    let runs = |runs: &[Observation]| runs.iter().map(published_run).collect();
    let ratios = |runs: &[Observation]| runs.iter().map(|run| four_places(run.log_time_ratio)).collect();
    let is_of_model = calibration.architecture.is_some();
    api::Calibration {
        architecture: calibration.architecture.map(published_class),
        weights_bytes: calibration.weights.0,
        weight_bits: calibration.weight_bits,
        decode: if is_of_model { runs(decode) } else { Vec::new() },
        first_token: if is_of_model {
            runs(first_token)
        } else {
            Vec::new()
        },
        log_time_ratios: if is_of_model { Vec::new() } else { ratios(decode) },
        log_first_token_ratios: if is_of_model {
            Vec::new()
        } else {
            ratios(first_token)
        },
    }
}

fn published_run(run: &Observation) -> api::CalibrationRun {
    api::CalibrationRun {
        tokens: run.tokens,
        log_time_ratio: four_places(run.log_time_ratio),
        observed_at: run.observed_at.map(Time),
        weight: run.weight,
    }
}

fn published_class(class: ArchitectureClass) -> api::ArchitectureClass {
    match class {
        ArchitectureClass::Dense => api::ArchitectureClass::Dense,
        ArchitectureClass::Small => api::ArchitectureClass::Small,
        ArchitectureClass::Linear => api::ArchitectureClass::Linear,
        ArchitectureClass::Experts => api::ArchitectureClass::Experts,
        ArchitectureClass::LinearExperts => api::ArchitectureClass::LinearExperts,
        ArchitectureClass::Latent => api::ArchitectureClass::Latent,
    }
}

impl From<api::ArchitectureClass> for ArchitectureClass {
    fn from(class: api::ArchitectureClass) -> Self {
        match class {
            api::ArchitectureClass::Dense => Self::Dense,
            api::ArchitectureClass::Small => Self::Small,
            api::ArchitectureClass::Linear => Self::Linear,
            api::ArchitectureClass::Experts => Self::Experts,
            api::ArchitectureClass::LinearExperts => Self::LinearExperts,
            api::ArchitectureClass::Latent => Self::Latent,
        }
    }
}

impl From<&api::CalibrationRun> for Observation {
    fn from(run: &api::CalibrationRun) -> Self {
        Self {
            tokens: run.tokens,
            log_time_ratio: run.log_time_ratio,
            observed_at: run.observed_at.as_ref().map(|time| time.0),
            weight: run.weight,
        }
    }
}

impl From<&api::Calibration> for Calibration {
    fn from(calibration: &api::Calibration) -> Self {
        match calibration.architecture {
            Some(class) => Self::published(
                class.into(),
                Bytes(calibration.weights_bytes),
                calibration.weight_bits,
                calibration.decode.iter().map(Observation::from),
                calibration.first_token.iter().map(Observation::from),
            ),
            // An object of an earlier version.
            None => Self::of_weight_bits(
                calibration.weight_bits,
                &calibration.log_time_ratios,
                &calibration.log_first_token_ratios,
            ),
        }
    }
}

/// Returns the published calibrations of a node.
pub fn calibrations(status: &FleetNodeStatus) -> Vec<Calibration> {
    status.calibrations.iter().map(Calibration::from).collect()
}

fn percentiles(interval: Interval) -> api::Percentiles {
    api::Percentiles {
        p10: three_digits(interval.p10),
        p50: three_digits(interval.p50),
        p90: three_digits(interval.p90),
    }
}

fn four_places(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Rounds to three significant digits. More digits would be false precision and change with every
/// probe.
fn three_digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = (2 - value.abs().log10().floor() as i32).max(0) as usize;
    format!("{value:.digits$}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests;
