//! What reconcilers would write, as values: the same plans, with the writes told instead of done.
//!
//! The simulation carries intents out over a modelled store, where writes are delayed, refused and lost. A plan borrows
//! what it was made from; an intent owns what it needs, because by the time it is carried out the world has moved on.

use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde_json::Value;

use rooflet_api::v1alpha1::{
    FleetNode, FleetNodeStatus, ModelDeployment, ModelDeploymentStatus, ModelReplica, ModelReplicaStatus,
    ModelRevision,
};

/// What the reconcilers' caches hold at the start of a pass, ordered by namespace and name.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub nodes: Vec<Arc<FleetNode>>,
    pub deployments: Vec<Arc<ModelDeployment>>,
    pub revisions: Vec<Arc<ModelRevision>>,
    pub replicas: Vec<Arc<ModelReplica>>,
}

/// One version of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
    /// As the server gives it.
    pub resource_version: String,
}

impl Version {
    pub fn of<K: Resource>(object: &K) -> Self {
        Self {
            namespace: object.namespace(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            resource_version: object.resource_version().unwrap_or_default(),
        }
    }
}

/// Why a replica is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// More than wanted, of an old revision, or refused by its node: its deployment can do without it.
    Deployment,
    /// Its node is silent or has a taint.
    Eviction,
    /// One of a higher priority takes its place.
    Preemption,
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    DeleteRevision(Version),
    CreateRevision(Box<ModelRevision>),
    RenumberRevision {
        of: Version,
        revision: i64,
    },
    DeleteReplica {
        of: Version,
        why: Deletion,
    },
    /// Only if the revision before it could be written.
    CreateReplica(Box<ModelReplica>),
    /// A merge patch that needs no certain version.
    AmendReplica {
        of: Version,
        patch: Value,
    },
    /// The last write for its deployment.
    DeploymentStatus {
        of: Version,
        status: Box<ModelDeploymentStatus>,
    },
    /// The number of replicas, by the autoscaler.
    Scale {
        of: Version,
        replicas: i32,
    },
    Bind {
        of: Version,
        node: String,
    },
    ReplicaStatus {
        of: Version,
        status: Box<ModelReplicaStatus>,
    },
    NodeStatus {
        of: Version,
        status: Box<FleetNodeStatus>,
    },
    /// Delete it if nobody has, and take the worker's finalizer off: its node is gone for good.
    ReleaseReplica {
        of: Version,
    },
}

/// What one pass would write, in order, and when time alone calls for the next one.
#[derive(Debug, Default, PartialEq)]
pub struct Intents {
    pub writes: Vec<Intent>,
    pub requeue_after: Option<Duration>,
}
