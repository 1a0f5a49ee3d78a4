//! Writes of a reconciler's pass, as values.
//!
//! Every plan yields an ordered list of [`PlannedWrite`]s. Two executors exist: the controller
//! sends the list to the API server, and the simulation applies the list to a modelled store, where
//! writes are delayed, rejected and lost. Neither executor adds a write or changes the order. A
//! write owns its data, because the observed objects may no longer exist when the executor reaches
//! the write.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde_json::Value;

use rooflet_api::v1alpha1::{
    CapacityPlan, CapacityPlanStatus, FleetNode, FleetNodeStatus, ModelDeployment, ModelDeploymentStatus,
    ModelReplica, ModelReplicaStatus, ModelRevision, PerformanceClaim, PerformanceClaimStatus,
};
use rooflet_client::EventType;

/// Objects in the reconcilers' caches at the start of a pass, ordered by namespace and name.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub nodes: Vec<Arc<FleetNode>>,
    pub deployments: Vec<Arc<ModelDeployment>>,
    pub revisions: Vec<Arc<ModelRevision>>,
    pub replicas: Vec<Arc<ModelReplica>>,
    pub plans: Vec<Arc<CapacityPlan>>,
    pub claims: Vec<Arc<PerformanceClaim>>,
}

/// Reference to one version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
    /// Opaque value from the server.
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

/// Reason for the deletion of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// The deployment does not need the replica: it exceeds the desired count, is of an old
    /// revision, or its node rejected it.
    Deployment,
    /// The node of the replica is silent or has a NoExecute taint.
    Eviction,
    /// A replica of a higher priority needs the node.
    Preemption,
}

/// Write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    DeleteRevision(Version),
    CreateRevision(Box<ModelRevision>),
    RenumberRevision {
        of: Version,
        revision: i64,
    },
    /// Sets the change-cause annotation of the revision.
    SetChangeCause {
        of: Version,
        cause: String,
    },
    /// Confirms that the server has the deployment without a deletion timestamp. Writes nothing.
    /// Adoptions depend on the result.
    ConfirmDeployment {
        of: Version,
    },
    /// Sends a merge patch that makes the deployment the controller of an orphan. The server
    /// rejects the patch if the orphan has changed.
    AdoptRevision {
        of: Version,
        patch: Value,
    },
    AdoptReplica {
        of: Version,
        patch: Value,
    },
    DeleteReplica {
        of: Version,
        why: Deletion,
    },
    CreateReplica(Box<ModelReplica>),
    /// Sends a merge patch that does not depend on the version of the replica.
    AmendReplica {
        of: Version,
        patch: Value,
    },
    DeploymentStatus {
        of: Version,
        status: Box<ModelDeploymentStatus>,
    },
    /// Sets `spec.replicas`, for the autoscaler.
    Scale {
        of: Version,
        replicas: i32,
    },
    Bind {
        of: Version,
        node: String,
    },
    /// Reports the binding in the status of the replica that the server returned for
    /// [`Intent::Bind`]. The controller delays this write, and omits it if the agent reports the
    /// binding first.
    ConfirmBinding {
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
    CapacityPlanStatus {
        of: Version,
        status: Box<CapacityPlanStatus>,
    },
    ClaimStatus {
        of: Version,
        status: Box<PerformanceClaimStatus>,
    },
    /// Deletes the replica, if it is not being deleted, and removes the finalizer of the agent.
    /// Used after the node was deleted.
    ReleaseReplica {
        of: Version,
    },
}

impl Intent {
    /// Returns whether the write deletes a replica that counts against its deployment's bounds.
    pub fn disrupts(&self) -> bool {
        matches!(
            self,
            Self::DeleteReplica {
                why: Deletion::Deployment | Deletion::Eviction,
                ..
            }
        )
    }
}

/// Group of writes that depend on one another, identified by the UID of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Batch(String);

impl Batch {
    /// Returns the batch of the writes for `object`.
    pub fn of<K: Resource>(object: &K) -> Self {
        Self(object.uid().unwrap_or_default())
    }
}

/// Relation of a write to the other writes of its batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Dependency {
    /// The write belongs to no batch.
    #[default]
    None,
    /// The write is always executed. If it fails, later dependent writes of the batch are skipped.
    Prerequisite(Batch),
    /// The write is executed only if no earlier write of its batch has failed. If it fails, later
    /// dependent writes of the batch are skipped.
    Dependent(Batch),
}

impl Dependency {
    /// Returns the batch whose dependent writes are skipped if this write fails.
    pub fn batch(&self) -> Option<&Batch> {
        match self {
            Self::None => None,
            Self::Prerequisite(batch) | Self::Dependent(batch) => Some(batch),
        }
    }
}

/// Batches of which a write has failed.
#[derive(Debug, Clone, Default)]
pub struct FailedBatches(BTreeSet<Batch>);

impl FailedBatches {
    /// Records that a write with this dependency has failed.
    pub fn record(&mut self, dependency: &Dependency) {
        self.0.extend(dependency.batch().cloned());
    }

    /// Returns whether a write with this dependency must be skipped.
    pub fn skip(&self, dependency: &Dependency) -> bool {
        match dependency {
            Dependency::None | Dependency::Prerequisite(_) => false,
            Dependency::Dependent(batch) => self.0.contains(batch),
        }
    }
}

/// Object that an event regards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Regarding {
    Node(Version),
    Deployment(Version),
    Replica(Version),
    CapacityPlan(Version),
    Claim(Version),
}

/// Result of a write that an event reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmitOn {
    /// The write succeeded, even if it changed nothing.
    Success,
    /// The write changed the object.
    Change,
    /// The write created an object. The executor appends the name of the object to the message.
    Creation,
}

/// Event that reports a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedEvent {
    pub regarding: Regarding,
    pub kind: EventType,
    pub reason: String,
    pub message: String,
    pub on: EmitOn,
}

/// Write of a pass, with the events that report it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedWrite {
    pub intent: Intent,
    pub dependency: Dependency,
    pub events: Vec<PlannedEvent>,
}

impl PlannedWrite {
    pub(crate) fn with_event(mut self, event: PlannedEvent) -> Self {
        self.events.push(event);
        self
    }

    pub(crate) fn after(mut self, dependency: Dependency) -> Self {
        self.dependency = dependency;
        self
    }
}

impl From<Intent> for PlannedWrite {
    /// Returns a write that belongs to no batch and emits no event.
    fn from(intent: Intent) -> Self {
        Self {
            intent,
            dependency: Dependency::None,
            events: Vec::new(),
        }
    }
}

/// Ordered writes of one pass, and the time until the next pass if nothing changes.
#[derive(Debug, Default, PartialEq)]
pub struct Intents {
    pub writes: Vec<PlannedWrite>,
    pub requeue_after: Option<Duration>,
}
