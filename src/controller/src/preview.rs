//! Preview of a change by a user: the replicas that move, start, stop or wait because of the change.
//!
//! The preview applies the change to a copy of the objects. Then it repeats the passes of the reconcilers
//! and applies their writes to the copy, until no write is left. Agents are modelled: they admit and start
//! every replica. Time does not pass, so the preview ends where a rollout waits, for example for a pause or
//! an analysis of a canary.

mod course;
mod model;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::intent::Snapshot;
use model::Model;

pub use course::{Course, ReplicaPreview};

/// Change of one object.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProposedChange {
    pub object: ChangedObject,
    /// JSON merge patch. Its `status` is ignored.
    pub patch: Value,
}

/// Object that a change regards.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ChangedObject {
    /// Name of a FleetNode.
    Node(String),
    /// Namespace and name of a ModelDeployment.
    Deployment(String, String),
}

/// Reason why a change has no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    #[error("{kind} {name:?} not found")]
    NotFound { kind: &'static str, name: String },
    #[error("patch: Invalid value: the changed {kind} {name:?} is not valid")]
    InvalidPatch {
        kind: &'static str,
        name: String,
        source: serde_json::Error,
    },
}

/// Consequences of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// Replicas that move, start, stop or wait. Replicas that the change does not affect are absent.
    pub replicas: Vec<ReplicaPreview>,
    /// Rollouts that wait at the end of the preview: deployment and reason.
    pub waiting: Vec<String>,
    /// False if the preview ended at its limit of passes.
    pub complete: bool,
}

/// Returns the consequences of a change. `reserve_node_failures` is the number of simultaneous node failures
/// for which the scheduler keeps capacity free.
pub fn preview(
    snapshot: Snapshot,
    change: &ProposedChange,
    reserve_node_failures: usize,
    now: Timestamp,
) -> Result<Preview, PreviewError> {
    let mut model = Model::new(snapshot, reserve_node_failures, now);
    let before = model.snapshot.clone();
    model.change(change)?;
    let complete = model.settle();
    let obstacles = match &change.object {
        ChangedObject::Node(name) => model.drain_obstacles(name),
        ChangedObject::Deployment(..) => Vec::new(),
    };
    Ok(Preview {
        replicas: course::courses(&before, &model.snapshot, &obstacles),
        waiting: course::waiting(&model.snapshot, &model.planned),
        complete,
    })
}

#[cfg(test)]
mod tests;
