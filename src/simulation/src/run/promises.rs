//! The rule that no node has more promised than it has, by its own arithmetic.

use kube::ResourceExt;

use crate::run::Run;
use rooflet_api::v1alpha1::{ModelReplica, ReplicaPhase};
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::{AdmissionRequest, NodeCapacity, Objectives, Verdict};
use rooflet_roofline::disk::DiskDemand;
use rooflet_roofline::memory::{Demand, NodeMemory};
use rooflet_roofline::predict::{Engine, Parameters};

/// Sums of shares carry rounding errors.
const SHARE_TOLERANCE: f64 = 1e-6;

impl Run<'_> {
    /// What is bound to a node, by its own arithmetic, is not more than it has.
    pub(crate) fn check_promises(&mut self, node: &str) {
        let Some(index) = self.world.by_name.get(node).copied() else {
            return;
        };
        let bound: Vec<_> = self
            .world
            .store
            .replicas
            .values()
            .filter(|replica| replica.spec.node_name.as_deref() == Some(node))
            .cloned()
            .collect();
        let (mut memory, mut share) = (Bytes::ZERO, 0.0);
        for replica in &bound {
            let (bytes, part) = self.need(index, replica);
            memory += bytes;
            let failed = replica
                .status
                .as_ref()
                .is_some_and(|status| status.phase == ReplicaPhase::Failed);
            share += if failed { 0.0 } else { part };
        }
        let allocatable = self.world.nodes[index].machine.class.allocatable;
        let names = || {
            bound
                .iter()
                .map(|replica| replica.name_any())
                .collect::<Vec<_>>()
                .join(", ")
        };
        if memory > allocatable {
            let message = format!(
                "{node} has {allocatable} and {memory} are promised to {}",
                names()
            );
            self.break_rule("memory is never over-committed", message);
        }
        if share > 1.0 + SHARE_TOLERANCE {
            let message = format!(
                "{:.0} % of {node}'s time are promised to {}",
                share * 100.0,
                names()
            );
            self.break_rule("bandwidth is never over-committed", message);
        }
    }

    /// Memory and chip time of a replica on a node that has nothing else.
    fn need(&mut self, index: usize, replica: &ModelReplica) -> (Bytes, f64) {
        let serving = &replica.spec.serving;
        let class = self.world.nodes[index].machine.class.clone();
        let kv_bits = serving.kv_cache.as_ref().and_then(|cache| cache.bits);
        let model = self.world.model_of(index, &replica.spec.model.source);
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
        if let Some(known) = self.rules.needs.get(&key) {
            return *known;
        }
        let objectives = Objectives::from(&replica.spec.objectives);
        let ask = AdmissionRequest {
            model: &model.served,
            engine: Engine::Mlx,
            demand: Demand {
                context_tokens,
                max_concurrency: serving.max_concurrency,
            },
            disk: DiskDemand::default(),
            objectives,
        };
        let supply = NodeCapacity {
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
        let verdict = Verdict::new(&ask, &supply, Parameters::built_in());
        let share = verdict.commitment(String::new(), objectives).share;
        let need = (verdict.reservation.total(), share);
        self.rules.needs.insert(key, need);
        need
    }
}
