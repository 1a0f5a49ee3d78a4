//! Dry run of a rollout on a copy of the fleet, before the rollout starts.
//!
//! A dry run passes through every state with the rules of a real rollout. A replica of the dry run
//! is Ready as soon as a node accepts it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::deployment::replica::is_of;
use crate::deployment::rollout::{Extent, RolloutLimits, scale};
use crate::deployment::throughput::{AtFloor, Chips, Floor, Throughput, predicted};
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{
    AdmissionStatus, ModelDeployment, ModelReplica, Percentiles, SpeedWorking, StrategyType,
};
use rooflet_scheduler::{Fleet, ReplicaKey, ReplicaRequest, bind_all, decide_all};

/// Maximum number of passes per replica. A dry run usually needs two.
const PASSES_PER_REPLICA: usize = 8;

/// Input and state of a dry run.
pub(super) struct DryRun<'t> {
    pub(super) deployment: &'t ModelDeployment,
    pub(super) stable: Option<&'t str>,
    pub(super) target: &'t str,
    /// Replica of the target revision.
    pub(super) template: ModelReplica,
    pub(super) floor: Floor,
    /// Fleet without the deployment's terminating and refused replicas.
    pub(super) fleet: Fleet,
    pub(super) replicas: Vec<ModelReplica>,
    pub(super) outcome: Outcome,
}

/// Result of a dry run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// Set if the rollout would stop at the throughput floor.
    pub(super) at_floor: Option<AtFloor>,
    /// Number of new replicas that found a node.
    pub(super) placed: usize,
    pub(super) nodes: BTreeSet<String>,
    /// Number of placed replicas without a speed prediction. They count with the highest known
    /// speed.
    pub(super) unknown: usize,
    /// Number of replicas without a node in the last pass, and the reason of the first one.
    pub(super) unplaced: Option<(usize, String)>,
}

impl DryRun<'_> {
    pub(super) fn run(mut self) -> Outcome {
        let spec = &self.deployment.spec;
        let steps = match (&spec.strategy.canary, spec.strategy.kind) {
            (Some(canary), StrategyType::Canary) => canary.steps.as_slice(),
            (_, StrategyType::RollingUpdate | StrategyType::Recreate | StrategyType::Canary) => &[],
        };
        let weights = steps.iter().filter_map(|step| step.set_weight);
        let extents = weights.map(Extent::Canary).chain([Extent::All]);
        let mut passes = PASSES_PER_REPLICA * (usize::try_from(spec.replicas).unwrap_or(0) + 1);
        for extent in extents {
            while passes > 0 && self.outcome.at_floor.is_none() && self.pass(extent) {
                passes -= 1;
            }
        }
        if self.outcome.at_floor.is_none() && passes > 0 {
            let now = self.throughput();
            let would_leave = now;
            let ends_low = !self.floor.holds(now);
            self.outcome.at_floor = ends_low.then_some(AtFloor { now, would_leave });
        }
        self.outcome
    }

    fn throughput(&self) -> f64 {
        Throughput::of(Chips::new(&self.fleet, self.deployment), &self.replicas).total()
    }

    /// Runs one pass. Returns false if the pass changed nothing.
    fn pass(&mut self, extent: Extent) -> bool {
        let placed = self.place();
        let all: Vec<&ModelReplica> = self.replicas.iter().collect();
        let limits = RolloutLimits {
            has_target: true,
            stable: self.stable,
            extent,
            floor: self.floor,
            chips: Chips::new(&self.fleet, self.deployment),
            leaving: 0,
            weight: None,
            idleness: None,
            preparation: None,
        };
        let is_new = |replica: &ModelReplica| is_of(replica, self.target);
        let scaling = scale(&self.deployment.spec, limits, &is_new, &all, 0);
        self.outcome.at_floor = scaling.at_floor;
        let deleted: BTreeSet<ReplicaKey> = scaling
            .delete
            .iter()
            .map(|(replica, _)| ReplicaKey::of(*replica))
            .collect();
        let create = scaling.create;
        self.replicas
            .retain(|replica| !deleted.contains(&ReplicaKey::of(replica)));
        for key in &deleted {
            self.fleet.remove_replica(key);
        }
        for _ in 0..create {
            self.outcome.placed += 1;
            let mut replica = self.template.clone();
            replica.metadata.name = Some(format!("{}-{}", self.target, self.outcome.placed));
            self.replicas.push(replica);
        }
        placed || create > 0 || !deleted.is_empty()
    }

    /// Places unscheduled replicas, by preemption if necessary. Returns whether one was placed.
    fn place(&mut self) -> bool {
        let known = self.replicas.iter().filter_map(predicted);
        let fastest = known.fold(0.0, f64::max);
        let mut placed = false;
        let mut preempted = BTreeSet::new();
        self.outcome.unplaced = None;
        let of_target = |replica: &&mut ModelReplica| is_of(replica, self.target);
        for replica in self.replicas.iter_mut().filter(of_target) {
            if replica.spec.node_name.is_some() {
                continue;
            }
            let request = ReplicaRequest::new(replica);
            let mut decision = decide_all([&request], &mut self.fleet, 1).pop();
            if let Some(preemption) = decision.as_mut().and_then(|decision| decision.preemption.take()) {
                for key in &preemption.victims {
                    self.fleet.remove_replica(key);
                }
                preempted.extend(preemption.victims);
                self.fleet.end_nomination(&request.key);
                decision = bind_all([&request], &mut self.fleet).pop();
            }
            let status = replica.status.get_or_insert_default();
            let mut set = |kind, truth| {
                set_condition(
                    &mut status.conditions,
                    kind,
                    truth,
                    "",
                    "",
                    None,
                    Timestamp::UNIX_EPOCH,
                );
            };
            match decision.map(|decision| decision.outcome) {
                Some(Ok(placement)) => {
                    placed = true;
                    set(condition_type::SCHEDULED, Truth::True);
                    set(condition_type::READY, Truth::True);
                    let name = placement.node().to_owned();
                    let speed = self.fleet.node(&name).and_then(|node| node.speed_alone(&request));
                    let streams = f64::from(replica.spec.serving.max_concurrency.max(1));
                    let (each, node) = match speed {
                        Some(speed) => (speed.decode.p50, name.clone()),
                        // Without a prediction, the replica counts as alone on its node.
                        None => (fastest / streams, format!("{name}/{}", request.key.name)),
                    };
                    self.outcome.unknown += usize::from(speed.is_none());
                    self.outcome.nodes.insert(name);
                    replica.spec.node_name = Some(node);
                    status.admission = Some(admission(each));
                }
                Some(Err(why)) => {
                    set(condition_type::SCHEDULED, Truth::False);
                    let unplaced = &mut self.outcome.unplaced;
                    let (count, _) = unplaced.get_or_insert_with(|| (0, why.to_string()));
                    *count += 1;
                }
                None => {}
            }
        }
        self.replicas
            .retain(|replica| !preempted.contains(&ReplicaKey::of(replica)));
        placed
    }
}

/// Returns the admission status on a node where each stream decodes `each` tokens per second.
fn admission(each: f64) -> AdmissionStatus {
    AdmissionStatus {
        admitted: true,
        speed: Some(SpeedWorking {
            tokens_per_second: Percentiles {
                p10: each,
                p50: each,
                p90: each,
            },
            ..SpeedWorking::default()
        }),
        ..AdmissionStatus::default()
    }
}
