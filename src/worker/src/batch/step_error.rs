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
    #[error("the answer cannot satisfy the response format: {0}")]
    Constraint(#[from] ConstraintError),
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
