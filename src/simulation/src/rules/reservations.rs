//! Invariant: the reservations on a node never exceed its memory and its chip time.

use kube::ResourceExt;

use crate::rules::Rules;
use crate::world::World;
use rooflet_api::v1alpha1::{ModelReplica, ReplicaPhase};
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::{AdmissionRequest, NodeCapacity, Objectives, Verdict};
use rooflet_roofline::disk::DiskDemand;
use rooflet_roofline::memory::{Demand, NodeMemory};
use rooflet_roofline::predict::{Engine, Parameters};

/// Rounding error of a sum of shares.
const SHARE_TOLERANCE: f64 = 1e-6;

/// Machine class, model source, context tokens, concurrency, bits of the KV cache, and objectives.
pub(crate) type NeedKey = (String, String, u32, u32, Option<u32>, String);

impl Rules {
    /// Compares the sum of the reservations on a node with the node's capacity. The sum is
    /// calculated from the specs, independently of the controller's figures.
    pub(super) fn check_reservations(&mut self, world: &World<'_>, node: &str) {
        let Some(index) = world.by_name.get(node).copied() else {
            return;
        };
        let bound: Vec<_> = world
            .store
            .replicas
            .values()
            .filter(|replica| replica.spec.node_name.as_deref() == Some(node))
            .collect();
        let (mut memory, mut share) = (Bytes::ZERO, 0.0);
        for replica in &bound {
            let (bytes, part) = self.need(world, index, replica);
            memory += bytes;
            let failed = replica
                .status
                .as_ref()
                .is_some_and(|status| status.phase == ReplicaPhase::Failed);
            share += if failed { 0.0 } else { part };
        }
        let allocatable = world.nodes[index].machine.class.allocatable;
        let names = || {
            bound
                .iter()
                .map(|replica| replica.name_any())
                .collect::<Vec<_>>()
                .join(", ")
        };
        if memory > allocatable {
            let message = format!(
                "{node} has {allocatable}, and {memory} are reserved for {}",
                names()
            );
            self.report(world.now, "memory is never over-committed", message);
        }
        if share > 1.0 + SHARE_TOLERANCE {
            let message = format!(
                "{:.0} % of the chip time of {node} are reserved for {}",
                share * 100.0,
                names()
            );
            self.report(world.now, "bandwidth is never over-committed", message);
        }
    }

    /// Returns the memory and the share of chip time that a replica reserves on an empty node.
    fn need(&mut self, world: &World<'_>, index: usize, replica: &ModelReplica) -> (Bytes, f64) {
        let serving = &replica.spec.serving;
        let class = world.nodes[index].machine.class.clone();
        let kv_bits = serving.kv_cache.as_ref().and_then(|cache| cache.bits);
        let model = world.model_of(index, &replica.spec.model.source);
        let Some(model) = model.map(|model| model.with_kv_bits(kv_bits)) else {
            return (Bytes::ZERO, 0.0);
        };
        let objectives = format!("{:?}", replica.spec.objectives);
        let context_tokens = model.context_tokens(serving.context_tokens);
        let source = replica.spec.model.source.clone();
        let key = (
            class.name.clone(),
            source,
            context_tokens,
            serving.max_concurrency,
            kv_bits,
            objectives,
        );
        if let Some(known) = self.needs.get(&key) {
            return *known;
        }
        let objectives = Objectives::from(&replica.spec.objectives);
        let request = AdmissionRequest {
            model: &model.served,
            engine: Engine::Mlx,
            demand: Demand {
                context_tokens,
                max_concurrency: serving.max_concurrency,
            },
            disk: DiskDemand::default(),
            objectives,
        };
        let capacity = NodeCapacity {
            memory: NodeMemory {
                allocatable: class.allocatable,
                available: class.allocatable,
            },
            held: &[],
            disk: None,
            hardware: Some(class.hardware),
            calibrations: &[],
            commitments: &[],
        };
        let verdict = Verdict::new(&request, &capacity, Parameters::built_in());
        let share = verdict.commitment(String::new(), objectives).share;
        let need = (verdict.reservation.total(), share);
        self.needs.insert(key, need);
        need
    }
}
