//! Conditions of a deployment while a pass updates them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use rooflet_api::conditions::{Truth, set_condition};

/// Conditions from the last pass, which this pass updates.
pub(super) struct ConditionWriter {
    pub(super) conditions: Vec<Condition>,
    pub(super) generation: Option<i64>,
    pub(super) now: Timestamp,
}

impl ConditionWriter {
    pub(super) fn get(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == kind)
    }

    pub(super) fn set(&mut self, kind: &str, truth: Truth, reason: &str, message: impl Into<String>) {
        set_condition(
            &mut self.conditions,
            kind,
            truth,
            reason,
            message,
            self.generation,
            self.now,
        );
    }
}
