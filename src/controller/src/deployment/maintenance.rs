//! Maintenance windows, in which replicas may be replaced.

use std::time::Duration;

use jiff::Timestamp;

use crate::weekly::{UnknownTimeZone, moments, time_of_day, time_zone};
use rooflet_api::v1alpha1::MaintenanceWindow;
use rooflet_base::clock::since;
use rooflet_base::quantity::parse_duration;

/// State of `spec.strategy.maintenanceWindows` at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Maintenance {
    /// The deployment has no windows.
    Always,
    Open {
        /// End of the open window that closes last.
        until: Timestamp,
    },
    Closed(Closed),
}

/// State without an open window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    /// Next opening. `None` if every window is invalid.
    pub(super) opens: Option<Timestamp>,
    /// Error in the first invalid window, which is ignored.
    pub(super) problem: Option<String>,
}

impl Maintenance {
    pub(super) fn at(windows: &[MaintenanceWindow], now: Timestamp) -> Self {
        if windows.is_empty() {
            return Self::Always;
        }
        let mut problem = None;
        let mut openings = Vec::new();
        for (index, window) in windows.iter().enumerate() {
            match openings_around(window, now) {
                Ok(found) => openings.extend(found),
                Err(why) => {
                    problem.get_or_insert(format!("spec.strategy.maintenanceWindows[{index}].{why}"));
                }
            }
        }
        let open = openings
            .iter()
            .filter(|(from, until)| *from <= now && now < *until);
        if let Some(until) = open.map(|(_, until)| *until).max() {
            return Self::Open { until };
        }
        let opens = openings
            .iter()
            .map(|(from, _)| *from)
            .filter(|from| *from > now)
            .min();
        Self::Closed(Closed { opens, problem })
    }

    /// Returns the time until the state can change.
    pub(super) fn changes_after(&self, now: Timestamp) -> Option<Duration> {
        let at = match self {
            Self::Always => None,
            Self::Open { until } => Some(*until),
            Self::Closed(Closed { opens, .. }) => *opens,
        };
        Some(since(at?, now))
    }
}

/// Invalid field of a maintenance window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum WindowError {
    #[error("timeZone: {0}")]
    TimeZone(#[from] UnknownTimeZone),
    #[error("start: `{0}` is not HH:MM")]
    Start(String),
    #[error("duration: `{0}` is not a duration such as 90m")]
    Duration(String),
}

/// Returns the start and the end of the window's openings around `now`.
fn openings_around(
    window: &MaintenanceWindow,
    now: Timestamp,
) -> Result<Vec<(Timestamp, Timestamp)>, WindowError> {
    let zone = time_zone(window.time_zone.as_deref())?;
    let start = time_of_day(&window.start).ok_or_else(|| WindowError::Start(window.start.clone()))?;
    let duration =
        parse_duration(&window.duration).ok_or_else(|| WindowError::Duration(window.duration.clone()))?;
    let until = |from: Timestamp| from.checked_add(duration).unwrap_or(Timestamp::MAX);
    let openings = moments(&window.days, start, &zone, now).into_iter();
    Ok(openings.map(|from| (from, until(from))).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn windows(text: Value) -> Vec<MaintenanceWindow> {
        serde_json::from_value(text).expect("the test passes valid windows")
    }

    #[track_caller]
    fn check(windows: &[MaintenanceWindow], now: &str, expect: &str) {
        let now: Timestamp = now.parse().expect("the test passes a valid time");
        let state = match Maintenance::at(windows, now) {
            Maintenance::Always => "always".to_owned(),
            Maintenance::Open { until } => format!("until {until}"),
            Maintenance::Closed(Closed {
                opens: Some(opens), ..
            }) => format!("from {opens}"),
            Maintenance::Closed(Closed { opens: None, problem }) => problem.expect("an invalid window"),
        };
        assert_eq!(state, expect, "{now}");
    }

    /// 2026-11-21 is a Saturday.
    #[test]
    fn window_is_open_from_its_start_until_its_end() {
        check(&[], "2026-11-21T12:00:00Z", "always");
        let night = windows(json!([{ "days": ["Sat"], "start": "22:00", "duration": "4h30m" }]));
        check(&night, "2026-11-21T21:59:59Z", "from 2026-11-21T22:00:00Z");
        check(&night, "2026-11-21T22:00:00Z", "until 2026-11-22T02:30:00Z");
        check(&night, "2026-11-22T02:29:59Z", "until 2026-11-22T02:30:00Z");
        check(&night, "2026-11-22T02:30:00Z", "from 2026-11-28T22:00:00Z");
        let tokyo = windows(json!([{ "start": "02:00", "duration": "1h", "timeZone": "Asia/Tokyo" }]));
        check(&tokyo, "2026-11-21T17:00:00Z", "until 2026-11-21T18:00:00Z");
        let week = windows(json!([{ "days": ["Mon"], "start": "00:00", "duration": "168h" }]));
        check(&week, "2026-11-21T12:00:00Z", "until 2026-11-23T00:00:00Z");
        let two = windows(json!([
            { "days": ["Sat"], "start": "10:00", "duration": "3h" },
            { "days": ["Sat"], "start": "12:00", "duration": "2h" },
        ]));
        check(&two, "2026-11-21T12:30:00Z", "until 2026-11-21T14:00:00Z");
        check(&two, "2026-11-21T14:00:00Z", "from 2026-11-28T10:00:00Z");
    }

    #[test]
    fn invalid_window_is_reported_and_stays_closed() {
        let invalid = json!({ "start": "02:00", "duration": "1h", "timeZone": "Mars/Base" });
        check(
            &windows(json!([invalid.clone()])),
            "2026-11-21T02:30:00Z",
            "spec.strategy.maintenanceWindows[0].timeZone: `Mars/Base` is not a known time zone: use an IANA name such as Europe/Berlin or an offset such as +02:00",
        );
        let valid = json!({ "start": "03:00", "duration": "1h", "timeZone": "+01:00" });
        check(
            &windows(json!([invalid, valid])),
            "2026-11-21T02:30:00Z",
            "until 2026-11-21T03:00:00Z",
        );
    }

    proptest! {
        #[test]
        fn window_opens_at_the_predicted_time_and_stays_open_for_its_duration(
            days in proptest::sample::subsequence(vec!["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], 0..7),
            hour in 0u32..24, minutes in 1i64..(7 * 24 * 60), second in 1_760_000_000i64..1_800_000_000,
            zone in proptest::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "+05:45"]),
        ) {
            let windows = windows(json!([{
                "days": days, "start": format!("{hour:02}:00"), "duration": format!("{minutes}m"), "timeZone": zone,
            }]));
            let at = |second: i64| Maintenance::at(&windows, Timestamp::from_second(second).expect("in range"));
            let opens = match at(second) {
                Maintenance::Closed(Closed { opens, .. }) => opens.expect("the window opens every week"),
                Maintenance::Open { until } => {
                    prop_assert!(until.as_second() > second && until.as_second() - second <= minutes * 60);
                    let early = matches!(at(until.as_second() - 1), Maintenance::Closed(_));
                    prop_assert!(!early, "the window closed early");
                    return Ok(());
                }
                Maintenance::Always => unreachable!("the test passes a window"),
            };
            prop_assert!(opens.as_second() > second && opens.as_second() - second <= 8 * 24 * 3600);
            let closed = matches!(at(opens.as_second() - 1), Maintenance::Closed(_));
            prop_assert!(closed, "the window opened before the predicted time");
            let Maintenance::Open { until } = at(opens.as_second()) else {
                return Err(TestCaseError::fail("the window is closed at the predicted time"));
            };
            prop_assert_eq!(until.as_second() - opens.as_second(), minutes * 60);
        }
    }
}
