//! Golden prompts: what a worker must answer before it counts as ready. Asked over its socket, greedily; neither
//! prompts nor answers are logged or told.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use http::uri::PathAndQuery;
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use rooflet_api::v1alpha1::{Expectation, GoldenPrompt};
use rooflet_proxy::{Proxy, Upstream};

/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// The largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 4 << 20;
const PATH: &str = "/v1/chat/completions";

/// What is asked of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Golden {
    /// The name it serves under.
    pub model: String,
    pub prompts: Vec<GoldenPrompt>,
}

/// How the answers were.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum GoldenState {
    #[default]
    Pending,
    Passed,
    /// Why, without a word of prompt or answer.
    Failed(String),
}

impl GoldenState {
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Failed(why) => Some(why.clone()),
            Self::Pending | Self::Passed => None,
        }
    }
}

/// Why the worker's response to a golden prompt fails. No variant holds text of the prompt or of the response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum GoldenPromptError {
    #[error("the worker answered with HTTP status {0}")]
    Status(u16),
    #[error("the answer does not contain what spec.strategy.goldenPrompts expects")]
    Lacks,
    #[error("the answer is not the one that spec.strategy.goldenPrompts expects")]
    Differs,
    #[error("the answer is empty")]
    Empty,
}

/// Asks for every answer. `None` when the worker could not be asked, which is no answer.
pub(crate) async fn ask(golden: &Golden, proxy: &Proxy, upstream: &Upstream) -> Option<GoldenState> {
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let asking = answer(&golden.model, prompt, proxy, upstream);
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, asking).await.ok()??;
        let judged = answered.and_then(|text| judge(&prompt.expect, &text));
        if let Err(why) = judged {
            let (number, of) = (index + 1, golden.prompts.len());
            return Some(GoldenState::Failed(format!(
                "golden prompt {number} of {of}: {why}"
            )));
        }
    }
    Some(GoldenState::Passed)
}

/// The text, or why there is none; `None` while the worker does not speak.
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
    // Busy, which passes.
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

/// Whether an answer is what was expected.
fn judge(expect: &Expectation, answer: &str) -> Result<(), GoldenPromptError> {
    let Expectation { contains, equals } = expect;
    let lacks = contains.as_ref().is_some_and(|wanted| !answer.contains(wanted));
    let differs = equals
        .as_ref()
        .is_some_and(|wanted| answer.trim() != wanted.trim());
    if lacks {
        Err(GoldenPromptError::Lacks)
    } else if differs {
        Err(GoldenPromptError::Differs)
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
    fn an_answer_is_held_against_what_is_expected() {
        let expect = |contains: Option<&str>, equals: Option<&str>| Expectation {
            contains: contains.map(str::to_owned),
            equals: equals.map(str::to_owned),
        };
        assert_eq!(judge(&expect(None, None), "anything"), Ok(()));
        assert_eq!(judge(&expect(Some("Paris"), None), "It is Paris."), Ok(()));
        assert_eq!(judge(&expect(None, Some("Paris")), " Paris\n"), Ok(()));
        for (expect, answer) in [
            (expect(Some("Paris"), None), "It is Rome, my secret."),
            (expect(None, Some("Paris")), "Paris, my secret"),
            (expect(None, None), " \n"),
        ] {
            let told = judge(&expect, answer).unwrap_err().to_string();
            assert!(!told.contains("secret") && !told.contains("Paris"), "{told}");
        }
    }
}
