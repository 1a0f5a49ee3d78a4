//! A broken rule.

use std::time::Duration;

use serde::Serialize;

use crate::scenario::{duration_text, show};

/// A rule that was broken.
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
        write!(f, "at {}: {}: {}", show(self.at), self.rule, self.message)
    }
}
