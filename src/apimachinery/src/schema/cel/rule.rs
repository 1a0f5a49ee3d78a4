//! A compiled rule of `x-kubernetes-validations`.

use kube_cel::cel::{IdedExpr, ParseErrors, Value as Cel};

use super::reads::Reads;
use crate::schema::error::CauseReason;

/// One rule of a node.
#[derive(Debug)]
pub(in crate::schema) struct Rule {
    pub(in crate::schema) source: String,
    pub(super) message: Option<String>,
    pub(super) field_path: Option<String>,
    pub(super) reason: Option<CauseReason>,
    pub(super) optional_old_self: bool,
    pub(in crate::schema) uses_old_self: bool,
    /// `Err` when a stored rule no longer compiles; the rule then refuses every object.
    pub(super) program: Result<IdedExpr, ParseErrors>,
    pub(super) message_program: Option<IdedExpr>,
    pub(super) reads: Reads,
    /// Variables that its calls on lists are given.
    pub(super) shapes: Vec<(String, Cel)>,
}

impl Rule {
    /// The words that stand for the rule in messages about its evaluation.
    pub(super) fn name(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.source).trim()
    }
}
