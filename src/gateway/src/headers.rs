//! The HTTP headers of the gateway: the names of those that it reads and writes, and how it sets
//! them.
//!
//! Two headers of responses come from `rooflet-inference-api`, which the agent and the worker
//! share: `x-request-id` (`openai::headers`) and `Retry-After` (`openai::ApiError`, from its
//! `retry_after_seconds`).

use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue};

use rooflet_api::wire::{REPLICA_ID_HEADER, RETRYABLE_HEADER, RUNNING_HEADER};
use rooflet_inference_api::openai::stored_reference::RESPONSES_PATH;
use rooflet_telemetry::trace::{TRACEPARENT, TraceContext};

/// Request: identity for fair queueing. The Gateway API inference extension defines the name.
pub(crate) const FAIRNESS_ID: &str = "x-gateway-inference-fairness-id";
/// Request: session. Requests of one session go to one replica while that replica accepts them.
pub(crate) const SESSION_ID: &str = "x-session-id";
/// Request: longest time to first token, in milliseconds. llm-d defines the name.
pub(crate) const FIRST_TOKEN_MILLIS: &str = "x-slo-ttft-ms";
/// Request: the timeout of OpenAI's and Anthropic's client libraries for Node and for Python, in
/// seconds.
pub(crate) const CLIENT_TIMEOUTS: [&str; 2] = ["x-stainless-timeout", "x-stainless-read-timeout"];

/// Response: `namespace/name` of the replica that answered, or that began to answer.
const REPLICA: HeaderName = HeaderName::from_static("x-rooflet-replica");
/// Response: time in the queue, in milliseconds. Set only if the request waited.
const QUEUE_MILLIS: HeaderName = HeaderName::from_static("x-rooflet-queue-ms");
/// Response: name of the fallback model. Set only if a fallback answered in place of the requested
/// model.
const FALLBACK: HeaderName = HeaderName::from_static("x-rooflet-fallback");

/// Returns the headers that the gateway adds to a replica's response.
pub(crate) fn of_response(
    replica: &str,
    queued: Option<Duration>,
    fallback: Option<&HeaderValue>,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(replica) = HeaderValue::from_str(replica) {
        headers.insert(REPLICA, replica);
    }
    if let Some(queued) = queued {
        let millis = u64::try_from(queued.as_millis()).unwrap_or(u64::MAX);
        headers.insert(QUEUE_MILLIS, millis.into());
    }
    if let Some(name) = fallback {
        headers.insert(FALLBACK, name.clone());
    }
    headers
}

/// Returns the headers of a stream that begins before its first token: the replica's and `added`.
pub(crate) fn of_early_stream(replica: &HeaderMap, added: &HeaderMap) -> HeaderMap {
    let mut headers = replica.clone();
    headers.remove(CONTENT_LENGTH);
    headers.remove(RUNNING_HEADER);
    headers.extend(added.clone());
    headers
}

/// Removes and returns the agent's count of requests that its replica runs. Clients do not see this
/// header.
pub(crate) fn take_running(headers: &mut HeaderMap) -> Option<u64> {
    let running = headers.remove(RUNNING_HEADER)?;
    running.to_str().ok()?.parse().ok()
}

/// Replaces the internal headers of a replica's response by `added`, and returns the agent's count.
pub(crate) fn replace_internal(headers: &mut HeaderMap, added: HeaderMap) -> Option<u64> {
    let running = take_running(headers);
    headers.extend(added);
    running
}

/// Sets the headers of a request to the agent of the replica with this id. `is_retryable` is true
/// if another replica can serve the request.
pub(crate) fn set_for_agent(
    headers: &mut HeaderMap,
    path: &str,
    replica: u64,
    is_retryable: bool,
    context: Option<TraceContext>,
) {
    headers.remove(RETRYABLE_HEADER);
    if is_retryable {
        headers.insert(RETRYABLE_HEADER, HeaderValue::from_static("true"));
    }
    if path == RESPONSES_PATH
        && let Ok(replica_id) = HeaderValue::from_str(&format!("{replica:016x}"))
    {
        headers.insert(REPLICA_ID_HEADER, replica_id);
    }
    // Without a span of the gateway, the client's own context passes unchanged.
    if let Some(context) = context {
        headers.insert(TRACEPARENT, context.to_header());
    }
}

/// Returns a wait in whole seconds, rounded up, for `Retry-After` and the error's message.
pub(crate) fn retry_after_seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_secs_f64().ceil() as u64).unwrap_or(u32::MAX)
}
