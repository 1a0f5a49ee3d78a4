//! Durations of flags: one syntax for all of them.

use std::ops::RangeInclusive;
use std::time::Duration;

use rooflet_base::quantity::parse_duration;

const DAY_SECONDS: f64 = 24.0 * 3600.0;
const FORM: &str = "must be a duration such as 90s, 15m, 12h or 7d";

/// Parses a Go duration such as `1m30s`, also with days such as `7d` or `1d12h`; `0` needs no unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (days, rest) = match text.split_once('d') {
        Some((days, rest)) => (Some(days), rest),
        None => (None, text),
    };
    let days = match days.map(str::parse::<f64>) {
        Some(Ok(days)) if days >= 0.0 => Duration::try_from_secs_f64(days * DAY_SECONDS).ok(),
        Some(_) => None,
        None if text == "0" => return Ok(Duration::ZERO),
        None if text.is_empty() => None,
        None => Some(Duration::ZERO),
    };
    let rest = parse_duration(rest);
    let total = days.zip(rest).and_then(|(days, rest)| days.checked_add(rest));
    total.ok_or_else(|| FORM.to_owned())
}

/// Parses a duration that is longer than 0.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("{FORM}, and longer than 0")),
        positive => Ok(positive),
    }
}

/// Parses whole seconds within a range: a duration, or a number of seconds without a unit.
pub(crate) fn seconds_within(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let of_duration = || {
        let duration = duration(text).ok()?;
        (duration.subsec_nanos() == 0).then_some(duration.as_secs())
    };
    let seconds = text.parse().ok().or_else(of_duration);
    seconds.filter(|seconds| range.contains(seconds)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("must be a duration such as 90s or 15m, from {least} to {most} seconds")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_a_unit_or_none_and_a_range() {
        for (text, expect) in [
            ("90", 90),
            ("90s", 90),
            ("1m30s", 90),
            ("1h", 3600),
            ("0.5h", 1800),
        ] {
            assert_eq!(seconds_within(text, 1..=3600), Ok(expect), "{text}");
        }
        for text in ["0", "-3", "3601", "2h", "1.5", "500ms", "long", ""] {
            let err = seconds_within(text, 1..=3600).unwrap_err();
            assert!(err.contains("from 1 to 3600 seconds"), "{text}: {err}");
        }
        assert_eq!(seconds_within("0", 0..=10), Ok(0));
    }

    #[test]
    fn durations_have_units_up_to_days() {
        for (text, seconds) in [
            ("0", 0.0),
            ("0s", 0.0),
            ("500ms", 0.5),
            ("1m30s", 90.0),
            ("12h", 43_200.0),
            ("7d", 604_800.0),
            ("1d12h", 129_600.0),
            ("1.5d", 129_600.0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for wrong in [
            "", "24", "soon", "-1h", "-1d", "d", "NaNd", "infd", "7d5", "1h2d", "1 h", "1e40d",
        ] {
            let problem = duration(wrong).unwrap_err();
            assert!(problem.contains("90s, 15m, 12h or 7d"), "{wrong}: {problem}");
        }
        positive_duration("0").unwrap_err();
        positive_duration("0d").unwrap_err();
        assert_eq!(positive_duration("1s"), Ok(Duration::from_secs(1)));
    }
}
