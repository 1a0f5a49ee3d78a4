//! Spans of requests: one for each, told by HTTP's side and the engine's, with what it went through in the engine as its
//! children: `queue`, `prefill`, `decode`. Names of attributes as in [`rooflet_telemetry::trace`].

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::api::server::App;
use crate::batch::event::Done;
use crate::batch::sequence::{Sequence, StepError};
use crate::prompt::PromptUse;
use rooflet_inference_api::openai::request::Options;
use rooflet_inference_api::openai::response::FinishReason;
use rooflet_inference_api::openai::routes::operation;
use rooflet_telemetry::meter::Instrument;
use rooflet_telemetry::trace;
use rooflet_telemetry::trace::OpenSpan;

tokio::task_local! {
    /// Of the request whose handler runs.
    static CURRENT: Arc<OpenSpan>;
}

/// Begins a span for each request that asks the model something. It ends with the request's last completion.
pub(crate) async fn traced(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let span = operation(path).and_then(|operation| {
        let span = app
            .tracer
            .server(format!("{operation} {}", app.name), request.headers())?;
        span.set(trace::OPERATION, operation);
        span.set(trace::PROVIDER, "rooflet");
        span.set(trace::REQUEST_MODEL, app.name.as_str());
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

/// Tells what is asked for, not what it became.
pub(crate) fn tell_request(options: &Options) {
    let Some(span) = current() else {
        return;
    };
    if let Some(max_tokens) = options.max_tokens {
        span.set("gen_ai.request.max_tokens", max_tokens);
    }
    if let Some(temperature) = options.sampling.temperature {
        span.set("gen_ai.request.temperature", temperature);
    }
    if let Some(top_p) = options.sampling.top_p {
        span.set("gen_ai.request.top_p", top_p);
    }
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
    let request = sequence.request();
    // The prompt of all its choices counts once.
    if request.is_first_choice {
        span.add("gen_ai.usage.cache_read.input_tokens", sequence.cached_tokens());
    }
    let answers = request.prompt_use != PromptUse::Embed;
    if answers {
        span.add(trace::OUTPUT_TOKENS, sequence.completion_tokens());
    }
    match outcome {
        Ok(done) if answers => {
            measure_tokens(span, sequence, now);
            span.push(
                "gen_ai.response.finish_reasons",
                match done.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                    FinishReason::ToolCalls => "tool_calls",
                },
            );
        }
        Ok(_) => {}
        Err(_) => span.fail("engine_error"),
    }
}

fn measure_tokens(span: &OpenSpan, sequence: &Sequence, now: Instant) {
    let timing = sequence.timing();
    let Some(first_token) = timing.first_token else {
        return;
    };
    span.measure(Instrument::TimeToFirstToken, first_token - timing.submitted);
    let later_tokens = u32::try_from(sequence.completion_tokens().saturating_sub(1)).unwrap_or(u32::MAX);
    if later_tokens > 0 {
        span.measure(Instrument::TimePerOutputToken, (now - first_token) / later_tokens);
    }
}

/// The client has gone.
pub(crate) fn tell_cancelled(span: Option<&OpenSpan>) {
    if let Some(span) = span {
        span.set(trace::ERROR_TYPE, "cancelled");
    }
}
