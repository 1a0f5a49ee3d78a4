//! Minimum replica counts at certain times of the week.

use jiff::Timestamp;

use crate::weekly::{UnknownTimeZone, is_on, time_of_day, time_zone};
use rooflet_api::v1alpha1::AutoscalingSchedule;

/// Returns the highest `minReplicas` of the active schedules, and the error of the first invalid
/// schedule. Invalid schedules are ignored.
pub(super) fn min_replicas(schedules: &[AutoscalingSchedule], now: Timestamp) -> (i32, Option<String>) {
    let mut problem = None;
    let mut least = 0;
    for (index, schedule) in schedules.iter().enumerate() {
        match is_active(schedule, now) {
            Ok(true) => least = least.max(schedule.min_replicas),
            Ok(false) => {}
            Err(err) => {
                problem.get_or_insert(format!("spec.autoscaling.schedules[{index}].timeZone: {err}"));
            }
        }
    }
    (least, problem)
}

fn is_active(schedule: &AutoscalingSchedule, now: Timestamp) -> Result<bool, UnknownTimeZone> {
    let now = now.to_zoned(time_zone(schedule.time_zone.as_deref())?);
    let (Some(from), Some(to)) = (time_of_day(&schedule.from), time_of_day(&schedule.to)) else {
        // The schema rejects other texts.
        return Ok(false);
    };
    let (today, clock) = (now.weekday(), now.time());
    let days = &schedule.days;
    Ok(if from < to {
        is_on(days, today) && from <= clock && clock < to
    } else {
        // The schedule ends on the day after its start.
        (is_on(days, today) && clock >= from) || (is_on(days, today.previous()) && clock < to)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schedule: serde_json::Value, now: &str, expect: i32) {
        let schedule: AutoscalingSchedule =
            serde_json::from_value(schedule).expect("the test passes a valid schedule");
        let got = min_replicas(
            std::slice::from_ref(&schedule),
            now.parse().expect("the test passes a valid time"),
        );
        assert_eq!(got, (expect, None), "{now} {schedule:?}");
    }

    #[test]
    fn schedules_within_a_day_and_across_midnight() {
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
