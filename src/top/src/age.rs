//! Durations in the form of `kubectl get`.

use jiff::Timestamp;

/// Returns the time from `then` to `now` in at most two units, such as `45s`, `3m20s` or `5d`. A
/// time in the future counts as `0s`.
pub(crate) fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = seconds_between(then, now);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let pair = |whole: i64, unit: &str, rest: i64, small: &str| match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit}{rest}{small}"),
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

/// Returns the whole seconds from `then` to `now`, at least 0.
pub(crate) fn seconds_between(then: Timestamp, now: Timestamp) -> i64 {
    now.as_second().saturating_sub(then.as_second()).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_form_of_kubectl() {
        let start = Timestamp::UNIX_EPOCH;
        let cases = [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (3_600, "60m"),
            (11_000, "3h3m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
        ];
        for (seconds, expect) in cases {
            let now = Timestamp::from_second(seconds).expect("a time");
            assert_eq!(age(start, now), expect, "{seconds}");
        }
    }
}
