//! Conditions of an object.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use serde::Serialize;

use super::text;

/// Condition of an object, with printable texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) last_transition_time: Timestamp,
}

impl Condition {
    pub(super) fn all(conditions: &[v1::Condition]) -> Vec<Self> {
        let printed = |condition: &v1::Condition| Self {
            kind: text(&condition.type_),
            status: text(&condition.status),
            reason: text(&condition.reason),
            message: text(&condition.message),
            last_transition_time: condition.last_transition_time.0,
        };
        conditions.iter().map(printed).collect()
    }

    pub(crate) fn find<'a>(conditions: &'a [Self], kind: &str) -> Option<&'a Self> {
        conditions.iter().find(|condition| condition.kind == kind)
    }
}
