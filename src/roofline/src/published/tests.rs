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
    let decode = |status: &FleetNodeStatus| speed_under_load(load, hardware(status).unwrap(), &model).decode;
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
    assert_eq!(read, new);
    // Published values have six digits.
    let exact = MeasuredMachine::new(&probe.measurements).unwrap().factors();
    let packed = new.speed.as_ref().unwrap().packed_factors.as_ref().unwrap();
    let packed: api::SpeedFactors = serde_json::from_str(packed).unwrap();
    for (a, b) in [
        (packed.read_bytes_per_second, exact.read_bytes_per_second),
        (packed.seconds_per4_bit_weight, exact.seconds_per4_bit_weight),
        (
            packed.attention_seconds_per_byte,
            exact.attention_seconds_per_byte,
        ),
        (
            packed.quantized_flops_per_second,
            exact.quantized_flops_per_second,
        ),
    ] {
        assert!((a / b - 1.0).abs() < 1e-5, "{a} {b}");
    }
    assert_eq!(packed.batch_times.len(), exact.batch_times.len());
    assert!(matches!(hardware(&new), Some(Hardware::Measured(_))));
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

fn figure(rate: f64) -> api::Figure {
    api::Figure {
        median_bytes_per_second: rate,
        p10_bytes_per_second: rate * 0.97,
        p90_bytes_per_second: rate * 1.02,
        ..api::Figure::default()
    }
}

/// Agents of an earlier version publish the values as an object.
#[test]
fn factors_of_an_earlier_version_apply() {
    let new = measured_speed(&api::Probe {
        measurements: api::Measurements {
            read: figure(120e9),
            qmv: figure(100e9),
            ..api::Measurements::default()
        },
        ..api::Probe::default()
    });
    let packed = new.packed_factors.as_deref().unwrap();
    assert!(!packed.contains(['\n', ' ']) && packed.len() < 600, "{packed}");
    let old = NodeSpeed {
        factors: Some(serde_json::from_str(packed).unwrap()),
        packed_factors: None,
        ..new.clone()
    };
    let chip = api::Chip::default();
    let of = |speed| hardware_of(&chip, None, Some(speed), false);
    assert!(of(&new).is_some());
    assert_eq!(of(&old), of(&new));
    let unreadable = NodeSpeed {
        packed_factors: Some("{".to_owned()),
        ..new.clone()
    };
    assert_eq!(of(&unreadable), None);
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
        // The order of layers is not published.
        let key = |layer: &Layer| format!("{layer:?}");
        dimensions.layers.sort_by_key(key);
        let packed = packed_model(&published);
        assert!(packed.cost.is_none() && packed.activation_bytes == 0);
        assert_eq!(packed_model(&packed), packed);
        for entry in [published, packed] {
            let text = serde_json::to_string(&entry).unwrap();
            let back = ServedModel::published(&serde_json::from_str(&text).unwrap()).unwrap();
            let mut found = back.cost.dimensions.clone();
            found.layers.sort_by_key(key);
            assert_eq!(found, dimensions, "{name}");
            assert_eq!(back.cost.weights, weights);
        }
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
    let unreadable = NodeModel {
        packed_cost: Some("{".to_owned()),
        ..NodeModel::default()
    };
    assert_eq!(
        ServedModel::published(&unreadable),
        Err(PublishedError::UnreadableCost)
    );
}
