//! What asking a replica, and all that a model has, comes to.

use axum::response::Response;
use http::StatusCode;

use super::answer::{Begun, BrokenOff, Tracked};
use crate::dispatch::Place;
use crate::metrics::Measure;
use rooflet_inference_api::openai::ApiError;
use rooflet_proxy::ForwardError;
use rooflet_telemetry::trace::OpenSpan;

/// One replica's answer, up to its first token.
pub(crate) struct Answered {
    pub(crate) parts: http::response::Parts,
    pub(crate) body: Begun,
    pub(crate) place: Place,
    /// Of asking it.
    pub(crate) span: Option<OpenSpan>,
}

/// Why a replica gave none.
pub(crate) enum Missed {
    /// What it said instead.
    Said(Box<Response>),
    Failed(MissedReason),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum MissedReason {
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error(transparent)]
    BrokenOff(#[from] BrokenOff),
    #[error("its node is not heard of any more")]
    Silent,
}

impl MissedReason {
    /// Whether the replica may have ended because of the request.
    pub(crate) fn had_the_request(&self) -> bool {
        match self {
            Self::Forward(err) => !err.nothing_was_sent(),
            Self::BrokenOff(_) => true,
            Self::Silent => false,
        }
    }

    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Forward(err) => err.reason(),
            Self::BrokenOff(_) => "BrokenOff",
            Self::Silent => "NodeSilent",
        }
    }
}

/// Why a model gave no answer: what the client is told, if no other model answers either.
pub(crate) enum NoAnswer {
    Refused(ApiError),
    /// The replica's own words.
    Said(Box<Response>),
}

impl Answered {
    /// On its way to the client, which `measure` follows to its end.
    pub(crate) fn tracked(self, measure: Measure) -> (http::response::Parts, Tracked) {
        let status = self.parts.status;
        let tracked = Tracked::new(self.body, status, measure, self.place, self.span);
        (self.parts, tracked)
    }

    /// What may follow a stream's head that is out already: a refusal has a head of its own, and is told in another way.
    pub(crate) fn after_head(self) -> Result<Self, NoAnswer> {
        if self.parts.status.is_success() {
            return Ok(self);
        }
        self.place.refused();
        let response = Response::from_parts(self.parts, self.body.into_body());
        Err(NoAnswer::Said(Box::new(response)))
    }
}

impl NoAnswer {
    /// What it counts as: a stream that has failed says 200 in its head.
    pub(crate) fn outcome(&self) -> StatusCode {
        match self.status() {
            status if status.is_success() => StatusCode::INTERNAL_SERVER_ERROR,
            status => status,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Refused(err) => err.status,
            Self::Said(response) => response.status(),
        }
    }
}

impl From<ApiError> for NoAnswer {
    fn from(err: ApiError) -> Self {
        Self::Refused(err)
    }
}

/// Answers that speak of the replica and not of the request.
pub(crate) fn another_may_do_better(status: StatusCode) -> bool {
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

/// Answers that say that the worker failed on the request or ended with it: an agent tells the latter by 502.
pub(crate) fn had_the_request(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_GATEWAY
    )
}

/// Answers that another replica may better, and time will not. A stream that has failed is one with the status 200.
pub(crate) fn is_final(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::OK
            | StatusCode::NOT_FOUND
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
    )
}
