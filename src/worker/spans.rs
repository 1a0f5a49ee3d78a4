//! Spans of requests: one for each, told by HTTP's side and the engine's, with what it went through in the engine as its
//! children: `queue`, `prefill`, `decode`. Names of attributes as in [`crate::trace`].

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::event::Done;
use super::prompt::ValidRequest;
use super::sequence::{Sequence, StepError};
use super::server::App;
use crate::openai::response::FinishReason;
use crate::trace::OpenSpan;

tokio::task_local! {
    /// Of the request whose handler runs.
    static CURRENT: Arc<OpenSpan>;
}

/// What a path asks of a model, in the conventions' words.
fn operation(path: &str) -> Option<&'static str> {
    match path {
        "/v1/chat/completions" | "/v1/responses" | "/v1/messages" => Some("chat"),
        "/v1/completions" => Some("text_completion"),
        "/v1/embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// Begins a span for each request that asks the model something. It ends with the request's last completion.
pub(crate) async fn traced(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let span = operation(path).and_then(|operation| {
        let span = app
            .tracer
            .server(format!("{operation} {}", app.name), request.headers())?;
        span.set("gen_ai.operation.name", operation);
        span.set("gen_ai.provider.name", "rooflet");
        span.set("gen_ai.request.model", app.name.as_str());
        span.set("http.request.method", request.method().as_str());
        span.set("url.path", path);
        Some(Arc::new(span))
    });
    let Some(span) = span else {
        return next.run(request).await;
    };
    let response = CURRENT.scope(Arc::clone(&span), next.run(request)).await;
    span.answered(response.status());
    response
}

/// The span of the request whose handler asks. It ends when nobody holds it any more.
pub(crate) fn current() -> Option<Arc<OpenSpan>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Tells what is asked for.
pub(crate) fn tell_request(span: &OpenSpan, request: &ValidRequest) {
    span.set("gen_ai.request.max_tokens", request.max_tokens);
    span.set(
        "gen_ai.request.temperature",
        f64::from(request.sampling.temperature),
    );
    span.set("gen_ai.request.top_p", f64::from(request.sampling.top_p));
}

/// Tells what the engine did, for one completion, and how it ended.
pub(crate) fn tell_sequence(
    span: &OpenSpan,
    sequence: &Sequence,
    outcome: Result<&Done, &StepError>,
    now: Instant,
) {
    let timing = sequence.timing();
    let joined = timing.joined.unwrap_or(now);
    span.interval("queue", timing.submitted, joined, vec![]);
    let prompt = vec![
        ("rooflet.prompt_tokens", sequence.prompt_tokens().into()),
        ("rooflet.cached_tokens", sequence.cached_tokens().into()),
    ];
    span.interval("prefill", joined, timing.first_token.unwrap_or(now), prompt);
    if let Some(first_token) = timing.first_token {
        let answer = vec![
            ("rooflet.completion_tokens", sequence.completion_tokens().into()),
            ("rooflet.batch_rows", sequence.streams().into()),
        ];
        span.interval("decode", first_token, now, answer);
    }
    span.add("gen_ai.usage.output_tokens", sequence.completion_tokens());
    span.add("gen_ai.usage.cache_read.input_tokens", sequence.cached_tokens());
    match outcome {
        Ok(done) => span.push(
            "gen_ai.response.finish_reasons",
            match done.reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
                FinishReason::ToolCalls => "tool_calls",
            },
        ),
        Err(_) => span.fail("engine_error"),
    }
}

/// The client has gone.
pub(crate) fn tell_cancelled(span: Option<&OpenSpan>) {
    if let Some(span) = span {
        span.set("error.type", "cancelled");
    }
}
