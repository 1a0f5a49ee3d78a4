//! ModelDeployment: a model to serve.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::whole_seconds;

use super::{
    AutoscalingSpec, ModelSpec, ObjectivesSpec, PlacementSpec, RoutingSpec, ServingSpec, StrategySpec,
};

/// Model to serve with a number of replicas in the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[allow(
    clippy::duplicated_attributes,
    reason = "each `category`, `shortname` and `validation` adds one"
)]
#[kube(
    group = "rooflet.dev",
    version = "v1alpha1",
    kind = "ModelDeployment",
    plural = "modeldeployments",
    shortname = "mdep",
    category = "all",
    category = "rooflet",
    namespaced,
    status = "ModelDeploymentStatus",
    derive = "PartialEq",
    doc = "ModelDeployment describes a model to serve: its source, replicas, objectives and rollout strategy.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model.source", description = "Model source."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready", description = "Ready replicas / desired replicas."),
    printcolumn(name = "Up-To-Date", type_ = "integer", json_path = ".status.updatedReplicas", description = "Replicas of the newest revision."),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas", description = "Replicas that serve requests."),
    printcolumn(name = "Tok/s(P/M)", type_ = "string", json_path = ".status.tokensPerSecond", description = "Decode tokens/s of one stream: predicted / measured."),
    printcolumn(name = "TTFT(P/M)", type_ = "string", json_path = ".status.timeToFirstToken", description = "Time to first token: predicted / measured."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", description = "Reason of the condition Ready: AllReplicasReady, or the first problem."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since creation."),
    validation = Rule::new("self.metadata.name.size() <= 47").message("metadata.name must be no more than 47 characters: replica names append a suffix"),
    validation = Rule::new("!has(self.spec.routing) || !has(self.spec.routing.fallbacks) || (has(self.spec.serving.name) ? !(self.spec.serving.name in self.spec.routing.fallbacks) : !(self.metadata.name in self.spec.routing.fallbacks)) || (oldSelf.hasValue() && has(oldSelf.value().spec.routing) && oldSelf.value().spec.routing == self.spec.routing)").message("must not contain the served name of the deployment itself: a fallback is another model").field_path(".spec.routing.fallbacks").optional_old_self(true)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.serving.contextTokens) || !has(self.objectives) || !has(self.objectives.timeToFirstToken) || !optional.ofNonZeroValue(self.objectives.timeToFirstToken).hasValue() || !has(self.objectives.timeToFirstToken.atPromptTokens) || optional.ofNonZeroValue(self.objectives.timeToFirstToken.atPromptTokens).orValue(0) <= optional.ofNonZeroValue(self.serving.contextTokens).orValue(16777216) || (oldSelf.hasValue() && has(oldSelf.value().objectives) && oldSelf.value().objectives == self.objectives && oldSelf.value().serving == self.serving)").message("must be less than or equal to spec.serving.contextTokens: longer prompts are rejected").field_path(".objectives.timeToFirstToken.atPromptTokens").optional_old_self(true))]
pub struct ModelDeploymentSpec {
    /// Number of desired replicas. With `autoscaling`, the controller writes this field.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 10_000))]
    pub replicas: i32,
    /// Model to serve.
    pub model: ModelSpec,
    /// Settings for clients: name, context length, concurrency.
    #[serde(default)]
    pub serving: ServingSpec,
    /// Required speed. Admission, placement and rollouts enforce it.
    #[serde(default, skip_serializing_if = "ObjectivesSpec::is_empty")]
    pub objectives: ObjectivesSpec,
    /// Nodes that may serve the model.
    #[serde(default, skip_serializing_if = "PlacementSpec::is_empty")]
    pub placement: PlacementSpec,
    /// Priority of the replicas. Replicas with a higher priority are scheduled first. If no node
    /// has room for them, they preempt replicas with a lower priority.
    #[serde(default)]
    #[schemars(range(min = -1_000_000_000, max = 1_000_000_000))]
    pub priority: i32,
    /// Bounds and metric by which the controller chooses `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingSpec>,
    /// Routing of requests by the gateway.
    #[serde(default, skip_serializing_if = "RoutingSpec::is_empty")]
    pub routing: RoutingSpec,
    /// Any text. Changing it creates a new revision of the same template, which replaces every
    /// replica. `rooflet rollout restart` writes the current time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub restarted_at: Option<String>,
    /// Strategy to replace replicas when `model` or `serving` changes. Changes of `replicas`,
    /// `objectives`, `routing` or `priority` restart nothing. Changes of `placement` move only
    /// replicas on nodes that no longer match.
    #[serde(default)]
    pub strategy: StrategySpec,
    /// Maximum seconds without progress of a rollout. After that, the condition Progressing is
    /// False.
    #[serde(default = "default_progress_deadline")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: i32,
    /// If true, changed templates are not rolled out. Scaling still works.
    #[serde(default)]
    pub paused: bool,
    /// Number of old revisions to keep.
    #[serde(default = "default_history_limit")]
    #[schemars(range(min = 0, max = 1000))]
    pub revision_history_limit: i32,
}

fn default_replicas() -> i32 {
    1
}

fn default_progress_deadline() -> i32 {
    600
}

fn default_history_limit() -> i32 {
    10
}

/// Observed state of a ModelDeployment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelDeploymentStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of existing replicas.
    pub replicas: i32,
    /// Number of replicas of the newest revision.
    pub updated_replicas: i32,
    /// Number of replicas that serve requests.
    pub ready_replicas: i32,
    /// Number of ready replicas, except those of a rollout step that is still in progress.
    pub available_replicas: i32,
    /// Number of desired replicas that do not serve requests.
    pub unavailable_replicas: i32,
    /// Ready and desired replicas, as `ready/desired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Label selector of the deployment's replicas, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Name of the newest ModelRevision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// Shares of the requests by revision during a canary rollout. If unset, all ready replicas
    /// receive requests equally.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["revision"]))]
    pub traffic: Vec<TrafficShare>,
    /// Progress of the rollout of the newest template.
    #[serde(skip_serializing_if = "RolloutStatus::is_empty")]
    pub rollout: RolloutStatus,
    /// Decode tokens/s of one stream, as `predicted/measured`; `-` for a missing figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<String>,
    /// Time to first token, as `predicted/measured`; `-` for a missing figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_first_token: Option<String>,
    /// Last start of a replica: an estimate for the next start, also from zero replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_start: Option<LastStart>,
    /// Admitted, Scheduled, ArtifactsReady, Progressing, Available, Ready, ObjectivesMet,
    /// PredictionAccurate, Degraded. With `autoscaling` also AbleToScale, ScalingActive,
    /// ScalingLimited. NameShared if an older deployment has the same served name. Stalled if a
    /// rollout failed. AnonymousAccess if a gateway serves other machines without API keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Start of a replica, from scheduling until it served requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastStart {
    /// `spec.model.source` of the replica.
    pub source: String,
    /// Time at which the replica was scheduled.
    pub began_at: Time,
    /// Seconds from scheduling until the replica served requests.
    pub seconds: u32,
}

/// Share of a deployment's requests for one revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrafficShare {
    /// Name of the ModelRevision. Its replicas have the name in the label `rooflet.dev/revision`.
    pub revision: String,
    /// Percent of the requests. The sum of all revisions is 100. A revision with 0 receives
    /// requests only if no other revision has a ready replica.
    #[schemars(range(min = 0, max = 100))]
    pub weight: i32,
}

/// Progress of a rollout.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// Name of the ModelRevision that was last rolled out to all replicas. An aborted rollout
    /// returns to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable_revision: Option<String>,
    /// Name of the ModelRevision that is rolled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Time at which the rollout started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Index of the canary's current step; the number of steps when all are completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i32>,
    /// Time at which the current step started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_started_at: Option<Time>,
    /// Result of the canary's last analysis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<String>,
    /// Reason why `revision` was aborted. Replicas run `stableRevision` until the template changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aborted: Option<RolloutAbort>,
    /// Template that is currently rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedTemplate>,
    /// Progress of the replicas of `revision`, unset after a complete rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<RolloutProgress>,
    /// Time since which the next replica is not replaced only because it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_wait_started_at: Option<Time>,
    /// Predicted decode tokens/s of all ready replicas with all their streams busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_tokens_per_second: Option<f64>,
    /// Predicted decode tokens/s per replica when the deployment was last rolled out. A percentage
    /// in `minThroughput` refers to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_tokens_per_second: Option<f64>,
}

impl RolloutStatus {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the identifier of this rollout in annotations: `REVISION/STARTED_AT`. A later rollout of
    /// the same revision has another identifier.
    pub fn id(&self) -> Option<String> {
        let (revision, started_at) = (self.revision.as_ref()?, self.started_at.as_ref()?);
        Some(format!("{revision}/{}", whole_seconds(started_at.0)))
    }
}

/// Progress of a rollout. The progress deadline counts from `at`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutProgress {
    /// Largest number of start steps that the replicas had completed together.
    pub start_steps: i32,
    /// Time at which `startSteps` last increased.
    pub at: Time,
}

/// Template that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedTemplate {
    /// Name of the template's ModelRevision.
    pub revision: String,
    /// Time since which the template is rejected.
    pub since: Time,
}

/// Reason why a rollout was aborted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutAbort {
    /// Reason in CamelCase.
    pub reason: String,
    /// Explanation for users.
    pub message: String,
    /// Time of the abort.
    pub at: Time,
}
