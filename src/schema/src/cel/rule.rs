//! Compiled rule of `x-kubernetes-validations`.

use kube_cel::cel::{IdedExpr, Value as Cel};

use super::{problem::CompilationError, reads::Reads};
use crate::error::CauseReason;

/// Rule of a node.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) source: String,
    pub(super) message: Option<String>,
    pub(super) field_path: Option<String>,
    pub(super) reason: Option<CauseReason>,
    pub(super) optional_old_self: bool,
    pub(crate) uses_old_self: bool,
    /// Error if a stored rule no longer compiles. The rule then rejects every object.
    pub(super) program: Result<IdedExpr, CompilationError>,
    pub(super) message_program: Option<IdedExpr>,
    pub(super) reads: Reads,
    /// Variables for the rule's calls on sets and maps.
    pub(super) shapes: Vec<(String, Cel)>,
}

impl Rule {
    /// Returns the text that identifies the rule in messages about its evaluation.
    pub(super) fn name(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.source).trim()
    }
}
