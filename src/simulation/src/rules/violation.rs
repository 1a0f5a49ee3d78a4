//! Violation of an invariant.

use std::time::Duration;

use serde::Serialize;

use crate::scenario::{duration_text, format_duration};

/// Violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    #[serde(with = "duration_text")]
    pub at: Duration,
    pub rule: &'static str,
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "at {}: {}: {}",
            format_duration(self.at),
            self.rule,
            self.message
        )
    }
}
