//! State of a node, and the resources that replicas use on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::{Resource, ResourceExt};

use super::machine::{Fit, Machine};
use crate::condition_taints::{
    TolerationPeriod, is_cordoned, strict_taints, toleration_period, usage_taints,
};
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_api::conditions::condition_type::READY;
use rooflet_api::conditions::is_true;
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, SIMULATED_LABEL};
use rooflet_api::v1alpha1::{
    FleetNode, FleetNodeStatus, ModelReplica, ModelSource, NodeModel, PlacementSpec, ReplicaPhase, Taint,
    TaintEffect,
};
use rooflet_base::quantity;
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::{BEST_EFFORT_SHARE, Commitment, NodeCapacity};
use rooflet_roofline::disk::NodeDisk;
use rooflet_roofline::loading::{Disk, Download, Link, LoadTime, WeightRead};
use rooflet_roofline::memory::{Held, NodeMemory};
use rooflet_roofline::predict::Hardware;
use rooflet_roofline::predict::calibration::Calibration;
use rooflet_roofline::published;

/// Bound or nominated replica, as its object describes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claim {
    pub(crate) request: ReplicaRequest,
    /// Memory reservation that the agent reports.
    pub(crate) reported: Option<Bytes>,
    /// Share of the chip's time that the agent admitted.
    pub(crate) admitted_share: Option<f64>,
    /// True if the agent reports the phase Failed, so that no worker runs.
    pub(crate) failed: bool,
    pub(crate) ending: bool,
    pub(crate) ready: bool,
    /// True if a deployment replaces the replica after its deletion.
    pub(crate) replaceable: bool,
}

impl Claim {
    pub(crate) fn new(replica: &ModelReplica) -> Self {
        let status = replica.status.as_ref();
        Self {
            request: ReplicaRequest::new(replica),
            reported: status
                .and_then(|status| status.reserved_memory.as_deref())
                .and_then(|text| quantity::parse_bytes(text).ok()),
            admitted_share: status
                .and_then(|status| status.admission.as_ref())
                .filter(|admission| admission.admitted)
                .map(|admission| admission.chip_time_percent / 100.0),
            failed: status.is_some_and(|status| status.phase == ReplicaPhase::Failed),
            ending: replica.meta().deletion_timestamp.is_some(),
            ready: status.is_some_and(|status| is_true(&status.conditions, READY)),
            replaceable: replica.labels().contains_key(DEPLOYMENT_LABEL)
                && !replica.annotations().contains_key(MIRROR_ANNOTATION),
        }
    }

    /// Returns the claim of a replica that is placed or nominated but does not run yet.
    pub(crate) fn planned(request: &ReplicaRequest) -> Self {
        Self {
            request: request.clone(),
            reported: None,
            admitted_share: None,
            failed: false,
            ending: false,
            ready: false,
            replaceable: request.deployment.is_some(),
        }
    }
}

/// [`Claim`] with the resources that it uses on its node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resident {
    pub(crate) claim: Claim,
    /// Memory. `None` if unknown.
    memory: Option<Bytes>,
    /// Disk space for cached prefixes, and for the model until it is downloaded.
    disk: Bytes,
    /// Share of the chip's time.
    share: f64,
    /// Decode objective, and the predicted decode speed with the chip to itself, in tokens per
    /// second.
    decode: Option<(f64, f64)>,
    /// Predicted decode speed of one stream with the chip to itself, in tokens per second. 0 if
    /// unknown.
    rate: f64,
}

impl Resident {
    pub(crate) fn new(claim: Claim, fit: &Fit) -> Self {
        let requirements = fit.requirements.as_ref();
        let computed = requirements.map(|requirements| requirements.reservation.total());
        let objective = claim.request.objectives.decode;
        let alone = requirements.and_then(|requirements| requirements.speed);
        Self {
            // The higher one of the agent's report and the computed reservation.
            memory: claim
                .reported
                .max(computed)
                .or(claim.failed.then_some(Bytes::ZERO)),
            disk: claim.request.disk + if claim.failed { Bytes::ZERO } else { fit.download },
            // If the node does not list the model, for example after its directory was renamed, the worker
            // still uses the share that its agent admitted.
            share: requirements
                .map(|requirements| requirements.share)
                .or(claim.admitted_share)
                .unwrap_or(BEST_EFFORT_SHARE),
            decode: objective.zip(alone.map(|speed| speed.decode.p10)),
            rate: alone.map_or(0.0, |speed| speed.decode.p50),
            claim,
        }
    }

    /// Returns the memory of the replica, 0 if unknown.
    pub(crate) fn bytes(&self) -> Bytes {
        self.memory.unwrap_or(Bytes::ZERO)
    }
}

/// Resources that replicas use on a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Load {
    /// Reserved memory, including terminating replicas.
    pub(crate) reserved: Bytes,
    /// Reserved disk space.
    disk: Bytes,
    /// Number of replicas with unknown memory. While there are any, no memory counts as free.
    pub(crate) undetermined: u32,
    /// Reserved chip time of each replica.
    pub(crate) commitments: Vec<Commitment>,
    /// Sum of the reserved shares of the chip time.
    share: f64,
    /// Shares of replicas with objectives.
    objective_shares: Vec<f64>,
    /// [`Resident::rate`] of replicas without objectives.
    best_effort: Vec<f64>,
    /// See [`Load::pressure_with`].
    pub(crate) pressure: f64,
}

impl Load {
    pub(crate) fn of<'a>(residents: impl IntoIterator<Item = (&'a ReplicaKey, &'a Resident)>) -> Self {
        let mut load = Self::default();
        for (key, resident) in residents {
            load.disk += resident.disk;
            match resident.memory {
                Some(bytes) => load.reserved += bytes,
                None => load.undetermined += 1,
            }
            // A failed replica has no worker, so it uses no chip time.
            if resident.claim.failed {
                continue;
            }
            load.share += resident.share;
            if resident.claim.request.has_objectives() {
                load.objective_shares.push(resident.share);
            } else {
                load.best_effort.push(resident.rate);
            }
            load.commitments.push(Commitment {
                replica: key.to_string(),
                share: resident.share,
                decode: resident.decode,
            });
        }
        load.pressure = load.pressure_with(0.0, false);
        load
    }

    pub(crate) fn free(&self, allocatable: Bytes) -> Bytes {
        if self.undetermined > 0 {
            return Bytes::ZERO;
        }
        allocatable - self.reserved
    }

    /// Returns the share of the chip's time that no replica has reserved.
    pub(crate) fn free_share(&self) -> f64 {
        (1.0 - self.share).max(0.0)
    }

    /// Returns the pressure of the objectives with one more replica of this share.
    ///
    /// The pressure of an objective of share s is s divided by the time that other replicas leave,
    /// between 0 and 1. 1 minus the pressure is the slack. Slack above [`ENOUGH_SLACK`] does not
    /// count. The result is the sum over all objectives.
    pub(crate) fn pressure_with(&self, share: f64, has_objectives: bool) -> f64 {
        let all = self.share + share;
        self.objective_shares
            .iter()
            .copied()
            .chain(has_objectives.then_some(share))
            .map(|share| share / (1.0 - all + share).max(share))
            .map(|pressure| pressure.max(1.0 - ENOUGH_SLACK))
            .sum()
    }

    /// Returns the share of the chip's time for one more replica. With objectives, it is the
    /// unreserved share. Without, it is an equal part of the time that objectives leave.
    pub(crate) fn left(&self, has_objectives: bool) -> f64 {
        if has_objectives {
            return self.free_share();
        }
        let objectives: f64 = self.objective_shares.iter().sum();
        let others = self.commitments.len() - self.objective_shares.len();
        (1.0 - objectives).max(0.0) / (others + 1) as f64
    }

    /// Returns the share of the chip's time of each replica without objectives, if all are busy and
    /// there is at least one.
    pub(crate) fn best_effort_part(&self) -> f64 {
        let time = (1.0 - self.objective_shares.iter().sum::<f64>()).max(0.0);
        time / self.best_effort.len().max(1) as f64
    }

    /// Returns the predicted decode speed of each replica without objectives if all are busy, in
    /// tokens per second.
    pub(crate) fn shared_speeds(&self) -> impl Iterator<Item = f64> {
        let part = self.best_effort_part();
        self.best_effort.iter().map(move |rate| rate * part)
    }

    /// Returns the predicted effect of one more replica without objectives. `rate` is the decode
    /// speed of one of its streams with the chip to itself, in tokens per second.
    ///
    /// Replicas without objectives share the chip time that objectives leave equally, as if all
    /// were busy.
    pub(crate) fn with_best_effort(&self, rate: f64) -> SharedSpeed {
        let time = (1.0 - self.objective_shares.iter().sum::<f64>()).max(0.0);
        let neighbours = self.best_effort.len() as f64;
        let own = rate * time / (neighbours + 1.0);
        let total: f64 = self.best_effort.iter().sum();
        let lost_share = match self.best_effort.is_empty() {
            true => 0.0,
            false => time / neighbours - time / (neighbours + 1.0),
        };
        let gain = own - total * lost_share;
        // Otherwise many small, fast models would slow down one large model: each adds a little to
        // the total speed.
        let is_small = !self.best_effort.is_empty() && gain.abs() < MIN_SHARED_GAIN * rate;
        SharedSpeed {
            own,
            gain: if is_small { 0.0 } else { gain },
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commitments.is_empty() && self.undetermined == 0
    }
}

/// Predicted effect of one more replica without objectives on a node, in decode tokens per second
/// of one stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SharedSpeed {
    /// Speed of the new replica.
    pub(crate) own: f64,
    /// `own` minus the losses of the other replicas without objectives. Positive on nodes without
    /// such replicas.
    pub(crate) gain: f64,
}

/// Slack above this value does not improve a placement. With random arrivals and half of the time
/// free, a request waits half of its service time on average (M/D/1 queue).
const ENOUGH_SLACK: f64 = 0.5;

/// Gains and losses on shared nodes below this part of the new replica's own speed count as 0.
const MIN_SHARED_GAIN: f64 = 0.1;

/// Replicas of a deployment on one node. Fields compare top to bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Copies {
    /// Replicas of the same revision as the request.
    pub(crate) same: u32,
    /// Replicas of other revisions.
    pub(crate) others: u32,
}

/// State of a node, and the resources that replicas use on it.
#[derive(Debug, Clone)]
pub struct NodeState {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Taints that exclude replicas without a toleration.
    pub taints: Vec<Taint>,
    /// Taints that exclude replicas only if another node accepts them.
    pub(crate) usage_taints: Vec<Taint>,
    pub cordoned: bool,
    /// True if a drain is requested.
    pub(crate) draining: bool,
    /// Reason why the node is not Ready.
    pub not_ready: Option<String>,
    pub allocatable: Bytes,
    /// Disk space for replicas, if the agent reports it.
    pub(crate) disk_limit: Option<Bytes>,
    /// Chip and memory for messages, such as `Apple M4 16 GiB`.
    pub(crate) class: String,
    pub(crate) disk: Disk,
    pub(crate) link: Link,
    pub(crate) machine: Arc<Machine>,
    /// Id in the fleet's [`Machines`](super::machine::Machines).
    pub(crate) machine_id: usize,
    /// Bound replicas.
    pub(crate) residents: BTreeMap<ReplicaKey, Resident>,
    /// Replicas for which others are preempted on this node.
    pub(crate) nominees: BTreeMap<ReplicaKey, Resident>,
    /// Resources that the residents use.
    pub(crate) load: Load,
    /// Number of replicas by deployment and revision, without terminating replicas.
    pub(crate) copies: BTreeMap<ReplicaKey, BTreeMap<Option<String>, u32>>,
    /// Models that replicas on the node have loaded.
    pub(crate) sources: Vec<ModelSource>,
    /// Lowest priority of the replicas that can be preempted.
    pub(crate) lowest_priority: Option<i32>,
}

/// Properties of a FleetNode that are independent of its replicas.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeFacts {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) usage_taints: Vec<Taint>,
    pub(crate) cordoned: bool,
    pub(crate) draining: bool,
    pub(crate) not_ready: Option<String>,
    pub(crate) allocatable: Bytes,
    pub(crate) disk_limit: Option<Bytes>,
    pub(crate) class: String,
    pub(crate) disk: Disk,
    pub(crate) link: Link,
    pub(crate) machine: Machine,
}

impl NodeFacts {
    pub(crate) fn new(node: &FleetNode) -> Self {
        let status = node.status.clone().unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == READY);
        let not_ready = match ready {
            Some(ready) if ready.status == "True" => None,
            Some(ready) => Some(ready.reason.clone()),
            None => Some("NotYetReported".to_owned()),
        };
        Self {
            labels: node.labels().clone(),
            taints: strict_taints(node),
            usage_taints: usage_taints(node).collect(),
            cordoned: is_cordoned(node),
            draining: node.spec.drain,
            not_ready,
            // Without a valid figure, the node has no memory for replicas.
            allocatable: quantity::parse_bytes(&status.allocatable.memory).unwrap_or(Bytes::ZERO),
            disk_limit: (status.allocatable.disk.as_deref())
                .and_then(|text| quantity::parse_bytes(text).ok()),
            class: class(&status),
            disk: Disk::new(published::node_disk_read(&status)),
            link: Link::new(status.download.map(|speed| speed.median_bytes_per_second)),
            machine: Machine {
                hardware: published::hardware(&status),
                calibrations: published::calibrations(&status),
                models: status.models,
            },
        }
    }
}

/// Formats a memory size without a zero fraction, as vendors do: `16 GiB`.
pub(crate) fn nominal_size(memory: Bytes) -> String {
    memory.to_string().replace(".0 ", " ")
}

fn class(status: &FleetNodeStatus) -> String {
    let chip = match status.chip.name.as_str() {
        "" => "unknown chip",
        name => name,
    };
    match quantity::parse_bytes(&status.capacity.memory) {
        Ok(memory) => format!("{chip} {}", nominal_size(memory)),
        Err(_) => chip.to_owned(),
    }
}

impl NodeState {
    pub fn free(&self) -> Bytes {
        self.load.free(self.allocatable)
    }

    /// Returns the disk space for replicas beside `load`.
    pub(crate) fn disk(&self, load: &Load) -> Option<NodeDisk> {
        self.disk_limit.map(|limit| NodeDisk::new(limit, load.disk))
    }

    /// Returns the disk space for replicas, if the agent reports it.
    pub fn node_disk(&self) -> Option<NodeDisk> {
        self.disk(&self.load)
    }

    pub fn hardware(&self) -> Option<Hardware> {
        self.machine.hardware
    }

    /// Returns the calibrations from requests on this node.
    pub fn calibrations(&self) -> &[Calibration] {
        &self.machine.calibrations
    }

    /// Returns the reserved chip time of each replica.
    pub fn commitments(&self) -> &[Commitment] {
        &self.load.commitments
    }

    pub fn models(&self) -> &[NodeModel] {
        &self.machine.models
    }

    /// Returns whether the node is simulated; see [`SIMULATED_LABEL`].
    pub fn is_simulated(&self) -> bool {
        self.labels
            .get(SIMULATED_LABEL)
            .is_some_and(|value| value == "true")
    }

    /// Returns whether the node has all labels of the placement's node selector.
    pub fn is_selected(&self, placement: &PlacementSpec) -> bool {
        let selected = |(key, value): (&String, &String)| self.labels.get(key) == Some(value);
        placement.node_selector.iter().all(selected)
    }

    /// Returns whether a bound replica has to leave the node.
    pub(crate) fn evicts(&self, request: &ReplicaRequest) -> bool {
        let evicts = |taint: &Taint| {
            taint.effect == TaintEffect::NoExecute
                && toleration_period(taint, &request.placement.tolerations) != TolerationPeriod::Unlimited
        };
        self.draining || self.not_ready.is_some() || self.taints.iter().chain(&self.usage_taints).any(evicts)
    }

    /// Returns the time to download and read the model for another replica, or `None` if a replica
    /// on the node has loaded it.
    pub(crate) fn load_time(&self, request: &ReplicaRequest, fit: &Fit) -> Option<LoadTime> {
        let mut loaded = self.sources.iter();
        let is_loaded = loaded.any(|source| Some(source) == request.source.as_ref());
        let requirements = fit.requirements.as_ref();
        let weights = requirements.map_or(Bytes::ZERO, |requirements| requirements.reservation.weights);
        (!is_loaded).then(|| LoadTime {
            download: Download::new(fit.download, &self.link),
            reading: WeightRead::new(weights, &self.disk),
        })
    }

    pub(crate) fn copies_of(&self, request: &ReplicaRequest) -> Copies {
        let deployment = request.deployment.as_ref();
        deployment
            .and_then(|deployment| self.copies.get(deployment))
            .map_or_else(Copies::default, |revisions| {
                let same = revisions.get(&request.revision).copied().unwrap_or(0);
                let others = revisions.values().sum::<u32>() - same;
                Copies { same, others }
            })
    }

    /// Returns the load that counts for a request. It includes nominated replicas of at least the
    /// same priority.
    pub(crate) fn load_for(&self, request: &ReplicaRequest) -> std::borrow::Cow<'_, Load> {
        let counts = |(key, nominee): &(&ReplicaKey, &Resident)| {
            **key != request.key && nominee.claim.request.priority >= request.priority
        };
        if !self.nominees.iter().any(|nominee| counts(&nominee)) {
            return std::borrow::Cow::Borrowed(&self.load);
        }
        let all = self
            .residents
            .iter()
            .chain(self.nominees.iter().filter(|nominee| counts(nominee)));
        std::borrow::Cow::Owned(Load::of(all))
    }

    /// Returns whether the request may preempt the replica.
    fn is_preemptible(resident: &Resident, priority: i32) -> bool {
        resident.claim.replaceable && resident.claim.request.priority < priority
    }

    /// Returns the load that counts for a request after the preemption of all replicas of lower
    /// priorities.
    pub(crate) fn load_after_preemption(&self, request: &ReplicaRequest) -> std::borrow::Cow<'_, Load> {
        let lowest = self.lowest_priority;
        if lowest.is_none_or(|lowest| lowest >= request.priority) {
            return self.load_for(request);
        }
        let residents = self.residents.iter();
        let stays = residents.filter(|(_, resident)| !Self::is_preemptible(resident, request.priority));
        let nominees = self.nominees.iter().filter(|(key, nominee)| {
            **key != request.key && nominee.claim.request.priority >= request.priority
        });
        std::borrow::Cow::Owned(Load::of(stays.chain(nominees)))
    }

    /// Returns an upper bound of the free memory after the preemption of all replicas below this
    /// priority.
    pub(crate) fn free_after_preemption(&self, priority: i32) -> Bytes {
        if self.lowest_priority.is_none_or(|lowest| lowest >= priority) {
            return self.free();
        }
        if self.load.undetermined > 0 {
            return self.allocatable;
        }
        let residents = self.residents.values();
        let gone = residents.filter(|resident| Self::is_preemptible(resident, priority));
        self.free() + gone.map(Resident::bytes).sum()
    }

    /// Returns the chip time share of each replica, without failed replicas, which have no worker.
    pub(crate) fn reserved_shares(&self) -> impl Iterator<Item = (&ReplicaRequest, f64)> {
        let running = self.residents.values().filter(|resident| !resident.claim.failed);
        running.map(|resident| (&resident.claim.request, resident.share))
    }

    pub(crate) fn with_capacity<T>(&self, load: &Load, act: impl FnOnce(&NodeCapacity<'_>) -> T) -> T {
        let held = [Held {
            reserved: self.allocatable - load.free(self.allocatable),
            resident: Bytes::ZERO,
        }];
        act(&NodeCapacity {
            memory: NodeMemory {
                allocatable: self.allocatable,
                available: self.allocatable,
            },
            held: &held,
            disk: self.disk(load),
            hardware: self.machine.hardware,
            calibrations: &self.machine.calibrations,
            commitments: &load.commitments,
        })
    }

    /// Recomputes the sums over the residents.
    pub(crate) fn recount(&mut self) {
        self.load = Load::of(&self.residents);
        self.sources.clear();
        for resident in self.residents.values() {
            let source = resident.claim.request.source.as_ref();
            if let Some(source) = source.filter(|source| !self.sources.contains(source)) {
                self.sources.push(source.clone());
            }
        }
        let replaceable = self
            .residents
            .values()
            .filter(|resident| resident.claim.replaceable);
        self.lowest_priority = replaceable.map(|resident| resident.claim.request.priority).min();
        self.copies.clear();
        for resident in self.residents.values().filter(|resident| !resident.claim.ending) {
            let request = &resident.claim.request;
            if let Some(deployment) = &request.deployment {
                let revisions = self.copies.entry(deployment.clone()).or_default();
                *revisions.entry(request.revision.clone()).or_default() += 1;
            }
        }
    }
}
