//! Dry run of a rollout on a copy of the fleet before the rollout starts. It passes through every state with the rules of
//! a real rollout. A replica of the dry run is ready as soon as a node accepts it.

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

/// Limit of passes per replica. A dry run usually needs two.
const PASSES_PER_REPLICA: usize = 8;

/// Input and state of a dry run.
pub(super) struct DryRun<'t> {
    pub(super) deployment: &'t ModelDeployment,
    pub(super) stable: Option<&'t str>,
    pub(super) wanted: &'t str,
    /// A replica of the wanted revision.
    pub(super) template: ModelReplica,
    pub(super) floor: Floor,
    /// The deployment's replicas on it are those that are tried.
    pub(super) fleet: Fleet,
    pub(super) replicas: Vec<ModelReplica>,
    pub(super) outcome: Outcome,
}

/// Result of a dry run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// Where the floor forbids to go on; `None`: it ends well, or nobody can tell.
    pub(super) at_floor: Option<AtFloor>,
    /// Replicas of the new revision that were made and found a node.
    pub(super) placed: usize,
    pub(super) nodes: BTreeSet<String>,
    /// Of those, on nodes whose speed nobody can tell: they count as much as the fastest that is known.
    pub(super) unknown: usize,
    /// Replicas that found no node at last, and why.
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

    /// Whether anything was done.
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
            idleness: None,
            preparation: None,
        };
        let is_new = |replica: &ModelReplica| is_of(replica, self.wanted);
        let scaling = scale(&self.deployment.spec, limits, &is_new, &all, 0);
        self.outcome.at_floor = scaling.at_floor;
        let gone: BTreeSet<ReplicaKey> = scaling
            .delete
            .iter()
            .map(|(replica, _)| ReplicaKey::of(*replica))
            .collect();
        let create = scaling.create;
        self.replicas
            .retain(|replica| !gone.contains(&ReplicaKey::of(replica)));
        for key in &gone {
            self.fleet.remove_replica(key);
        }
        for _ in 0..create {
            self.outcome.placed += 1;
            let mut replica = self.template.clone();
            replica.metadata.name = Some(format!("{}-{}", self.wanted, self.outcome.placed));
            self.replicas.push(replica);
        }
        placed || create > 0 || !gone.is_empty()
    }

    /// Looks for nodes for all that have none, from which others of a lower priority leave if need be. Whether one was found.
    fn place(&mut self) -> bool {
        let known = self.replicas.iter().filter_map(predicted);
        let fastest = known.fold(0.0, f64::max);
        let mut found = false;
        let mut yielded = BTreeSet::new();
        self.outcome.unplaced = None;
        let of_wanted = |replica: &&mut ModelReplica| is_of(replica, self.wanted);
        for replica in self.replicas.iter_mut().filter(of_wanted) {
            if replica.spec.node_name.is_some() {
                continue;
            }
            let request = ReplicaRequest::new(replica);
            let mut decided = decide_all([&request], &mut self.fleet, 1).pop();
            if let Some(preemption) = decided.as_mut().and_then(|one| one.preemption.take()) {
                for key in &preemption.victims {
                    self.fleet.remove_replica(key);
                }
                yielded.extend(preemption.victims);
                self.fleet.end_nomination(&request.key);
                decided = bind_all([&request], &mut self.fleet).pop();
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
            match decided.map(|decision| decision.outcome) {
                Some(Ok(placement)) => {
                    found = true;
                    set(condition_type::SCHEDULED, Truth::True);
                    set(condition_type::READY, Truth::True);
                    let name = placement.node().to_owned();
                    let speed = self.fleet.node(&name).and_then(|node| node.speed_alone(&request));
                    let streams = f64::from(replica.spec.serving.max_concurrency.max(1));
                    let (each, node) = match speed {
                        Some(speed) => (speed.decode.p50, name.clone()),
                        // Nobody knows, so it shares with nobody.
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
            .retain(|replica| !yielded.contains(&ReplicaKey::of(replica)));
        found
    }
}

/// That of a node on which each stream decodes so many tokens per second.
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
