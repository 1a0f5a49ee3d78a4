//! Failure of a command.

use rooflet_base::error::ExitStatus;

/// Failed command: error message and exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: ExitStatus,
    pub(crate) error: anyhow::Error,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            status: ExitStatus::Failure,
            error: error.into(),
        }
    }
}

impl Failure {
    pub(crate) fn new(status: ExitStatus, error: impl Into<anyhow::Error>) -> Self {
        Self {
            status,
            error: error.into(),
        }
    }
}
