//! Conditions and reasons with their meanings, in the order of the reference. The texts are in
//! `reasons.yaml`; `cargo xtask structure` compares that file with the reasons in the code.

use rooflet_base::yaml::{self, YamlError};
use serde::Deserialize;

/// All conditions and reasons.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasonReference {
    /// Markdown in front of the first section.
    pub intro: String,
    pub sections: Vec<Section>,
}

/// Section of the reference.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    pub title: String,
    pub parts: Vec<Part>,
}

/// Part of a section.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// Markdown.
    Text(String),
    Conditions(Vec<ConditionEntry>),
    Reasons(Vec<ReasonEntry>),
}

/// Condition types with one meaning.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConditionEntry {
    pub types: Vec<String>,
    /// Meaning of the status True.
    pub meaning: String,
    /// Symptom that a user observes if the status is not True.
    pub symptom: String,
}

/// Reasons with one meaning.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasonEntry {
    pub reasons: Vec<String>,
    /// Conditions and events that have the reasons. Absent if the section or the meaning names
    /// them.
    pub on: Option<String>,
    pub meaning: String,
    /// Actions of the user. Absent for normal states.
    pub remedy: Option<String>,
}

/// Returns all conditions and reasons. Returns an error if `reasons.yaml` is invalid, which a test
/// rules out.
pub fn reference() -> Result<ReasonReference, YamlError> {
    yaml::from_str(include_str!("reasons.yaml"))
}
