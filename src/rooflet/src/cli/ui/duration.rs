//! Durations of flags: one syntax for all of them.

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

#[cfg(test)]
mod tests {
    use super::*;

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
