//! ModelDeployment: what should be served.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AutoscalingSpec, ModelSpec, ObjectivesSpec, PlacementSpec, RoutingSpec, ServingSpec, StrategySpec,
};

/// A model that should be served by a number of replicas somewhere in the fleet.
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
    doc = "ModelDeployment says which model should be served, by how many replicas, and how fast.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model.source", description = "Where the model comes from."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready", description = "Ready replicas / wanted replicas."),
    printcolumn(name = "Up-To-Date", type_ = "integer", json_path = ".status.updatedReplicas", description = "Replicas of the newest revision."),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas", description = "Replicas that answer requests."),
    printcolumn(name = "Tok/s(P/M)", type_ = "string", json_path = ".status.tokensPerSecond", description = "Decode tokens/s of one stream: predicted / measured."),
    printcolumn(name = "TTFT(P/M)", type_ = "string", json_path = ".status.timeToFirstToken", description = "Time to first token: predicted / measured."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since creation."),
    validation = Rule::new("self.metadata.name.size() <= 47").message("metadata.name may have at most 47 characters: replicas add a suffix to it")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.serving.contextTokens) || !has(self.objectives) || !has(self.objectives.timeToFirstToken) || !optional.ofNonZeroValue(self.objectives.timeToFirstToken).hasValue() || !has(self.objectives.timeToFirstToken.atPromptTokens) || optional.ofNonZeroValue(self.objectives.timeToFirstToken.atPromptTokens).orValue(0) <= optional.ofNonZeroValue(self.serving.contextTokens).orValue(16777216) || (oldSelf.hasValue() && has(oldSelf.value().objectives) && oldSelf.value().objectives == self.objectives && oldSelf.value().serving == self.serving)").message("may not be above spec.serving.contextTokens: a prompt of this length is refused").field_path(".objectives.timeToFirstToken.atPromptTokens").optional_old_self(true))]
pub struct ModelDeploymentSpec {
    /// How many copies of the model should run. With autoscaling, the controller writes it.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 10_000))]
    pub replicas: i32,
    /// The model.
    pub model: ModelSpec,
    /// How it is offered to clients.
    #[serde(default)]
    pub serving: ServingSpec,
    /// Speed that is held on to.
    #[serde(default, skip_serializing_if = "ObjectivesSpec::is_empty")]
    pub objectives: ObjectivesSpec,
    /// Which nodes may serve it.
    #[serde(default, skip_serializing_if = "PlacementSpec::is_empty")]
    pub placement: PlacementSpec,
    /// Replicas of a higher priority are placed first, and where there is no room, replicas of a lower one leave for them.
    #[serde(default)]
    #[schemars(range(min = -1_000_000_000, max = 1_000_000_000))]
    pub priority: i32,
    /// Lets the controller choose the number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingSpec>,
    /// How the gateway treats requests for it.
    #[serde(default, skip_serializing_if = "RoutingSpec::is_empty")]
    pub routing: RoutingSpec,
    /// Any text. A new one makes a new revision of the same template, so that every replica is replaced as in any other
    /// rollout. `rooflet rollout restart` writes the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub restarted_at: Option<String>,
    /// How a change of model or serving reaches the replicas. A change of replicas, objectives, routing or priority restarts
    /// nothing, and one of placement only replicas on nodes that no longer match.
    #[serde(default)]
    pub strategy: StrategySpec,
    /// Seconds a rollout may go without progress before the condition Progressing turns False.
    #[serde(default = "default_progress_deadline")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: i32,
    /// While true, a changed template is not rolled out; scaling still works.
    #[serde(default)]
    pub paused: bool,
    /// How many old revisions are kept.
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

/// What is served right now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelDeploymentStatus {
    /// The generation of the spec this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Replicas that exist.
    pub replicas: i32,
    /// Replicas of the newest revision.
    pub updated_replicas: i32,
    /// Replicas that answer requests.
    pub ready_replicas: i32,
    /// Replicas that answer requests and belong to no rollout step that still waits.
    pub available_replicas: i32,
    /// Wanted replicas that do not answer.
    pub unavailable_replicas: i32,
    /// `ready/wanted`, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Selects the deployment's replicas; for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The newest ModelRevision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// How requests are to be shared out between revisions while a canary is under way. Absent: equally over all
    /// ready replicas, whatever their revision.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["revision"]))]
    pub traffic: Vec<TrafficShare>,
    /// How far the newest template has come, and what it replaces.
    #[serde(skip_serializing_if = "RolloutStatus::is_empty")]
    pub rollout: RolloutStatus,
    /// Decode tokens/s of one stream, `predicted/measured`; `-` where there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<String>,
    /// Time to first token, `predicted/measured`; `-` where there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_first_token: Option<String>,
    /// The last start of a replica: about how long the next one takes, from zero too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_start: Option<LastStart>,
    /// Admitted, Scheduled, ArtifactsReady, Progressing, Available, Ready, ObjectivesMet, Degraded; with autoscaling also
    /// AbleToScale, ScalingActive, ScalingLimited; NameShared where an older one is served under the same name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How a replica came to answer requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastStart {
    /// The `spec.model.source` of the replica.
    pub source: String,
    /// When the replica got its node.
    pub began_at: Time,
    /// Seconds from then until it answered requests.
    pub seconds: u32,
}

/// One revision's share of a deployment's requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrafficShare {
    /// The ModelRevision. Its replicas carry the name in the label `rooflet.dev/revision`.
    pub revision: String,
    /// Percent of the requests; all together 100. A revision with 0 is asked only when no other has a ready replica.
    #[schemars(range(min = 0, max = 100))]
    pub weight: i32,
}

/// How far a rollout has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// The ModelRevision that was last rolled out on all replicas: what an abort goes back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable_revision: Option<String>,
    /// The ModelRevision that the rest speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// When it became the wanted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Index of the canary's step that is under way; the number of steps when all are done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i32>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_started_at: Option<Time>,
    /// What the last analysis of the canary found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<String>,
    /// Why `revision` was given up. Replicas are of `stableRevision` until the template changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aborted: Option<RolloutAbort>,
    /// The template, as long as it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedTemplate>,
    /// Since when the next replica is not replaced only because it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_wait_started_at: Option<Time>,
    /// Decode tokens/s that are predicted for the replicas that answer, all their streams busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_tokens_per_second: Option<f64>,
    /// The same per replica when the deployment was last rolled out: what a percentage in `minThroughput` is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_tokens_per_second: Option<f64>,
}

impl RolloutStatus {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A template that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedTemplate {
    /// The ModelRevision that it would get.
    pub revision: String,
    /// Since when it is refused.
    pub since: Time,
}

/// Why a revision was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutAbort {
    /// A CamelCase word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When.
    pub at: Time,
}
