//! Requirements of a replica on its node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kube::{Resource, ResourceExt};

use rooflet_api::meta::{ADMISSION_ANNOTATION, ADMISSION_WARN, DEPLOYMENT_LABEL, REVISION_LABEL};
use rooflet_api::v1alpha1::{
    AntiAffinity, ArtifactSpec, DEFAULT_CONTEXT_TOKENS, KvCacheSpec, ModelReplica, ModelSource, NodeModel,
    PlacementSpec, PlacementStrategy,
};
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::{AdmissionRequest, Objectives};
use rooflet_roofline::disk::DiskDemand;
use rooflet_roofline::memory::{Demand, ServedModel};
use rooflet_roofline::predict::Engine;

/// Namespace and name of a ModelReplica or ModelDeployment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaKey {
    pub namespace: String,
    pub name: String,
}

impl ReplicaKey {
    pub fn of<K: Resource>(object: &K) -> Self {
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

/// Requirements of a replica on its node.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaRequest {
    pub key: ReplicaKey,
    /// Deployment of the replica; its replicas are spread over nodes.
    pub deployment: Option<ReplicaKey>,
    /// Revision of the deployment.
    pub revision: Option<String>,
    /// `None` if the source is unsupported.
    pub source: Option<ModelSource>,
    /// Properties of the model as reported by its hub.
    pub artifact: Option<Arc<ArtifactSpec>>,
    /// `None`: the maximum of the node's model, at most the default.
    pub context_tokens: Option<u32>,
    pub max_concurrency: u32,
    /// Bits of a KV cache element; `None`: the default of the engine.
    pub kv_bits: Option<u32>,
    /// Disk space that the replica may use for its KV cache.
    pub disk: Bytes,
    pub objectives: Objectives,
    pub placement: PlacementSpec,
    pub priority: i32,
    /// True if admission warns instead of rejecting.
    pub overridden: bool,
    /// Nodes whose agents recently rejected replicas of the same revision, with the reasons.
    pub refused: BTreeMap<String, String>,
    /// Node on which other replicas are being preempted for this one.
    pub nominated: Option<String>,
}

impl ReplicaRequest {
    pub fn new(replica: &ModelReplica) -> Self {
        Self {
            key: ReplicaKey::of(replica),
            deployment: deployment_of(replica),
            revision: replica.labels().get(REVISION_LABEL).cloned(),
            source: replica.spec.model.parse().ok(),
            artifact: replica.spec.artifact.clone().map(Arc::new),
            context_tokens: replica.spec.serving.context_tokens,
            max_concurrency: replica.spec.serving.max_concurrency,
            kv_bits: replica
                .spec
                .serving
                .kv_cache
                .as_ref()
                .and_then(|cache| cache.bits),
            disk: replica
                .spec
                .serving
                .kv_cache
                .as_ref()
                .and_then(KvCacheSpec::disk_bytes)
                .unwrap_or_default(),
            objectives: Objectives::from(&replica.spec.objectives),
            placement: replica.spec.placement.clone(),
            priority: replica.spec.priority,
            overridden: is_overridden(replica),
            refused: BTreeMap::new(),
            nominated: replica
                .status
                .as_ref()
                .and_then(|status| status.nominated_node_name.clone()),
        }
    }

    /// Returns whether both requests have the same placement requirements.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.deployment == other.deployment
            && self.revision == other.revision
            && self.source == other.source
            && self.artifact == other.artifact
            && self.context_tokens == other.context_tokens
            && self.max_concurrency == other.max_concurrency
            && self.kv_bits == other.kv_bits
            && self.disk == other.disk
            && self.objectives == other.objectives
            && self.placement == other.placement
            && self.priority == other.priority
            && self.overridden == other.overridden
            && self.refused == other.refused
    }

    pub(super) fn has_objectives(&self) -> bool {
        self.objectives != Objectives::default()
    }

    pub(super) fn anti_affinity(&self) -> AntiAffinity {
        self.placement
            .anti_affinity
            .unwrap_or(match self.placement.strategy {
                PlacementStrategy::BinPack => AntiAffinity::Ignored,
                PlacementStrategy::SloSlack | PlacementStrategy::Spread | PlacementStrategy::Fastest => {
                    AntiAffinity::Preferred
                }
            })
    }

    /// Returns the context and streams to reserve with this model. The agent computes the same.
    fn demand(&self, model: &NodeModel) -> Demand {
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

    /// Returns the model as served by this request, or `None` if its size is unknown or the request
    /// is unsupported.
    pub(super) fn served(&self, model: &NodeModel) -> Option<ServedModel> {
        ServedModel::published(model)
            .ok()?
            .with_kv_bits(self.kv_bits)
            .ok()
    }

    /// Returns the input of admission. `download`: bytes of the model that the node must download.
    pub(super) fn ask<'a>(
        &self,
        model: &NodeModel,
        served: &'a ServedModel,
        download: Bytes,
    ) -> AdmissionRequest<'a> {
        AdmissionRequest {
            model: served,
            engine: Engine::Mlx,
            demand: self.demand(model),
            disk: DiskDemand {
                prefixes: self.disk,
                download,
            },
            objectives: self.objectives,
        }
    }
}

/// Returns whether the object's annotation turns admission into a warning.
pub fn is_overridden(object: &impl ResourceExt) -> bool {
    let annotation = object.annotations().get(ADMISSION_ANNOTATION);
    annotation.map(String::as_str) == Some(ADMISSION_WARN)
}

/// Returns the deployment of a replica, from its label.
pub fn deployment_of(replica: &ModelReplica) -> Option<ReplicaKey> {
    let name = replica.labels().get(DEPLOYMENT_LABEL)?;
    Some(ReplicaKey {
        namespace: replica.namespace().unwrap_or_default(),
        name: name.clone(),
    })
}
