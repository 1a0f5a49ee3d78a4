//! Parts of an answer.

use super::tool_calls::CallPart;

/// Part of an answer. Texts are never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Content(String),
    Call(CallPart),
}
