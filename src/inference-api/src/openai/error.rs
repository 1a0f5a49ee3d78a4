//! Error body of every OpenAI-compatible endpoint, `{"error": {message, type, param, code}}`, with
//! its HTTP status. Clients branch on status and code; the message is for people.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

/// Default of `retry-after` in seconds.
const DEFAULT_RETRY_AFTER_SECONDS: u32 = 1;

/// Maximum length of a message; longer than any message without client input.
const MAX_MESSAGE_CHARS: usize = 600;

/// Maximum length of a host name in a message, so that the advice after it is not truncated.
const MAX_NAME_CHARS: usize = 253;

/// Rejected or failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    pub kind: ErrorType,
    /// Request parameter that caused the error.
    pub param: Option<String>,
    pub code: Option<ErrorCode>,
    pub retry_after_seconds: Option<u32>,
    /// Sizes, if the prompt is too long.
    pub overrun: Option<Overrun>,
    /// Reason why the client's API key does not permit the request, for the audit log.
    pub denial: Option<&'static str>,
}

/// Token counts of a prompt that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun {
    pub prompt_tokens: usize,
    /// True if `prompt_tokens` is exact; otherwise it is a lower bound.
    pub is_exact: bool,
    pub context_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ErrorType {
    #[serde(rename = "invalid_request_error")]
    InvalidRequest,
    #[serde(rename = "rate_limit_error")]
    RateLimit,
    #[serde(rename = "insufficient_quota")]
    InsufficientQuota,
    #[serde(rename = "server_error")]
    Server,
    #[serde(rename = "service_unavailable_error")]
    ServiceUnavailable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    ContextLengthExceeded,
    HostNotAllowed,
    InsufficientQuota,
    InvalidApiKey,
    InvalidJson,
    MethodNotAllowed,
    MissingParameter,
    InvalidValue,
    ModelNotFound,
    ModelLoading,
    ModelUnavailable,
    OriginNotAllowed,
    PreviousResponseNotFound,
    RateLimitExceeded,
    RequestTooLarge,
    ResponseNotFound,
    ServerError,
    ServerOverloaded,
    UnknownUrl,
    RequestTimeout,
    UnsupportedContentEncoding,
    UnknownParameter,
    UnsupportedParameter,
    WorkerFailed,
}

impl ApiError {
    fn new(status: StatusCode, kind: ErrorType, code: ErrorCode, message: String) -> Self {
        Self {
            status,
            message: truncated(message),
            kind,
            param: None,
            code: Some(code),
            retry_after_seconds: None,
            overrun: None,
            denial: None,
        }
    }

    fn invalid(code: ErrorCode, param: &str, message: String) -> Self {
        Self {
            param: Some(truncated(param.to_owned())),
            ..Self::new(StatusCode::BAD_REQUEST, ErrorType::InvalidRequest, code, message)
        }
    }

    /// Creates the error of a parameter with an invalid value.
    pub fn invalid_value(param: &str, message: impl Into<String>) -> Self {
        Self::invalid(ErrorCode::InvalidValue, param, message.into())
    }

    pub fn missing(param: &str) -> Self {
        Self::invalid(
            ErrorCode::MissingParameter,
            param,
            format!("Missing required parameter: '{param}'."),
        )
    }

    /// Creates the error of a known parameter that is not supported.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::invalid(ErrorCode::UnsupportedParameter, param, message.into())
    }

    pub(crate) fn unknown_parameter(param: &str) -> Self {
        Self::invalid(
            ErrorCode::UnknownParameter,
            param,
            format!("Unknown parameter: '{param}'."),
        )
    }

    pub fn invalid_json(problem: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            ErrorType::InvalidRequest,
            ErrorCode::InvalidJson,
            format!("We could not parse the JSON body of your request: {problem}"),
        )
    }

    /// Creates the error of a prompt that is too long. `param` is `messages`, `prompt` or `input`.
    pub fn context_length_exceeded(param: &str, overrun: Overrun, completes: bool) -> Self {
        let Overrun {
            prompt_tokens,
            is_exact,
            context_tokens,
        } = overrun;
        let least = if is_exact { "" } else { "at least " };
        let room = if completes {
            ", which leaves no room for a completion"
        } else {
            ""
        };
        let message = format!(
            "This model's maximum context length is {context_tokens} tokens. However, your prompt has \
             {least}{prompt_tokens} tokens{room}. Please shorten it."
        );
        Self {
            overrun: Some(overrun),
            ..Self::invalid(ErrorCode::ContextLengthExceeded, param, message)
        }
    }

    pub fn model_not_found(model: &str) -> Self {
        Self {
            param: Some("model".to_owned()),
            ..Self::new(
                StatusCode::NOT_FOUND,
                ErrorType::InvalidRequest,
                ErrorCode::ModelNotFound,
                format!("The model `{model}` does not exist or you do not have access to it."),
            )
        }
    }

    /// Creates the error of a missing or invalid API key.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            ErrorType::InvalidRequest,
            ErrorCode::InvalidApiKey,
            message.into(),
        )
    }

    /// Creates the error of a model that an API key does not permit.
    pub fn model_not_permitted(key: &str, model: &str) -> Self {
        Self {
            param: Some("model".to_owned()),
            ..Self::new(
                StatusCode::FORBIDDEN,
                ErrorType::InvalidRequest,
                ErrorCode::ModelNotFound,
                format!("The API key `{key}` does not have access to the model `{model}`."),
            )
        }
    }

    /// Creates the error of a used-up budget.
    pub fn quota_exceeded(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self {
            retry_after_seconds: Some(retry_after_seconds.max(1)),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                ErrorType::InsufficientQuota,
                ErrorCode::InsufficientQuota,
                message.into(),
            )
        }
    }

    /// Creates the error of an unknown `previous_response_id`, with OpenAI's wording and a remedy.
    pub(crate) fn previous_response_not_found(id: &str) -> Self {
        Self::invalid(
            ErrorCode::PreviousResponseNotFound,
            "previous_response_id",
            format!(
                "Previous response with id '{id}' not found: its replica has stopped or evicted it, or it was not stored. \
                 Please send the earlier items in 'input'."
            ),
        )
    }

    /// Creates the error of a reference to an unknown item. `param` is the path of the reference.
    pub(crate) fn item_not_found(param: &str, id: &str) -> Self {
        Self::invalid_value(
            param,
            format!(
                "Item with id '{id}' not found: its replica has stopped or evicted it, or it was not stored. Please send the \
                 item itself in 'input'."
            ),
        )
    }

    pub fn response_not_found(id: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            ErrorType::InvalidRequest,
            ErrorCode::ResponseNotFound,
            format!(
                "Response with id '{id}' not found: its replica has stopped or evicted it, or it was not stored."
            ),
        )
    }

    pub fn unknown_url(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            ErrorType::InvalidRequest,
            ErrorCode::UnknownUrl,
            format!("Unknown request URL: {method} {path}. Please check the URL for typos."),
        )
    }

    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            ErrorType::InvalidRequest,
            ErrorCode::MethodNotAllowed,
            format!("Not allowed to {method} on {path}."),
        )
    }

    /// Creates the error of a request from a web page of an origin that is not allowed.
    pub(crate) fn origin_not_allowed(origin: &str) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            ErrorType::InvalidRequest,
            ErrorCode::OriginNotAllowed,
            format!(
                "Requests from web pages of '{}' are not allowed. The operator of this server can allow the origin with --allowed-origins.",
                origin.chars().take(MAX_NAME_CHARS).collect::<String>()
            ),
        )
    }

    /// Creates the error of a host name that does not belong to this machine.
    pub(crate) fn host_not_allowed(host: &str) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            ErrorType::InvalidRequest,
            ErrorCode::HostNotAllowed,
            format!(
                "The host name '{}' is not allowed, because this server listens on a loopback address only. Please use \
                 localhost or an address, or ask the operator of this server to add https://NAME to --allowed-origins.",
                host.chars().take(MAX_NAME_CHARS).collect::<String>()
            ),
        )
    }

    pub(crate) fn request_timeout(silent: std::time::Duration) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            ErrorType::InvalidRequest,
            ErrorCode::RequestTimeout,
            format!(
                "No data of the request body arrived for {} seconds.",
                silent.as_secs()
            ),
        )
    }

    pub fn request_too_large(limit_bytes: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            ErrorType::InvalidRequest,
            ErrorCode::RequestTooLarge,
            format!("The request body is larger than {limit_bytes} bytes."),
        )
    }

    pub(crate) fn unsupported_encoding(encoding: &str) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ErrorType::InvalidRequest,
            ErrorCode::UnsupportedContentEncoding,
            format!(
                "'content-encoding: {encoding}' is not supported by this server. Please send the request body without an \
                 encoding."
            ),
        )
    }

    /// Creates the error of a full queue.
    pub fn rate_limit_exceeded(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self {
            retry_after_seconds: Some(retry_after_seconds.max(1)),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                ErrorType::RateLimit,
                ErrorCode::RateLimitExceeded,
                message.into(),
            )
        }
    }

    /// Creates the error of a temporary condition. `code` states the reason.
    pub fn unavailable(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            retry_after_seconds: Some(DEFAULT_RETRY_AFTER_SECONDS),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                ErrorType::ServiceUnavailable,
                code,
                message.into(),
            )
        }
    }

    pub fn model_loading(model: &str) -> Self {
        Self::unavailable(
            ErrorCode::ModelLoading,
            format!("The model `{model}` is still loading. Please try again shortly."),
        )
    }

    /// Creates the error of a failed engine.
    pub fn server_error(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            ErrorType::Server,
            ErrorCode::ServerError,
            message.into(),
        )
    }

    /// Creates the error of a worker that exited during the request.
    pub fn worker_failed() -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            ErrorType::Server,
            ErrorCode::WorkerFailed,
            "The model's worker exited while it processed this request.".to_owned(),
        )
    }

    /// Replaces parameter names, for an error of another API.
    pub fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        for (own, there) in names {
            self.message = self.message.replace(own, there);
            self.param = self.param.map(|param| param.replace(own, there));
        }
        self
    }

    /// Returns the body, also sent inside a stream.
    pub fn body(&self) -> serde_json::Value {
        serde_json::json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        })
    }
}

/// Truncates a text. Messages repeat client input, which may have megabytes.
fn truncated(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_MESSAGE_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        // For middleware that converts the error body.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn body_has_all_four_fields() {
        assert_eq!(
            ApiError::context_length_exceeded(
                "messages",
                Overrun {
                    prompt_tokens: 3000,
                    is_exact: true,
                    context_tokens: 2048
                },
                true
            )
            .body(),
            json!({"error": {
                "message": "This model's maximum context length is 2048 tokens. However, your prompt has 3000 tokens, which leaves no room for a completion. Please shorten it.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded"
            }})
        );
        assert_eq!(ApiError::invalid_json("x").body()["error"]["param"], json!(null));
    }

    #[test]
    fn error_does_not_repeat_long_input() {
        let long = "é".repeat(1 << 20);
        for err in [
            ApiError::model_not_found(&long),
            ApiError::unknown_parameter(&long),
            ApiError::unknown_url("GET", &long),
        ] {
            let body = err.body().to_string();
            assert!(body.len() < 4000, "{} bytes", body.len());
        }
    }

    #[test]
    fn full_queue_sets_retry_after() {
        let response = ApiError::rate_limit_exceeded("full", 0).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
    }
}
