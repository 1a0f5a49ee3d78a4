//! Metrics of the fleet's objects, computed from the controller's caches at each scrape. Only the
//! leading controller has them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::deployment::throughput_floor;
use super::world::World;
use rooflet_api::conditions::{self, condition_type};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelReplicaStatus};
use rooflet_base::clock::since;
use rooflet_base::metrics::{ComputedGauge, ComputedSample, Registry, Result};
use rooflet_base::mutex::lock;
use rooflet_base::quantity::{parse_bytes, parse_duration};

/// Time without requests after which the speed of a replica is no longer that of the present.
const MEASURED_FOR: Duration = Duration::from_secs(300);

const LEADING: &str = "rooflet_controller_leading";
const NODE_INFO: &str = "rooflet_node_info";
const NODE_CONDITION: &str = "rooflet_node_condition";
const NODE_CORDONED: &str = "rooflet_node_cordoned";
const NODE_MEMORY: &str = "rooflet_node_memory_bytes";
const NODE_BANDWIDTH: &str = "rooflet_node_bandwidth_bytes_per_second";
const DEPLOYMENT_REPLICAS: &str = "rooflet_deployment_replicas";
const DEPLOYMENT_CONDITION: &str = "rooflet_deployment_condition";
const DEPLOYMENT_PAUSED: &str = "rooflet_deployment_paused";
const DEPLOYMENT_THROUGHPUT: &str = "rooflet_deployment_throughput_tokens_per_second";
const OBJECTIVE_SPEED: &str = "rooflet_deployment_objective_tokens_per_second";
const OBJECTIVE_FIRST_TOKEN: &str = "rooflet_deployment_objective_time_to_first_token_seconds";
const REPLICA_PHASE: &str = "rooflet_replica_phase";
const REPLICA_RESTARTS: &str = "rooflet_replica_restarts";
const REPLICA_SPEED: &str = "rooflet_replica_tokens_per_second";
const REPLICA_FIRST_TOKEN: &str = "rooflet_replica_time_to_first_token_seconds";

const OF_NODE: &[&str] = &["node", "kind"];
const OF_DEPLOYMENT: &[&str] = &["namespace", "deployment", "state"];
const OF_REPLICA: &[&str] = &["namespace", "replica", "deployment", "node", "kind"];

const GAUGES: &[ComputedGauge] = &[
    ComputedGauge {
        name: LEADING,
        help: "1 if this controller leads, otherwise 0. Only the leader has the metrics of fleet objects.",
        labels: &[],
    },
    ComputedGauge {
        name: NODE_INFO,
        help: "1 for each FleetNode whose agent has reported, with its chip and versions.",
        labels: &["node", "chip", "operating_system", "engine", "agent_version"],
    },
    ComputedGauge {
        name: NODE_CONDITION,
        help: "1 for the current status of each condition of a FleetNode.",
        labels: &["node", "condition", "status"],
    },
    ComputedGauge {
        name: NODE_CORDONED,
        help: "1 if the FleetNode is cordoned or drained, otherwise 0.",
        labels: &["node"],
    },
    ComputedGauge {
        name: NODE_MEMORY,
        help: "Memory for models in bytes: allocatable and free.",
        labels: OF_NODE,
    },
    ComputedGauge {
        name: NODE_BANDWIDTH,
        help: "Memory bandwidth in bytes per second: measured, free (measured and not reserved) and nominal (data sheet).",
        labels: OF_NODE,
    },
    ComputedGauge {
        name: DEPLOYMENT_REPLICAS,
        help: "Replicas of a ModelDeployment: desired, updated, ready and available.",
        labels: OF_DEPLOYMENT,
    },
    ComputedGauge {
        name: DEPLOYMENT_CONDITION,
        help: "1 for the current status and reason of each condition of a ModelDeployment.",
        labels: &["namespace", "deployment", "condition", "status", "reason"],
    },
    ComputedGauge {
        name: DEPLOYMENT_PAUSED,
        help: "1 if the rollout of the ModelDeployment is paused by its specification, otherwise 0.",
        labels: &["namespace", "deployment"],
    },
    ComputedGauge {
        name: DEPLOYMENT_THROUGHPUT,
        help: "Decode tokens per second of all streams of a ModelDeployment: predicted for the ready replicas, and floor (minThroughput).",
        labels: &["namespace", "deployment", "kind"],
    },
    ComputedGauge {
        name: OBJECTIVE_SPEED,
        help: "Objective of a ModelDeployment: minimum decode tokens per second of each stream.",
        labels: &["namespace", "deployment"],
    },
    ComputedGauge {
        name: OBJECTIVE_FIRST_TOKEN,
        help: "Objective of a ModelDeployment: maximum time to the first token in seconds.",
        labels: &["namespace", "deployment"],
    },
    ComputedGauge {
        name: REPLICA_PHASE,
        help: "1 for the current phase of each ModelReplica.",
        labels: &["namespace", "replica", "deployment", "node", "phase"],
    },
    ComputedGauge {
        name: REPLICA_RESTARTS,
        help: "Restarts of the worker of a ModelReplica.",
        labels: &["namespace", "replica", "deployment", "node"],
    },
    ComputedGauge {
        name: REPLICA_SPEED,
        help: "Decode speed of one stream in tokens per second: predicted for the measured requests, and measured. Only for ready replicas with requests in the last 5 minutes.",
        labels: OF_REPLICA,
    },
    ComputedGauge {
        name: REPLICA_FIRST_TOKEN,
        help: "Time to the first token in seconds: predicted for the measured requests, and measured. Only for ready replicas with requests in the last 5 minutes.",
        labels: OF_REPLICA,
    },
];

/// Objects of the leading controller; empty before and after its leadership.
#[derive(Clone, Default)]
pub(super) struct FleetMetrics(Arc<Mutex<Option<World>>>);

impl FleetMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self> {
        let metrics = Self::default();
        let world = Arc::clone(&metrics.0);
        registry.register_computed(GAUGES, move || {
            let world = lock(&world).clone();
            let mut samples = Samples::default();
            samples.add(LEADING, &[], flag(world.is_some()));
            let Some(world) = world else {
                return samples.0;
            };
            let nodes = world.nodes.list();
            let deployments = world.deployments.list();
            let replicas = world.replicas.list();
            nodes.iter().for_each(|node| samples.add_node(node));
            deployments
                .iter()
                .for_each(|deployment| samples.add_deployment(deployment));
            let now = world.clock.now();
            replicas
                .iter()
                .for_each(|replica| samples.add_replica(replica, now));
            samples.0
        })?;
        Ok(metrics)
    }

    /// Shows the objects of `world` until the guard is dropped.
    pub(super) fn show(&self, world: &World) -> Shown {
        *lock(&self.0) = Some(world.clone());
        Shown(self.clone())
    }
}

/// Guard of the leadership during which the metrics exist.
pub(super) struct Shown(FleetMetrics);

impl Drop for Shown {
    fn drop(&mut self) {
        *lock(&self.0.0) = None;
    }
}

#[derive(Default)]
struct Samples(Vec<ComputedSample>);

impl Samples {
    fn add(&mut self, gauge: &'static str, labels: &[&str], value: f64) {
        self.0.push(ComputedSample {
            gauge,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            value,
        });
    }

    fn add_known(&mut self, gauge: &'static str, labels: &[&str], value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.add(gauge, labels, value);
        }
    }

    fn add_node(&mut self, node: &FleetNode) {
        let name = node.name_any();
        let is_cordoned = node.spec.unschedulable || node.spec.drain;
        self.add(NODE_CORDONED, &[&name], flag(is_cordoned));
        let Some(status) = &node.status else { return };
        let info = &status.node_info;
        let is_reported = !info.agent_version.is_empty();
        if is_reported {
            self.add(
                NODE_INFO,
                &[
                    &name,
                    &status.chip.name,
                    &info.operating_system,
                    &info.engine,
                    &info.agent_version,
                ],
                1.0,
            );
        }
        for condition in &status.conditions {
            self.add(NODE_CONDITION, &[&name, &condition.type_, &condition.status], 1.0);
        }
        let bytes = |text: &str| parse_bytes(text).ok().map(|bytes| bytes.0 as f64);
        let memory = [
            ("allocatable", bytes(&status.allocatable.memory)),
            ("free", bytes(&status.summary.free_memory)),
        ];
        for (kind, value) in memory {
            self.add_known(NODE_MEMORY, &[&name, kind], value);
        }
        let measured = status.allocatable.memory_bandwidth.as_deref().and_then(bytes);
        let nominal = status.data_sheet.as_ref();
        let bandwidth = [
            ("measured", measured),
            ("free", gigabytes(&status.summary.free_bandwidth)),
            ("nominal", nominal.map(|sheet| sheet.memory_bytes_per_second)),
        ];
        for (kind, value) in bandwidth {
            self.add_known(NODE_BANDWIDTH, &[&name, kind], value);
        }
    }

    fn add_deployment(&mut self, deployment: &ModelDeployment) {
        let (namespace, name) = (deployment.namespace().unwrap_or_default(), deployment.name_any());
        let status = deployment.status.clone().unwrap_or_default();
        let counts = [
            ("desired", deployment.spec.replicas),
            ("updated", status.updated_replicas),
            ("ready", status.ready_replicas),
            ("available", status.available_replicas),
        ];
        for (state, count) in counts {
            self.add(DEPLOYMENT_REPLICAS, &[&namespace, &name, state], f64::from(count));
        }
        self.add(
            DEPLOYMENT_PAUSED,
            &[&namespace, &name],
            flag(deployment.spec.paused),
        );
        let of_deployment = [namespace.as_str(), &name];
        // Without a reference, a floor in percent is unknown and has no sample.
        let floor = throughput_floor(deployment, None).filter(|floor| *floor > 0.0);
        let predicted = status.rollout.predicted_tokens_per_second;
        for (kind, value) in [
            ("floor", floor),
            // No replica is ready if the status has no prediction.
            ("predicted", predicted.or(floor.map(|_| 0.0))),
        ] {
            self.add_known(DEPLOYMENT_THROUGHPUT, &[&namespace, &name, kind], value);
        }
        let objectives = &deployment.spec.objectives;
        let first_token = objectives.time_to_first_token.as_ref();
        let first_token = first_token.and_then(|objective| parse_duration(&objective.max));
        self.add_known(
            OBJECTIVE_SPEED,
            &of_deployment,
            objectives.decode_tokens_per_second,
        );
        self.add_known(
            OBJECTIVE_FIRST_TOKEN,
            &of_deployment,
            first_token.map(|longest| longest.as_secs_f64()),
        );
        for condition in &status.conditions {
            self.add(
                DEPLOYMENT_CONDITION,
                &[
                    &namespace,
                    &name,
                    &condition.type_,
                    &condition.status,
                    &condition.reason,
                ],
                1.0,
            );
        }
    }

    fn add_replica(&mut self, replica: &ModelReplica, now: Timestamp) {
        let (namespace, name) = (replica.namespace().unwrap_or_default(), replica.name_any());
        let deployment = replica
            .labels()
            .get(DEPLOYMENT_LABEL)
            .cloned()
            .unwrap_or_default();
        let node = replica.spec.node_name.clone().unwrap_or_default();
        let own = [namespace.as_str(), &name, &deployment, &node];
        let with = |last: &'static str| [own.as_slice(), &[last]].concat();
        let status = replica.status.clone().unwrap_or_default();
        self.add(REPLICA_PHASE, &with(status.phase.as_str()), 1.0);
        self.add(REPLICA_RESTARTS, &own, f64::from(status.restarts));
        let measured = status.measured.as_ref();
        let Some(measured) = measured.filter(|_| is_serving(&status, now)) else {
            return;
        };
        let number = |text: &str| text.trim().parse().ok();
        let predicted = measured.predicted.as_ref();
        self.add_known(
            REPLICA_SPEED,
            &with("measured"),
            number(&measured.tokens_per_second),
        );
        self.add_known(
            REPLICA_SPEED,
            &with("predicted"),
            predicted.map(|speed| speed.tokens_per_second.p50),
        );
        self.add_known(
            REPLICA_FIRST_TOKEN,
            &with("measured"),
            number(&measured.time_to_first_token_seconds),
        );
        self.add_known(
            REPLICA_FIRST_TOKEN,
            &with("predicted"),
            predicted.map(|speed| speed.time_to_first_token_seconds.p50),
        );
    }
}

/// Returns whether the measured speed is that of the present. The worker stores the speeds of its last
/// requests without an age, and a lost node keeps the last ones.
fn is_serving(status: &ModelReplicaStatus, now: Timestamp) -> bool {
    let idle_since = status
        .requests
        .as_ref()
        .and_then(|requests| requests.idle_since.as_ref());
    conditions::is_true(&status.conditions, condition_type::READY)
        && idle_since.is_none_or(|idle| since(now, idle.0) < MEASURED_FOR)
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// Parses a bandwidth such as `85 GB/s`.
fn gigabytes(text: &str) -> Option<f64> {
    let gigabytes: f64 = text.strip_suffix("GB/s")?.trim().parse().ok()?;
    Some(gigabytes * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use rooflet_base::clock::at;
    use rooflet_base::metrics::render;
    use serde_json::json;

    fn text(samples: &Samples) -> Vec<String> {
        let line = |sample: &ComputedSample| {
            format!("{} {} {}", sample.gauge, sample.labels.join(","), sample.value)
        };
        samples.0.iter().map(line).collect()
    }

    #[test]
    fn unknown_figures_have_no_sample() {
        let mut samples = Samples::default();
        let mut node = fixture::node("mini", 8);
        node.spec.drain = true;
        samples.add_node(&node);
        let lines = text(&samples);
        for expect in [
            "rooflet_node_cordoned mini 1",
            "rooflet_node_condition mini,Ready,True 1",
            "rooflet_node_memory_bytes mini,allocatable 8589934592",
        ] {
            assert!(lines.contains(&expect.to_owned()), "{expect}: {lines:#?}");
        }
        assert!(
            !lines
                .iter()
                .any(|line| line.contains("bandwidth") || line.contains("free")),
            "{lines:#?}"
        );
    }

    #[test]
    fn node_without_an_agent_has_no_info() {
        let node: FleetNode = serde_json::from_value(json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode", "metadata": {"name": "spare"},
            "spec": {"unschedulable": true}, "status": {"observedGeneration": -1},
        }))
        .expect("a node");
        let mut samples = Samples::default();
        samples.add_node(&node);
        assert_eq!(text(&samples), ["rooflet_node_cordoned spare 1"]);
    }

    #[test]
    fn deployment_has_objectives_beside_floor_and_prediction() {
        let deployment: ModelDeployment = serde_json::from_value(json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"namespace": "team", "name": "guide"},
            "spec": {"model": {"source": "local://guide"}, "serving": {"name": "guide"}, "replicas": 4,
                "objectives": {"decodeTokensPerSecond": 20.0,
                    "timeToFirstToken": {"max": "1m30s", "atPromptTokens": 100}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"minThroughput": "50%"}}},
            "status": {"rollout": {"referenceTokensPerSecond": 40.0}},
        }))
        .expect("a deployment");
        let mut samples = Samples::default();
        samples.add_deployment(&deployment);
        let lines = text(&samples);
        for expect in [
            "rooflet_deployment_throughput_tokens_per_second team,guide,floor 80",
            "rooflet_deployment_throughput_tokens_per_second team,guide,predicted 0",
            "rooflet_deployment_objective_tokens_per_second team,guide 20",
            "rooflet_deployment_objective_time_to_first_token_seconds team,guide 90",
        ] {
            assert!(lines.contains(&expect.to_owned()), "{expect}: {lines:#?}");
        }
    }

    #[test]
    fn controller_that_does_not_lead_has_only_this_sample() {
        let registry = Registry::new();
        FleetMetrics::register(&registry).expect("valid metrics");
        let text = render(&registry);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["rooflet_controller_leading 0"]);
    }

    fn replica(ready: &str, idle_since: Option<&str>) -> ModelReplica {
        serde_json::from_value(json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelReplica",
            "metadata": {"namespace": "team", "name": "guide-1", "labels": {(DEPLOYMENT_LABEL): "guide"}},
            "spec": {"model": {"source": "local://guide"}, "serving": {"name": "guide"}, "nodeName": "mini"},
            "status": {"phase": "Ready", "restarts": 2,
                "conditions": [{"type": "Ready", "status": ready, "reason": "x", "message": "",
                    "lastTransitionTime": "1970-01-01T00:00:00Z"}],
                "requests": {"running": 0, "idleSince": idle_since},
                "measured": {
                    "tokensPerSecond": "41.5", "timeToFirstTokenSeconds": "-", "requests": 3,
                    "predicted": {"basis": "Measured",
                        "tokensPerSecond": {"p10": 30.0, "p50": 40.0, "p90": 50.0},
                        "timeToFirstTokenSeconds": {"p10": 0.1, "p50": 0.2, "p90": 0.3}}}},
        }))
        .expect("a replica")
    }

    #[test]
    fn replica_has_predicted_beside_measured_speed() {
        let mut samples = Samples::default();
        samples.add_replica(&replica("True", None), at(1000));
        assert_eq!(
            text(&samples),
            [
                "rooflet_replica_phase team,guide-1,guide,mini,Ready 1",
                "rooflet_replica_restarts team,guide-1,guide,mini 2",
                "rooflet_replica_tokens_per_second team,guide-1,guide,mini,measured 41.5",
                "rooflet_replica_tokens_per_second team,guide-1,guide,mini,predicted 40",
                "rooflet_replica_time_to_first_token_seconds team,guide-1,guide,mini,predicted 0.2",
            ]
        );
    }

    /// Otherwise an alert about a missed objective lasts until the next requests.
    #[test]
    fn idle_and_lost_replicas_have_no_measured_speed() {
        let has_speed = |replica: &ModelReplica, second| {
            let mut samples = Samples::default();
            samples.add_replica(replica, at(second));
            text(&samples).iter().any(|line| line.starts_with(REPLICA_SPEED))
        };
        let idle = replica("True", Some("1970-01-01T00:10:00Z"));
        assert!(has_speed(&idle, 600) && has_speed(&idle, 899));
        assert!(!has_speed(&idle, 900));
        let lost = replica("False", None);
        assert!(!has_speed(&lost, 600));
    }
}
