//! Error responses for requests that no replica serves.

use std::time::Duration;

use crate::headers::retry_after_seconds as seconds;
use crate::routing::starts::{EstimateSource, ExpectedStart};
use crate::routing::table::{LookupError, Model};
use crate::state::Refusal;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_roofline::loading;

/// Maximum characters of a requested model name in an error message.
const MAX_ECHOED_CHARS: usize = 200;

/// Returns the error for a rejected request. `left` is the time until its deadline.
pub(crate) fn of(model: &Model, refusal: Refusal, left: Duration) -> ApiError {
    let name = &model.name;
    let expected_start = |wait: Option<ExpectedStart>| match wait {
        Some(wait) => format!(" The expected wait is about {} s.", seconds(wait.after)),
        None => String::new(),
    };
    let retry_after = |wait: Option<ExpectedStart>| wait.map_or(1, |wait| seconds(wait.after));
    match refusal {
        Refusal::NotReady => not_ready(model, None),
        Refusal::TooLong(wait) | Refusal::Expired(Some(wait)) if model.replicas.is_empty() => {
            not_ready(model, Some(wait))
        }
        Refusal::Expired(None) if model.replicas.is_empty() => not_ready(model, None),
        Refusal::QueueFull(wait) => ApiError::rate_limit_exceeded(
            format!(
                "The model `{name}` is busy and its queue is full.{}",
                expected_start(wait)
            ),
            retry_after(wait),
        ),
        Refusal::TooLong(wait) => ApiError::rate_limit_exceeded(
            format!(
                "The model `{name}` is busy: the expected wait is about {} s, but the request may wait only {} s.",
                seconds(wait.after),
                seconds(left)
            ),
            seconds(wait.after),
        ),
        Refusal::Expired(wait) => ApiError::rate_limit_exceeded(
            format!(
                "The model `{name}` is busy: no replica became free in time.{}",
                expected_start(wait)
            ),
            retry_after(wait),
        ),
    }
}

/// Returns the error for a model name that matches no model or several.
pub(crate) fn unknown(requested: &str, unknown: LookupError) -> ApiError {
    let requested: String = requested.chars().take(MAX_ECHOED_CHARS).collect();
    match unknown {
        LookupError::NotFound => ApiError::model_not_found(&requested),
        LookupError::Ambiguous(names) => ApiError::invalid_value(
            "model",
            format!(
                "The model `{requested}` is served in several namespaces. Use one of these names: {}.",
                names.join(", ")
            ),
        ),
    }
}

/// Returns the error for a model of which no replica responded. `reason` is the last replica's
/// failure.
pub(crate) fn unreachable(model: &Model, reason: &str) -> ApiError {
    ApiError::unavailable(
        ErrorCode::ModelUnavailable,
        format!(
            "No replica of the model `{}` is reachable ({reason}). Please try again shortly.",
            model.name
        ),
    )
}

/// Returns the error for a model without ready replicas. `wait` is the expected start, if known.
fn not_ready(model: &Model, wait: Option<ExpectedStart>) -> ApiError {
    let why = model
        .unavailable_reason
        .as_deref()
        .unwrap_or("its replicas have not reported yet");
    let code = if model.may_become_ready {
        ErrorCode::ModelLoading
    } else {
        ErrorCode::ModelUnavailable
    };
    let mut message = format!("The model `{}` has no ready replica: {why}", model.name);
    let mut err = ApiError::unavailable(code, "");
    if let Some(wait) = wait {
        let time = seconds(wait.after).max(1);
        message.push_str(&match wait.source {
            EstimateSource::Queue => format!(". The next replica is expected in about {time} s."),
            EstimateSource::LastStart => format!(". The next replica is expected in about {time} s, based on the duration of the last start."),
            EstimateSource::Reading(basis) => format!(
                ". The next replica is expected after about {time} s, when its weights are read ({}).",
                loading::disk_basis_text(basis)
            ),
            EstimateSource::Download(basis) => format!(
                ". The next replica is expected after about {time} s, when its model is downloaded and read ({}).",
                loading::link_basis_text(basis)
            ),
        });
        err.retry_after_seconds = Some(time);
    }
    err.message = message;
    err
}
