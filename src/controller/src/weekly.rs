//! Weekly times in a time zone, for autoscaling schedules and maintenance windows.

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::TimeZone;

use rooflet_api::v1alpha1::Weekday;

static PARSER: DateTimeParser = DateTimeParser::new();

/// Text that is neither a name in the time zone database of the machine nor an offset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a known time zone: use an IANA name such as Europe/Berlin or an offset such as +02:00")]
pub(super) struct UnknownTimeZone(String);

/// Returns the time zone of the name or offset. The default is UTC.
pub(super) fn time_zone(name: Option<&str>) -> Result<TimeZone, UnknownTimeZone> {
    match name {
        None | Some("UTC" | "Z") => Ok(TimeZone::UTC),
        Some(name) => PARSER
            .parse_time_zone(name)
            .map_err(|_| UnknownTimeZone(name.to_owned())),
    }
}

/// Parses `HH:MM`.
pub(super) fn time_of_day(text: &str) -> Option<Time> {
    let (hours, minutes) = text.split_once(':')?;
    Time::new(hours.parse().ok()?, minutes.parse().ok()?, 0, 0).ok()
}

/// Returns whether `days` contains `day`. An empty list contains every day.
pub(super) fn is_on(days: &[Weekday], day: jiff::civil::Weekday) -> bool {
    days.is_empty() || days.iter().any(|known| weekday(*known) == day)
}

/// Returns the times at which a clock in `zone` shows `time` on one of `days`, from eight days
/// before `now` until eight days after it, in order.
///
/// If a change of the clocks skips the time, the result is later by the length of the gap. If a
/// change repeats the time, the result is the first occurrence.
pub(super) fn moments(days: &[Weekday], time: Time, zone: &TimeZone, now: Timestamp) -> Vec<Timestamp> {
    let today = now.to_zoned(zone.clone()).date();
    (-8..=8)
        .filter_map(|offset: i64| today.checked_add(jiff::Span::new().days(offset)).ok())
        .filter(|date| is_on(days, date.weekday()))
        .filter_map(|date| zone.to_ambiguous_zoned(date.to_datetime(time)).compatible().ok())
        .map(|moment| moment.timestamp())
        .collect()
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
    use super::*;

    #[test]
    fn time_zone_accepts_names_and_offsets() {
        // Central European Time is UTC+1 in November.
        let at = |zone: Option<&str>| {
            let noon: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
            time_zone(zone).map(|zone| noon.to_zoned(zone).time().to_string())
        };
        assert_eq!(at(None).as_deref(), Ok("12:00:00"));
        assert_eq!(at(Some("UTC")).as_deref(), Ok("12:00:00"));
        assert_eq!(at(Some("Europe/Berlin")).as_deref(), Ok("13:00:00"));
        assert_eq!(at(Some("-05:30")).as_deref(), Ok("06:30:00"));
        for invalid in ["Europe/Berlyn", "", "5", "2026-11-21"] {
            let message = at(Some(invalid)).expect_err("not a time zone").to_string();
            let expect = format!("`{invalid}` is not a known time zone");
            assert!(message.starts_with(&expect), "{message}");
        }
    }

    /// In Berlin, the clocks change from 02:00 to 03:00 on 2026-03-29 and from 03:00 to 02:00 on
    /// 2026-10-25.
    #[test]
    fn moments_returns_skipped_and_repeated_times_once() {
        let zone = time_zone(Some("Europe/Berlin")).expect("known");
        let sunday = |around: &str| {
            let now = around.parse().expect("a time");
            let all = moments(&[Weekday::Sun], Time::constant(2, 30, 0, 0), &zone, now);
            all.iter().map(Timestamp::to_string).collect::<Vec<_>>()
        };
        let spring = sunday("2026-03-29T12:00:00Z");
        assert_eq!(
            spring,
            [
                "2026-03-22T01:30:00Z",
                "2026-03-29T01:30:00Z",
                "2026-04-05T00:30:00Z"
            ]
        );
        let autumn = sunday("2026-10-25T12:00:00Z");
        assert_eq!(
            autumn,
            [
                "2026-10-18T00:30:00Z",
                "2026-10-25T00:30:00Z",
                "2026-11-01T01:30:00Z"
            ]
        );
    }
}
