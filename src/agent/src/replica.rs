//! A replica as the agent sees it: key, worker specification, and origin.

mod report;
pub(crate) mod reporter;
pub(crate) mod restorer;

use std::fmt;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

pub use self::report::Report;
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, PREPARE_ANNOTATION, REVISION_LABEL};
use rooflet_api::v1alpha1::{
    ArtifactSpec, GoldenPrompt, HubModel, KvCacheSpec, ModelReplica, ModelReplicaSpec, ModelSource,
    ModelSpec, ObjectivesSpec, ParseModelSourceError, PlacementSpec, ServingSpec,
};
use rooflet_api::wire::replica_id;
use rooflet_base::units::Bytes;
use rooflet_roofline::kv_quantisation::UNQUANTISED_BITS;
use rooflet_scheduler::is_overridden;

/// Namespace and name of a replica, unique on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaKey {
    pub namespace: String,
    pub name: String,
}

impl ReplicaKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of(replica: &ModelReplica) -> Self {
        Self::new(replica.namespace().unwrap_or_default(), replica.name_any())
    }

    /// Returns the numeric replica id, as gateways use it.
    pub fn id(&self) -> u64 {
        replica_id(&self.namespace, &self.name)
    }
}

impl fmt::Display for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Source of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// A ModelReplica bound to this node.
    Api,
    /// A ModelDeployment in this file of the manifest directory.
    Manifest(String),
}

/// Specification that a worker is started with. The agent replaces a worker that runs with another
/// specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaSpec {
    pub source: String,
    /// Name under which clients request the model.
    pub serving_name: String,
    /// Context length in tokens. `None` selects the smaller of the model's maximum and the default
    /// limit.
    pub context_tokens: Option<u32>,
    pub max_concurrency: u32,
    #[serde(default)]
    pub kv_cache: Option<KvCacheSpec>,
    #[serde(default)]
    pub prompt_lookup_tokens: Option<u32>,
    #[serde(default)]
    pub keep_alive: Option<String>,
    #[serde(default)]
    pub allow_request_chat_template: bool,
}

impl ReplicaSpec {
    pub fn source(&self) -> Result<ModelSource, ParseModelSourceError> {
        self.source.parse()
    }

    /// Bits per element of a quantised KV cache. `None` if the cache is not quantised.
    pub fn kv_bits(&self) -> Option<u32> {
        let bits = self.kv_cache.as_ref()?.bits;
        bits.filter(|bits| *bits != UNQUANTISED_BITS)
    }

    /// Returns the disk space that the replica requests for cached prefixes. Zero if the replica
    /// uses whatever remains.
    pub fn disk(&self) -> Bytes {
        let requested = self.kv_cache.as_ref().and_then(KvCacheSpec::disk_bytes);
        requested.unwrap_or_default()
    }
}

/// Fields besides the specification. Changing them restarts no worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terms {
    /// Required speed.
    pub objectives: ObjectivesSpec,
    /// If true, admission problems of the replica are reported but not enforced.
    pub overridden: bool,
    /// Prompts that the replica's next worker must pass before it is Ready.
    pub golden_prompts: Vec<GoldenPrompt>,
    /// Priority under memory pressure. The agent stops replicas with the lowest priority first.
    pub priority: i32,
    /// ModelDeployment and ModelRevision of the replica. `None` for replicas of manifests.
    pub owner: Option<Owner>,
    /// Facts about a hub model, as the object contains them.
    pub artifact: Option<ArtifactSpec>,
}

/// Names in the labels of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    pub deployment: String,
    pub revision: Option<String>,
}

impl Owner {
    fn of(replica: &ModelReplica) -> Option<Self> {
        let label = |name| replica.labels().get(name).cloned();
        Some(Self {
            deployment: label(DEPLOYMENT_LABEL)?,
            revision: label(REVISION_LABEL),
        })
    }
}

impl Terms {
    /// Returns true if the replica has objectives.
    pub fn has_objectives(&self) -> bool {
        !self.objectives.is_empty()
    }
}

/// Replica that should run on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredReplica {
    pub uid: String,
    pub generation: i64,
    pub origin: Origin,
    pub spec: ReplicaSpec,
    pub terms: Terms,
    /// Model to download while the replica runs, for its successor on this node.
    pub next: Option<HubModel>,
    /// True if the object is being deleted: the agent drains and stops the worker, then confirms.
    pub deleting: bool,
}

impl DesiredReplica {
    pub fn of(replica: &ModelReplica) -> Self {
        let spec = &replica.spec;
        Self {
            uid: replica.uid().unwrap_or_default(),
            generation: replica.metadata.generation.unwrap_or_default(),
            origin: Origin::Api,
            spec: ReplicaSpec {
                source: spec.model.text(),
                serving_name: spec.serving.name.clone().unwrap_or_else(|| replica.name_any()),
                context_tokens: spec.serving.context_tokens,
                max_concurrency: spec.serving.max_concurrency,
                kv_cache: spec.serving.kv_cache.clone(),
                prompt_lookup_tokens: spec.serving.prompt_lookup_tokens,
                keep_alive: spec.serving.keep_alive.clone(),
                allow_request_chat_template: spec.serving.allow_request_chat_template,
            },
            terms: Terms {
                objectives: spec.objectives.clone(),
                overridden: is_overridden(replica),
                golden_prompts: spec.golden_prompts.clone(),
                priority: spec.priority,
                owner: Owner::of(replica),
                artifact: spec.artifact.clone(),
            },
            next: replica
                .annotations()
                .get(PREPARE_ANNOTATION)
                .and_then(|model| model.parse().ok()),
            deleting: replica.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Returns the spec of an object for this replica on `node`. The placement constraints are
    /// empty; the controller copies them from the deployment.
    fn object_spec(&self, node: &str) -> ModelReplicaSpec {
        let spec = &self.spec;
        ModelReplicaSpec {
            model: ModelSpec::of_text(&spec.source),
            artifact: self.terms.artifact.clone(),
            serving: ServingSpec {
                name: Some(spec.serving_name.clone()),
                context_tokens: spec.context_tokens,
                max_concurrency: spec.max_concurrency,
                kv_cache: spec.kv_cache.clone(),
                prompt_lookup_tokens: spec.prompt_lookup_tokens,
                keep_alive: spec.keep_alive.clone(),
                allow_request_chat_template: spec.allow_request_chat_template,
            },
            objectives: self.terms.objectives.clone(),
            placement: PlacementSpec::default(),
            priority: self.terms.priority,
            golden_prompts: self.terms.golden_prompts.clone(),
            node_name: Some(node.to_owned()),
        }
    }
}

/// Report of a worker that its model can never be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BadModel {
    pub fingerprint: u64,
    pub at: Timestamp,
    pub reason: String,
    pub message: String,
}

/// Uid of replicas that come from the manifest directory and exist on no API server.
pub(crate) const MANIFEST_UID: &str = "manifest";

/// Returns true if a ModelReplica mirrors a replica of an agent's manifest directory.
pub(crate) fn is_mirror(replica: &ModelReplica) -> bool {
    replica.annotations().contains_key(MIRROR_ANNOTATION)
}

/// Formats a time for status fields: RFC 3339 in whole seconds.
pub fn rfc3339(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second())
        .unwrap_or(time)
        .to_string()
}
