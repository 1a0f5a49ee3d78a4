//! Preview of a change by a user: the replicas that move, start, stop or wait because of the change or the
//! deletion of an object.
//!
//! The preview applies the change to a copy of the objects. Then it repeats the passes of the reconcilers
//! and applies their writes to the copy, until no write is left. Agents are modelled: they admit and start
//! every replica. Time passes only for the tolerations of taints that the change adds. So the preview ends where
//! a rollout waits, for example for a pause or an analysis of a canary.

mod changed;
mod course;
mod model;
mod notes;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::intent::Snapshot;
use model::Model;
use rooflet_api::v1alpha1::ApiKey;
use rooflet_client::ObjectKey;

pub use course::{Course, ReplicaPreview};

/// Maximum number of replicas that a preview adds to a deployment.
const MAX_NEW_REPLICAS: usize = 2_000;

/// Change of one object.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "self::ChangeRequest")]
pub struct ProposedChange {
    pub object: ChangedObject,
    pub change: Change,
}

/// Kind of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// JSON merge patch. Its `status` is ignored.
    Patch(Value),
    /// Deletion of the object, after which the garbage collector deletes its dependents.
    Delete,
}

/// Form of a change in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeRequest {
    object: ChangedObject,
    patch: Option<Value>,
    #[serde(default)]
    delete: bool,
}

impl TryFrom<ChangeRequest> for ProposedChange {
    type Error = &'static str;

    fn try_from(request: ChangeRequest) -> Result<Self, Self::Error> {
        let change = match (request.patch, request.delete) {
            (Some(patch), false) => Change::Patch(patch),
            (None, true) => Change::Delete,
            (None, false) | (Some(_), true) => {
                return Err("the change must have either patch, a JSON merge patch, or \"delete\": true");
            }
        };
        Ok(Self {
            object: request.object,
            change,
        })
    }
}

/// Object to change.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub enum ChangedObject {
    /// Name of a FleetNode.
    Node(String),
    /// Namespace and name of a ModelDeployment.
    Deployment(String, String),
}

impl TryFrom<Value> for ChangedObject {
    type Error = &'static str;

    fn try_from(object: Value) -> Result<Self, Self::Error> {
        let name = |value: &Value| {
            let name = value.as_str().filter(|name| !name.is_empty());
            name.map(str::to_owned)
        };
        let changed = || {
            let members = object.as_object().filter(|members| members.len() == 1)?;
            if let Some(node) = members.get("node") {
                return Some(Self::Node(name(node)?));
            }
            let [namespace, deployment] = &members.get("deployment")?.as_array()?[..] else {
                return None;
            };
            Some(Self::Deployment(name(namespace)?, name(deployment)?))
        };
        changed().ok_or(
            r#"object must be {"node": NAME} or {"deployment": [NAMESPACE, NAME]}, with non-empty names"#,
        )
    }
}

/// Reason why a change has no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    #[error("{kind} {name:?} not found")]
    NotFound { kind: &'static str, name: String },
    #[error("patch: Invalid value: must be a JSON object, as in {{\"spec\": {{\"replicas\": 2}}}}")]
    PatchIsNoObject,
    /// Errors of the API server for the changed object.
    #[error("{kind} {name:?} is invalid: {errors}")]
    Invalid {
        kind: &'static str,
        name: String,
        errors: String,
    },
    #[error(
        "spec.replicas: Invalid value: {replicas}: a preview adds at most {MAX_NEW_REPLICAS} replicas to a deployment: scale in smaller steps"
    )]
    TooManyReplicas { replicas: i32 },
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
    /// Rollouts that wait at the end of the preview, and a rejection of the changed deployment: deployment and
    /// reason.
    pub waiting: Vec<String>,
    /// Consequences besides replicas, such as freed memory, or names of a deleted model in other objects.
    pub notes: Vec<String>,
    /// False if the preview ended before all consequences were computed.
    pub complete: bool,
    /// Reason why the preview is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete_reason: Option<String>,
}

/// Options of a preview.
pub struct PreviewOptions<'p> {
    /// Number of simultaneous node failures for which the scheduler keeps capacity free.
    pub reserve_node_failures: usize,
    pub now: Timestamp,
    /// Deletes the replicas on the changed node, as `rooflet drain --force` does.
    pub force: bool,
    /// API keys of all namespaces, or `None` if they could not be listed.
    pub keys: Option<Vec<Arc<ApiKey>>>,
    /// Returns true if the preview must end. Called before each pass.
    pub must_stop: &'p dyn Fn() -> bool,
}

/// Returns the consequences of a change.
pub fn preview(
    snapshot: Snapshot,
    change: &ProposedChange,
    options: &PreviewOptions<'_>,
) -> Result<Preview, PreviewError> {
    let mut model = Model::new(snapshot, options.reserve_node_failures, options.now);
    let before = model.snapshot.clone();
    model.change(change)?;
    if let (ChangedObject::Node(name), true) = (&change.object, options.force) {
        model.delete_replicas_on(name);
    }
    let mut incomplete_reason = model.settle(options.must_stop).err();
    if let ChangedObject::Deployment(namespace, name) = &change.object
        && incomplete_reason.is_none()
        && model.autoscale(namespace, name)
    {
        incomplete_reason = model.settle(options.must_stop).err();
    }
    let mut delays = BTreeMap::new();
    for period in model.toleration_periods() {
        if incomplete_reason.is_some() {
            break;
        }
        let before = model.live_replicas();
        model.advance(period);
        incomplete_reason = model.settle(options.must_stop).err();
        let after = model.live_replicas();
        let left = before.difference(&after);
        delays.extend(left.map(|replica| (replica.clone(), period)));
    }
    let mut waiting = course::waiting(&model.snapshot, &model.planned);
    let obstacles = match &change.object {
        ChangedObject::Node(name) => model.drain_obstacles(name),
        ChangedObject::Deployment(namespace, name) => {
            let key = ObjectKey::new(Some(namespace), name);
            // A deleted deployment has no condition.
            waiting.extend(course::rejection(&model.snapshot, &key));
            Vec::new()
        }
    };
    Ok(Preview {
        replicas: course::courses(&before, &model.snapshot, &obstacles, &delays),
        notes: notes::notes(&before, &model, change, options),
        waiting,
        complete: incomplete_reason.is_none(),
        incomplete_reason,
    })
}

#[cfg(test)]
mod tests;
