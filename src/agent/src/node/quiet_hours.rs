//! Quiet hours: times of the day at which the machine is reserved for its user.

use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::jiff::civil::Time;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Daily periods in the machine's time zone. Empty by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuietHours(Vec<(Time, Time)>);

/// Error of a text that is not `HH:MM-HH:MM`.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is not a period: use HH:MM-HH:MM, such as 09:00-18:00, and separate several periods by commas"
)]
pub struct ParseQuietHoursError(String);

impl QuietHours {
    /// Returns true if `time` is within a period. A period includes its start and excludes its end.
    /// A period that ends before it starts spans midnight.
    pub fn contain(&self, time: Time) -> bool {
        self.0.iter().any(|(from, to)| {
            if from < to {
                (*from..*to).contains(&time)
            } else {
                time >= *from || time < *to
            }
        })
    }

    /// Returns the time until the next start or end of a period. `None` if no period starts or
    /// ends.
    pub fn change_after(&self, time: Time) -> Option<Duration> {
        let until = |moment: Time| match moment > time {
            true => moment.duration_since(time).unsigned_abs(),
            false => DAY - time.duration_since(moment).unsigned_abs(),
        };
        let parts = self.0.iter().filter(|(from, to)| from != to);
        parts.flat_map(|(from, to)| [until(*from), until(*to)]).min()
    }
}

impl FromStr for QuietHours {
    type Err = ParseQuietHoursError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let part = |part: &str| {
            let (from, to) = part.split_once('-')?;
            let (from, to) = (time(from.trim())?, time(to.trim())?);
            // Only 00:00-24:00 may start and end at the same time.
            (from != to || (from, written_end(part)) == (Time::midnight(), "24:00")).then_some((from, to))
        };
        let parts = text.split(',').map(|written| {
            let written = written.trim();
            part(written).ok_or_else(|| ParseQuietHoursError(written.to_owned()))
        });
        parts.collect::<Result<_, _>>().map(Self)
    }
}

fn written_end(part: &str) -> &str {
    part.rsplit('-').next().unwrap_or_default().trim()
}

/// Parses `HH:MM`. `24:00` is valid as the end of a period.
fn time(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    let two_digits = |part: &str| {
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse::<i8>().ok()).flatten()
    };
    let (hour, minute) = (two_digits(hour)?, two_digits(minute)?);
    match (hour, minute) {
        (24, 0) => Some(Time::midnight()),
        _ => Time::new(hour, minute, 0, 0).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, quiet: &[&str], serving: &[&str]) {
        let hours: QuietHours = text.parse().unwrap();
        for (times, expect) in [(quiet, true), (serving, false)] {
            for time in times {
                assert_eq!(hours.contain(time.parse().unwrap()), expect, "{time} in {text}");
            }
        }
    }

    #[test]
    fn period_includes_its_start_and_excludes_its_end() {
        check(
            "09:00-17:30",
            &["09:00", "17:29:59"],
            &["08:59:59", "17:30", "00:00"],
        );
        check(
            "22:00-07:00",
            &["22:00", "23:59", "00:00", "06:59"],
            &["07:00", "21:59"],
        );
        check(
            "12:00-13:00, 20:00-24:00",
            &["12:30", "23:59:59"],
            &["13:00", "00:00"],
        );
        check("00:00-24:00", &["00:00", "12:00", "23:59"], &[]);
    }

    #[test]
    fn next_change_is_the_earliest_start_or_end() {
        let hours: QuietHours = "09:00-12:00,22:00-07:00".parse().unwrap();
        for (time, minutes) in [("08:59", 1), ("09:00", 180), ("12:00", 600), ("23:30", 450)] {
            let expect = Duration::from_secs(minutes * 60);
            assert_eq!(hours.change_after(time.parse().unwrap()), Some(expect), "{time}");
        }
        let always: QuietHours = "00:00-24:00".parse().unwrap();
        for never in [always, QuietHours::default()] {
            assert_eq!(never.change_after(Time::midnight()), None);
        }
    }

    #[test]
    fn rejects_invalid_periods() {
        for text in [
            "",
            "9-17",
            "09:00",
            "09:00-25:00",
            "09:00-09:00",
            "09:00-17:00,",
            "9:00-17:00",
            "+9:00-17:00",
        ] {
            let err = text.parse::<QuietHours>().unwrap_err().to_string();
            assert!(err.contains("HH:MM-HH:MM"), "{text}: {err}");
        }
    }
}
