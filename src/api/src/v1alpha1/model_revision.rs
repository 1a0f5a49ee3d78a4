//! ModelRevision: an immutable snapshot of one template.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{ArtifactSpec, ModelSpec, ServingSpec};

/// One template of a ModelDeployment with every default resolved, kept for history and undo.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[expect(
    clippy::duplicated_attributes,
    reason = "each `category`, `shortname` and `validation` adds one"
)]
#[kube(
    group = "rooflet.dev",
    version = "v1alpha1",
    kind = "ModelRevision",
    plural = "modelrevisions",
    shortname = "mrev",
    category = "rooflet",
    namespaced,
    derive = "PartialEq",
    doc = "ModelRevision is one template of a ModelDeployment with every default resolved. The controller writes it; it never changes.",
    printcolumn(
        name = "Deployment",
        type_ = "string",
        json_path = ".metadata.labels.rooflet\\.dev/deployment",
        description = "The ModelDeployment it belongs to."
    ),
    printcolumn(
        name = "Revision",
        type_ = "integer",
        json_path = ".spec.revision",
        description = "Counts up with every changed template."
    ),
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.model.source",
        description = "Where the model comes from."
    ),
    printcolumn(
        name = "Commit",
        type_ = "string",
        json_path = ".spec.model.revision",
        description = "The commit of a model of a hub."
    ),
    printcolumn(
        name = "Context",
        type_ = "integer",
        json_path = ".spec.serving.contextTokens",
        description = "Tokens one request may have."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation."
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.model == oldSelf.model && self.serving == oldSelf.serving").message("a ModelRevision is immutable; change the ModelDeployment instead"))]
pub struct ModelRevisionSpec {
    /// Counts up with every changed template of the deployment; an undo gives an old template a new number.
    #[schemars(range(min = 1))]
    pub revision: i64,
    /// The model. One of a hub by its commit.
    pub model: ModelSpec,
    /// What its hub said of it; absent for a model that nodes have in their directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactSpec>,
    /// How it is offered to clients.
    pub serving: ServingSpec,
    /// `spec.restartedAt` of the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub restarted_at: Option<String>,
}
