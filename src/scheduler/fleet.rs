//! The fleet as the scheduler sees it: nodes with what is reserved on them, replicas with what they ask for.

use std::collections::BTreeMap;
use std::fmt;

use kube::{Resource, ResourceExt};

use super::taints;

use crate::api::conditions::condition_type::READY;
use crate::api::meta::{ADMISSION_ANNOTATION, ADMISSION_WARN, DEPLOYMENT_LABEL};
use crate::api::v1alpha1::{
    DEFAULT_CONTEXT_TOKENS, FleetNode, ModelReplica, ModelSource, NodeModel, PlacementSpec, ReplicaPhase,
    Taint,
};
use crate::quantity;
use crate::roofline::admission::{Ask, BEST_EFFORT_SHARE, Commitment, Objectives, Supply, Verdict};
use crate::roofline::memory::{Demand, Held, NodeMemory, ServedModel};
use crate::roofline::predict::calibration::Calibration;
use crate::roofline::predict::{Engine, Hardware, Parameters};
use crate::roofline::published;
use crate::units::Bytes;

/// Names a ModelReplica.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReplicaKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ReplicaKey {
    pub(crate) fn of<K: Resource>(object: &K) -> Self {
        Self {
            namespace: object.meta().namespace.clone().unwrap_or_default(),
            name: object.name_any(),
        }
    }
}

impl fmt::Display for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a replica asks of its node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReplicaRequest {
    pub(crate) key: ReplicaKey,
    /// Namespace and name of its deployment, over whose replicas it should be spread.
    pub(crate) deployment: Option<ReplicaKey>,
    /// `None`: the source is not one that can be served.
    pub(crate) source: Option<ModelSource>,
    /// `None`: whatever the node's model has, at most the default.
    pub(crate) context_tokens: Option<u32>,
    pub(crate) max_concurrency: u32,
    pub(crate) objectives: Objectives,
    pub(crate) placement: PlacementSpec,
    /// What speaks against it is told and not enforced.
    pub(crate) overridden: bool,
    /// Nodes whose agents refused replicas of the same revision a short time ago, and why.
    pub(crate) refused: BTreeMap<String, String>,
}

impl ReplicaRequest {
    pub(crate) fn new(replica: &ModelReplica) -> Self {
        Self {
            key: ReplicaKey::of(replica),
            deployment: deployment_of(replica),
            source: replica.spec.model.source.parse().ok(),
            context_tokens: replica.spec.serving.context_tokens,
            max_concurrency: replica.spec.serving.max_concurrency,
            objectives: Objectives::from(&replica.spec.objectives),
            placement: replica.spec.placement.clone(),
            overridden: is_overridden(replica),
            refused: BTreeMap::new(),
        }
    }

    /// Context and streams that are reserved with this model; the agent computes the same.
    pub(super) fn demand(&self, model: &NodeModel) -> Demand {
        let longest = Some(model.max_context_tokens).filter(|tokens| *tokens > 0);
        let context_tokens = self.context_tokens.unwrap_or_else(|| {
            longest.map_or(DEFAULT_CONTEXT_TOKENS, |tokens| {
                tokens.min(DEFAULT_CONTEXT_TOKENS)
            })
        });
        Demand {
            context_tokens,
            max_concurrency: self.max_concurrency,
        }
    }

    pub(super) fn ask<'a>(&self, model: &NodeModel, served: &'a ServedModel) -> Ask<'a> {
        Ask {
            model: served,
            engine: Engine::Mlx,
            demand: self.demand(model),
            objectives: self.objectives,
        }
    }
}

/// Whether its owner wants it whatever admission says.
pub(crate) fn is_overridden(object: &impl ResourceExt) -> bool {
    let annotation = object.annotations().get(ADMISSION_ANNOTATION);
    annotation.map(String::as_str) == Some(ADMISSION_WARN)
}

/// The deployment that made it.
pub(crate) fn deployment_of(replica: &ModelReplica) -> Option<ReplicaKey> {
    let name = replica.labels().get(DEPLOYMENT_LABEL)?;
    Some(ReplicaKey {
        namespace: replica.namespace().unwrap_or_default(),
        name: name.clone(),
    })
}

/// One node, and what is taken of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) cordoned: bool,
    /// Why it cannot take work, if it cannot.
    pub(crate) not_ready: Option<String>,
    pub(crate) allocatable: Bytes,
    pub(crate) models: Vec<NodeModel>,
    /// What its speed can be predicted from, if anything can.
    pub(crate) hardware: Option<Hardware>,
    /// What runs on it have taught about its speed.
    pub(crate) calibrations: Vec<Calibration>,
    /// Memory promised to replicas bound to it, those that are ending included.
    pub(crate) reserved: Bytes,
    /// Time of the chip promised to them.
    pub(crate) commitments: Vec<Commitment>,
    /// Replicas bound to it of which nobody can tell yet what they take: until then nothing is free.
    pub(crate) undetermined: u32,
    /// How many replicas of each deployment it has, those that are ending not included.
    pub(crate) replicas: BTreeMap<ReplicaKey, u32>,
}

impl NodeState {
    fn new(node: &FleetNode) -> Self {
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
            name: node.name_any(),
            labels: node.labels().clone(),
            taints: taints::of(node),
            cordoned: taints::is_cordoned(node),
            not_ready,
            // A figure that cannot be read is no memory at all: never more than the node has.
            allocatable: quantity::parse_bytes(&status.allocatable.memory).unwrap_or(Bytes::ZERO),
            hardware: published::hardware(&status),
            calibrations: published::calibrations(&status),
            models: status.models,
            reserved: Bytes::ZERO,
            commitments: Vec::new(),
            undetermined: 0,
            replicas: BTreeMap::new(),
        }
    }

    pub(crate) fn free(&self) -> Bytes {
        if self.undetermined > 0 {
            return Bytes::ZERO;
        }
        self.allocatable - self.reserved
    }

    /// Whether it carries all labels that the placement asks for.
    pub(crate) fn is_selected(&self, placement: &PlacementSpec) -> bool {
        let selected = |(key, value): (&String, &String)| self.labels.get(key) == Some(value);
        placement.node_selector.iter().all(selected)
    }

    pub(super) fn model(&self, name: &str) -> Option<&NodeModel> {
        self.models.iter().find(|model| model.name == name)
    }

    /// Judges one more replica by what is promised so far.
    pub(super) fn judge(&self, ask: &Ask<'_>) -> Verdict {
        self.with_supply(|supply| Verdict::new(ask, supply, Parameters::built_in()))
    }

    pub(super) fn with_supply<T>(&self, act: impl FnOnce(&Supply<'_>) -> T) -> T {
        let held = [Held {
            reserved: self.allocatable - self.free(),
            resident: Bytes::ZERO,
        }];
        act(&Supply {
            memory: NodeMemory {
                allocatable: self.allocatable,
                available: self.allocatable,
            },
            held: &held,
            hardware: self.hardware,
            calibrations: &self.calibrations,
            commitments: &self.commitments,
        })
    }

    /// Counts a replica that is bound here.
    fn hold(&mut self, replica: &ModelReplica) {
        let request = ReplicaRequest::new(replica);
        let name = request.key.to_string();
        let status = replica.status.as_ref();
        // Of one that failed the agent has looked, and nothing runs.
        let failed = status.is_some_and(|status| status.phase == ReplicaPhase::Failed);
        let reported = status
            .and_then(|status| status.reserved_memory.as_deref())
            .and_then(|text| quantity::parse_bytes(text).ok());
        let model = match &request.source {
            Some(ModelSource::Local(name)) => self.model(name).filter(|model| model.problem.is_none()),
            Some(ModelSource::File(_)) | None => None,
        };
        let served = model.and_then(|model| Some((model, ServedModel::published(model)?)));
        let verdict = served.map(|(model, served)| self.judge(&request.ask(model, &served)));
        let computed = verdict.as_ref().map(|verdict| verdict.reservation.total());
        match reported.max(computed).or(failed.then_some(Bytes::ZERO)) {
            // What its agent says or what the same arithmetic gives here, whichever is more.
            Some(bytes) => self.reserved += bytes,
            None => self.undetermined += 1,
        }
        if !failed {
            self.commitments
                .push(commitment(name, verdict.as_ref(), request.objectives));
        }
        if replica.meta().deletion_timestamp.is_none()
            && let Some(deployment) = deployment_of(replica)
        {
            *self.replicas.entry(deployment).or_default() += 1;
        }
    }

    /// Counts a placement that was just decided.
    pub(super) fn promise(&mut self, request: &ReplicaRequest, needed: Option<&Verdict>) {
        self.commitments
            .push(commitment(request.key.to_string(), needed, request.objectives));
        match needed {
            Some(verdict) => self.reserved += verdict.reservation.total(),
            None => self.undetermined += 1,
        }
        if let Some(deployment) = &request.deployment {
            *self.replicas.entry(deployment.clone()).or_default() += 1;
        }
    }
}

fn commitment(replica: String, verdict: Option<&Verdict>, objectives: Objectives) -> Commitment {
    match verdict {
        Some(verdict) => verdict.commitment(replica, objectives),
        None => Commitment {
            replica,
            share: BEST_EFFORT_SHARE,
            decode: None,
        },
    }
}

/// All nodes, ordered by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<NodeState>,
}

impl Fleet {
    /// Every replica counts on the node it is bound to until the object is gone.
    pub(crate) fn new<'a>(
        nodes: impl IntoIterator<Item = &'a FleetNode>,
        replicas: impl IntoIterator<Item = &'a ModelReplica>,
    ) -> Self {
        let mut by_name: BTreeMap<String, NodeState> = nodes
            .into_iter()
            .map(|node| (node.name_any(), NodeState::new(node)))
            .collect();
        for replica in replicas {
            let node = replica.spec.node_name.as_ref();
            if let Some(node) = node.and_then(|name| by_name.get_mut(name)) {
                node.hold(replica);
            }
        }
        Self {
            nodes: by_name.into_values().collect(),
        }
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.iter().find(|node| node.name == name)
    }

    pub(super) fn node_mut(&mut self, name: &str) -> Option<&mut NodeState> {
        self.nodes.iter_mut().find(|node| node.name == name)
    }

    /// The servable copies of a model on all nodes.
    pub(crate) fn models<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a NodeState, &'a NodeModel)> {
        self.nodes
            .iter()
            .filter_map(move |node| Some((node, node.model(name)?)))
    }
}
