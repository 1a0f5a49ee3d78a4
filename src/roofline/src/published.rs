//! Conversion between API objects and the types of the performance model. The scheduler computes
//! with the figures that an agent publishes.

mod model;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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
        factors: MeasuredMachine::new(figures).map(|machine| machine.factors()),
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
    let machine = speed.factors.as_ref().and_then(MeasuredMachine::of_factors);
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

fn speed_working(speed: &Speed) -> api::SpeedWorking {
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
mod tests {
    use super::model::PublishedError;
    use super::*;
    use crate::predict::ModelCost;
    use crate::predict::calibration::calibrated_rate;
    use rooflet_api::v1alpha1::{MAX_LAYERS, NodeModel};
    use rooflet_model::dimensions::Layer;
    use rooflet_model::kv_cache::KvBits;
    use rooflet_model::shapes::ShapeFile;
    use rooflet_model::weights::{WeightFormat, Weights};

    /// Every kind of layer: hybrid attention with experts, latent attention, sliding windows.
    const SHAPES: &str = r#"{
        "hybrid": {"E": 256, "L": 8, "V": 1000, "d": 64, "eff": 32, "hd": 16, "k": 8, "lin": {"every": 4, "kd": 8, "kh": 2, "vd": 8, "vh": 4}, "mats": 3, "nh": 4, "nkv": 2, "qgate": 1, "sff": 32, "tied": 0},
        "latent": {"E": 8, "L": 3, "V": 1000, "d": 64, "dense_first": 1, "dff": 99, "eff": 14, "hd": 24, "k": 2, "mats": 3, "mla": {"kv": 32, "nope": 16, "q": 12, "rope": 8, "v": 16}, "nh": 4, "nkv": 4, "tied": 0},
        "sliding": {"L": 12, "V": 1000, "d": 64, "ff": 128, "ghd": 32, "gkv": 1, "glob": 6, "hd": 16, "kv_shared_global": 1, "mats": 3, "nh": 4, "nkv": 2, "tied": 1, "win": 8}
    }"#;

    #[test]
    fn expired_probe_widens_the_interval() {
        let mut status = FleetNodeStatus::default();
        status.chip.development = true;
        let mut probe = api::Probe::default();
        probe.measurements.qmv.median_bytes_per_second = 1e11;
        probe.measurements.read.median_bytes_per_second = 1e11;
        status.probe = Some(probe);
        let shapes = ShapeFile::parse(SHAPES).unwrap();
        let dimensions = shapes.dimensions("sliding").unwrap();
        let weights = Weights::estimate(&dimensions, WeightFormat::Affine { bits: 4, group: 64 });
        let model = ServedModel {
            cost: ModelCost { dimensions, weights },
            kv_bits: KvBits::HALF,
        };
        let load = Load {
            streams: 1.0,
            prompt_tokens: 10.0,
            context_tokens: 100.0,
        };
        let decode =
            |status: &FleetNodeStatus| speed_under_load(load, hardware(status).unwrap(), &model).decode;
        let fresh = decode(&status);
        let mut expire = |reason: &str| {
            status.conditions = serde_json::from_value(serde_json::json!([{
                "type": condition_type::PROBE_FRESH, "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            }]))
            .unwrap();
            decode(&status)
        };
        let old = expire(PROBE_EXPIRED);
        assert_eq!(old.p50, fresh.p50);
        assert!(old.p10 < 0.95 * fresh.p10 && old.p90 > 1.05 * fresh.p90);
        assert_eq!(expire("Measuring"), fresh);
    }

    #[test]
    fn uses_the_slower_of_probe_and_data_sheet() {
        let chip = api::Chip {
            name: "Apple M4 Pro".to_owned(),
            gpu_cores: Some(20),
            ..api::Chip::default()
        };
        let judged = |gigabytes: f64, verdict| {
            let mut probe = api::Probe::default();
            probe.measurements.qmv.median_bytes_per_second = gigabytes * 1e9;
            probe.measurements.read.median_bytes_per_second = gigabytes * 1e9;
            probe.plausibility = Some(api::Plausibility {
                verdict,
                ..api::Plausibility::default()
            });
            hardware_of(&chip, None, Some(&measured_speed(&probe)), false).unwrap()
        };
        let read = |hardware| match hardware {
            Hardware::Measured(machine) => machine.read,
            Hardware::Chip(chip) => chip.bandwidth.0,
        };
        assert_eq!(read(judged(250.0, PlausibilityVerdict::Plausible)), 250e9);
        assert_eq!(read(judged(100.0, PlausibilityVerdict::TooLow)), 100e9);
        assert_eq!(read(judged(400.0, PlausibilityVerdict::TooHigh)), 273e9);
    }

    /// An earlier agent publishes the figures of its probe, and a newer one the speed. Readers must
    /// predict the same speed from both.
    #[test]
    fn status_of_an_earlier_agent_predicts_the_same_speed() {
        let mut probe = api::Probe {
            engine: "mlx 0.32.2 (metal)".to_owned(),
            ..api::Probe::default()
        };
        let figure = |rate: f64| api::Figure {
            median_bytes_per_second: rate,
            p10_bytes_per_second: rate * 0.97,
            p90_bytes_per_second: rate * 1.02,
            ..api::Figure::default()
        };
        probe.measurements = api::Measurements {
            read: figure(260e9),
            qmv: figure(240e9),
            quantized: [(8, 1, 250e9), (4, 2, 230e9), (4, 8, 90e9)]
                .map(|(bits, batch, rate)| api::QuantizedFigure {
                    bits,
                    group_size: 64,
                    batch,
                    figure: figure(rate),
                })
                .to_vec(),
            attention: [(1, 200e9), (8, 60e9)]
                .map(|(queries_per_key, rate)| api::AttentionFigure {
                    queries_per_key,
                    figure: figure(rate),
                })
                .to_vec(),
            disk_read: Some(api::DiskFigure {
                path: "/models".to_owned(),
                figure: figure(5e9),
                past_cache: true,
            }),
            ..api::Measurements::default()
        };
        let old = FleetNodeStatus {
            probe: Some(probe.clone()),
            ..FleetNodeStatus::default()
        };
        let new = FleetNodeStatus {
            speed: Some(measured_speed(&probe)),
            ..FleetNodeStatus::default()
        };
        let text = serde_json::to_string(&new).unwrap();
        assert!(!text.contains("samples"), "{text}");
        let read: FleetNodeStatus = serde_json::from_str(&text).unwrap();
        // JSON numbers may differ in the last bit.
        let (a, b) = (factors(&read), factors(&new));
        assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
        assert_eq!(
            hardware(&new),
            MeasuredMachine::new(&probe.measurements).map(Hardware::Measured)
        );
        assert_eq!(hardware(&old), hardware(&new));
        assert_eq!(node_disk_read(&old), node_disk_read(&new));
        assert_eq!(node_disk_read(&new).unwrap().p50, 5e9);
        // The speed takes precedence over the figures of an earlier agent.
        probe.measurements.qmv.median_bytes_per_second = 1.0;
        let both = FleetNodeStatus {
            probe: Some(probe),
            ..new.clone()
        };
        assert_eq!(hardware(&both), hardware(&new));
    }

    fn factors(status: &FleetNodeStatus) -> f64 {
        let factors = status.speed.as_ref().unwrap().factors.as_ref().unwrap();
        factors.attention_seconds_per_byte / factors.seconds_per4_bit_weight
    }

    #[test]
    fn published_values_that_predictions_divide_by_must_be_positive() {
        let chip = api::Chip::default();
        let speed = api::NodeSpeed {
            factors: Some(api::SpeedFactors::default()),
            ..api::NodeSpeed::default()
        };
        assert_eq!(hardware_of(&chip, None, Some(&speed), false), None);
    }

    #[test]
    fn published_model_round_trips() {
        let shapes = ShapeFile::parse(SHAPES).unwrap();
        for (name, format) in [
            ("hybrid", WeightFormat::Affine { bits: 4, group: 64 }),
            ("latent", WeightFormat::BFloat16),
            ("sliding", WeightFormat::Float16),
        ] {
            let mut dimensions = shapes.dimensions(name).unwrap();
            let weights = Weights::estimate(&dimensions, format);
            let model = |dimensions| ServedModel {
                cost: ModelCost { dimensions, weights },
                kv_bits: KvBits::HALF,
            };
            let published = model(dimensions.clone()).publish("m".to_owned(), "a".to_owned(), 4096);
            let text = serde_json::to_string(&published).unwrap();
            let back = ServedModel::published(&serde_json::from_str(&text).unwrap()).unwrap();
            // The order of layers is not published.
            let key = |layer: &Layer| format!("{layer:?}");
            dimensions.layers.sort_by_key(key);
            let mut found = back.cost.dimensions.clone();
            found.layers.sort_by_key(key);
            assert_eq!(found, dimensions, "{name}");
            assert_eq!(back.cost.weights, weights);
        }
    }

    /// Object that an agent of an earlier version published.
    #[test]
    fn calibrations_of_an_earlier_version_apply_and_round_trip() {
        let published = serde_json::json!([
            {"weightBits": 4, "logTimeRatios": [0.1, 0.12, 0.11, 0.1], "logFirstTokenRatios": [0.3]},
            {"weightBits": 8, "logTimeRatios": [0.2]},
        ]);
        let status: FleetNodeStatus =
            serde_json::from_value(serde_json::json!({"calibrations": published})).unwrap();
        let read = calibrations(&status);
        let shapes = ShapeFile::parse(SHAPES).unwrap();
        let dimensions = shapes.dimensions("sliding").unwrap();
        let weights = Weights::estimate(&dimensions, WeightFormat::Affine { bits: 4, group: 64 });
        let cost = ModelCost { dimensions, weights };
        let rate = Interval::around(50.0, 0.15, 0.15);
        let corrected = calibrated_rate(&read, &cost, 1000, rate).unwrap();
        assert!(
            (corrected.p50 / 50.0 * 0.105f64.exp() - 1.0).abs() < 0.01,
            "{corrected:?}"
        );
        let again: Vec<_> = read.iter().map(publish_calibration).collect();
        assert_eq!(again, status.calibrations);
    }

    #[test]
    fn calibrations_of_a_model_round_trip() {
        let published = serde_json::json!([{
            "architecture": "LinearExperts", "weightsBytes": 44_000_000_000_u64, "weightBits": 4,
            "decode": [
                {"tokens": 272.0, "logTimeRatio": 0.004, "observedAt": "2026-11-01T10:00:00Z", "weight": 0.5},
                {"tokens": 22708.0, "logTimeRatio": 0.1133, "observedAt": "2026-11-15T10:00:00Z", "weight": 1.0},
            ],
            "firstToken": [
                {"tokens": 2000.0, "logTimeRatio": -0.2, "observedAt": "2026-11-15T10:00:00Z", "weight": 1.0},
            ],
        }]);
        let read: Vec<api::Calibration> = serde_json::from_value(published.clone()).unwrap();
        let again: Vec<_> = read
            .iter()
            .map(|calibration| publish_calibration(&Calibration::from(calibration)))
            .collect();
        assert_eq!(serde_json::to_value(&again).unwrap(), published);
        // Impossible figures of a foreign writer are dropped.
        let mut broken = read[0].clone();
        broken.decode[0].log_time_ratio = 9.0;
        broken.decode[1].weight = -1.0;
        assert_eq!(Calibration::from(&broken).decode(), []);
    }

    #[test]
    fn rejects_too_many_layers_before_allocating_them() {
        let of = |counts: &[u32]| {
            let group = |count: &u32| api::LayerGroup {
                count: *count,
                ..api::LayerGroup::default()
            };
            let cost = api::ModelCost {
                layers: counts.iter().map(group).collect(),
                ..api::ModelCost::default()
            };
            ServedModel::published(&NodeModel {
                cost: Some(cost),
                ..NodeModel::default()
            })
        };
        let half = MAX_LAYERS / 2;
        assert_eq!(of(&[half, half]).unwrap().cost.dimensions.layers.len(), 10_000);
        let count = 10_001;
        assert_eq!(
            of(&[half, half + 1]),
            Err(PublishedError::TooManyLayers { count })
        );
        let count = 2 * u64::from(u32::MAX);
        assert_eq!(of(&[u32::MAX; 2]), Err(PublishedError::TooManyLayers { count }));
        assert_eq!(
            ServedModel::published(&NodeModel::default()),
            Err(PublishedError::NoCost)
        );
    }
}
