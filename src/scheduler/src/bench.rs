//! Synthetic fleets of published Macs and models, for scheduler benchmarks.

mod comparison;

pub use self::comparison::{PolicyResult, compare_policies};
use super::fleet::Fleet;
use super::request::{ReplicaKey, ReplicaRequest};
use crate::placement::bind::{bind_all, decide_all};
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{
    ArchitectureClass, Calibration, CalibrationRun, FleetNode, FleetNodeSpec, FleetNodeStatus, ModelSource,
    NodeModel, PlacementSpec,
};
use rooflet_base::units::Bytes;
use rooflet_model::kv_cache::KvBits;
use rooflet_model::library;
use rooflet_model::weights::{WeightFormat, Weights};
use rooflet_roofline::admission::Objectives;
use rooflet_roofline::memory::{ServedModel, allocatable};
use rooflet_roofline::predict::ModelCost;

/// Chip, GPU cores, memory in GiB, and number per 100 Macs. The configurations are real, the shares
/// are assumed.
const MACS: [(&str, u32, u64, usize); 8] = [
    ("M4", 10, 16, 30),
    ("M4", 10, 24, 15),
    ("M4", 10, 32, 15),
    ("M4 Pro", 16, 24, 10),
    ("M4 Pro", 20, 48, 12),
    ("M4 Max", 40, 64, 9),
    ("M4 Max", 40, 128, 5),
    ("M3 Ultra", 80, 256, 4),
];
/// Model in 4 bits, context tokens, streams, and objective in tokens/s per stream. The models are
/// real, the mix is assumed.
const DEMANDS: [(&str, u32, u32, Option<f64>); 10] = [
    ("qwen3-0.6b", 4096, 4, None),
    ("qwen3-0.6b", 8192, 4, Some(15.0)),
    ("qwen3-1.7b", 4096, 4, None),
    ("qwen3-1.7b", 4096, 2, Some(10.0)),
    ("qwen3-4b", 4096, 2, None),
    ("qwen3-4b", 8192, 1, Some(6.0)),
    ("qwen3-8b", 4096, 1, None),
    ("qwen3-8b", 8192, 2, Some(4.0)),
    ("llama3-8b", 4096, 1, Some(3.0)),
    ("qwen3-14b", 4096, 1, None),
];
/// Replicas of one deployment.
const PER_DEPLOYMENT: usize = 100;

/// Nodes and unscheduled replicas.
#[derive(Debug)]
pub struct PlacementTrial {
    fleet: Fleet,
    waiting: Vec<ReplicaRequest>,
}

/// Result of a placement run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementCount {
    /// Replicas with a node.
    pub placed: usize,
    /// Nodes whose reservations exceed their memory or chip time.
    pub overcommitted: usize,
}

/// Returns Macs of all configurations, without replicas.
pub fn macs(count: usize) -> Vec<FleetNode> {
    let models = demanded_models();
    (0..count).map(|index| node(index, &models, false)).collect()
}

/// Returns model, context tokens, streams and objective of a deployment.
pub fn demand(deployment: usize) -> (&'static str, u32, u32, Option<f64>) {
    DEMANDS[deployment % DEMANDS.len()]
}

impl PlacementTrial {
    /// Creates empty nodes and unscheduled replicas. `own_calibrations`: every node has its own
    /// calibration, so that no results are shared between nodes.
    pub fn new(nodes: usize, replicas: usize, own_calibrations: bool) -> Self {
        let models = demanded_models();
        let objects = (0..nodes).map(|index| node(index, &models, own_calibrations));
        let mut fleet = Fleet::default();
        for node in objects {
            fleet.set_node(&node);
        }
        Self {
            fleet,
            waiting: (0..replicas).map(request).collect(),
        }
    }

    /// Places all unscheduled replicas, and counts the results. Replicas without a node are
    /// dropped.
    pub fn place_all(&mut self) -> PlacementCount {
        let waiting = std::mem::take(&mut self.waiting);
        bind_all(&waiting, &mut self.fleet);
        let over = |node: &&crate::fleet::node::NodeState| {
            let share: f64 = node.commitments().iter().map(|one| one.share).sum();
            node.load.reserved > node.allocatable || share > 1.0 + 1e-6
        };
        PlacementCount {
            placed: self.fleet.nodes.iter().map(|node| node.residents.len()).sum(),
            overcommitted: self.fleet.nodes.iter().filter(over).count(),
        }
    }

    /// Removes one replica and places a new one, both selected by `turn`. Returns whether the new
    /// one got a node.
    ///
    /// # Panics
    /// If the fleet has no nodes.
    pub fn replace_one(&mut self, turn: usize) -> bool {
        let nodes = self.fleet.nodes.len();
        let at = (turn * 7919) % nodes;
        let removed = self.fleet.nodes[at].residents.keys().next().cloned();
        if let Some(key) = removed {
            self.fleet.remove_replica(&key);
        }
        let mut request = request((turn * 104_729) % (nodes * 5));
        request.key.name = format!("turn-{turn}");
        let decisions = decide_all([&request], &mut self.fleet, 1);
        decisions.iter().any(|decision| decision.outcome.is_ok())
    }
}

fn demanded_models() -> Vec<NodeModel> {
    models(DEMANDS.iter().map(|(name, ..)| *name).collect())
}

/// Returns published models in 4 bits, each once.
fn models(mut names: Vec<&str>) -> Vec<NodeModel> {
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .map(|name| {
            let found = library::find(name, Some(WeightFormat::Affine { bits: 4, group: 64 }))
                .expect("the library has the models of the benchmarks");
            let weights = Weights::estimate(&found.dimensions, found.format);
            let served = ServedModel {
                cost: ModelCost {
                    dimensions: found.dimensions,
                    weights,
                },
                kv_bits: KvBits::HALF,
            };
            served.publish(name.to_owned(), "llama".to_owned(), 32_768)
        })
        .collect()
}

fn node(index: usize, models: &[NodeModel], own_calibration: bool) -> FleetNode {
    let mut place = index % 100;
    let (chip, cores, gib, _) = MACS
        .into_iter()
        .find(|(.., count)| {
            let found = place < *count;
            place = place.saturating_sub(*count);
            found
        })
        .expect("the shares add up to 100");
    let mut node = mac(index, chip, cores, gib, models);
    if own_calibration && let Some(status) = &mut node.status {
        status.calibrations.push(Calibration {
            architecture: Some(ArchitectureClass::Dense),
            weights_bytes: 1,
            weight_bits: 4,
            decode: vec![CalibrationRun {
                tokens: 1000.0,
                log_time_ratio: index as f64 * 1e-6,
                observed_at: None,
                weight: 1.0,
            }],
            ..Calibration::default()
        });
    }
    node
}

/// Returns a Ready Mac with these models.
fn mac(index: usize, chip: &str, gpu_cores: u32, gib: u64, models: &[NodeModel]) -> FleetNode {
    let memory = Bytes::gib(gib);
    let mut status = FleetNodeStatus {
        models: models.to_vec(),
        ..FleetNodeStatus::default()
    };
    status.chip.name = format!("Apple {chip}");
    status.chip.gpu_cores = Some(gpu_cores);
    status.capacity.memory = memory.0.to_string();
    status.allocatable.memory = allocatable(memory, None).0.to_string();
    set_condition(
        &mut status.conditions,
        condition_type::READY,
        Truth::True,
        "AgentReady",
        "",
        None,
        jiff::Timestamp::UNIX_EPOCH,
    );
    let mut node = FleetNode::new(&format!("mac-{index:05}"), FleetNodeSpec::default());
    node.status = Some(status);
    node
}

fn request(index: usize) -> ReplicaRequest {
    let deployment = index / PER_DEPLOYMENT;
    let (model, context_tokens, streams, decode) = demand(deployment);
    request_for(deployment, index, model, context_tokens, streams, decode)
}

fn request_for(
    deployment: usize,
    replica: usize,
    model: &str,
    context_tokens: u32,
    max_concurrency: u32,
    decode: Option<f64>,
) -> ReplicaRequest {
    let key = |name: String| ReplicaKey {
        namespace: "default".to_owned(),
        name,
    };
    ReplicaRequest {
        key: key(format!("d{deployment:04}-{replica:06}")),
        deployment: Some(key(format!("d{deployment:04}"))),
        revision: None,
        source: Some(ModelSource::Local(model.to_owned())),
        artifact: None,
        context_tokens: Some(context_tokens),
        max_concurrency,
        kv_bits: None,
        disk: Bytes::ZERO,
        objectives: Objectives {
            decode,
            first_token: None,
        },
        placement: PlacementSpec::default(),
        priority: 0,
        overridden: false,
        refused: std::collections::BTreeMap::new(),
        nominated: None,
    }
}
