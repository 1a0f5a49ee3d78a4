//! Errors of the server, and their responses.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::RETRY_AFTER;
use serde_json::json;

/// Error of a request. Never contains a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WebError {
    #[error("{0}")]
    InvalidRequest(String),
    #[error("the API server rejected the token")]
    InvalidToken,
    #[error("the API server rejected the certificate: its issuer is unknown, or it has expired")]
    InvalidCertificate,
    #[error(
        "the header `Authorization: Bearer TOKEN` is missing: `kubectl create token NAME` creates a token"
    )]
    TokenMissing,
    #[error("the code is unknown, expired or already used: run `rooflet ui` again")]
    InvalidCode,
    #[error("sign in first")]
    NotSignedIn,
    #[error("the API server no longer accepts the credential of this session: sign in again")]
    CredentialExpired,
    #[error("the header X-CSRF-Token is missing or wrong: read it from GET /session")]
    CsrfTokenMissing,
    #[error("only the page of this server may send requests")]
    OriginNotAllowed,
    #[error(
        "user `{0}` may not read metrics: bind the ClusterRole rooflet:monitoring with a ClusterRoleBinding"
    )]
    MetricsForbidden(String),
    #[error("{0}")]
    NotFound(String),
    #[error("the body exceeds {0} bytes")]
    RequestTooLarge(usize),
    #[error(
        "the host name `{0}` is not a name of this server: use its address, or add the name to --tls-san"
    )]
    HostNotAllowed(String),
    #[error("too many failed sign-ins: retry in {} s", .0.as_secs().max(1))]
    TooManyFailures(Duration),
    #[error("{upstream} does not answer: {what}")]
    UpstreamUnreachable { upstream: &'static str, what: String },
    #[error("the server failed to generate a random number")]
    NoRandomNumber,
}

impl WebError {
    /// Returns the reason in CamelCase.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::InvalidRequest(_) => "InvalidRequest",
            Self::InvalidToken => "InvalidToken",
            Self::InvalidCertificate => "InvalidCertificate",
            Self::TokenMissing => "TokenMissing",
            Self::InvalidCode => "InvalidCode",
            Self::NotSignedIn => "NotSignedIn",
            Self::CredentialExpired => "CredentialExpired",
            Self::CsrfTokenMissing => "CsrfTokenMissing",
            Self::OriginNotAllowed => "OriginNotAllowed",
            Self::MetricsForbidden(_) => "MetricsForbidden",
            Self::NotFound(_) => "NotFound",
            Self::RequestTooLarge(_) => "RequestTooLarge",
            Self::HostNotAllowed(_) => "HostNotAllowed",
            Self::TooManyFailures(_) => "TooManyFailures",
            Self::UpstreamUnreachable { .. } => "UpstreamUnreachable",
            Self::NoRandomNumber => "InternalError",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::InvalidRequest(_) => StatusCode::BAD_REQUEST,
            Self::InvalidToken
            | Self::InvalidCertificate
            | Self::TokenMissing
            | Self::InvalidCode
            | Self::NotSignedIn
            | Self::CredentialExpired => StatusCode::UNAUTHORIZED,
            Self::CsrfTokenMissing | Self::OriginNotAllowed | Self::MetricsForbidden(_) => {
                StatusCode::FORBIDDEN
            }
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::RequestTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HostNotAllowed(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::TooManyFailures(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::UpstreamUnreachable { .. } => StatusCode::BAD_GATEWAY,
            Self::NoRandomNumber => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for WebError {
    fn into_response(self) -> Response {
        let body = json!({"error": {"reason": self.reason(), "message": self.to_string()}});
        let mut response = (self.status(), Json(body)).into_response();
        if let Self::TooManyFailures(wait) = self {
            response
                .headers_mut()
                .insert(RETRY_AFTER, wait.as_secs().max(1).into());
        }
        response
    }
}
