//! Replica count from the current signals and the recent recommendations. Pure.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;

use super::first_token::{ReadyReplica, ScaleUpBaseline};
use super::schedule::min_replicas;
use rooflet_api::v1alpha1::{AutoscalingMetricType, AutoscalingSpec};
use rooflet_base::clock::since;
use rooflet_base::quantity::parse_duration;

/// Relative deviation from the target that causes no change; the HorizontalPodAutoscaler's default.
const TOLERANCE: f64 = 0.1;
/// Kubernetes' default.
const DEFAULT_SCALE_DOWN_WINDOW_SECONDS: u32 = 300;
const DEFAULT_SCALE_TO_ZERO_AFTER: Duration = Duration::from_secs(600);
/// Default target of Concurrency as a share of `serving.maxConcurrency`. With higher concurrency,
/// requests start to queue.
const DEFAULT_CONCURRENCY_SHARE: f64 = 0.75;
const DEFAULT_QUEUE_LENGTH: f64 = 1.0;
/// Minimum time between two stored recommendations, unless the recommendation rises.
const RESOLUTION: Duration = Duration::from_secs(5);

/// Current load of a deployment, summed over its replicas and all gateways.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Signals {
    /// Requests in progress.
    pub running: u64,
    /// Requests in the queues of workers and gateways.
    pub waiting: u64,
    /// Total of completed requests; only its changes matter.
    pub completed: u64,
    pub ready: Vec<ReadyReplica>,
}

/// State that the autoscaler keeps from pass to pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct History {
    /// Recent recommendations, oldest first.
    recommendations: VecDeque<(Timestamp, i32)>,
    /// Start of the current period without requests, and the completed requests at that time.
    idle: Option<(Timestamp, u64)>,
    baseline: ScaleUpBaseline,
}

/// Result of one pass for one deployment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    pub(super) replicas: i32,
    /// Reason for the event message.
    pub(super) why: String,
    /// Bound that the desired count exceeds.
    pub(super) limit: Option<Limit>,
    /// Direction of a recommended change that the stabilization window delays.
    pub(super) stabilizing: Option<Direction>,
    /// True if the metric has a value.
    pub(super) is_measured: bool,
    /// Error in a schedule, which is ignored.
    pub(super) problem: Option<String>,
}

/// Bound that the desired count exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    TooMany,
    TooFew,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// Decides the replica count. `current` is `spec.replicas`, `max_concurrency` the number of streams
/// of one replica.
pub(super) fn decide(
    spec: &AutoscalingSpec,
    current: i32,
    max_concurrency: u32,
    signals: &Signals,
    history: &mut History,
    now: Timestamp,
) -> Decision {
    let (bounds, problem) = bounds(spec, now);
    let (floor, max) = (*bounds.start(), *bounds.end());
    history
        .baseline
        .update(&signals.ready, signals.running + signals.waiting);
    let first_token = history.baseline.mean(&signals.ready);
    let (desired, why) = desired(spec, current, f64::from(max_concurrency), signals, first_token);
    let may_be_zero = history.is_idle(spec, signals, now) && floor == 0;
    let recommended = desired
        .max(i32::from(!may_be_zero && current > 0))
        .clamp(floor, max);
    let replicas = history
        .stabilized(spec, current, recommended, now)
        .clamp(floor, max);
    let why = match () {
        () if replicas == recommended && recommended == desired => why,
        () if replicas == 0 => "no request within scaleToZeroAfter".to_owned(),
        () if replicas == floor && floor > desired => "the minimum replica count".to_owned(),
        () if replicas == max && max < desired => format!("{why}; maxReplicas is {max}"),
        () => why,
    };
    let limit = match desired {
        _ if desired > max => Some(Limit::TooMany),
        _ if desired < floor => Some(Limit::TooFew),
        _ => None,
    };
    let stabilizing = match replicas {
        _ if replicas < recommended => Some(Direction::Up),
        _ if replicas > recommended => Some(Direction::Down),
        _ => None,
    };
    Decision {
        replicas,
        why,
        limit,
        stabilizing,
        is_measured: is_measured(spec, signals),
        problem,
    }
}

/// Returns the bounds of `spec.replicas`, and the error of the first invalid schedule.
pub(super) fn bounds(spec: &AutoscalingSpec, now: Timestamp) -> (RangeInclusive<i32>, Option<String>) {
    let max = spec.max_replicas.max(1);
    let (scheduled, problem) = min_replicas(&spec.schedules, now);
    (spec.min_replicas.max(scheduled).clamp(0, max)..=max, problem)
}

/// Returns whether the metric has a value. Request counts are always known. The time to the first
/// token is known after the first completed request.
fn is_measured(spec: &AutoscalingSpec, signals: &Signals) -> bool {
    match spec.metric.kind {
        AutoscalingMetricType::Concurrency | AutoscalingMetricType::QueueLength => true,
        AutoscalingMetricType::TimeToFirstToken => {
            signals.ready.iter().any(|replica| replica.first_token.is_some())
        }
    }
}

/// Returns the replica count for the metric, without bounds, and its explanation. `first_token` is
/// the mean of [`ScaleUpBaseline::mean`].
fn desired(
    spec: &AutoscalingSpec,
    current: i32,
    streams: f64,
    signals: &Signals,
    first_token: Option<f64>,
) -> (i32, String) {
    // The subtraction hides rounding errors of floating-point arithmetic.
    let whole = |number: f64| (number - 1e-9).ceil().min(f64::from(i32::MAX)) as i32;
    let (running, waiting) = (signals.running as f64, signals.waiting as f64);
    // For every metric, the present requests need enough streams.
    let needed = whole((running + waiting) / streams);
    let replicas = f64::from(current);
    let by_ratio = |ratio: f64| match (ratio - 1.0).abs() <= TOLERANCE {
        true => current,
        false => whole(replicas * ratio),
    };
    match spec.metric.kind {
        AutoscalingMetricType::Concurrency => {
            let target = spec.metric.target.unwrap_or(DEFAULT_CONCURRENCY_SHARE * streams);
            let requests = running + waiting;
            let desired = match current {
                0 => whole(requests / target),
                _ => by_ratio(requests / (target * replicas)),
            };
            (
                desired,
                format!("{requests} concurrent requests, target {target} per replica"),
            )
        }
        AutoscalingMetricType::QueueLength => {
            let target = spec.metric.target.unwrap_or(DEFAULT_QUEUE_LENGTH);
            let more = match current {
                0 => whole(waiting / target),
                _ if waiting > target * replicas * (1.0 + TOLERANCE) => {
                    by_ratio(waiting / (target * replicas))
                }
                _ => 0,
            };
            let why = format!("{waiting} queued requests, target {target} per replica");
            (more.max(needed), why)
        }
        AutoscalingMetricType::TimeToFirstToken => {
            // Without requests, the median describes the past only.
            let has_requests = signals.running + signals.waiting > 0;
            let requests = || format!("{} concurrent requests", running + waiting);
            let ready = i32::try_from(signals.ready.len()).unwrap_or(i32::MAX);
            match (first_token, spec.metric.target) {
                (Some(seconds), Some(target)) if has_requests => {
                    let why = format!("time to first token {seconds:.2} s, target {target} s");
                    let desired = match ready < current {
                        // Like the HorizontalPodAutoscaler, assume that replicas that are not
                        // Ready yet will handle their share of the load.
                        true => whole(f64::from(ready) * seconds / target).max(current),
                        false => by_ratio(seconds / target),
                    };
                    (desired.max(needed), why)
                }
                // The measurements are from before the last scale-up.
                (None, Some(_)) if has_requests && is_measured(spec, signals) => {
                    (needed.max(current), requests())
                }
                (Some(_) | None, _) => (needed, requests()),
            }
        }
    }
}

impl History {
    /// Returns whether no request was present for `scaleToZeroAfter`.
    fn is_idle(&mut self, spec: &AutoscalingSpec, signals: &Signals, now: Timestamp) -> bool {
        if signals.running + signals.waiting > 0 {
            self.idle = None;
            return false;
        }
        let began = match self.idle {
            Some((began, completed)) if completed == signals.completed => began,
            Some(_) | None => {
                self.idle = Some((now, signals.completed));
                now
            }
        };
        let after = spec.scale_to_zero_after.as_deref().and_then(parse_duration);
        since(now, began) >= after.unwrap_or(DEFAULT_SCALE_TO_ZERO_AFTER)
    }

    /// Limits changes to the recommendations within the stabilization windows: scales up to their
    /// minimum at most, and down to their maximum at least.
    fn stabilized(&mut self, spec: &AutoscalingSpec, current: i32, recommended: i32, now: Timestamp) -> i32 {
        let window =
            |seconds: Option<u32>, default: u32| Duration::from_secs(u64::from(seconds.unwrap_or(default)));
        let up = window(spec.behavior.scale_up.stabilization_window_seconds, 0);
        let down = window(
            spec.behavior.scale_down.stabilization_window_seconds,
            DEFAULT_SCALE_DOWN_WINDOW_SECONDS,
        );
        // At the first pass, the current count is the first recommendation, so that a restart of
        // the controller does not scale down immediately.
        if self.recommendations.is_empty() {
            self.recommendations.push_back((now, current));
        }
        match self.recommendations.back_mut() {
            Some((at, last)) if since(now, *at) < RESOLUTION && recommended <= *last => {}
            Some(_) | None => self.recommendations.push_back((now, recommended)),
        }
        let longest = up.max(down);
        while self.recommendations.len() > 1
            && self
                .recommendations
                .front()
                .is_some_and(|(at, _)| since(now, *at) >= longest)
        {
            self.recommendations.pop_front();
        }
        let within = |window: Duration| {
            self.recommendations
                .iter()
                .filter(move |(at, _)| since(now, *at) < window)
                .map(|(_, replicas)| *replicas)
                .chain([recommended])
        };
        let least = within(up).min().unwrap_or(recommended);
        let most = within(down).max().unwrap_or(recommended);
        match () {
            () if least > current => least,
            () if most < current => most,
            () => current,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::autoscaler::FirstToken;

    fn spec(more: Value) -> AutoscalingSpec {
        let mut spec =
            json!({"maxReplicas": 8, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}});
        let more = more.as_object().expect("the test passes an object").clone();
        spec.as_object_mut()
            .expect("the test passes an object")
            .extend(more);
        serde_json::from_value(spec).expect("the test passes a valid spec")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("in range")
    }

    /// Runs passes at these seconds with these signals. Returns the replica count of each.
    fn play(spec: &AutoscalingSpec, mut current: i32, passes: &[(i64, Signals)]) -> Vec<i32> {
        let mut history = History::default();
        passes
            .iter()
            .map(|(seconds, signals)| {
                current = decide(spec, current, 4, signals, &mut history, at(*seconds)).replicas;
                current
            })
            .collect()
    }

    fn busy(running: u64, waiting: u64) -> Signals {
        Signals {
            running,
            waiting,
            ..Signals::default()
        }
    }

    #[test]
    fn concurrency_scales_up_at_once_and_down_after_the_window() {
        let spec = spec(json!({}));
        // The default target is three of four streams.
        let passes = [
            (0, busy(4, 5)),
            (10, busy(9, 0)),
            (20, busy(2, 0)),
            (60, busy(2, 0)),
            (90, busy(2, 0)),
            (100, busy(50, 50)),
        ];
        assert_eq!(play(&spec, 1, &passes), [3, 3, 3, 3, 1, 8]);
        // Deviations up to a tenth are within the tolerance.
        let hundred = self::spec(json!({"metric": {"target": 100}}));
        assert_eq!(
            play(&hundred, 2, &[(0, busy(219, 0)), (10, busy(221, 0))]),
            [2, 3]
        );
    }

    #[test]
    fn first_pass_does_not_scale_down() {
        let spec = spec(json!({}));
        assert_eq!(
            play(&spec, 6, &[(0, busy(0, 0)), (59, busy(0, 0)), (61, busy(0, 0))]),
            [6, 6, 1]
        );
    }

    #[test]
    fn scales_to_zero_when_idle_and_back_on_a_request() {
        let spec = spec(json!({"minReplicas": 0, "scaleToZeroAfter": "5m"}));
        let idle = Signals {
            completed: 7,
            ..Signals::default()
        };
        let after_request = Signals {
            completed: 8,
            ..Signals::default()
        };
        let passes = [
            (0, idle.clone()),
            (299, idle.clone()),
            (300, after_request.clone()),
            (599, after_request.clone()),
            (601, after_request.clone()),
            (670, after_request),
            (680, busy(0, 1)),
        ];
        assert_eq!(play(&spec, 1, &passes), [1, 1, 1, 1, 1, 0, 1]);
        let always = self::spec(json!({"minReplicas": 1}));
        assert_eq!(play(&always, 0, &[(0, busy(0, 0))]), [1]);
    }

    #[test]
    fn follows_queue_length_and_time_to_first_token() {
        let queue = spec(json!({"metric": {"type": "QueueLength", "target": 2}}));
        assert_eq!(
            play(&queue, 1, &[(0, busy(4, 0)), (10, busy(4, 6)), (20, busy(8, 0))]),
            [1, 3, 3]
        );
        let first = spec(json!({"metric": {"type": "TimeToFirstToken", "target": 2}}));
        let slow = Signals {
            ready: vec![ready(0, 9, 5.0), ready(1, 9, 5.0)],
            ..busy(4, 0)
        };
        assert_eq!(play(&first, 2, &[(0, slow.clone())]), [5]);
        let past = Signals { running: 0, ..slow };
        assert_eq!(
            play(&first, 2, &[(0, past.clone()), (61, past)]),
            [2, 1],
            "without requests, the metric does not count"
        );
    }

    /// Returns a replica whose median covers its last eight requests at most.
    fn ready(replica: usize, completed: u64, seconds: f64) -> ReadyReplica {
        ReadyReplica {
            uid: replica.to_string(),
            completed,
            first_token: (completed > 0).then_some(FirstToken {
                seconds,
                requests: completed.min(8),
            }),
        }
    }

    #[test]
    fn first_tokens_from_before_a_scale_up_cause_no_second_scale_up() {
        let spec = spec(json!({"metric": {"type": "TimeToFirstToken", "target": 2}}));
        let now = |replicas: &[(u64, f64)]| Signals {
            ready: replicas
                .iter()
                .enumerate()
                .map(|(replica, (completed, seconds))| ready(replica, *completed, *seconds))
                .collect(),
            ..busy(4, 0)
        };
        let passes = [
            // While two new replicas load, only a higher median increases the count.
            (0, now(&[(20, 6.0)])),
            (5, now(&[(22, 6.0)])),
            (10, now(&[(24, 7.0)])),
            (15, now(&[(26, 7.0)])),
            // All are Ready. The medians count again once they cover mostly new requests.
            (20, now(&[(28, 7.0), (0, 0.0), (0, 0.0), (0, 0.0)])),
            (25, now(&[(31, 7.0), (1, 9.0), (0, 0.0), (0, 0.0)])),
            (30, now(&[(35, 7.0), (2, 9.0), (0, 0.0), (0, 0.0)])),
            (35, now(&[(36, 2.1), (4, 2.0), (1, 2.0), (0, 0.0)])),
            (40, now(&[(44, 5.0), (12, 5.0), (9, 5.0), (8, 5.0)])),
        ];
        assert_eq!(play(&spec, 1, &passes), [3, 3, 4, 4, 4, 4, 4, 4, 8]);
        // A restarted worker counts from zero, and its few requests count.
        let passes = [
            (0, now(&[(20, 2.0)])),
            (5, now(&[(0, 0.0)])),
            (10, now(&[(3, 6.0)])),
        ];
        assert_eq!(play(&spec, 1, &passes), [1, 1, 3]);
    }

    #[test]
    fn a_schedule_raises_the_floor() {
        let spec = spec(
            json!({"minReplicas": 0, "schedules": [{"from": "00:00", "to": "00:00", "minReplicas": 2}]}),
        );
        assert_eq!(play(&spec, 0, &[(0, busy(0, 0))]), [2]);
    }

    proptest! {
        #[test]
        fn stays_within_bounds_and_is_stable(
            min in 0i32..4, more in 0i32..6, start in 0i32..12,
            passes in proptest::collection::vec((0i64..100, 0u64..60, 0u64..60, 0u64..5), 1..40),
            kind in 0usize..3,
        ) {
            let kind = ["Concurrency", "QueueLength", "TimeToFirstToken"][kind];
            let max = (min + more).max(1);
            let spec = spec(json!({"minReplicas": min, "maxReplicas": max, "metric": {"type": kind, "target": 1.5}}));
            let mut history = History::default();
            let (mut current, mut now) = (start, 0);
            for (wait, running, waiting, completed) in passes {
                now += wait;
                let ready = vec![ready(0, completed, waiting as f64)];
                let signals = Signals { running, waiting, completed, ready };
                let next = decide(&spec, current, 4, &signals, &mut history, at(now)).replicas;
                prop_assert!(next >= min && next <= max, "{next}");
                prop_assert!(next > 0 || running + waiting == 0, "requests need a replica");
                // A second pass at the same time changes nothing.
                let again = decide(&spec, next, 4, &signals, &mut history.clone(), at(now)).replicas;
                if kind == "Concurrency" {
                    prop_assert_eq!(again, next);
                }
                current = next;
            }
        }

        #[test]
        fn same_measurements_cause_one_scale_up(
            start in 1usize..5, seconds in 0.1f64..60.0, target in 0.5f64..10.0, passes in 1i64..9,
        ) {
            let spec = spec(json!({
                "maxReplicas": 500, "metric": {"type": "TimeToFirstToken", "target": target},
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 3600}},
            }));
            let mut signals = Signals {
                ready: (0..start).map(|replica| ready(replica, 8, seconds)).collect(),
                ..busy(1, 0)
            };
            let mut history = History::default();
            let first = decide(&spec, start as i32, 4, &signals, &mut history, at(0)).replicas;
            prop_assert!(f64::from(first) >= start as f64 * seconds / target / (1.0 + TOLERANCE));
            // The count stays while the new replicas load and while the old medians are reported.
            for pass in 1..=passes {
                let again = decide(&spec, first, 4, &signals, &mut history, at(5 * pass)).replicas;
                prop_assert_eq!(again, first);
            }
            signals.ready.extend((start..first as usize).map(|replica| ready(replica, 0, 0.0)));
            for pass in passes..2 * passes {
                let again = decide(&spec, first, 4, &signals, &mut history, at(5 * pass)).replicas;
                prop_assert_eq!(again, first);
                // Half of the requests in the median are from before the scale-up.
                if first > start as i32 {
                    signals.ready[0].completed = 8 + 4.min(u64::try_from(pass - passes).unwrap());
                }
            }
        }
    }
}
