//! What a client is told whose request no replica answers.

use std::time::Duration;

use crate::headers::retry_after_seconds as seconds;
use crate::routing::starts::{By, Expected};
use crate::routing::table::{Model, Unknown};
use crate::state::Refusal;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_roofline::loading;

/// Characters of a name that a client asked for which are repeated to it.
const MAX_ECHOED_CHARS: usize = 200;

/// The queue does not take the request, or gives it up. `left` is how long it would wait.
pub(crate) fn of(model: &Model, refusal: Refusal, left: Duration) -> ApiError {
    let name = &model.name;
    let late = |wait: Option<Expected>| match wait {
        Some(wait) => format!(" A turn is expected in about {} s.", seconds(wait.after)),
        None => String::new(),
    };
    let retry_after = |wait: Option<Expected>| wait.map_or(1, |wait| seconds(wait.after));
    match refusal {
        Refusal::NotReady => not_ready(model, None),
        Refusal::TooLong(wait) | Refusal::Expired(Some(wait)) if model.replicas.is_empty() => {
            not_ready(model, Some(wait))
        }
        Refusal::Expired(None) if model.replicas.is_empty() => not_ready(model, None),
        Refusal::QueueFull(wait) => ApiError::rate_limit_exceeded(
            format!("The model `{name}` is busy and its queue is full.{}", late(wait)),
            retry_after(wait),
        ),
        Refusal::TooLong(wait) => ApiError::rate_limit_exceeded(
            format!(
                "The model `{name}` is busy: a turn is expected in about {} s, and this request would wait {} s.",
                seconds(wait.after),
                seconds(left)
            ),
            seconds(wait.after),
        ),
        Refusal::Expired(wait) => ApiError::rate_limit_exceeded(
            format!(
                "The model `{name}` is busy: no replica had room in time.{}",
                late(wait)
            ),
            retry_after(wait),
        ),
    }
}

/// There is no such model.
pub(crate) fn unknown(asked: &str, unknown: Unknown) -> ApiError {
    let asked: String = asked.chars().take(MAX_ECHOED_CHARS).collect();
    match unknown {
        Unknown::NotFound => ApiError::model_not_found(&asked),
        Unknown::Ambiguous(names) => ApiError::invalid_value(
            "model",
            format!(
                "The model `{asked}` is served in several namespaces. Please ask for one of: {}.",
                names.join(", ")
            ),
        ),
    }
}

/// `reason` is why the last replica that was tried gave no answer.
pub(crate) fn unreachable(model: &Model, reason: &str) -> ApiError {
    ApiError::unavailable(
        ErrorCode::ModelUnavailable,
        format!(
            "No replica of the model `{}` could be reached ({reason}). Please try again shortly.",
            model.name
        ),
    )
}

/// `wait` is when one is expected, where that is known.
fn not_ready(model: &Model, wait: Option<Expected>) -> ApiError {
    let why = model
        .trouble
        .as_deref()
        .unwrap_or("its replicas have not reported yet");
    let code = if model.is_coming {
        ErrorCode::ModelLoading
    } else {
        ErrorCode::ModelUnavailable
    };
    let mut message = format!("The model `{}` has no ready replica: {why}", model.name);
    let mut err = ApiError::unavailable(code, "");
    if let Some(wait) = wait {
        let time = seconds(wait.after).max(1);
        message.push_str(&match wait.by {
            By::Queue => format!(". One is expected in about {time} s."),
            By::LastStart => format!(". One is expected in about {time} s, by how long the last start took."),
            By::Reading(basis) => format!(
                ". One is expected after about {time} s, when its weights are read ({}).",
                loading::words(basis)
            ),
            By::Download(basis) => format!(
                ". One is expected after about {time} s, when its model is downloaded and read ({}).",
                loading::line_words(basis)
            ),
        });
        err.retry_after_seconds = Some(time);
    }
    err.message = message;
    err
}
