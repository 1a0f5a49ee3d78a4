//! Speed of the deployments over the last 24 hours, with one value per minute.
//!
//! The memory has a limit: [`MAX_DEPLOYMENTS`] deployments with one value of four bytes per series and
//! minute, which are 8 MB. The values are lost when the process ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::bandwidth_history::BandwidthHistory;
use super::deployment::throughput_floor;
use super::world::World;
use rooflet_api::v1alpha1::ModelDeployment;
use rooflet_base::mutex::lock;
use rooflet_base::quantity::parse_duration;

/// Number of values of a series: 24 hours.
const MINUTES: usize = 24 * 60;
const MAX_DEPLOYMENTS: usize = 200;
const INTERVAL: Duration = Duration::from_secs(60);
const SERIES: [&str; 7] = [
    "readyReplicas",
    "measuredTokensPerSecond",
    "predictedTokensPerSecond",
    "measuredTimeToFirstTokenSeconds",
    "predictedTimeToFirstTokenSeconds",
    "throughputTokensPerSecond",
    "floorTokensPerSecond",
];

/// Values of the series of a deployment at one time.
type Values = [Option<f64>; SERIES.len()];

/// Values of one deployment.
struct Recorded {
    /// Last recorded minute, since 1970.
    last: i64,
    /// Values of each series. The place of a minute is its remainder. Unknown values are not numbers.
    series: Vec<[f32; MINUTES]>,
}

fn place(minute: i64) -> usize {
    let remainder = minute.rem_euclid(MINUTES as i64);
    usize::try_from(remainder).expect("a remainder is not negative")
}

impl Recorded {
    fn new(minute: i64) -> Self {
        Self {
            last: minute,
            series: vec![[f32::NAN; MINUTES]; SERIES.len()],
        }
    }

    fn record(&mut self, minute: i64, values: &Values) {
        // Minutes without values, or, if the clock was set back, minutes that have not come yet.
        let (from, to) = (self.last.min(minute) + 1, self.last.max(minute));
        for skipped in from.max(to - MINUTES as i64 + 1)..=to {
            for series in &mut self.series {
                series[place(skipped)] = f32::NAN;
            }
        }
        self.last = minute;
        for (series, value) in self.series.iter_mut().zip(values) {
            series[place(minute)] = value.map_or(f32::NAN, |value| value as f32);
        }
    }

    /// Returns the values up to `minute`, from the first known one.
    fn to_json(&self, minute: i64) -> Value {
        let oldest = self.last - MINUTES as i64 + 1;
        let known = |series: &[f32; MINUTES], minute: i64| {
            let value = (oldest..=self.last)
                .contains(&minute)
                .then(|| series[place(minute)]);
            value.filter(|value| value.is_finite())
        };
        let all = (minute - MINUTES as i64 + 1)..=minute;
        let is_known = |minute: &i64| self.series.iter().any(|series| known(series, *minute).is_some());
        let start = all.clone().find(is_known).unwrap_or(minute);
        let columns = SERIES.iter().zip(&self.series).map(|(name, series)| {
            let values: Vec<_> = (start..=minute).map(|minute| known(series, minute)).collect();
            (*name, values)
        });
        json!({
            "start": start * 60,
            "stepSeconds": INTERVAL.as_secs(),
            "series": columns.collect::<BTreeMap<_, _>>(),
        })
    }
}

/// History of the deployments. Clones share their values.
#[derive(Clone, Default)]
pub struct SpeedHistory(Arc<Mutex<BTreeMap<String, Recorded>>>);

impl std::fmt::Debug for SpeedHistory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SpeedHistory({} deployments)", lock(&self.0).len())
    }
}

fn minute(time: Timestamp) -> i64 {
    time.as_second().div_euclid(60)
}

impl SpeedHistory {
    /// Returns the history of the deployment with this UID: the time of the first value in seconds
    /// since 1970, the interval of the values, and each series. `None` before its first value.
    pub fn of(&self, uid: &str, now: Timestamp) -> Option<Value> {
        let recorded = lock(&self.0);
        recorded.get(uid).map(|recorded| recorded.to_json(minute(now)))
    }

    /// Records the deployments, and the measurements of the nodes in `bandwidths`, once per minute until
    /// `stop` is cancelled.
    pub(super) async fn follow(
        &self,
        bandwidths: &BandwidthHistory,
        world: &World,
        stop: &CancellationToken,
    ) {
        loop {
            bandwidths.record(world.nodes.list().iter().map(|node| &**node));
            let deployments = world.deployments.list();
            let values = deployments.iter().filter_map(|deployment| {
                let uid = deployment.uid()?;
                Some((uid, values_of(deployment)))
            });
            self.record(world.clock.now(), values);
            let next = stop.run_until_cancelled(tokio::time::sleep(INTERVAL));
            if next.await.is_none() {
                return;
            }
        }
    }

    fn record(&self, now: Timestamp, values: impl Iterator<Item = (String, Values)>) {
        let minute = minute(now);
        let mut all = lock(&self.0);
        for (uid, values) in values {
            if !all.contains_key(&uid) && all.len() >= MAX_DEPLOYMENTS {
                // A deleted deployment has no value of this minute.
                let oldest = all.iter().min_by_key(|(_, recorded)| recorded.last);
                let oldest = oldest.filter(|(_, recorded)| recorded.last < minute - 1);
                let Some(oldest) = oldest.map(|(uid, _)| uid.clone()) else {
                    continue;
                };
                all.remove(&oldest);
            }
            let recorded = all.entry(uid).or_insert_with(|| Recorded::new(minute));
            recorded.record(minute, &values);
        }
        all.retain(|_, recorded| recorded.last > minute - MINUTES as i64);
    }
}

fn values_of(deployment: &ModelDeployment) -> Values {
    let Some(status) = &deployment.status else {
        return Values::default();
    };
    let [predicted_speed, speed] = pair(status.tokens_per_second.as_deref());
    let [predicted_first, first] = pair(status.time_to_first_token.as_deref());
    let floor = throughput_floor(deployment, None).filter(|floor| *floor > 0.0);
    [
        Some(f64::from(status.ready_replicas)),
        speed,
        predicted_speed,
        first,
        predicted_first,
        status.rollout.predicted_tokens_per_second,
        floor,
    ]
}

/// Parses `predicted/measured` of a deployment's status, such as `12.3/-` or `412ms/1.20s`.
fn pair(text: Option<&str>) -> [Option<f64>; 2] {
    let (predicted, measured) = text.and_then(|text| text.split_once('/')).unwrap_or_default();
    let seconds = |text: &str| parse_duration(text).filter(|_| !text.is_empty());
    let figure = |text: &str| {
        let number = text.parse().ok();
        number.or_else(|| seconds(text).map(|duration| duration.as_secs_f64()))
    };
    [figure(predicted), figure(measured)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60 + 30).expect("a time")
    }

    fn record(history: &SpeedHistory, minute: i64, uids: &[&str], speed: f64) {
        let mut values = Values::default();
        values[1] = Some(speed);
        let uids = uids.iter().map(|uid| ((*uid).to_owned(), values));
        history.record(at(minute), uids);
    }

    #[track_caller]
    fn speeds(history: &SpeedHistory, uid: &str, minute: i64) -> (i64, Vec<Option<f64>>) {
        let found = history.of(uid, at(minute)).expect("recorded");
        let speeds = found["series"]["measuredTokensPerSecond"]
            .as_array()
            .expect("values")
            .iter();
        let start = found["start"].as_i64().expect("a time");
        (start / 60, speeds.map(Value::as_f64).collect())
    }

    #[test]
    fn minutes_without_values_are_unknown() {
        let history = SpeedHistory::default();
        record(&history, 100, &["a"], 1.0);
        record(&history, 103, &["a"], 2.5);
        assert_eq!(history.of("b", at(103)), None);
        let expect = vec![Some(1.0), None, None, Some(2.5), None];
        assert_eq!(speeds(&history, "a", 104), (100, expect));
    }

    #[test]
    fn values_are_kept_for_24_hours() {
        let history = SpeedHistory::default();
        for minute in 0..3000 {
            record(&history, minute, &["a"], minute as f64);
        }
        let (start, values) = speeds(&history, "a", 2999);
        assert_eq!((start, values.len()), (2999 - 1439, 1440));
        assert_eq!(values.first(), Some(&Some(1560.0)));
        assert_eq!(values.last(), Some(&Some(2999.0)));
        // A day without values, as during a sleep of the machine.
        record(&history, 2999 + 1440, &["a"], 7.0);
        assert_eq!(speeds(&history, "a", 2999 + 1440), (4439, vec![Some(7.0)]));
    }

    #[test]
    fn clock_that_is_set_back_leaves_no_values_of_the_future() {
        let history = SpeedHistory::default();
        for minute in 1000..1060 {
            record(&history, minute, &["a"], 1.0);
        }
        record(&history, 1000, &["a"], 2.0);
        assert_eq!(speeds(&history, "a", 1000), (1000, vec![Some(2.0)]));
        record(&history, 1001, &["a"], 3.0);
        assert_eq!(speeds(&history, "a", 1001), (1000, vec![Some(2.0), Some(3.0)]));
    }

    #[test]
    fn size_is_bounded_and_deleted_deployments_make_room() {
        let history = SpeedHistory::default();
        let names: Vec<String> = (0..=MAX_DEPLOYMENTS).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        record(&history, 1, &names, 1.0);
        let (last, kept) = names.split_last().expect("names");
        assert_eq!(history.of(last, at(1)), None);
        let bytes: usize = lock(&history.0)
            .values()
            .flat_map(|recorded| &recorded.series)
            .map(size_of_val)
            .sum();
        assert_eq!(bytes, 200 * 7 * 1440 * 4, "8.1 MB, as in docs/web-page.md");
        // The first deployment has been deleted.
        record(&history, 2, &kept[1..], 1.0);
        record(&history, 3, &names[1..], 1.0);
        assert_eq!(history.of("0", at(3)), None);
        assert!(history.of(last, at(3)).is_some());
        record(&history, 1 + 1440 + 3, &[], 1.0);
        assert_eq!(lock(&history.0).len(), 0, "values older than a day are removed");
    }

    #[test]
    fn values_are_those_of_the_status() {
        assert_eq!(pair(Some("36.5/35.1")), [Some(36.5), Some(35.1)]);
        assert_eq!(pair(Some("1.2s/412ms")), [Some(1.2), Some(0.412)]);
        assert_eq!(pair(Some("-/1m30s")), [None, Some(90.0)]);
        for unknown in [None, Some(""), Some("-/-")] {
            assert_eq!(pair(unknown), [None, None]);
        }
    }
}
