//! Number checks: integers are compared as integers, all other numbers as float64.

use serde_json::Number;

use super::{format::Format, gotext, types::Types};

/// Relative tolerance within which a float counts as a whole number.
const WHOLE_TOLERANCE: f64 = 1e-9;

/// Largest integer up to which float64 represents every integer exactly.
const EXACT_WHOLE_MAX: f64 = 9_007_199_254_740_991.0;

pub(super) fn is_whole(value: f64) -> bool {
    if !value.is_finite() || value.abs() > EXACT_WHOLE_MAX {
        return false;
    }
    let off = (value - value.round()).abs();
    off == 0.0 || off / value.abs() < WHOLE_TOLERANCE
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or_default()
}

/// Truncates a bound to an integer, for comparisons with integers.
fn whole(number: &Number) -> i64 {
    number.as_i64().unwrap_or_else(|| float(number) as i64)
}

pub(super) fn is_at_least(value: &Number, min: &Number, exclusive: bool) -> bool {
    match value.as_i64() {
        Some(value) if exclusive => value > whole(min),
        Some(value) => value >= whole(min),
        None if exclusive => float(value) > float(min),
        None => float(value) >= float(min),
    }
}

pub(super) fn is_at_most(value: &Number, max: &Number, exclusive: bool) -> bool {
    match value.as_i64() {
        Some(value) if exclusive => value < whole(max),
        Some(value) => value <= whole(max),
        None if exclusive => float(value) < float(max),
        None => float(value) <= float(max),
    }
}

pub(super) fn is_multiple_of(value: &Number, factor: &Number) -> bool {
    match value.as_i64() {
        // A factor below one truncates to zero, so the float comparison decides.
        Some(value) => match whole(factor) {
            factor if factor > 0 => value % factor == 0,
            _ => is_whole(float(&Number::from(value)) / float(factor)),
        },
        None if float(factor) < 1.0 => is_whole(1.0 / float(factor) * float(value)),
        None => is_whole(float(value) / float(factor)),
    }
}

/// Formats a bound for a message: truncated next to an integer, otherwise as a float.
pub(super) fn bound_text(value: &Number, bound: &Number) -> String {
    if value.is_i64() {
        whole(bound).to_string()
    } else {
        gotext::float(float(bound))
    }
}

/// Returns the expected type and format if the number is out of their range.
pub(super) fn out_of_range(number: &Number, types: Types, format: Option<Format>) -> Option<String> {
    let fits = match (types, format) {
        (Types::INTEGER, Some(Format::Int32)) => integer(number).is_some_and(|n| i32::try_from(n).is_ok()),
        (Types::INTEGER, _) => integer(number).is_some(),
        (Types::NUMBER, Some(Format::Float)) => float(number).abs() <= f64::from(f32::MAX),
        _ => true,
    };
    if fits {
        return None;
    }
    let name = types.text();
    Some(match format {
        Some(format) => format!("{name} with format {}", format.name()),
        None => format!("{name} (default format)"),
    })
}

fn integer(number: &Number) -> Option<i64> {
    match number.as_i64() {
        Some(integer) => Some(integer),
        None => {
            let float = float(number);
            (float.fract() == 0.0 && float.abs() < i64::MAX as f64).then_some(float as i64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn n(value: serde_json::Value) -> Number {
        value.as_number().unwrap().clone()
    }

    #[test]
    fn checks_bounds_and_multiples() {
        assert!(is_at_least(&n(json!(0)), &n(json!(0)), false));
        assert!(!is_at_least(&n(json!(0)), &n(json!(0)), true));
        assert!(is_at_most(&n(json!(1.5)), &n(json!(1.5)), false));
        assert!(is_multiple_of(&n(json!(9)), &n(json!(3))));
        assert!(!is_multiple_of(&n(json!(10)), &n(json!(3))));
        assert!(is_multiple_of(&n(json!(0.3)), &n(json!(0.1))));
    }

    #[test]
    fn checks_range_of_type_and_format() {
        let range = |value, types, format| out_of_range(&n(value), types, format);
        assert_eq!(
            range(json!(3_000_000_000_i64), Types::INTEGER, Some(Format::Int32)).as_deref(),
            Some("integer with format int32")
        );
        assert_eq!(
            range(json!(1.5), Types::INTEGER, None).as_deref(),
            Some("integer (default format)")
        );
        assert_eq!(range(json!(1.0), Types::INTEGER, None), None);
        assert_eq!(range(json!(1.5), Types::NUMBER, None), None);
    }
}
