//! How a change of a ModelDeployment reaches its replicas.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CountOrPercent, Weekday};
use rooflet_base::quantity::DURATION_PATTERN;

/// How replicas of an old revision are replaced.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'Recreate' || !has(self.rollingUpdate)").message("rollingUpdate may only be set when type is RollingUpdate or Canary"))]
#[x_kube(validation = Rule::new("(self.type == 'Canary') == has(self.canary)").message("canary must be set when type is Canary, and only then"))]
#[x_kube(validation = Rule::new("!has(self.canary) || has(self.goldenPrompts) || self.canary.steps.all(s, !has(s.analysis) || s.analysis.ifInconclusive != 'Promote')").message("an analysis with ifInconclusive: Promote needs goldenPrompts: something has to speak for the new revision"))]
#[x_kube(validation = Rule::new("!has(self.canary) || !self.canary.steps.map(s, has(s.analysis) ? 'a' : !has(s.setWeight) ? 'p' : s.setWeight < 100 ? 'w' : 'f').join('').matches('(^|f)p*a')").message("an analysis compares two revisions: put it after a setWeight below 100 and before setWeight: 100"))]
pub struct StrategySpec {
    /// RollingUpdate replaces replicas a few at a time, Canary lets some of them prove themselves first, Recreate stops
    /// all of them before the new ones start.
    #[serde(default, rename = "type")]
    pub kind: StrategyType,
    /// Bounds of a rolling update and of a canary. Default: one replica at a time, in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdateSpec>,
    /// What the first replicas of a new revision have to go through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
    /// Go back to the last revision that was rolled out when the new one makes no progress for
    /// `progressDeadlineSeconds`. Default: true for Canary, else false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_on_failure: Option<bool>,
    /// What every new worker has to answer before it counts as ready. A change is no rollout: it holds for replicas that
    /// are made from then on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub golden_prompts: Vec<GoldenPrompt>,
    /// Times of the week at which replicas may be replaced. Absent: always. What is added or missing comes at any time,
    /// and a revision that is given up goes at any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub maintenance_windows: Vec<MaintenanceWindow>,
    /// Replace a ready replica only when nobody uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_idle: Option<WaitForIdle>,
}

/// A time of the week at which replicas may be replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("duration(self.duration) > duration('0s') && duration(self.duration) <= duration('168h')").message("duration must be above 0 and at most 168h").field_path(".duration"))]
pub struct MaintenanceWindow {
    /// The days on which it opens. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Weekday>,
    /// When it opens, as HH:MM.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// How long it stays open, as a Go-style duration such as `90m`.
    #[schemars(length(max = 32), regex(pattern = DURATION_PATTERN))]
    pub duration: String,
    /// An IANA name such as Europe/Berlin, or an offset such as +02:00. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
}

/// When nobody uses a replica, and how long that is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitForIdle {
    /// How long a replica must have had no request, as a Go-style duration.
    #[serde(default = "default_idle_for")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub idle_for: String,
    /// After waiting so long for the next replica, it is replaced all the same; its requests may still finish.
    #[serde(default = "default_at_most")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub at_most: String,
}

fn default_idle_for() -> String {
    "30s".to_owned()
}

fn default_at_most() -> String {
    "1h".to_owned()
}

/// A question, asked greedily, and what has to be in the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoldenPrompt {
    /// What a user would say.
    #[schemars(length(min = 1, max = 16_384))]
    pub prompt: String,
    /// Without anything: the answer is not empty.
    #[serde(default)]
    pub expect: Expectation,
    /// The longest answer.
    #[serde(default = "default_golden_tokens")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_tokens: u32,
}

fn default_golden_tokens() -> u32 {
    64
}

/// What an answer has to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expectation {
    /// It has this in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16_384))]
    pub contains: Option<String>,
    /// It is this, but for blanks around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16_384))]
    pub equals: Option<String>,
}

impl StrategySpec {
    pub fn rolls_back(&self) -> bool {
        self.rollback_on_failure
            .unwrap_or(self.kind == StrategyType::Canary)
    }
}

/// The kinds of rollout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StrategyType {
    #[default]
    RollingUpdate,
    Canary,
    Recreate,
}

/// Bounds of a rolling update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!((self.maxUnavailable == 0 || self.maxUnavailable == '0%') && (self.maxSurge == 0 || self.maxSurge == '0%'))").message("maxUnavailable and maxSurge may not both be 0: nothing could ever be replaced"))]
pub struct RollingUpdateSpec {
    /// Replicas that may be missing at any time: a number, or a percentage of `replicas`, rounded down.
    #[serde(default = "default_max_unavailable")]
    pub max_unavailable: CountOrPercent,
    /// Replicas that may be there beyond the wanted number, where a node has room: a number, or a percentage of
    /// `replicas`, rounded up.
    #[serde(default = "default_max_surge")]
    pub max_surge: CountOrPercent,
    /// Decode throughput that neither a rollout nor a drain or move gives up, besides the counts: tokens/s, or a percentage of
    /// what the deployment had when it was last rolled out. What counts is what is predicted for the replicas that answer, all
    /// their streams busy, in the time that other deployments leave of their chips; a replica whose speed nobody can predict
    /// counts nothing, and where that is so of all, no rollout begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_throughput: Option<CountOrPercent>,
}

fn default_max_unavailable() -> CountOrPercent {
    CountOrPercent::Count(1)
}

fn default_max_surge() -> CountOrPercent {
    CountOrPercent::ZERO
}

impl Default for RollingUpdateSpec {
    fn default() -> Self {
        Self {
            max_unavailable: default_max_unavailable(),
            max_surge: default_max_surge(),
            min_throughput: None,
        }
    }
}

/// The course of a canary. After its last step the rollout goes on as a rolling update.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanarySpec {
    /// Taken one after the other.
    #[schemars(length(min = 1, max = 64))]
    pub steps: Vec<CanaryStep>,
}

/// One step: exactly one of the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.setWeight), has(self.pause), has(self.analysis)].filter(x, x).size() == 1").message("a step has exactly one of setWeight, pause and analysis"))]
pub struct CanaryStep {
    /// Give the new revision this percentage of the requests, and of the replicas, rounded up. The step is done when
    /// these replicas are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub set_weight: Option<u8>,
    /// Wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseStep>,
    /// Compare the new revision with the stable one, and go back when it is worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisStep>,
}

/// How long a canary waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PauseStep {
    /// A Go-style duration such as `90s` or `1h`. Absent: until `rooflet rollout promote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub duration: Option<String>,
}

/// What a canary must not be worse in. Figures are of the requests that the replicas answered; differences that may be
/// chance do not count against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisStep {
    /// Requests that each of the two revisions must have answered. Until then the canary waits.
    #[serde(default = "default_min_requests")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_requests: u32,
    /// Decode speed of one stream, at least so many percent of the stable revision's on the same machine.
    #[serde(default = "default_min_tokens_per_second_percent")]
    #[schemars(range(min = 1, max = 100))]
    pub min_tokens_per_second_percent: u32,
    /// Time to the first token of prompts of which nothing was cached, at most so many percent of the stable revision's on
    /// the same machine.
    #[serde(default = "default_max_time_to_first_token_percent")]
    #[schemars(range(min = 100, max = 10_000))]
    pub max_time_to_first_token_percent: u32,
    /// Percent of requests that may fail, whatever the stable revision does. Absent: only more failures than the stable
    /// revision has count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_error_percent: Option<f64>,
    /// Measured decode speed, at least so many percent of what was predicted for such requests. Absent: not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub min_measured_percent: Option<u32>,
    /// How long enough requests are waited for, as a Go-style duration. After that the analysis is inconclusive.
    #[serde(default = "default_inconclusive_after")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub inconclusive_after: String,
    /// What follows then. Pause: the canary stays as it is until enough requests were answered after all, or
    /// `rooflet rollout promote`. Promote: it goes on if its replicas are ready, which they are when they answered the
    /// golden prompts.
    #[serde(default)]
    pub if_inconclusive: Inconclusive,
}

/// What follows from an analysis that had too few requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Inconclusive {
    #[default]
    Pause,
    Promote,
}

fn default_inconclusive_after() -> String {
    "30m".to_owned()
}

fn default_min_requests() -> u32 {
    20
}

fn default_min_tokens_per_second_percent() -> u32 {
    90
}

fn default_max_time_to_first_token_percent() -> u32 {
    120
}

/// The same as an empty object.
impl Default for AnalysisStep {
    fn default() -> Self {
        Self {
            min_requests: default_min_requests(),
            min_tokens_per_second_percent: default_min_tokens_per_second_percent(),
            max_time_to_first_token_percent: default_max_time_to_first_token_percent(),
            max_error_percent: None,
            min_measured_percent: None,
            inconclusive_after: default_inconclusive_after(),
            if_inconclusive: Inconclusive::default(),
        }
    }
}
