//! What a deployment's conditions say of its autoscaling, in the HorizontalPodAutoscaler's words. Their messages hold no
//! figure that changes by itself: the events of changes do.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::plan::{Decision, Direction, Limit};
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{AutoscalingMetricType, AutoscalingSpec};

/// The conditions with the three of autoscaling as `decision` makes them; the others stay.
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
            "more are called for, and not yet throughout behavior.scaleUp.stabilizationWindowSeconds",
        ),
        Some(Direction::Down) => (
            "ScaleDownStabilized",
            "fewer are enough, and not yet throughout behavior.scaleDown.stabilizationWindowSeconds",
        ),
        None => ("ReadyForNewScale", "spec.replicas is what is called for"),
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
            let message = format!("the number of replicas follows {metric}");
            (Truth::True, "ValidMetricFound", message)
        }
        None => (
            Truth::False,
            "NotMeasured",
            format!("no replica has measured {metric} yet; there are as many as the requests need streams"),
        ),
    };
    set(condition_type::SCALING_ACTIVE, truth, reason, message);

    let (truth, reason, message) = match decision.limit {
        Some(Limit::TooMany) => (
            Truth::True,
            "TooManyReplicas",
            format!("more are called for than maxReplicas, {}", spec.max_replicas),
        ),
        Some(Limit::TooFew) => (
            Truth::True,
            "TooFewReplicas",
            "fewer are called for than minReplicas, or a schedule that holds now".to_owned(),
        ),
        None => (
            Truth::False,
            "DesiredWithinRange",
            "there may be as many as are called for".to_owned(),
        ),
    };
    set(condition_type::SCALING_LIMITED, truth, reason, message);
    before
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::autoscaler::plan::{Memory, Signals, decide};

    /// `type=status/reason` of each, in the order in which they are set.
    #[track_caller]
    fn check(spec: Value, current: i32, signals: Signals, expect: [&str; 3]) {
        let spec: AutoscalingSpec = serde_json::from_value(spec).expect("a spec");
        let now = Timestamp::UNIX_EPOCH;
        let decision = decide(&spec, current, 4, &signals, &mut Memory::default(), now);
        let mine = Condition {
            type_: "Ready".to_owned(),
            ..conditions(Vec::new(), &spec, &decision, None, now)[0].clone()
        };
        let told = conditions(vec![mine.clone()], &spec, &decision, Some(3), now);
        assert_eq!(told[0], mine, "the others stay");
        let words: Vec<_> = told[1..]
            .iter()
            .map(|condition| format!("{}={}/{}", condition.type_, condition.status, condition.reason))
            .collect();
        assert_eq!(words, expect, "{told:?}");
        let again = conditions(
            told.clone(),
            &spec,
            &decision,
            Some(3),
            now + jiff::Span::new().hours(1),
        );
        assert_eq!(again, told, "nothing is written while nothing changes");
    }

    #[test]
    fn they_tell_what_a_horizontal_pod_autoscaler_would() {
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
