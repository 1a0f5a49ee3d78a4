//! Spans of requests, one for each. The engine adds its part: the intervals `queue`, `prefill` and
//! `decode`. Names of attributes as in [`rooflet_telemetry::trace`].

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::api::app::App;
use rooflet_inference_api::openai::request::Options;
use rooflet_inference_api::openai::routes::operation;
use rooflet_telemetry::trace;
use rooflet_telemetry::trace::OpenSpan;

tokio::task_local! {
    /// Of the request whose handler runs.
    static CURRENT: Arc<OpenSpan>;
}

/// Begins a span for each request that asks the model something. It ends with the request's last
/// completion.
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
