//! Times of the week at which more replicas are wanted.

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;

use crate::api::v1alpha1::{AutoscalingSchedule, Weekday};

/// The fewest replicas that the schedules ask for now. A schedule in an unknown time zone is taken as UTC.
pub(super) fn min_replicas(schedules: &[AutoscalingSchedule], now: Timestamp) -> i32 {
    let active = schedules.iter().filter(|schedule| is_active(schedule, now));
    active.map(|schedule| schedule.min_replicas).max().unwrap_or(0)
}

fn is_active(schedule: &AutoscalingSchedule, now: Timestamp) -> bool {
    let zone = schedule
        .time_zone
        .as_deref()
        .and_then(|name| TimeZone::get(name).ok())
        .unwrap_or(TimeZone::UTC);
    let now = now.to_zoned(zone);
    let (Some(from), Some(to)) = (time(&schedule.from), time(&schedule.to)) else {
        return false;
    };
    let begins_on = |day: jiff::civil::Weekday| {
        schedule.days.is_empty() || schedule.days.iter().any(|known| weekday(*known) == day)
    };
    let (today, clock) = (now.weekday(), now.time());
    if from < to {
        begins_on(today) && from <= clock && clock < to
    } else {
        // It ends on the day after it began.
        (begins_on(today) && clock >= from) || (begins_on(today.previous()) && clock < to)
    }
}

fn time(text: &str) -> Option<Time> {
    let (hours, minutes) = text.split_once(':')?;
    Time::new(hours.parse().ok()?, minutes.parse().ok()?, 0, 0).ok()
}

fn weekday(day: Weekday) -> jiff::civil::Weekday {
    match day {
        Weekday::Mon => jiff::civil::Weekday::Monday,
        Weekday::Tue => jiff::civil::Weekday::Tuesday,
        Weekday::Wed => jiff::civil::Weekday::Wednesday,
        Weekday::Thu => jiff::civil::Weekday::Thursday,
        Weekday::Fri => jiff::civil::Weekday::Friday,
        Weekday::Sat => jiff::civil::Weekday::Saturday,
        Weekday::Sun => jiff::civil::Weekday::Sunday,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schedule: serde_json::Value, now: &str, expect: i32) {
        let schedule: AutoscalingSchedule = serde_json::from_value(schedule).expect("a schedule");
        let got = min_replicas(std::slice::from_ref(&schedule), now.parse().expect("a time"));
        assert_eq!(got, expect, "{now} {schedule:?}");
    }

    #[test]
    fn office_hours_and_nights() {
        let office = json!({"days": ["Mon", "Fri"], "from": "08:00", "to": "18:00", "minReplicas": 2});
        // 2026-11-20 was a Friday.
        check(office.clone(), "2026-11-20T08:00:00Z", 2);
        check(office.clone(), "2026-11-20T18:00:00Z", 0);
        check(office.clone(), "2026-11-21T10:00:00Z", 0);
        let night = json!({"days": ["Fri"], "from": "22:00", "to": "06:00", "minReplicas": 3});
        check(night.clone(), "2026-11-20T23:00:00Z", 3);
        check(night.clone(), "2026-11-21T05:59:00Z", 3);
        check(night.clone(), "2026-11-20T05:59:00Z", 0);
        check(night, "2026-11-21T06:00:00Z", 0);
        let always = json!({"from": "00:00", "to": "00:00", "minReplicas": 1});
        check(always, "2026-11-21T12:00:00Z", 1);
        let mut berlin = office;
        berlin["timeZone"] = json!("Europe/Berlin");
        check(berlin.clone(), "2026-11-20T07:00:00Z", 2);
        check(berlin, "2026-11-20T17:30:00Z", 0);
    }
}
