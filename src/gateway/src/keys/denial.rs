//! Error responses and headers of API keys, in the forms of OpenAI and Anthropic.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;

use super::authentication::PresentedKey;
use super::meter::{Denial, Remaining};
use super::ring::{KeyError, Limits};
use crate::headers::retry_after_seconds as seconds;
use rooflet_inference_api::anthropic;
use rooflet_inference_api::openai::ApiError;
use rooflet_pki::API_KEY_PREFIX;

/// Returns the error of a request without a key.
pub(super) fn missing() -> ApiError {
    ApiError::unauthorized(
        "You didn't provide an API key. Send it in the header `Authorization: Bearer KEY` or `x-api-key: KEY`. \
         An administrator creates keys with `rooflet key create`.",
    )
}

/// Returns the error of a key that is not accepted.
pub(super) fn of_key(err: &KeyError, presented: &PresentedKey) -> ApiError {
    let hint = match presented {
        PresentedKey::OfFleet { hint, .. } => hint,
        PresentedKey::Malformed => {
            return ApiError::unauthorized(
                "Incorrect API key provided: it is incomplete or has additional characters. Send the complete key \
                 that `rooflet key create` printed.",
            );
        }
        PresentedKey::Foreign => {
            return ApiError::unauthorized(format!(
                "Incorrect API key provided: it is not a key of rooflet, which begins with `{API_KEY_PREFIX}`. Send \
                 the key that `rooflet key create` printed."
            ));
        }
    };
    ApiError::unauthorized(match err {
        KeyError::Unknown => format!(
            "Incorrect API key provided: it ends in `{hint}`. It may be deleted; `kubectl get apikeys` lists the keys."
        ),
        KeyError::Expired(name) => format!(
            "The API key `{name}` (it ends in `{hint}`) has expired. An administrator can set a later `spec.expiresAt`."
        ),
    })
}

/// Returns the error of an exhausted limit.
pub(super) fn of_limit(denial: Denial, key: &str) -> ApiError {
    let limited = |what: String, wait: Duration| {
        let wait = seconds(wait).max(1);
        ApiError::rate_limit_exceeded(
            format!("Rate limit reached for the API key `{key}`: {what}. Please try again in {wait} s."),
            wait,
        )
    };
    match denial {
        Denial::Requests { per_minute, wait } => limited(format!("{per_minute} requests per minute"), wait),
        Denial::Tokens { per_minute, wait } => limited(format!("{per_minute} tokens per minute"), wait),
        Denial::Concurrency { limit } => {
            limited(format!("{limit} requests in progress"), Duration::from_secs(1))
        }
        Denial::Budget { per_day, wait } => ApiError::quota_exceeded(
            format!(
                "The API key `{key}` has used its {per_day} tokens of today. The next day starts at 00:00 UTC, in {} min.",
                wait.as_secs().div_ceil(60)
            ),
            seconds(wait).max(1),
        ),
    }
}

/// Returns the rate-limit headers, with the names of the API that the path belongs to.
pub(super) fn headers(limits: Limits, path: &str, now: Timestamp) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let is_anthropic = path.starts_with(anthropic::error::PATH);
    for (what, remaining) in [("requests", limits.requests), ("tokens", limits.tokens)] {
        let Some(remaining) = remaining else {
            continue;
        };
        let mut set = |name: String, value: String| {
            let name = HeaderName::try_from(name).ok();
            if let Some((name, value)) = name.zip(HeaderValue::try_from(value).ok()) {
                headers.insert(name, value);
            }
        };
        let Remaining {
            limit,
            remaining,
            reset,
        } = remaining;
        if is_anthropic {
            let reset = now.checked_add(reset).unwrap_or(now);
            set(format!("anthropic-ratelimit-{what}-limit"), limit.to_string());
            set(
                format!("anthropic-ratelimit-{what}-remaining"),
                remaining.to_string(),
            );
            set(format!("anthropic-ratelimit-{what}-reset"), format!("{reset:.0}"));
        } else {
            set(format!("x-ratelimit-limit-{what}"), limit.to_string());
            set(format!("x-ratelimit-remaining-{what}"), remaining.to_string());
            set(
                format!("x-ratelimit-reset-{what}"),
                format!("{:.0}s", reset.as_secs_f64().ceil()),
            );
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_form_of_the_presented_key() {
        for (presented, expect) in [
            ("sk-rf-AAEC", "Send the complete key"),
            ("ollama", "not a key of rooflet, which begins with `sk-rf-`"),
            ("sk-proj-AAECAwQF", "not a key of rooflet"),
            (
                "sk-rf-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
                "it ends in `dHh8`",
            ),
        ] {
            let message = of_key(&KeyError::Unknown, &PresentedKey::parse(presented)).message;
            assert!(message.contains(expect), "{presented}: {message}");
            assert!(!message.contains(presented), "{message}");
        }
    }

    #[test]
    fn states_limit_and_wait() {
        let wait = Duration::from_millis(2300);
        let error = of_limit(
            Denial::Tokens {
                per_minute: 600,
                wait,
            },
            "team/a",
        );
        assert_eq!((error.status.as_u16(), error.retry_after_seconds), (429, Some(3)));
        assert_eq!(
            error.message,
            "Rate limit reached for the API key `team/a`: 600 tokens per minute. Please try again in 3 s."
        );
        let wait = Duration::from_secs(3601);
        let budget = of_limit(Denial::Budget { per_day: 5, wait }, "team/a");
        assert_eq!(budget.body()["error"]["code"], "insufficient_quota");
        assert_eq!(budget.retry_after_seconds, Some(3601));
        assert!(budget.message.ends_with("in 61 min."), "{}", budget.message);
    }

    #[test]
    fn headers_have_the_names_of_each_api() {
        let tokens = Remaining {
            limit: 600,
            remaining: 20,
            reset: Duration::from_millis(57_500),
        };
        let limits = Limits {
            requests: None,
            tokens: Some(tokens),
        };
        let now = "2026-03-01T10:00:00.4Z".parse().expect("a time");
        let openai = headers(limits, "/v1/chat/completions", now);
        assert_eq!(openai.len(), 3);
        assert_eq!(openai["x-ratelimit-limit-tokens"], "600");
        assert_eq!(openai["x-ratelimit-remaining-tokens"], "20");
        assert_eq!(openai["x-ratelimit-reset-tokens"], "58s");
        let anthropic = headers(limits, "/v1/messages", now);
        assert_eq!(anthropic["anthropic-ratelimit-tokens-remaining"], "20");
        assert_eq!(
            anthropic["anthropic-ratelimit-tokens-reset"],
            "2026-03-01T10:00:57Z"
        );
    }
}
