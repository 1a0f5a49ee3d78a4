//! Rollout strategy of a ModelDeployment.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CountOrPercent, Weekday};
use rooflet_base::quantity::DURATION_PATTERN;

/// Rollout strategy: how replicas of an old revision are replaced.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'Recreate' || !has(self.rollingUpdate)").message("rollingUpdate may only be set when type is RollingUpdate or Canary"))]
#[x_kube(validation = Rule::new("(self.type == 'Canary') == has(self.canary)").message("canary must be set when type is Canary, and only then"))]
#[x_kube(validation = Rule::new("!has(self.canary) || has(self.goldenPrompts) || self.canary.steps.all(s, !has(s.analysis) || s.analysis.ifInconclusive != 'Promote')").message("ifInconclusive: Promote requires goldenPrompts: without them nothing verifies the new revision"))]
#[x_kube(validation = Rule::new("!has(self.canary) || [self.canary.steps.map(s, has(s.analysis) ? 1 : !has(s.setWeight) ? 0 : s.setWeight < 100 ? 2 : 3)].all(k, k.indexOf(1) == -1 || (k.indexOf(2) != -1 && k.indexOf(2) < k.indexOf(1) && (k.indexOf(3) == -1 || k.lastIndexOf(1) < k.indexOf(3))))").message("an analysis compares two revisions: it must follow a setWeight below 100 and precede setWeight: 100"))]
#[x_kube(validation = Rule::new("!has(self.maintenanceWindows) || self.maintenanceWindows.all(s, !has(s.timeZone) || s.timeZone == 'Z' || (oldSelf.hasValue() && has(oldSelf.value().maintenanceWindows) && oldSelf.value().maintenanceWindows.exists(o, has(o.timeZone) && o.timeZone == s.timeZone)) || timestamp('2026-01-01T00:00:00Z').getHours(s.timeZone) >= 0)").message("timeZone must be an IANA name such as Europe/Berlin, or an offset such as +02:00").field_path(".maintenanceWindows").optional_old_self(true))]
pub struct StrategySpec {
    /// RollingUpdate replaces replicas a few at a time. Canary first tests the new revision with
    /// some replicas. Recreate stops all replicas before it starts new ones.
    #[serde(default, rename = "type")]
    pub kind: StrategyType,
    /// Limits of a rolling update or canary. Default: one replica at a time, in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdateSpec>,
    /// Steps that the first replicas of a new revision must pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
    /// If true, the controller returns to the last revision that was rolled out when the new
    /// revision makes no progress for `progressDeadlineSeconds`. Default: true for Canary,
    /// otherwise false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_on_failure: Option<bool>,
    /// Prompts that every new worker must answer as expected before it is ready. A change starts no
    /// rollout: it applies to replicas that are created afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub golden_prompts: Vec<GoldenPrompt>,
    /// Times of the week at which replicas may be replaced. Default: always. Scaling, replacement
    /// of failed replicas and rollbacks happen at any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub maintenance_windows: Vec<MaintenanceWindow>,
    /// If set, a ready replica is replaced only while it has no requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_idle: Option<WaitForIdle>,
}

/// Time of the week at which replicas may be replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("duration(self.duration) > duration('0s') && duration(self.duration) <= duration('168h')").message("duration must be greater than 0 and less than or equal to 168h").field_path(".duration"))]
pub struct MaintenanceWindow {
    /// Days on which the window opens. Default: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Weekday>,
    /// Time of day at which the window opens, as HH:MM.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// Length of the window, as a Go duration such as `90m`.
    #[schemars(length(max = 32), regex(pattern = DURATION_PATTERN))]
    pub duration: String,
    /// IANA time zone such as Europe/Berlin, or an offset such as +02:00. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
}

/// Condition under which a replica is idle, and the maximum wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitForIdle {
    /// Time without requests after which a replica is idle, as a Go duration.
    #[serde(default = "default_idle_for")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub idle_for: String,
    /// Maximum wait for an idle replica, as a Go duration. After that, the replica is replaced; its
    /// requests may finish.
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

/// Prompt and expected answer. The worker generates with temperature 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoldenPrompt {
    /// Text of the user message.
    #[schemars(length(min = 1, max = 16_384))]
    pub prompt: String,
    /// Expected answer. If unset, any non-empty answer passes.
    #[serde(default)]
    pub expect: Expectation,
    /// Maximum number of tokens in the answer.
    #[serde(default = "default_golden_tokens")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_tokens: u32,
}

fn default_golden_tokens() -> u32 {
    64
}

/// Expected content of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expectation {
    /// The answer must contain this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16_384))]
    pub contains: Option<String>,
    /// The answer must equal this text, ignoring surrounding whitespace.
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

/// Type of a rollout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StrategyType {
    #[default]
    RollingUpdate,
    Canary,
    Recreate,
}

/// Limits of a rolling update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!((self.maxUnavailable == 0 || self.maxUnavailable == '0%') && (self.maxSurge == 0 || self.maxSurge == '0%'))").message("maxUnavailable and maxSurge must not both be 0: no replica could be replaced"))]
pub struct RollingUpdateSpec {
    /// Maximum number of unavailable replicas: a number, or a percentage of `replicas`, rounded
    /// down.
    #[serde(default = "default_max_unavailable")]
    pub max_unavailable: CountOrPercent,
    /// Maximum number of replicas beyond `replicas`, if a node has room for them: a number, or a
    /// percentage of `replicas`, rounded up.
    #[serde(default = "default_max_surge")]
    pub max_surge: CountOrPercent,
    /// Throughput floor: decode tokens/s that rollouts, drains and moves keep available in addition
    /// to the replica counts. Either tokens/s or a percentage of the throughput at the last
    /// completed rollout. The throughput is the predicted speed of all ready replicas with all
    /// their streams busy, in the chip time that other deployments leave. A replica without a
    /// prediction counts as 0. If no replica has a prediction, no rollout starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) != string || self.matches('^([0-9]{1,2}|100)%$')").message("must be tokens/s, or a percentage of at most 100%: a rollout cannot keep more than the present throughput"))]
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

/// Steps of a canary. After the last step the rollout continues as a rolling update.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanarySpec {
    /// Steps, executed in order.
    #[schemars(length(min = 1, max = 64))]
    pub steps: Vec<CanaryStep>,
}

/// Step of a canary. Exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.setWeight), has(self.pause), has(self.analysis)].filter(x, x).size() == 1").message("exactly one of setWeight, pause and analysis must be set"))]
pub struct CanaryStep {
    /// Percentage of the requests, and of the replicas (rounded up), for the new revision. The step
    /// is completed when these replicas are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub set_weight: Option<u8>,
    /// Pause of the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseStep>,
    /// Comparison of the new revision with the stable revision. If the new revision is worse, the
    /// rollout is aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisStep>,
}

/// Length of a pause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PauseStep {
    /// Go duration such as `90s` or `1h`. If unset, the pause ends with `rooflet rollout promote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub duration: Option<String>,
}

/// Limits for the comparison of a canary with the stable revision. Figures come from the requests
/// that the replicas served. Differences that are not statistically significant are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisStep {
    /// Number of requests that each revision must have served before the comparison.
    #[serde(default = "default_min_requests")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_requests: u32,
    /// Minimum decode speed of one stream, in percent of the stable revision's speed on the same
    /// machine.
    #[serde(default = "default_min_tokens_per_second_percent")]
    #[schemars(range(min = 1, max = 100))]
    pub min_tokens_per_second_percent: u32,
    /// Maximum time to first token of uncached prompts, in percent of the stable revision's time on
    /// the same machine.
    #[serde(default = "default_max_time_to_first_token_percent")]
    #[schemars(range(min = 100, max = 10_000))]
    pub max_time_to_first_token_percent: u32,
    /// Maximum percentage of failed requests. If unset, the canary fails only if it has more
    /// failures than the stable revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_error_percent: Option<f64>,
    /// Minimum measured decode speed, in percent of the prediction for these requests. If unset, it
    /// is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub min_measured_percent: Option<u32>,
    /// Maximum wait for `minRequests`, as a Go duration. After that, the analysis is inconclusive.
    #[serde(default = "default_inconclusive_after")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub inconclusive_after: String,
    /// Action after an inconclusive analysis. Pause: the canary waits for enough requests or
    /// `rooflet rollout promote`. Promote: the canary continues if its replicas are ready, that is,
    /// if they passed the golden prompts.
    #[serde(default)]
    pub if_inconclusive: Inconclusive,
}

/// Action after an analysis with too few requests.
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

/// Equals an empty object.
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
