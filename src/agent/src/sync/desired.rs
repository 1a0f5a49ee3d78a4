//! What should run on this node: an input of the sync plan.

use std::collections::BTreeMap;

use crate::models::{ModelProblem, ServableModel};
use crate::replica::{DesiredReplica, ReplicaKey};

/// What should run on this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    pub replicas: BTreeMap<ReplicaKey, Wanted>,
    /// The agent is stopping and takes its workers along.
    pub stopping: bool,
}

/// One replica, and what is known of its model.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    pub replica: DesiredReplica,
    pub model: Result<ServableModel, ModelProblem>,
}
