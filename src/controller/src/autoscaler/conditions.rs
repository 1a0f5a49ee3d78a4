//! Conditions of autoscaling, with the types and reasons of the HorizontalPodAutoscaler. Messages
//! contain no measured figures, so that a steady state causes no writes. Events contain the
//! figures.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::plan::{Decision, Direction, Limit};
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{AutoscalingMetricType, AutoscalingSpec};

/// Returns `before` with the three conditions of autoscaling set according to `decision`.
pub(super) fn conditions(
    mut before: Vec<Condition>,
    spec: &AutoscalingSpec,
    decision: &Decision,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut set = |kind, truth, reason, message: String| {
        set_condition(&mut before, kind, truth, reason, message, generation, now);
    };
    let (reason, message) = match decision.stabilizing {
        Some(Direction::Up) => (
            "ScaleUpStabilized",
            "recommendations within behavior.scaleUp.stabilizationWindowSeconds are lower than the current \
             one; the lowest applies",
        ),
        Some(Direction::Down) => (
            "ScaleDownStabilized",
            "recommendations within behavior.scaleDown.stabilizationWindowSeconds are higher than the \
             current one; the highest applies",
        ),
        None => ("ReadyForNewScale", "spec.replicas matches the recommended count"),
    };
    set(
        condition_type::ABLE_TO_SCALE,
        Truth::True,
        reason,
        message.to_owned(),
    );

    let metric = match spec.metric.kind {
        AutoscalingMetricType::Concurrency => "Concurrency",
        AutoscalingMetricType::QueueLength => "QueueLength",
        AutoscalingMetricType::TimeToFirstToken => "TimeToFirstToken",
    };
    let (truth, reason, message) = match &decision.problem {
        Some(problem) => (Truth::False, "InvalidSchedule", problem.clone()),
        None if decision.is_measured => {
            let message = format!("the replica count follows {metric}");
            (Truth::True, "ValidMetricFound", message)
        }
        None => (
            Truth::False,
            "NotMeasured",
            format!("no replica has measured {metric} yet; the replica count follows the number of requests"),
        ),
    };
    set(condition_type::SCALING_ACTIVE, truth, reason, message);

    let (truth, reason, message) = match decision.limit {
        Some(Limit::TooMany) => (
            Truth::True,
            "TooManyReplicas",
            format!(
                "the desired replica count is more than maxReplicas, {}",
                spec.max_replicas
            ),
        ),
        Some(Limit::TooFew) => (
            Truth::True,
            "TooFewReplicas",
            "the desired replica count is less than minReplicas of the deployment or of an active schedule"
                .to_owned(),
        ),
        None => (
            Truth::False,
            "DesiredWithinRange",
            "the desired replica count is within the acceptable range".to_owned(),
        ),
    };
    set(condition_type::SCALING_LIMITED, truth, reason, message);
    before
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::autoscaler::plan::{History, Signals, decide};

    /// Checks the conditions as `type=status/reason`, in the order in which they are set.
    #[track_caller]
    fn check(spec: Value, current: i32, signals: Signals, expect: [&str; 3]) {
        let spec: AutoscalingSpec = serde_json::from_value(spec).expect("a spec");
        let now = Timestamp::UNIX_EPOCH;
        let decision = decide(&spec, current, 4, &signals, &mut History::default(), now);
        let other = Condition {
            type_: "Ready".to_owned(),
            ..conditions(Vec::new(), &spec, &decision, None, now)[0].clone()
        };
        let set = conditions(vec![other.clone()], &spec, &decision, Some(3), now);
        assert_eq!(set[0], other, "other conditions stay");
        let words: Vec<_> = set[1..]
            .iter()
            .map(|condition| format!("{}={}/{}", condition.type_, condition.status, condition.reason))
            .collect();
        assert_eq!(words, expect, "{set:?}");
        let again = conditions(
            set.clone(),
            &spec,
            &decision,
            Some(3),
            now + jiff::Span::new().hours(1),
        );
        assert_eq!(again, set, "an unchanged decision changes no condition");
    }

    #[test]
    fn conditions_have_the_reasons_of_a_horizontal_pod_autoscaler() {
        let busy = |running| Signals {
            running,
            ..Signals::default()
        };
        check(
            json!({"maxReplicas": 4}),
            2,
            busy(6),
            [
                "AbleToScale=True/ReadyForNewScale",
                "ScalingActive=True/ValidMetricFound",
                "ScalingLimited=False/DesiredWithinRange",
            ],
        );
        check(
            json!({"maxReplicas": 4}),
            2,
            busy(0),
            [
                "AbleToScale=True/ScaleDownStabilized",
                "ScalingActive=True/ValidMetricFound",
                "ScalingLimited=True/TooFewReplicas",
            ],
        );
        check(
            json!({"maxReplicas": 4, "behavior": {"scaleUp": {"stabilizationWindowSeconds": 60}}}),
            2,
            busy(60),
            [
                "AbleToScale=True/ScaleUpStabilized",
                "ScalingActive=True/ValidMetricFound",
                "ScalingLimited=True/TooManyReplicas",
            ],
        );
        check(
            json!({"maxReplicas": 4, "metric": {"type": "TimeToFirstToken", "target": 1}}),
            1,
            busy(1),
            [
                "AbleToScale=True/ReadyForNewScale",
                "ScalingActive=False/NotMeasured",
                "ScalingLimited=False/DesiredWithinRange",
            ],
        );
        let schedules =
            json!([{"from": "08:00", "to": "09:00", "timeZone": "Europe/Berlyn", "minReplicas": 1}]);
        check(
            json!({"maxReplicas": 4, "schedules": schedules}),
            1,
            busy(1),
            [
                "AbleToScale=True/ReadyForNewScale",
                "ScalingActive=False/InvalidSchedule",
                "ScalingLimited=False/DesiredWithinRange",
            ],
        );
    }
}
