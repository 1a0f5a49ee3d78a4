//! Outcome of an attempt on one replica, and of all attempts on a model.

use axum::response::Response;
use http::StatusCode;

use super::body::{BrokenOff, BufferedBody, Tracked};
use crate::dispatch::Slot;
use crate::metrics::Measure;
use rooflet_inference_api::openai::ApiError;
use rooflet_proxy::ForwardError;
use rooflet_telemetry::trace::OpenSpan;

/// Response of a replica, read up to its first token.
pub(crate) struct Answered {
    pub(crate) parts: http::response::Parts,
    pub(crate) body: BufferedBody,
    pub(crate) slot: Slot,
    /// Span of the attempt.
    pub(crate) span: Option<OpenSpan>,
}

/// Failed attempt on one replica.
pub(crate) enum AttemptError {
    /// The replica's error response.
    Response(Box<Response>),
    Failed(AttemptFailure),
}

/// Failure of an attempt without a response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptFailure {
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error(transparent)]
    BrokenOff(#[from] BrokenOff),
    #[error("the replica's node stopped reporting")]
    Silent,
}

impl AttemptFailure {
    /// Returns whether the worker may have got the request, so that the request may be the cause.
    pub(crate) fn reached_worker(&self) -> bool {
        match self {
            Self::Forward(err) => !err.nothing_was_sent(),
            Self::BrokenOff(_) => true,
            Self::Silent => false,
        }
    }

    /// Returns the reason label for traces and errors.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Forward(err) => err.reason(),
            Self::BrokenOff(_) => "StreamInterrupted",
            Self::Silent => "NodeSilent",
        }
    }
}

/// Failure of all attempts on a model; returned to the client if no fallback responds.
pub(crate) enum ModelError {
    Rejected(ApiError),
    /// Error response of the last replica.
    Response(Box<Response>),
}

impl Answered {
    /// Splits the response into its head and a tracked body; `measure` ends with the body.
    pub(crate) fn tracked(self, measure: Measure) -> (http::response::Parts, Tracked) {
        let status = self.parts.status;
        let tracked = Tracked::new(self.body, status, measure, self.slot, self.span);
        (self.parts, tracked)
    }

    /// Returns the response if its body may follow a stream head that the client already has.
    ///
    /// Returns an error response as [`ModelError`], because its own head can no longer be sent.
    pub(crate) fn after_head(self) -> Result<Self, ModelError> {
        if self.parts.status.is_success() {
            return Ok(self);
        }
        self.slot.rejected();
        let response = Response::from_parts(self.parts, self.body.into_body());
        Err(ModelError::Response(Box::new(response)))
    }
}

impl ModelError {
    /// Returns the status for metrics. A failed stream has status 200 in its head and counts as
    /// 500.
    pub(crate) fn outcome(&self) -> StatusCode {
        match self.status() {
            status if status.is_success() => StatusCode::INTERNAL_SERVER_ERROR,
            status => status,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Rejected(err) => err.status,
            Self::Response(response) => response.status(),
        }
    }
}

impl From<ApiError> for ModelError {
    fn from(err: ApiError) -> Self {
        Self::Rejected(err)
    }
}

/// Returns whether the status concerns the replica, so that another replica may succeed.
pub(crate) fn is_retryable(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::NOT_FOUND
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Returns whether the status shows that the worker failed on the request. An agent responds with
/// 502 if the worker exited.
pub(crate) fn reached_worker(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_GATEWAY
    )
}

/// Returns whether waiting cannot help after this status. A failed stream has status 200.
pub(crate) fn is_final(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::OK
            | StatusCode::NOT_FOUND
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
    )
}
