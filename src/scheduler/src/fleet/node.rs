//! One node, and what is taken of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::{Resource, ResourceExt};

use super::machine::{Fit, Machine};
use crate::request::{ReplicaKey, ReplicaRequest};
use crate::taints::{self, Stay};
use rooflet_api::conditions::condition_type::READY;
use rooflet_api::conditions::is_true;
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, SIMULATED_LABEL};
use rooflet_api::v1alpha1::{
    FleetNode, FleetNodeStatus, ModelReplica, ModelSource, NodeModel, PlacementSpec, ReplicaPhase, Taint,
    TaintEffect,
};
use rooflet_base::quantity;
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::{BEST_EFFORT_SHARE, Commitment, Supply};
use rooflet_roofline::disk::NodeDisk;
use rooflet_roofline::loading::{Arrival, Disk, Download, Link, Reading};
use rooflet_roofline::memory::{Held, NodeMemory};
use rooflet_roofline::predict::Hardware;
use rooflet_roofline::predict::calibration::Calibration;
use rooflet_roofline::published;

/// A replica that holds a place on a node, or is to have one: what its object says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claim {
    pub(crate) request: ReplicaRequest,
    /// What its agent says that it takes.
    pub(crate) reported: Option<Bytes>,
    /// Its agent has looked, and nothing runs.
    pub(crate) failed: bool,
    pub(crate) ending: bool,
    pub(crate) ready: bool,
    /// Whether something makes another one when it is deleted.
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
            failed: status.is_some_and(|status| status.phase == ReplicaPhase::Failed),
            ending: replica.meta().deletion_timestamp.is_some(),
            ready: status.is_some_and(|status| is_true(&status.conditions, READY)),
            replaceable: replica.labels().contains_key(DEPLOYMENT_LABEL)
                && !replica.annotations().contains_key(MIRROR_ANNOTATION),
        }
    }

    /// Of a replica that was just placed, or nominated: nothing runs yet.
    pub(crate) fn promised(request: &ReplicaRequest) -> Self {
        Self {
            request: request.clone(),
            reported: None,
            failed: false,
            ending: false,
            ready: false,
            replaceable: request.deployment.is_some(),
        }
    }
}

/// A [`Claim`] with what it takes of its node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resident {
    pub(crate) claim: Claim,
    /// `None`: nobody can tell yet.
    memory: Option<Bytes>,
    /// Of what replicas may store there, its download included while that is not whole.
    disk: Bytes,
    /// Of the chip's time.
    share: f64,
    /// Its objective for decoding, and what it would get with the chip to itself, both in tokens
    /// per second.
    decode: Option<(f64, f64)>,
    /// Predicted decode speed of one stream with the chip to itself, in tokens per second. 0 if
    /// unknown.
    rate: f64,
}

impl Resident {
    pub(crate) fn new(claim: Claim, fit: &Fit) -> Self {
        let appraisal = fit.appraisal.as_ref();
        let computed = appraisal.map(|appraisal| appraisal.reservation.total());
        let objective = claim.request.objectives.decode;
        let alone = appraisal.and_then(|appraisal| appraisal.speed);
        Self {
            // What its agent says or what the same arithmetic gives here, whichever is more.
            memory: claim
                .reported
                .max(computed)
                .or(claim.failed.then_some(Bytes::ZERO)),
            disk: claim.request.disk + if claim.failed { Bytes::ZERO } else { fit.download },
            share: appraisal.map_or(BEST_EFFORT_SHARE, |appraisal| appraisal.share),
            decode: objective.zip(alone.map(|speed| speed.decode.p10)),
            rate: alone.map_or(0.0, |speed| speed.decode.p50),
            claim,
        }
    }

    /// What another one of it has to load.
    pub(crate) fn bytes(&self) -> Bytes {
        self.memory.unwrap_or(Bytes::ZERO)
    }
}

/// What replicas take of a node together.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Load {
    /// Memory promised to them, those that are ending included.
    pub(crate) reserved: Bytes,
    /// Disk promised to them.
    disk: Bytes,
    /// How many of them nobody can tell of yet what they take: until then nothing is free.
    pub(crate) undetermined: u32,
    /// Time of the chip promised to them.
    pub(crate) commitments: Vec<Commitment>,
    /// Its sum.
    share: f64,
    /// Shares of those with objectives.
    promised: Vec<f64>,
    /// [`Resident::rate`] of those without objectives.
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
            // Of one that failed the agent has looked, and nothing runs.
            if resident.claim.failed {
                continue;
            }
            load.share += resident.share;
            if resident.claim.request.has_objectives() {
                load.promised.push(resident.share);
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

    /// The share of the chip's time that is promised to nobody.
    pub(crate) fn free_share(&self) -> f64 {
        (1.0 - self.share).max(0.0)
    }

    /// How much of what is left to them the objectives of all replicas need, each between 0 and 1,
    /// summed up: an objective of share s needs s of the time that the others leave. 1 minus that
    /// is its slack.
    ///
    /// With one more replica of this share.
    pub(crate) fn pressure_with(&self, share: f64, has_objectives: bool) -> f64 {
        let all = self.share + share;
        self.promised
            .iter()
            .copied()
            .chain(has_objectives.then_some(share))
            .map(|share| share / (1.0 - all + share).max(share))
            .sum()
    }

    /// The share of the chip's time that one more replica would have: with objectives all that no
    /// other reserves, else its part of what objectives leave.
    pub(crate) fn left(&self, has_objectives: bool) -> f64 {
        if has_objectives {
            return self.free_share();
        }
        let promised: f64 = self.promised.iter().sum();
        let others = self.commitments.len() - self.promised.len();
        (1.0 - promised).max(0.0) / (others + 1) as f64
    }

    /// Predicted decode speed of each replica without objectives if all are busy, in tokens per
    /// second.
    #[cfg(test)]
    pub(crate) fn shared_speeds(&self) -> impl Iterator<Item = f64> {
        let time = (1.0 - self.promised.iter().sum::<f64>()).max(0.0);
        let neighbours = self.best_effort.len() as f64;
        self.best_effort.iter().map(move |rate| rate * time / neighbours)
    }

    /// Predicted effect of one more replica without objectives. `rate` is the decode speed of one
    /// of its streams with the chip to itself, in tokens per second.
    ///
    /// Replicas without objectives share the chip time that objectives leave equally, as if all
    /// were busy.
    pub(crate) fn with_best_effort(&self, rate: f64) -> SharedSpeed {
        let time = (1.0 - self.promised.iter().sum::<f64>()).max(0.0);
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

/// Gains and losses on shared nodes below this part of the new replica's own speed count as 0.
const MIN_SHARED_GAIN: f64 = 0.1;

/// Replicas of a deployment on one node. Fields compare top to bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Copies {
    /// Those of the revision that was asked for.
    pub(crate) same: u32,
    /// Those of other revisions.
    pub(crate) others: u32,
}

/// One node, and what is taken of it.
#[derive(Debug, Clone)]
pub struct NodeState {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Taints that keep replicas away.
    pub taints: Vec<Taint>,
    /// Taints that keep replicas away while another node takes them.
    pub(crate) preferences: Vec<Taint>,
    pub cordoned: bool,
    /// A person wants it empty.
    pub(crate) draining: bool,
    /// Why it cannot take work, if it cannot.
    pub not_ready: Option<String>,
    pub allocatable: Bytes,
    /// What replicas may store on its disk, if its agent says.
    pub(crate) disk_limit: Option<Bytes>,
    /// Chip and memory, for people: `Apple M4 16 GiB`.
    pub(crate) class: String,
    pub(crate) disk: Disk,
    pub(crate) link: Link,
    pub(crate) machine: Arc<Machine>,
    /// Its place among the machines.
    pub(crate) machine_id: usize,
    /// Replicas bound to it.
    pub(crate) residents: BTreeMap<ReplicaKey, Resident>,
    /// Replicas for which others are leaving it.
    pub(crate) nominees: BTreeMap<ReplicaKey, Resident>,
    /// What the residents take.
    pub(crate) load: Load,
    /// How many replicas of each deployment and revision it has, those that are ending not
    /// included.
    pub(crate) copies: BTreeMap<ReplicaKey, BTreeMap<Option<String>, u32>>,
    /// Models that replicas on it hold in memory.
    pub(crate) sources: Vec<ModelSource>,
    /// The lowest priority of those that may leave for a higher one.
    pub(crate) lowest_priority: Option<i32>,
}

/// What a FleetNode says that does not change with what is placed there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeFacts {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) preferences: Vec<Taint>,
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
        let measured = status.probe.as_ref().map(|probe| &probe.measurements);
        Self {
            labels: node.labels().clone(),
            taints: taints::strict(node),
            preferences: taints::preferences(node).collect(),
            cordoned: taints::is_cordoned(node),
            draining: node.spec.drain,
            not_ready,
            // A figure that cannot be read is no memory at all: never more than the node has.
            allocatable: quantity::parse_bytes(&status.allocatable.memory).unwrap_or(Bytes::ZERO),
            disk_limit: (status.allocatable.disk.as_deref())
                .and_then(|text| quantity::parse_bytes(text).ok()),
            class: class(&status),
            disk: Disk::new(measured.and_then(published::disk_read)),
            link: Link::new(status.download.map(|speed| speed.median_bytes_per_second)),
            machine: Machine {
                hardware: published::hardware(&status),
                calibrations: published::calibrations(&status),
                models: status.models,
            },
        }
    }
}

/// A machine's memory as people say it: without a fraction where there is none.
pub(crate) fn as_sold(memory: Bytes) -> String {
    memory.to_string().replace(".0 ", " ")
}

fn class(status: &FleetNodeStatus) -> String {
    let chip = match status.chip.name.as_str() {
        "" => "unknown chip",
        name => name,
    };
    match quantity::parse_bytes(&status.capacity.memory) {
        Ok(memory) => format!("{chip} {}", as_sold(memory)),
        Err(_) => chip.to_owned(),
    }
}

impl NodeState {
    pub fn free(&self) -> Bytes {
        self.load.free(self.allocatable)
    }

    /// What replicas may store on its disk beside `load`.
    pub(crate) fn disk(&self, load: &Load) -> Option<NodeDisk> {
        self.disk_limit.map(|limit| NodeDisk::new(limit, load.disk))
    }

    /// What replicas may store on its disk, if its agent says.
    pub fn node_disk(&self) -> Option<NodeDisk> {
        self.disk(&self.load)
    }

    pub fn hardware(&self) -> Option<Hardware> {
        self.machine.hardware
    }

    /// What runs on it have taught about its speed.
    pub fn calibrations(&self) -> &[Calibration] {
        &self.machine.calibrations
    }

    /// Time of the chip promised to its replicas.
    pub fn commitments(&self) -> &[Commitment] {
        &self.load.commitments
    }

    pub fn models(&self) -> &[NodeModel] {
        &self.machine.models
    }

    /// Its machine does not exist: see [`SIMULATED_LABEL`].
    pub fn is_simulated(&self) -> bool {
        self.labels
            .get(SIMULATED_LABEL)
            .is_some_and(|value| value == "true")
    }

    /// Whether it carries all labels that the placement asks for.
    pub fn is_selected(&self, placement: &PlacementSpec) -> bool {
        let selected = |(key, value): (&String, &String)| self.labels.get(key) == Some(value);
        placement.node_selector.iter().all(selected)
    }

    /// Whether a replica that is bound to it has to go elsewhere.
    pub(crate) fn is_left_by(&self, request: &ReplicaRequest) -> bool {
        let expels = |taint: &Taint| {
            taint.effect == TaintEffect::NoExecute
                && taints::stay(taint, &request.placement.tolerations) != Stay::Forever
        };
        self.draining || self.not_ready.is_some() || self.taints.iter().chain(&self.preferences).any(expels)
    }

    /// What has to come for another replica that takes so much; `None` where one on the node has it
    /// in memory, or gets it.
    pub(crate) fn arrival(&self, request: &ReplicaRequest, fit: &Fit) -> Option<Arrival> {
        let mut loaded = self.sources.iter();
        let is_loaded = loaded.any(|source| Some(source) == request.source.as_ref());
        let appraisal = fit.appraisal.as_ref();
        let weights = appraisal.map_or(Bytes::ZERO, |appraisal| appraisal.reservation.weights);
        (!is_loaded).then(|| Arrival {
            download: Download::new(fit.download, &self.link),
            reading: Reading::new(weights, &self.disk),
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

    /// What is taken of it from the point of view of a request: what others of at least its
    /// priority are nominated for is theirs.
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

    /// The share of the chip's time that each of its replicas takes. Of one that failed its agent
    /// has looked, and nothing runs.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (&ReplicaRequest, f64)> {
        let running = self.residents.values().filter(|resident| !resident.claim.failed);
        running.map(|resident| (&resident.claim.request, resident.share))
    }

    pub(crate) fn with_supply<T>(&self, load: &Load, act: impl FnOnce(&Supply<'_>) -> T) -> T {
        let held = [Held {
            reserved: self.allocatable - load.free(self.allocatable),
            resident: Bytes::ZERO,
        }];
        act(&Supply {
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

    /// Sums up anew.
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
