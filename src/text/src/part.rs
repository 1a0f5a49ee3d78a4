//! Part of an answer.

use super::tool_calls::CallPart;

/// A piece of an answer; texts are not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Content(String),
    Call(CallPart),
}
