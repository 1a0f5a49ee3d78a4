//! Formats of times in objects.

use jiff::Timestamp;

/// Formats RFC 3339 in whole seconds, like `metav1.Time`.
pub fn format_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats RFC 3339 with exactly six decimals, like `metav1.MicroTime`.
pub(crate) fn format_micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
