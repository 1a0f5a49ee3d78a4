//! How many replicas a ModelDeployment has by itself.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rooflet_base::quantity::DURATION_PATTERN;

/// Lets the controller choose `spec.replicas`, as a HorizontalPodAutoscaler does: leave `replicas` out of the manifest
/// then, or every `kubectl apply` sets it back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minReplicas <= self.maxReplicas").message("minReplicas may not be above maxReplicas"))]
pub struct AutoscalingSpec {
    /// The fewest replicas. With 0, the last one goes when there was no request for scaleToZeroAfter; the next
    /// request is held by the gateway until one is there again.
    #[serde(default = "default_min_replicas")]
    #[schemars(range(min = 0, max = 10_000))]
    pub min_replicas: i32,
    /// The most replicas.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_replicas: i32,
    /// What the number follows.
    #[serde(default)]
    pub metric: AutoscalingMetric,
    /// How fast the number follows.
    #[serde(default)]
    pub behavior: AutoscalingBehavior,
    /// How long there must have been no request before the last replica goes, as a Go-style duration; default 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub scale_to_zero_after: Option<String>,
    /// Times of the week with more replicas at the least.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub schedules: Vec<AutoscalingSchedule>,
}

fn default_min_replicas() -> i32 {
    1
}

/// What the number of replicas follows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'TimeToFirstToken' || has(self.target)").message("target, in seconds, is needed for TimeToFirstToken").field_path(".target"))]
pub struct AutoscalingMetric {
    /// Concurrency counts requests that are answered or wait, QueueLength only those that wait, TimeToFirstToken is
    /// what the replicas measure.
    #[serde(default, rename = "type")]
    pub kind: AutoscalingMetricType,
    /// Requests per replica, or seconds. Default for Concurrency: three quarters of serving.maxConcurrency; for
    /// QueueLength: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub target: Option<f64>,
}

/// The metrics that can be followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscalingMetricType {
    #[default]
    Concurrency,
    QueueLength,
    TimeToFirstToken,
}

/// How fast the number of replicas follows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingBehavior {
    /// Upwards.
    #[serde(default)]
    pub scale_up: ScalingRules,
    /// Downwards.
    #[serde(default)]
    pub scale_down: ScalingRules,
}

/// One direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// Seconds for which a change must have been called for all the time. Default: 0 upwards, 300 downwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: Option<u32>,
}

/// A time of the week with more replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingSchedule {
    /// The days on which it begins. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Weekday>,
    /// When it begins, as HH:MM.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    /// When it ends, as HH:MM; at or before `from`: on the next day.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub to: String,
    /// An IANA name such as Europe/Berlin. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// The fewest replicas in that time, within maxReplicas.
    #[schemars(range(min = 0, max = 10_000))]
    pub min_replicas: i32,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Weekday {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}
