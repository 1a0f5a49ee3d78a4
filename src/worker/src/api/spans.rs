//! Server spans, one per request. The engine adds the child spans `queue`, `prefill` and `decode`.
//! [`rooflet_telemetry::trace`] defines the attribute names.

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
    /// Span of the request that the current task handles.
    static CURRENT: Arc<OpenSpan>;
}

/// Starts a span for each request to the model. The span ends with the request's last completion.
pub(crate) async fn trace_request(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
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

/// Returns the span of the current request. The span ends when its last reference is dropped.
pub(crate) fn current() -> Option<Arc<OpenSpan>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Sets span attributes from the request's own parameters, without defaults.
pub(crate) fn record_request_attributes(options: &Options) {
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
