//! Golden prompts: requests that a worker must answer correctly before it is Ready. The agent sends
//! them over the worker's socket with temperature 0. Prompts and answers never appear in logs or
//! reports.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use http::uri::PathAndQuery;
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use rooflet_api::v1alpha1::{Expectation, GoldenPrompt};
use rooflet_proxy::{Proxy, Upstream};

/// Timeout of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 4 << 20;
const PATH: &str = "/v1/chat/completions";

/// Golden prompts of one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Golden {
    /// Served name of the model.
    pub model: String,
    pub prompts: Vec<GoldenPrompt>,
}

/// Result of the golden prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum GoldenState {
    #[default]
    Pending,
    Passed,
    /// Error message without text of prompts or answers.
    Failed(String),
}

impl GoldenState {
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Failed(message) => Some(message.clone()),
            Self::Pending | Self::Passed => None,
        }
    }
}

/// Error of a golden prompt. No variant contains text of the prompt or answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum GoldenPromptError {
    #[error("the worker answered with HTTP status {0}")]
    Status(u16),
    #[error("the answer does not contain the text in spec.strategy.goldenPrompts")]
    Missing,
    #[error("the answer does not equal the text in spec.strategy.goldenPrompts")]
    Different,
    #[error("the answer is empty")]
    Empty,
}

/// Sends all prompts and checks the answers. Returns `None` if the worker was unreachable or busy.
pub(crate) async fn run(golden: &Golden, proxy: &Proxy, upstream: &Upstream) -> Option<GoldenState> {
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let request = answer(&golden.model, prompt, proxy, upstream);
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, request).await.ok()??;
        let checked = answered.and_then(|text| check(&prompt.expect, &text));
        if let Err(err) = checked {
            let (number, of) = (index + 1, golden.prompts.len());
            return Some(GoldenState::Failed(format!(
                "golden prompt {number} of {of}: {err}"
            )));
        }
    }
    Some(GoldenState::Passed)
}

/// Returns the answer's text or an error. Returns `None` if the worker was unreachable or busy.
async fn answer(
    model: &str,
    prompt: &GoldenPrompt,
    proxy: &Proxy,
    upstream: &Upstream,
) -> Option<Result<String, GoldenPromptError>> {
    let body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": prompt.prompt }],
        "temperature": 0,
        "max_tokens": prompt.max_tokens,
    });
    let request = Request::post(PATH)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))
        .ok()?;
    let response = proxy
        .forward(request, upstream, &PathAndQuery::from_static(PATH))
        .await
        .ok()?;
    let status = response.status();
    let bytes = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
        .collect()
        .await
        .ok()?
        .to_bytes();
    // The worker is busy; the caller retries.
    if status == http::StatusCode::TOO_MANY_REQUESTS || status == http::StatusCode::SERVICE_UNAVAILABLE {
        return None;
    }
    if !status.is_success() {
        return Some(Err(GoldenPromptError::Status(status.as_u16())));
    }
    let parsed: Value = serde_json::from_slice(&bytes).ok()?;
    let text = parsed["choices"][0]["message"]["content"].as_str();
    Some(Ok(text.unwrap_or_default().to_owned()))
}

/// Checks an answer against the expectation.
fn check(expect: &Expectation, answer: &str) -> Result<(), GoldenPromptError> {
    let Expectation { contains, equals } = expect;
    let is_missing = contains.as_ref().is_some_and(|wanted| !answer.contains(wanted));
    let is_different = equals
        .as_ref()
        .is_some_and(|wanted| answer.trim() != wanted.trim());
    if is_missing {
        Err(GoldenPromptError::Missing)
    } else if is_different {
        Err(GoldenPromptError::Different)
    } else if answer.trim().is_empty() {
        Err(GoldenPromptError::Empty)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_answer_with_expectation() {
        let expect = |contains: Option<&str>, equals: Option<&str>| Expectation {
            contains: contains.map(str::to_owned),
            equals: equals.map(str::to_owned),
        };
        assert_eq!(check(&expect(None, None), "anything"), Ok(()));
        assert_eq!(check(&expect(Some("Paris"), None), "It is Paris."), Ok(()));
        assert_eq!(check(&expect(None, Some("Paris")), " Paris\n"), Ok(()));
        for (expect, answer) in [
            (expect(Some("Paris"), None), "It is Rome, my secret."),
            (expect(None, Some("Paris")), "Paris, my secret"),
            (expect(None, None), " \n"),
        ] {
            let message = check(&expect, answer).unwrap_err().to_string();
            assert!(
                !message.contains("secret") && !message.contains("Paris"),
                "{message}"
            );
        }
    }
}
