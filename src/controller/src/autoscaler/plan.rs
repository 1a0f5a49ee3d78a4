//! The number of replicas, from signals and from what was called for before. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use super::first_token::{Answering, Joined};
use super::schedule::min_replicas;
use rooflet_api::v1alpha1::{AutoscalingMetricType, AutoscalingSpec};
use rooflet_base::clock::since;
use rooflet_base::quantity::parse_duration;

/// A metric this near to its target is at it; the HorizontalPodAutoscaler's own tolerance.
const TOLERANCE: f64 = 0.1;
/// Kubernetes' default, and for the same reason: a replica is dear to bring back.
const DEFAULT_SCALE_DOWN_WINDOW_SECONDS: u32 = 300;
const DEFAULT_SCALE_TO_ZERO_AFTER: Duration = Duration::from_secs(600);
/// Of `serving.maxConcurrency`, for Concurrency: above it, requests begin to wait for one another.
const DEFAULT_CONCURRENCY_SHARE: f64 = 0.75;
const DEFAULT_QUEUE_LENGTH: f64 = 1.0;
/// What was called for is remembered at this resolution.
const RESOLUTION: Duration = Duration::from_secs(5);

/// What is going on, of all replicas and gateways together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Signals {
    /// Requests being answered.
    pub running: u64,
    /// Requests that wait, in workers and gateways.
    pub waiting: u64,
    /// Requests that were answered, ever; only its changes count.
    pub completed: u64,
    /// The replicas that answer.
    pub answering: Vec<Answering>,
}

/// What is remembered from pass to pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Memory {
    /// What was called for, and when; the oldest first.
    called_for: VecDeque<(Timestamp, i32)>,
    /// Since when nobody has asked anything, and the count of answers then.
    idle: Option<(Timestamp, u64)>,
    joined: Joined,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    pub(super) replicas: i32,
    /// Why, for the event.
    pub(super) why: String,
    /// What the metric alone calls for, where there may not be as many.
    pub(super) limit: Option<Limit>,
    /// Whether a change is called for, and not yet for long enough.
    pub(super) stabilizing: Option<Direction>,
    /// Whether there is a figure to follow.
    pub(super) is_measured: bool,
    /// What is wrong with a schedule that is left out.
    pub(super) problem: Option<String>,
}

/// The bound that rules.
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

/// `current` is `spec.replicas`, `max_concurrency` the streams of one replica.
pub(super) fn decide(
    spec: &AutoscalingSpec,
    current: i32,
    max_concurrency: u32,
    signals: &Signals,
    memory: &mut Memory,
    now: Timestamp,
) -> Decision {
    let max = spec.max_replicas.max(1);
    let (scheduled, problem) = min_replicas(&spec.schedules, now);
    let floor = spec.min_replicas.max(scheduled).clamp(0, max);
    memory
        .joined
        .see(&signals.answering, signals.running + signals.waiting);
    let first_token = memory.joined.mean(&signals.answering);
    let (wanted, why) = wanted(spec, current, f64::from(max_concurrency), signals, first_token);
    let may_be_none = memory.is_idle(spec, signals, now) && floor == 0;
    let called_for = wanted
        .max(i32::from(!may_be_none && current > 0))
        .clamp(floor, max);
    let replicas = memory
        .stabilized(spec, current, called_for, now)
        .clamp(floor, max);
    let why = match () {
        () if replicas == called_for && called_for == wanted => why,
        () if replicas == 0 => "no request for scaleToZeroAfter".to_owned(),
        () if replicas == floor && floor > wanted => "the fewest there may be now".to_owned(),
        () if replicas == max && max < wanted => format!("{why}; maxReplicas is {max}"),
        () => why,
    };
    let limit = match wanted {
        _ if wanted > max => Some(Limit::TooMany),
        _ if wanted < floor => Some(Limit::TooFew),
        _ => None,
    };
    let stabilizing = match replicas {
        _ if replicas < called_for => Some(Direction::Up),
        _ if replicas > called_for => Some(Direction::Down),
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

/// Requests can always be counted; how long they took is known once some were answered.
fn is_measured(spec: &AutoscalingSpec, signals: &Signals) -> bool {
    match spec.metric.kind {
        AutoscalingMetricType::Concurrency | AutoscalingMetricType::QueueLength => true,
        AutoscalingMetricType::TimeToFirstToken => {
            signals.answering.iter().any(|one| one.first_token.is_some())
        }
    }
}

/// What the metric alone calls for, and its words. `first_token` is the mean of what tells of the replicas that answer now.
fn wanted(
    spec: &AutoscalingSpec,
    current: i32,
    streams: f64,
    signals: &Signals,
    first_token: Option<f64>,
) -> (i32, String) {
    // A hair above a whole number is rounding.
    let whole = |number: f64| (number - 1e-9).ceil().min(f64::from(i32::MAX)) as i32;
    let (running, waiting) = (signals.running as f64, signals.waiting as f64);
    // Whatever is followed, requests that are there need streams.
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
            let wanted = match current {
                0 => whole(requests / target),
                _ => by_ratio(requests / (target * replicas)),
            };
            (
                wanted,
                format!("{requests} requests at once, {target} per replica"),
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
            let why = format!("{waiting} requests wait, {target} per replica");
            (more.max(needed), why)
        }
        AutoscalingMetricType::TimeToFirstToken => {
            // A median of the past says nothing once nobody asks any more.
            let is_asked = signals.running + signals.waiting > 0;
            let requests = || format!("{} requests at once", running + waiting);
            let answering = i32::try_from(signals.answering.len()).unwrap_or(i32::MAX);
            match (first_token, spec.metric.target) {
                (Some(seconds), Some(target)) if is_asked => {
                    let why = format!("{seconds:.2} s to the first token, {target} wanted");
                    let wanted = match answering < current {
                        // Those on their way are counted as if they took their part of it, as a HorizontalPodAutoscaler does.
                        true => whole(f64::from(answering) * seconds / target).max(current),
                        false => by_ratio(seconds / target),
                    };
                    (wanted.max(needed), why)
                }
                // What is measured speaks of fewer replicas than there are now.
                (None, Some(_)) if is_asked && is_measured(spec, signals) => {
                    (needed.max(current), requests())
                }
                (Some(_) | None, _) => (needed, requests()),
            }
        }
    }
}

impl Memory {
    /// Whether nobody has asked anything for long enough.
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

    /// Down only to what was enough, and up only to what was called for, all through the window of that direction.
    fn stabilized(&mut self, spec: &AutoscalingSpec, current: i32, called_for: i32, now: Timestamp) -> i32 {
        let window =
            |seconds: Option<u32>, default: u32| Duration::from_secs(u64::from(seconds.unwrap_or(default)));
        let up = window(spec.behavior.scale_up.stabilization_window_seconds, 0);
        let down = window(
            spec.behavior.scale_down.stabilization_window_seconds,
            DEFAULT_SCALE_DOWN_WINDOW_SECONDS,
        );
        // Before the first pass there was what there is: a restart of the controller takes nothing away.
        if self.called_for.is_empty() {
            self.called_for.push_back((now, current));
        }
        match self.called_for.back_mut() {
            Some((at, last)) if since(now, *at) < RESOLUTION && called_for <= *last => {}
            Some(_) | None => self.called_for.push_back((now, called_for)),
        }
        let longest = up.max(down);
        while self.called_for.len() > 1
            && self
                .called_for
                .front()
                .is_some_and(|(at, _)| since(now, *at) >= longest)
        {
            self.called_for.pop_front();
        }
        let within = |window: Duration| {
            self.called_for
                .iter()
                .filter(move |(at, _)| since(now, *at) < window)
                .map(|(_, replicas)| *replicas)
                .chain([called_for])
        };
        let least = within(up).min().unwrap_or(called_for);
        let most = within(down).max().unwrap_or(called_for);
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
        let more = more.as_object().expect("an object").clone();
        spec.as_object_mut().expect("an object").extend(more);
        serde_json::from_value(spec).expect("a spec")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("in range")
    }

    /// Passes at these seconds with these signals; what each decides.
    fn play(spec: &AutoscalingSpec, mut current: i32, passes: &[(i64, Signals)]) -> Vec<i32> {
        let mut memory = Memory::default();
        passes
            .iter()
            .map(|(seconds, signals)| {
                current = decide(spec, current, 4, signals, &mut memory, at(*seconds)).replicas;
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
    fn it_follows_requests_up_at_once_and_down_when_they_stay_away() {
        let spec = spec(json!({}));
        // Three of four streams each, unless told otherwise.
        let passes = [
            (0, busy(4, 5)),
            (10, busy(9, 0)),
            (20, busy(2, 0)),
            (60, busy(2, 0)),
            (90, busy(2, 0)),
            (100, busy(50, 50)),
        ];
        assert_eq!(play(&spec, 1, &passes), [3, 3, 3, 3, 1, 8]);
        // As near as a tenth is on target.
        let hundred = self::spec(json!({"metric": {"target": 100}}));
        assert_eq!(
            play(&hundred, 2, &[(0, busy(219, 0)), (10, busy(221, 0))]),
            [2, 3]
        );
    }

    #[test]
    fn a_restarted_controller_takes_nothing_away_at_once() {
        let spec = spec(json!({}));
        assert_eq!(
            play(&spec, 6, &[(0, busy(0, 0)), (59, busy(0, 0)), (61, busy(0, 0))]),
            [6, 6, 1]
        );
    }

    #[test]
    fn the_last_replica_goes_when_nobody_asks_and_comes_back_when_somebody_does() {
        let spec = spec(json!({"minReplicas": 0, "scaleToZeroAfter": "5m"}));
        let idle = Signals {
            completed: 7,
            ..Signals::default()
        };
        let asked = Signals {
            completed: 8,
            ..Signals::default()
        };
        let passes = [
            (0, idle.clone()),
            (299, idle.clone()),
            (300, asked.clone()),
            (599, asked.clone()),
            (601, asked.clone()),
            (670, asked),
            (680, busy(0, 1)),
        ];
        assert_eq!(play(&spec, 1, &passes), [1, 1, 1, 1, 1, 0, 1]);
        let always = self::spec(json!({"minReplicas": 1}));
        assert_eq!(play(&always, 0, &[(0, busy(0, 0))]), [1]);
    }

    #[test]
    fn queues_and_first_tokens_are_followed_too() {
        let queue = spec(json!({"metric": {"type": "QueueLength", "target": 2}}));
        assert_eq!(
            play(&queue, 1, &[(0, busy(4, 0)), (10, busy(4, 6)), (20, busy(8, 0))]),
            [1, 3, 3]
        );
        let first = spec(json!({"metric": {"type": "TimeToFirstToken", "target": 2}}));
        let slow = Signals {
            answering: vec![answering(0, 9, 5.0), answering(1, 9, 5.0)],
            ..busy(4, 0)
        };
        assert_eq!(play(&first, 2, &[(0, slow.clone())]), [5]);
        let past = Signals { running: 0, ..slow };
        assert_eq!(
            play(&first, 2, &[(0, past.clone()), (61, past)]),
            [2, 1],
            "nobody waits for it now"
        );
    }

    /// The median of its last eight requests, at most, of those that it has answered.
    fn answering(replica: usize, completed: u64, seconds: f64) -> Answering {
        Answering {
            replica: replica.to_string(),
            completed,
            first_token: (completed > 0).then_some(FirstToken {
                seconds,
                requests: completed.min(8),
            }),
        }
    }

    #[test]
    fn first_tokens_from_before_the_newest_replica_call_for_no_more() {
        let spec = spec(json!({"metric": {"type": "TimeToFirstToken", "target": 2}}));
        let now = |answering: &[(u64, f64)]| Signals {
            answering: answering
                .iter()
                .enumerate()
                .map(|(replica, (completed, seconds))| self::answering(replica, *completed, *seconds))
                .collect(),
            ..busy(4, 0)
        };
        let passes = [
            // Two are missing, and no more while they load, but for what gets worse.
            (0, now(&[(20, 6.0)])),
            (5, now(&[(22, 6.0)])),
            (10, now(&[(24, 7.0)])),
            (15, now(&[(26, 7.0)])),
            // All answer, the four first that were there already. Then it takes most of what is reported to be of the time after.
            (20, now(&[(28, 7.0), (0, 0.0), (0, 0.0), (0, 0.0)])),
            (25, now(&[(31, 7.0), (1, 9.0), (0, 0.0), (0, 0.0)])),
            (30, now(&[(35, 7.0), (2, 9.0), (0, 0.0), (0, 0.0)])),
            (35, now(&[(36, 2.1), (4, 2.0), (1, 2.0), (0, 0.0)])),
            (40, now(&[(44, 5.0), (12, 5.0), (9, 5.0), (8, 5.0)])),
        ];
        assert_eq!(play(&spec, 1, &passes), [3, 3, 4, 4, 4, 4, 4, 4, 8]);
        // A worker that was started again counts from zero, and its few requests count.
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
        fn bounds_hold_whatever_happens_and_nothing_moves_without_need(
            min in 0i32..4, more in 0i32..6, start in 0i32..12,
            passes in proptest::collection::vec((0i64..100, 0u64..60, 0u64..60, 0u64..5), 1..40),
            kind in 0usize..3,
        ) {
            let kind = ["Concurrency", "QueueLength", "TimeToFirstToken"][kind];
            let max = (min + more).max(1);
            let spec = spec(json!({"minReplicas": min, "maxReplicas": max, "metric": {"type": kind, "target": 1.5}}));
            let mut memory = Memory::default();
            let (mut current, mut now) = (start, 0);
            for (wait, running, waiting, completed) in passes {
                now += wait;
                let answering = vec![answering(0, completed, waiting as f64)];
                let signals = Signals { running, waiting, completed, answering };
                let next = decide(&spec, current, 4, &signals, &mut memory, at(now)).replicas;
                prop_assert!(next >= min && next <= max, "{next}");
                prop_assert!(next > 0 || running + waiting == 0, "requests are there");
                // The same moment again changes nothing.
                let again = decide(&spec, next, 4, &signals, &mut memory.clone(), at(now)).replicas;
                if kind == "Concurrency" {
                    prop_assert_eq!(again, next);
                }
                current = next;
            }
        }

        #[test]
        fn what_has_called_for_replicas_once_calls_for_no_more_of_them(
            start in 1usize..5, seconds in 0.1f64..60.0, target in 0.5f64..10.0, passes in 1i64..9,
        ) {
            let spec = spec(json!({
                "maxReplicas": 500, "metric": {"type": "TimeToFirstToken", "target": target},
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 3600}},
            }));
            let mut signals = Signals {
                answering: (0..start).map(|replica| answering(replica, 8, seconds)).collect(),
                ..busy(1, 0)
            };
            let mut memory = Memory::default();
            let first = decide(&spec, start as i32, 4, &signals, &mut memory, at(0)).replicas;
            prop_assert!(f64::from(first) >= start as f64 * seconds / target / (1.0 + TOLERANCE));
            // Not while the new ones load, and not by what those that were there say when they have come.
            for pass in 1..=passes {
                let again = decide(&spec, first, 4, &signals, &mut memory, at(5 * pass)).replicas;
                prop_assert_eq!(again, first);
            }
            signals.answering.extend((start..first as usize).map(|replica| answering(replica, 0, 0.0)));
            for pass in passes..2 * passes {
                let again = decide(&spec, first, 4, &signals, &mut memory, at(5 * pass)).replicas;
                prop_assert_eq!(again, first);
                // Half of what they report is from before.
                if first > start as i32 {
                    signals.answering[0].completed = 8 + 4.min(u64::try_from(pass - passes).unwrap());
                }
            }
        }
    }
}
