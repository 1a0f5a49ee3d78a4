//! Failures of one step of one request.

use std::sync::Arc;

use rooflet_mlx::mlx_rs::error::{ConversionError, Exception};

use rooflet_text::grammar::constraint::ConstraintError;
use rooflet_text::tokenizer::DecodeError;

/// Failure of a step. The message is sent to the client.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("the engine failed on this request: {0}")]
    Engine(Exception),
    /// Shared, because one failed read ends all requests of its pass.
    #[error("reading a token from the device failed: {0}")]
    Read(Arc<ConversionError>),
    #[error("the tokenizer failed on this request: {0}")]
    Decode(DecodeError),
    #[error("the model computed values that are not finite; its weights or the device may be faulty")]
    NotFinite,
    #[error("the answer cannot satisfy the response format: {0}")]
    Constraint(#[from] ConstraintError),
}

/// Prefix of the driver's error codes in the message of a failed Metal command.
const COMMAND_ERROR: &str = "kIOGPUCommandBufferCallbackError";
/// Suffixes of the error codes of commands that ran too long, and of commands that were queued
/// beside such a command (`InnocentVictim`).
const INTERRUPTIONS: [&str; 4] = ["ImpactingInteractivity", "Timeout", "Hang", "InnocentVictim"];

impl StepError {
    /// Returns whether the GPU's driver stopped a command that may succeed if it is shorter.
    pub(crate) fn is_interruption(&self) -> bool {
        let text = match self {
            Self::Engine(err) => err.to_string(),
            Self::Read(err) => err.to_string(),
            Self::Decode(_) | Self::NotFinite | Self::Constraint(_) => return false,
        };
        let words = text.split(COMMAND_ERROR).skip(1);
        words
            .into_iter()
            .any(|word| INTERRUPTIONS.iter().any(|end| word.starts_with(end)))
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

    #[test]
    fn only_commands_that_ran_too_long_are_interruptions() {
        // Texts of MLX 0.32.2 (mlx#3267, omlx#3706).
        let failed = |why: &str| format!("[METAL] Command buffer execution failed: {why}");
        for (why, expect) in [
            (
                "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity).",
                true,
            ),
            (
                "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).",
                true,
            ),
            (
                "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
                false,
            ),
            (
                "Ignored (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).",
                false,
            ),
            ("Timeout", false),
        ] {
            let err = StepError::from(Exception::custom(failed(why)));
            assert_eq!(err.is_interruption(), expect, "{why}");
        }
    }
}
