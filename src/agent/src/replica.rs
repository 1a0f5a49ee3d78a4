//! What the agent calls a replica: its key, what its worker is started with, and where it was asked for.

mod report;
pub(crate) mod reporter;

use std::fmt;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

pub use self::report::Report;
use rooflet_api::meta::{MIRROR_ANNOTATION, PREPARE_ANNOTATION};
use rooflet_api::v1alpha1::{
    GoldenPrompt, HubModel, KvCacheSpec, ModelReplica, ModelSource, ObjectivesSpec, ParseModelSourceError,
};
use rooflet_api::wire::replica_id;
use rooflet_base::units::Bytes;
use rooflet_roofline::kv_quantisation::UNQUANTISED_BITS;
use rooflet_scheduler::is_overridden;

/// Namespace and name: unique on a node.
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

    /// By what gateways know it.
    pub fn id(&self) -> u64 {
        replica_id(&self.namespace, &self.name)
    }
}

impl fmt::Display for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Who asked for a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// A ModelReplica bound to this node.
    Api,
    /// A ModelDeployment in this file of the manifest directory.
    Manifest(String),
}

/// What a worker is started with. A worker that runs with another one is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaSpec {
    pub source: String,
    /// The name clients use.
    pub serving_name: String,
    /// `None`: the model's own maximum, within the default's bound.
    pub context_tokens: Option<u32>,
    pub max_concurrency: u32,
    #[serde(default)]
    pub kv_cache: Option<KvCacheSpec>,
    #[serde(default)]
    pub prompt_lookup_tokens: Option<u32>,
}

impl ReplicaSpec {
    pub fn source(&self) -> Result<ModelSource, ParseModelSourceError> {
        self.source.parse()
    }

    /// Of an element of a quantised KV cache.
    pub fn kv_bits(&self) -> Option<u32> {
        let bits = self.kv_cache.as_ref()?.bits;
        bits.filter(|bits| *bits != UNQUANTISED_BITS)
    }

    /// What it was told it may store on the node's disk; zero where it takes what is left.
    pub fn disk(&self) -> Bytes {
        let asked = self.kv_cache.as_ref().and_then(KvCacheSpec::disk_bytes);
        asked.unwrap_or_default()
    }
}

/// What admission goes by besides the specification. A change of it restarts nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terms {
    /// Speed that is promised.
    pub objectives: ObjectivesSpec,
    /// What speaks against the replica is told and not enforced.
    pub overridden: bool,
    /// What its next worker has to answer before it counts as ready.
    pub golden_prompts: Vec<GoldenPrompt>,
    /// Who gives way when memory runs out: the lowest first.
    pub priority: i32,
}

impl Terms {
    /// Somebody counts on a speed.
    pub(crate) fn is_promised(&self) -> bool {
        !self.objectives.is_empty()
    }
}

/// One replica that should run here.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredReplica {
    pub uid: String,
    pub generation: i64,
    pub origin: Origin,
    pub spec: ReplicaSpec,
    pub terms: Terms,
    /// A model that is downloaded while it runs, for the one that follows it here.
    pub next: Option<HubModel>,
    /// It is on its way out: drain, stop, and confirm.
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
            },
            terms: Terms {
                objectives: spec.objectives.clone(),
                overridden: is_overridden(replica),
                golden_prompts: spec.golden_prompts.clone(),
                priority: spec.priority,
            },
            next: replica
                .annotations()
                .get(PREPARE_ANNOTATION)
                .and_then(|model| model.parse().ok()),
            deleting: replica.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// A worker said that its model can never be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BadModel {
    pub fingerprint: u64,
    pub at: Timestamp,
    pub reason: String,
    pub message: String,
}

/// What stands for the uid of a replica that no API server knows.
pub(crate) const MANIFEST_UID: &str = "manifest";

/// Whether a ModelReplica only shows what an agent runs from its manifest directory.
pub(crate) fn is_mirror(replica: &ModelReplica) -> bool {
    replica.annotations().contains_key(MIRROR_ANNOTATION)
}

/// A time as status fields carry it: RFC 3339 in whole seconds.
pub fn rfc3339(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second())
        .unwrap_or(time)
        .to_string()
}
