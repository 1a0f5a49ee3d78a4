//! Conversion of Kubernetes quantities (`24Gi`, `1500m`, `2e3`).
//!
//! Grammar: <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>

use std::time::Duration;

use crate::units::Bytes;

/// Reason why a text is not a quantity of bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    #[error("`{0}` is not a quantity: write a number with an optional suffix, such as 512Mi, 24Gi or 1G")]
    Malformed(String),
    #[error("`{0}` is negative; a size must be 0 or greater")]
    Negative(String),
    #[error("`{0}` does not fit in 64 bits")]
    TooLarge(String),
}

/// Parses a size such as `24Gi`. Fractions of a byte are rounded up, as in Kubernetes.
pub fn parse_bytes(text: &str) -> Result<Bytes, ParseQuantityError> {
    let malformed = || ParseQuantityError::Malformed(text.to_owned());
    let digits_end = text
        .find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    if !number.bytes().any(|b| b.is_ascii_digit()) {
        return Err(malformed());
    }
    let number: f64 = number.parse().map_err(|_| malformed())?;
    let scale = match suffix {
        "" => 1.0,
        "m" => 1e-3,
        "u" => 1e-6,
        "n" => 1e-9,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        exponent => {
            let power = exponent.strip_prefix(['e', 'E']).ok_or_else(malformed)?;
            10f64.powi(power.parse().map_err(|_| malformed())?)
        }
    };
    let bytes = (number * scale).ceil();
    if bytes < 0.0 {
        return Err(ParseQuantityError::Negative(text.to_owned()));
    }
    if bytes >= u64::MAX as f64 {
        return Err(ParseQuantityError::TooLarge(text.to_owned()));
    }
    Ok(Bytes(bytes as u64))
}

/// Returns the canonical form: the largest binary suffix that divides the number exactly.
pub fn format_bytes(Bytes(bytes): Bytes) -> String {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if bytes == 0 {
        return "0".to_owned();
    }
    let steps = (bytes.trailing_zeros() / 10).min(6);
    format!("{}{}", bytes >> (10 * steps), SUFFIXES[steps as usize])
}

/// Pattern for [`parse_duration`], for schemas: at most eight numbers with nine digits before the
/// point. This is less than a million years and cannot overflow.
pub const DURATION_PATTERN: &str = r"^([0-9]{1,9}(\.[0-9]+)?(ms|s|m|h)){1,8}$";

/// Parses a Go duration such as `1m30s` or `500ms`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let number: f64 = rest[..unit_at].parse().ok()?;
        let tail = &rest[unit_at..];
        let end = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let seconds = match &tail[..end] {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number * seconds;
        rest = &tail[end..];
    }
    Duration::try_from_secs_f64(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_go_durations() {
        assert_eq!(parse_duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("3"), None);
        assert_eq!(parse_duration("3d"), None);
        let pattern = regex::Regex::new(DURATION_PATTERN).unwrap();
        let longest = "999999999.9h".repeat(8);
        assert!(pattern.is_match(&longest) && parse_duration(&longest).is_some());
        for bad in ["", "3", "3d", "1s ", "1000000000h", &"1s".repeat(9)] {
            assert!(!pattern.is_match(bad), "{bad}");
        }
    }
    use proptest::prelude::*;

    #[test]
    fn parses_kubernetes_quantities() {
        let cases = [
            ("24Gi", 24 << 30),
            ("512Mi", 512 << 20),
            ("1G", 1_000_000_000),
            ("1.5Ki", 1536),
            ("2e3", 2000),
            ("1500m", 2),
            ("0", 0),
            ("+3", 3),
        ];
        for (text, expect) in cases {
            assert_eq!(parse_bytes(text), Ok(Bytes(expect)), "{text}");
        }
        for bad in ["", "Gi", "12 Gi", "1Gib", "1e", "..", "-"] {
            assert!(
                matches!(parse_bytes(bad), Err(ParseQuantityError::Malformed(_))),
                "{bad}"
            );
        }
        assert!(matches!(
            parse_bytes("-1Gi"),
            Err(ParseQuantityError::Negative(_))
        ));
        assert!(matches!(
            parse_bytes("99Ei"),
            Err(ParseQuantityError::TooLarge(_))
        ));
    }

    proptest! {
        #[test]
        fn formatted_bytes_parse_to_the_same_value(bytes in 0u64..(1 << 53)) {
            prop_assert_eq!(parse_bytes(&format_bytes(Bytes(bytes))), Ok(Bytes(bytes)));
        }
    }
}
