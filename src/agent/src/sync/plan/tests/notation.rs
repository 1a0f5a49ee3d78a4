//! Test cases as text: `check(desired, observed, expect)`.
//!
//! A desired replica is `name[:key=value...]` with these keys:
//! - `spec` (default a), `uid` (u), `gen` (1), `gib` (1), `ctx` (0 = default), `overridden`,
//!   `priority`, `deleting`,
//! - `model` (missing, asked), `away` (GiB to download), `sinks` (of attention), `kv` (bits),
//!   `disk` (GiB for prefixes),
//! - `decode` (objective in tokens/s).
//!
//! An observed replica has these keys:
//! - `worker` (none, running, hung, stopping, stuck), `spec`, `uid`, `gen`, `gib`, `busy`
//!   (requests), `mib` (resident),
//! - `backoff` (seconds from now), `bad` (fingerprint, age in seconds), `stopped-for-memory`.
//!
//! Settings of the node:
//! - `@probing`, `@stopping`, `@leaked=GIB`, `@m4pro` (default: an unknown chip),
//! - `@free=GIB`, `@allocatable=GIB`, `@disk=GIB` (default 10),
//! - `@warning`, `@recovering`, `@low`, `@critical`: memory pressure with a shortfall of 100 MiB.
//! - `@stopped`: replicas were recently stopped for memory pressure.
//!
//! Models have 1 GiB of weights times `gib`, minus the memory of the runtime.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::*;
use crate::models::{ASKING_HUB, ModelProblem};
use crate::replica::{Origin, ReplicaSpec, Terms};
use rooflet_api::v1alpha1::{KvCacheSpec, ObjectivesSpec};
use rooflet_base::clock::since;
use rooflet_roofline::chip;
use rooflet_roofline::kv_quantisation::KvQuantisationError;
use rooflet_roofline::memory::{RUNTIME_OVERHEAD, ServedModel};
use rooflet_roofline::predict::Hardware;

const FINGERPRINT: u64 = 7;

pub(super) fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn fields(text: &str) -> (&str, BTreeMap<&str, &str>) {
    let mut parts = text.split(':');
    let name = parts.next().unwrap();
    (
        name,
        parts
            .map(|part| part.split_once('=').unwrap_or((part, "1")))
            .collect(),
    )
}

fn spec(fields: &BTreeMap<&str, &str>) -> ReplicaSpec {
    let context: u32 = fields.get("ctx").map_or(0, |tokens| tokens.parse().unwrap());
    ReplicaSpec {
        source: format!("local://{}", fields.get("spec").unwrap_or(&"a")),
        serving_name: "m".to_owned(),
        context_tokens: (context > 0).then_some(context),
        max_concurrency: 1,
        kv_cache: Some(KvCacheSpec {
            bits: fields.get("kv").map(|bits| bits.parse().expect("a number")),
            disk_size: fields.get("disk").map(|gib| format!("{gib}Gi")),
        }),
        prompt_lookup_tokens: None,
        keep_alive: None,
        allow_request_chat_template: false,
    }
}

fn number<T: std::str::FromStr>(fields: &BTreeMap<&str, &str>, name: &str, default: T) -> T {
    fields
        .get(name)
        .map_or(default, |text| text.parse().ok().expect("a number"))
}

/// Returns the model whose replica reserves exactly `gib` GiB with the default context of 1024
/// tokens.
pub(super) fn model(gib: u64) -> ServableModel {
    let kv = Bytes(1 << 10);
    ServableModel {
        path: "/models/a".into(),
        fingerprint: FINGERPRINT,
        architecture: "llama",
        served: Arc::new(ServedModel::of_size(
            Bytes::gib(gib) - kv * 1024 - RUNTIME_OVERHEAD,
            1 << 10,
        )),
        max_context_tokens: 1024,
        unquantisable: None,
        pull: None,
    }
}

fn wanted(text: &str) -> (ReplicaKey, ResolvedReplica) {
    let (name, fields) = fields(text);
    let replica = DesiredReplica {
        uid: fields.get("uid").unwrap_or(&"u").to_string(),
        generation: number(&fields, "gen", 1),
        origin: Origin::Api,
        spec: spec(&fields),
        terms: Terms {
            objectives: ObjectivesSpec {
                decode_tokens_per_second: fields.get("decode").map(|rate| rate.parse().expect("a number")),
                time_to_first_token: None,
            },
            overridden: fields.contains_key("overridden"),
            golden_prompts: Vec::new(),
            priority: number(&fields, "priority", 0),
            ..Terms::default()
        },
        next: None,
        deleting: fields.contains_key("deleting"),
    };
    let model = match fields.get("model") {
        Some(&"missing") => Err(ModelProblem::permanent("ModelNotFound", "m")),
        Some(&"asked") => Err(ModelProblem {
            reason: ASKING_HUB,
            message: "m".to_owned(),
            is_transient: true,
        }),
        Some(other) => panic!("unknown problem {other}"),
        None => Ok(ServableModel {
            unquantisable: fields
                .contains_key("sinks")
                .then_some(KvQuantisationError::Sinks(1)),
            pull: fields.get("away").map(|gib| PendingPull {
                model: "hf://o/n@c0".parse().unwrap(),
                bytes: Bytes::gib(gib.parse().unwrap()),
                done: Bytes::ZERO,
                is_under_way: false,
                problem: None,
            }),
            ..model(number(&fields, "gib", 1))
        }),
    };
    (
        ReplicaKey::new("default", name),
        ResolvedReplica { replica, model },
    )
}

fn seen(text: &str) -> (ReplicaKey, ObservedReplica) {
    let (name, fields) = fields(text);
    let worker = match *fields.get("worker").unwrap_or(&"running") {
        "none" => WorkerState::None,
        "running" => WorkerState::Running,
        "hung" => WorkerState::Unresponsive,
        "stopping" => WorkerState::Stopping,
        "stuck" => WorkerState::Stuck,
        other => panic!("unknown worker {other}"),
    };
    let bad_model = fields.get("bad").map(|text| {
        let (fingerprint, age) = text.split_once(',').unwrap();
        BadModel {
            fingerprint: fingerprint.parse().unwrap(),
            at: now() - jiff::SignedDuration::from_secs(age.parse().unwrap()),
            reason: "CorruptWeights".to_owned(),
            message: "m".to_owned(),
        }
    });
    let state = ObservedReplica {
        uid: fields.get("uid").unwrap_or(&"u").to_string(),
        generation: number(&fields, "gen", 1),
        spec: spec(&fields),
        worker,
        held: Held {
            reserved: Bytes::gib(number(&fields, "gib", 1)),
            resident: Bytes::mib(number(&fields, "mib", 0)),
        },
        reserved_share: f64::from(number::<u32>(&fields, "share", 5)) / 100.0,
        has_objectives: fields.contains_key("share"),
        requests: number(&fields, "busy", 0),
        stopped_for_memory: fields.contains_key("stopped-for-memory"),
        backoff_until: fields
            .get("backoff")
            .map(|text| now() + jiff::SignedDuration::from_secs(text.parse().unwrap())),
        bad_model,
    };
    (ReplicaKey::new("default", name), state)
}

pub(in crate::sync) fn parse_case(wanted_text: &str, seen_text: &str) -> (Desired, Observed) {
    let mut desired = Desired::default();
    let mut observed = Observed {
        hardware: None,
        calibrations: Vec::new(),
        replicas: BTreeMap::new(),
        memory: NodeMemory {
            allocatable: Bytes::gib(10),
            available: Bytes::gib(100),
        },
        disk_limit: Bytes::gib(10),
        quarantined: BTreeMap::new(),
        held_back: BTreeSet::new(),
        watchdog_panics: 0,
        leaked: None,
        probing: false,
        pressure: Pressure::None,
        shortfall: Bytes::mib(100),
        restart_headroom: Bytes::mib(300),
        stopped_recently: false,
    };
    for word in wanted_text.split_whitespace() {
        match word.split_once('=').unwrap_or((word, "")) {
            ("@stopping", _) => desired.stopping = true,
            ("@quarantined", fingerprint) => {
                let fingerprint = fingerprint.parse().unwrap();
                observed
                    .quarantined
                    .insert(fingerprint, "it crashed the machine".to_owned());
            }
            ("@held-back", fingerprint) => {
                observed.held_back.insert(fingerprint.parse().unwrap());
            }
            ("@leaked", gib) => observed.leaked = Some(Bytes::gib(gib.parse().unwrap())),
            ("@probing", _) => observed.probing = true,
            ("@warning", _) => observed.pressure = Pressure::Warning,
            ("@recovering", _) => observed.pressure = Pressure::Recovering,
            ("@stopped", _) => observed.stopped_recently = true,
            ("@low", _) => observed.pressure = Pressure::Low,
            ("@critical", _) => observed.pressure = Pressure::Critical,
            ("@m4pro", _) => {
                let chip = chip::find("M4 Pro", Some(20), None).expect("in the catalogue");
                observed.hardware = Some(Hardware::Chip(chip));
            }
            ("@free", gib) => observed.memory.available = Bytes::gib(gib.parse().unwrap()),
            ("@disk", gib) => observed.disk_limit = Bytes::gib(gib.parse().unwrap()),
            ("@allocatable", gib) => observed.memory.allocatable = Bytes::gib(gib.parse().unwrap()),
            _ => {
                let (key, wanted) = wanted(word);
                if fields(word).1.contains_key("yielding") {
                    desired.yielding.insert(key.clone());
                }
                desired.replicas.insert(key, wanted);
            }
        }
    }
    observed.replicas = seen_text.split_whitespace().map(seen).collect();
    (desired, observed)
}

pub(super) fn show(step: &Step) -> String {
    match step {
        Step::Pull(start) => format!("pull({})", start.reservation.total()),
        Step::Start(start) => format!("start({})", start.reservation.total()),
        Step::Stop(cause) => format!("stop({cause:?})"),
        Step::Keep => "keep".to_owned(),
        Step::AwaitStop => "await".to_owned(),
        Step::Wait(Wait::BackOff { until }) => format!("backoff({}s)", since(*until, now()).as_secs()),
        Step::Wait(wait) => format!("wait({wait:?})"),
        Step::Refuse(refusal) => format!("refuse({:?}/{})", refusal.kind, refusal.reason),
        Step::Release => "release".to_owned(),
    }
}

#[track_caller]
pub(in crate::sync) fn check(wanted: &str, seen: &str, expect: &str) {
    let (desired, observed) = parse_case(wanted, seen);
    let plan = SyncPlan::new(&desired, &observed, now());
    let got: Vec<_> = plan
        .steps
        .iter()
        .map(|(key, step)| format!("{}={}", key.name, show(step)))
        .collect();
    assert_eq!(got.join(" "), expect, "wanted `{wanted}`, seen `{seen}`");
    assert_eq!(
        SyncPlan::new(&desired, &observed, now()),
        plan,
        "planning twice gives the same plan"
    );
}
