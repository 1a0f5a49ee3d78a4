//! Builds nodes and replicas from lines of text.

use std::collections::BTreeMap;

use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::meta::{DEPLOYMENT_LABEL, REVISION_LABEL};
use rooflet_api::v1alpha1::*;
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::ServedModel;

/// Returns the value of the word `key=value` of a line.
pub(super) fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

pub(super) fn has(line: &str, word: &str) -> bool {
    line.split_whitespace().any(|found| found == word)
}

/// Builds a node from words such as `a mem=8 ram=16 disk=3 network=50 model=guide:4,big:9
/// label=zone:x taint=key:NoSchedule chip=M4_Max/40 room=9 pulled=6 condition=OnBattery cordoned
/// drain notready broken`. Sizes are in GiB. `disk` is the measured speed in GB/s, `network` the
/// measured speed in MB/s, `room` the disk space for replicas, and `pulled` the size of a
/// downloaded model.
pub(super) fn node(line: &str) -> FleetNode {
    let name = line.split_whitespace().next().expect("a name");
    let mut node = FleetNode::new(name, FleetNodeSpec::default());
    node.spec.unschedulable = has(line, "cordoned");
    node.spec.drain = has(line, "drain");
    if let Some((key, effect)) = field(line, "taint").and_then(|taint| taint.split_once(':')) {
        let effect = match effect {
            "NoSchedule" => TaintEffect::NoSchedule,
            "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
            _ => TaintEffect::NoExecute,
        };
        node.spec.taints.push(Taint {
            key: key.to_owned(),
            value: None,
            effect,
        });
    }
    if let Some((key, value)) = field(line, "label").and_then(|label| label.split_once(':')) {
        node.metadata.labels = Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
    }
    let mut status = FleetNodeStatus::default();
    status.allocatable.memory = format!("{}Gi", field(line, "mem").unwrap_or("16"));
    status.allocatable.disk = field(line, "room").map(|gib| format!("{gib}Gi"));
    if let Some(gib) = field(line, "ram") {
        status.capacity.memory = format!("{gib}Gi");
    }
    status.download = field(line, "network").map(|rate| DownloadSpeed {
        median_bytes_per_second: rate.parse::<f64>().expect("a number") * 1e6,
        downloads: 1,
    });
    if let Some(rate) = field(line, "disk").map(|rate| rate.parse::<f64>().expect("a number") * 1e9) {
        let figure = Figure {
            median_bytes_per_second: rate,
            p10_bytes_per_second: rate,
            p90_bytes_per_second: rate,
            ..Figure::default()
        };
        status.probe.get_or_insert_default().measurements.disk_read = Some(DiskFigure {
            figure,
            path: String::new(),
            past_cache: true,
        });
    }
    if let Some(chip) = field(line, "chip") {
        let (name, cores) = chip.split_once('/').unwrap_or((chip, ""));
        status.chip.name = format!("Apple {}", name.replace('_', " "));
        status.chip.gpu_cores = cores.parse().ok();
    }
    let models = field(line, "model")
        .into_iter()
        .flat_map(|models| models.split(','));
    for (name, weights) in models.filter_map(|model| model.split_once(':')) {
        let weights = Bytes::gib(weights.parse().expect("a number"));
        let model = ServedModel::of_size(weights, 1024);
        status.models.push(NodeModel {
            problem: has(line, "broken").then(|| "config.json is missing".to_owned()),
            ..model.publish(name.to_owned(), "llama".to_owned(), 4096)
        });
    }
    if let Some(gib) = field(line, "pulled") {
        let model = ServedModel::of_size(Bytes::gib(gib.parse().expect("a number")), 4);
        status
            .models
            .push(model.publish("hf://o/n@c0".to_owned(), "llama".to_owned(), 2048));
    }
    let ready = Truth::from(!has(line, "notready"));
    let reason = if has(line, "notready") {
        "LeaseExpired"
    } else {
        "AgentReady"
    };
    let conditions = &mut status.conditions;
    set_condition(
        conditions,
        condition_type::READY,
        ready,
        reason,
        "",
        None,
        jiff::Timestamp::UNIX_EPOCH,
    );
    if let Some(condition) = field(line, "condition") {
        set_condition(
            conditions,
            condition,
            Truth::True,
            condition,
            "",
            None,
            jiff::Timestamp::UNIX_EPOCH,
        );
    }
    node.status = Some(status);
    node
}

/// Builds a replica from words such as `x of=dep rev=1 on=a model=guide context=2048 select=zone:x
/// tolerate=key rate=20 priority=5 strategy=BinPack anti=Required spread=zone anyway store=9 share=60
/// nominated=a reserved=5 ready failed ending file`. `store` (disk for the KV cache) and `reserved`
/// are in GiB, `rate` in tokens per second, `share` (admitted chip time) in percent.
pub(super) fn replica(line: &str) -> ModelReplica {
    let name = line.split_whitespace().next().expect("a name");
    let source = if has(line, "file") {
        "file:///models/x".to_owned()
    } else if field(line, "download").is_some() {
        "hf://o/n".to_owned()
    } else {
        format!("local://{}", field(line, "model").unwrap_or("guide"))
    };
    let mut placement = PlacementSpec::default();
    if let Some((key, value)) = field(line, "select").and_then(|label| label.split_once(':')) {
        placement.node_selector.insert(key.to_owned(), value.to_owned());
    }
    if let Some(key) = field(line, "tolerate") {
        placement.tolerations.push(Toleration {
            key: Some(key.to_owned()),
            operator: TolerationOperator::Exists,
            ..Toleration::default()
        });
    }
    placement.strategy = match field(line, "strategy") {
        Some("BinPack") => PlacementStrategy::BinPack,
        Some("Spread") => PlacementStrategy::Spread,
        Some("Fastest") => PlacementStrategy::Fastest,
        _ => PlacementStrategy::SloSlack,
    };
    placement.anti_affinity = field(line, "anti").map(|anti| match anti {
        "Required" => AntiAffinity::Required,
        "Ignored" => AntiAffinity::Ignored,
        _ => AntiAffinity::Preferred,
    });
    placement.spread = field(line, "spread").map(|key| TopologySpread {
        topology_key: key.to_owned(),
        max_skew: 1,
        when_unsatisfiable: if has(line, "anyway") {
            WhenUnsatisfiable::ScheduleAnyway
        } else {
            WhenUnsatisfiable::DoNotSchedule
        },
    });
    let mut replica = ModelReplica::new(
        name,
        ModelReplicaSpec {
            model: ModelSpec {
                revision: source.starts_with("hf://").then(|| "c0".to_owned()),
                source,
            },
            artifact: field(line, "download").map(|gib| {
                let gib = gib.parse().expect("a number");
                let served = ServedModel::of_size(Bytes::gib(gib), 4);
                ArtifactSpec {
                    download_bytes: Bytes::gib(gib).0,
                    model: served.publish("hf://o/n@c0".to_owned(), "llama".to_owned(), 2048),
                }
            }),
            serving: ServingSpec {
                name: Some("m".to_owned()),
                context_tokens: field(line, "context").map(|tokens| tokens.parse().expect("a number")),
                max_concurrency: 1,
                kv_cache: field(line, "store").map(|gib| KvCacheSpec {
                    disk_size: Some(format!("{gib}Gi")),
                    ..KvCacheSpec::default()
                }),
                prompt_lookup_tokens: None,
                keep_alive: None,
                allow_request_chat_template: false,
            },
            objectives: ObjectivesSpec {
                decode_tokens_per_second: field(line, "rate").map(|rate| rate.parse().expect("a number")),
                time_to_first_token: None,
            },
            placement,
            priority: field(line, "priority").map_or(0, |priority| priority.parse().expect("a number")),
            golden_prompts: Vec::new(),
            node_name: field(line, "on").map(str::to_owned),
        },
    );
    replica.metadata.namespace = Some("default".to_owned());
    if let Some(deployment) = field(line, "of") {
        let revision =
            field(line, "rev").map(|revision| (REVISION_LABEL, format!("{deployment}-{revision}")));
        let labels = [(DEPLOYMENT_LABEL, deployment.to_owned())]
            .into_iter()
            .chain(revision);
        let labels = labels.map(|(label, value)| (label.to_owned(), value));
        replica.metadata.labels = Some(labels.collect());
    }
    if has(line, "ending") {
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        replica.metadata.deletion_timestamp = Some(now);
    }
    let mut status = ModelReplicaStatus {
        nominated_node_name: field(line, "nominated").map(str::to_owned),
        reserved_memory: field(line, "reserved").map(|gib| format!("{gib}Gi")),
        admission: field(line, "share").map(|percent| AdmissionStatus {
            admitted: true,
            chip_time_percent: percent.parse().expect("a number"),
            ..AdmissionStatus::default()
        }),
        phase: if has(line, "failed") {
            ReplicaPhase::Failed
        } else {
            ReplicaPhase::Pending
        },
        ..ModelReplicaStatus::default()
    };
    if has(line, "ready") {
        set_ready(&mut status);
    }
    replica.status = Some(status);
    replica
}

pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|line| !line.is_empty())
}

/// Sets the Ready condition.
pub(super) fn set_ready(status: &mut ModelReplicaStatus) {
    set_condition(
        &mut status.conditions,
        condition_type::READY,
        Truth::True,
        "Serving",
        "",
        None,
        jiff::Timestamp::UNIX_EPOCH,
    );
}
