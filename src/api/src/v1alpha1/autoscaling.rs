//! Autoscaling of a ModelDeployment.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rooflet_base::quantity::DURATION_PATTERN;

/// Autoscaling: the controller sets `spec.replicas`, like a HorizontalPodAutoscaler. Omit
/// `replicas` in the manifest; otherwise every `kubectl apply` resets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minReplicas <= self.maxReplicas").message("minReplicas must be less than or equal to maxReplicas"))]
#[x_kube(validation = Rule::new("!has(self.schedules) || self.schedules.all(s, !has(s.timeZone) || s.timeZone == 'Z' || (oldSelf.hasValue() && has(oldSelf.value().schedules) && oldSelf.value().schedules.exists(o, has(o.timeZone) && o.timeZone == s.timeZone)) || timestamp('2026-01-01T00:00:00Z').getHours(s.timeZone) >= 0)").message("timeZone must be an IANA name such as Europe/Berlin, or an offset such as +02:00").field_path(".schedules").optional_old_self(true))]
pub struct AutoscalingSpec {
    /// Minimum number of replicas. With 0, the last replica is removed after scaleToZeroAfter
    /// without requests. The gateway queues the next request until a replica is ready.
    #[serde(default = "default_min_replicas")]
    #[schemars(range(min = 0, max = 10_000))]
    pub min_replicas: i32,
    /// Maximum number of replicas.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_replicas: i32,
    /// Metric that determines the number of replicas.
    #[serde(default)]
    pub metric: AutoscalingMetric,
    /// Speed of scaling.
    #[serde(default)]
    pub behavior: AutoscalingBehavior,
    /// Time without requests before the last replica is removed, as a Go duration. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DURATION_PATTERN))]
    pub scale_to_zero_after: Option<String>,
    /// Times of the week with a higher minimum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub schedules: Vec<AutoscalingSchedule>,
}

fn default_min_replicas() -> i32 {
    1
}

/// Metric that determines the number of replicas.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type != 'TimeToFirstToken' || has(self.target)").message("target (seconds) is required for TimeToFirstToken").field_path(".target"))]
pub struct AutoscalingMetric {
    /// Concurrency counts in-flight and queued requests. QueueLength counts queued requests.
    /// TimeToFirstToken is measured by the replicas.
    #[serde(default, rename = "type")]
    pub kind: AutoscalingMetricType,
    /// Requests per replica, or seconds. Default for Concurrency: three quarters of
    /// serving.maxConcurrency; for QueueLength: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub target: Option<f64>,
}

/// Type of a metric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscalingMetricType {
    #[default]
    Concurrency,
    QueueLength,
    TimeToFirstToken,
}

/// Speed of scaling.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingBehavior {
    /// Rules for scaling up.
    #[serde(default)]
    pub scale_up: ScalingRules,
    /// Rules for scaling down.
    #[serde(default)]
    pub scale_down: ScalingRules,
}

/// Rules for one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// Seconds during which the metric must continuously require the change. Default: 0 for scaling
    /// up, 300 for scaling down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: Option<u32>,
}

/// Time of the week with a higher minimum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingSchedule {
    /// Days on which the schedule starts. Default: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Weekday>,
    /// Start time, as HH:MM.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    /// End time, as HH:MM. If it is not after `from`, the schedule ends on the next day.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub to: String,
    /// IANA time zone such as Europe/Berlin, or an offset such as +02:00. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// Minimum number of replicas during the schedule, limited by maxReplicas.
    #[schemars(range(min = 0, max = 10_000))]
    pub min_replicas: i32,
}

/// Day of the week.
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
