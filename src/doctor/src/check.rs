//! The result of one check.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Check {
    #[serde(default)]
    pub(super) area: Area,
    pub(super) name: String,
    pub(super) status: Status,
    /// The observed value, and its effect if there is one.
    pub(super) finding: String,
    /// The change that would improve the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

/// Formats a short time. Times that round to zero are "less than 0.1 ms".
pub(super) fn milliseconds(time: Duration) -> String {
    match time.as_secs_f64() * 1e3 {
        ms if ms < 0.1 => "less than 0.1 ms".to_owned(),
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.0} ms"),
    }
}

/// Area of a check, in the order of the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Area {
    #[default]
    Machine,
    Power,
    Binary,
    Engine,
    Files,
    Network,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "Machine",
            Self::Power => "Power",
            Self::Binary => "Binary",
            Self::Engine => "Engine",
            Self::Files => "Files and processes",
            Self::Network => "Network",
        })
    }
}

/// Status of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    /// rooflet works, but with less speed, function or reliability.
    Warn,
    /// rooflet does not work.
    Fail,
    /// The machine does not report the value.
    Unknown,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        })
    }
}

impl Check {
    pub(super) fn of(self, area: Area) -> Self {
        Self { area, ..self }
    }

    pub(super) fn ok(name: &str, finding: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, finding, None)
    }

    pub(super) fn warn<'a>(
        name: &str,
        finding: impl Into<String>,
        remedy: impl Into<Option<&'a str>>,
    ) -> Self {
        Self::new(name, Status::Warn, finding, remedy.into())
    }

    pub(super) fn fail(name: &str, finding: impl Into<String>, remedy: &str) -> Self {
        Self::new(name, Status::Fail, finding, Some(remedy))
    }

    pub(super) fn unknown(name: &str, finding: impl Into<String>) -> Self {
        Self::new(name, Status::Unknown, finding, None)
    }

    fn new(name: &str, status: Status, finding: impl Into<String>, remedy: Option<&str>) -> Self {
        Self {
            area: Area::default(),
            name: name.to_owned(),
            status,
            finding: finding.into(),
            remedy: remedy.map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_are_never_zero() {
        for (microseconds, expect) in [
            (0, "less than 0.1 ms"),
            (99, "less than 0.1 ms"),
            (140, "0.1 ms"),
            (4_320, "4.3 ms"),
            (12_300, "12 ms"),
            (1_500_000, "1500 ms"),
        ] {
            assert_eq!(milliseconds(Duration::from_micros(microseconds)), expect);
        }
    }
}
