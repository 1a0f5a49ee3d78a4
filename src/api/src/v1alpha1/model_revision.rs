//! ModelRevision: immutable snapshot of a template.

use kube::{CustomResource, KubeSchema};
use schemars::transform::RecursiveTransform;
use serde::{Deserialize, Serialize};

use super::model_replica::without_rules;
use super::{ArtifactSpec, ModelSpec, ServingSpec};

/// Template of a ModelDeployment with resolved defaults, kept for history and undo.
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
    doc = "ModelRevision is a template of a ModelDeployment with resolved defaults. The controller creates it. It is immutable.",
    printcolumn(
        name = "Deployment",
        type_ = "string",
        json_path = ".metadata.labels.rooflet\\.dev/deployment",
        description = "ModelDeployment of the revision."
    ),
    printcolumn(
        name = "Revision",
        type_ = "integer",
        json_path = ".spec.revision",
        description = "Number of the revision."
    ),
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.model.source",
        description = "Model source."
    ),
    printcolumn(
        name = "Commit",
        type_ = "string",
        json_path = ".spec.model.revision",
        description = "Commit of a hub model."
    ),
    printcolumn(
        name = "Context",
        type_ = "integer",
        json_path = ".spec.serving.contextTokens",
        description = "Maximum tokens of a request."
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
    /// Number of the revision. It increases with every changed template. An undo assigns a new
    /// number to an old template.
    #[schemars(range(min = 1))]
    pub revision: i64,
    /// Model to serve. Hub models are pinned to a commit.
    pub model: ModelSpec,
    /// Facts about a hub model. Unset for models in directories of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactSpec>,
    /// Settings for clients.
    #[schemars(transform = RecursiveTransform(without_rules))]
    pub serving: ServingSpec,
    /// `spec.restartedAt` of the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub restarted_at: Option<String>,
}
