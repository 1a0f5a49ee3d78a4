//! Desired state of this node: input of the sync plan.

use std::collections::{BTreeMap, BTreeSet};

use crate::models::{ModelProblem, ServableModel};
use crate::replica::{DesiredReplica, ReplicaKey};

/// Desired state of this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    pub replicas: BTreeMap<ReplicaKey, ResolvedReplica>,
    /// Replicas of a former fleet without a deployment. One of them stops if another replica needs
    /// its resources.
    pub yielding: BTreeSet<ReplicaKey>,
    /// True if the agent is stopping and stops its workers.
    pub stopping: bool,
}

/// Desired replica with the result of inspecting its model.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedReplica {
    pub replica: DesiredReplica,
    pub model: Result<ServableModel, ModelProblem>,
}
