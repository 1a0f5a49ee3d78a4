//! Failures of one step of one request.

use std::fmt::Display;
use std::sync::Arc;

use rooflet_mlx::mlx_rs::error::{ConversionError, Exception};

use rooflet_api::engine_failure::EngineFailure;
use rooflet_text::grammar::constraint::ConstraintError;
use rooflet_text::tokenizer::DecodeError;

/// Failure of a step. The message is sent to the client.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("the engine failed on this request: {}", explained(.0))]
    Engine(Exception),
    /// Shared, because one failed read ends all requests of its pass.
    #[error("reading a token from the device failed: {}", explained(.0))]
    Read(Arc<ConversionError>),
    #[error("the tokenizer failed on this request: {0}")]
    Decode(DecodeError),
    #[error("the model computed values that are not finite; its weights or the device may be faulty")]
    NotFinite,
    #[error("the answer cannot satisfy the response format: {0}")]
    Constraint(#[from] ConstraintError),
}

impl StepError {
    /// Returns whether the GPU's driver stopped a command that may succeed if it is shorter.
    pub(crate) fn is_interruption(&self) -> bool {
        let text = match self {
            Self::Engine(err) => err.to_string(),
            Self::Read(err) => err.to_string(),
            Self::Decode(_) | Self::NotFinite | Self::Constraint(_) => return false,
        };
        EngineFailure::of(&text) == EngineFailure::Interrupted
    }
}

/// Returns the text of an engine failure, and what a client can change.
fn explained(err: &impl Display) -> String {
    let text = err.to_string();
    match EngineFailure::of(&text) {
        EngineFailure::OutOfMemory => format!(
            "{text}; the device has no memory left for this request: send a shorter prompt, or fewer requests at \
             the same time"
        ),
        EngineFailure::Interrupted | EngineFailure::Excluded | EngineFailure::Other => text,
    }
}

impl From<Exception> for StepError {
    fn from(err: Exception) -> Self {
        Self::Engine(err)
    }
}

impl From<DecodeError> for StepError {
    fn from(err: DecodeError) -> Self {
        Self::Decode(err)
    }
}

impl From<ConversionError> for StepError {
    fn from(err: ConversionError) -> Self {
        Self::Read(Arc::new(err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOPPED: &str = "[METAL] Command buffer execution failed: Caused GPU Timeout Error \
                           (00000002:kIOGPUCommandBufferCallbackErrorTimeout).";
    const FULL: &str = "[METAL] Command buffer execution failed: Insufficient Memory \
                        (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory).";

    #[test]
    fn only_commands_that_ran_too_long_are_interruptions() {
        for (text, expect) in [(STOPPED, true), (FULL, false), ("Timeout", false)] {
            let err = StepError::from(Exception::custom(text));
            assert_eq!(err.is_interruption(), expect, "{text}");
        }
    }

    #[test]
    fn exhausted_memory_names_the_remedy_of_the_client() {
        let full = [
            StepError::from(Exception::custom(FULL)),
            StepError::from(ConversionError::from(Exception::custom(FULL))),
        ];
        for err in full.map(|err| err.to_string()) {
            assert!(
                err.contains(FULL) && err.contains("send a shorter prompt"),
                "{err}"
            );
        }
        let other = StepError::from(Exception::custom(STOPPED)).to_string();
        assert!(!other.contains("memory"), "{other}");
    }
}
