//! Audit of denied requests: the time, the client, the requested path, and the reason.
//!
//! Events have the form of Kubernetes (`audit.k8s.io/v1`, level `Metadata`), as those of the API server: no
//! bodies, no credentials, no query parameters.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Characters of a path or a `User-Agent` in an event.
const TEXT_MAX: usize = 256;
const REQUEST_ID: &str = "x-request-id";

/// Denied request.
#[derive(Debug)]
pub struct Denied<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    pub headers: &'a HeaderMap,
    pub client: Option<IpAddr>,
    /// Authenticated user; empty if there is none.
    pub user: &'a str,
    pub status: StatusCode,
    /// Fixed reason, or a sentence.
    pub reason: &'a str,
}

/// Receiver of events about denied requests. Clones share it. It must not block.
#[derive(Clone)]
pub struct DenialAudit(Arc<dyn Fn(Value) + Send + Sync>);

impl DenialAudit {
    pub fn new(record: impl Fn(Value) + Send + Sync + 'static) -> Self {
        Self(Arc::new(record))
    }

    pub fn record(&self, denied: &Denied<'_>, now: Timestamp) {
        (self.0)(event(denied, now));
    }
}

impl fmt::Debug for DenialAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DenialAudit")
    }
}

fn event(denied: &Denied<'_>, now: Timestamp) -> Value {
    let start = |text: &str| -> String { text.chars().take(TEXT_MAX).collect() };
    let header = |name: &str| {
        let value = denied.headers.get(name).and_then(|value| value.to_str().ok());
        start(value.unwrap_or_default())
    };
    let client = denied.client.map(|address| address.to_canonical().to_string());
    let now = format!("{now:.6}");
    json!({
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": header(REQUEST_ID),
        "stage": "ResponseComplete",
        "requestURI": start(denied.path),
        "verb": denied.method.as_str().to_lowercase(),
        "user": {"username": denied.user},
        "sourceIPs": client.into_iter().collect::<Vec<_>>(),
        "userAgent": header(header::USER_AGENT.as_str()),
        "responseStatus": {"code": denied.status.as_u16()},
        "requestReceivedTimestamp": now,
        "stageTimestamp": now,
        "annotations": {
            "authorization.k8s.io/decision": "forbid",
            "authorization.k8s.io/reason": denied.reason,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn event_has_client_and_reason_and_no_credentials() {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", http::HeaderValue::from_static("Bearer hidden"));
        headers.insert("user-agent", http::HeaderValue::from_static("curl/8"));
        headers.insert("x-request-id", http::HeaderValue::from_static("id-1"));
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let audit = DenialAudit::new(move |event| sink.lock().expect("no panic").push(event));
        let long = format!("/{}", "x".repeat(1000));
        let denied = Denied {
            method: &Method::POST,
            path: &long,
            headers: &headers,
            client: Some([192, 0, 2, 7].into()),
            user: "",
            status: StatusCode::UNAUTHORIZED,
            reason: "UnknownKey",
        };
        audit.record(&denied, "2026-03-01T10:00:00Z".parse().expect("a time"));
        let events = events.lock().expect("no panic");
        let event = &events[0];
        assert_eq!(event["sourceIPs"], json!(["192.0.2.7"]));
        assert_eq!(event["verb"], "post");
        assert_eq!(event["auditID"], "id-1");
        assert_eq!(event["userAgent"], "curl/8");
        assert_eq!(event["responseStatus"]["code"], 401);
        assert_eq!(event["annotations"]["authorization.k8s.io/reason"], "UnknownKey");
        assert_eq!(event["stageTimestamp"], "2026-03-01T10:00:00.000000Z");
        assert_eq!(event["requestURI"].as_str().map(str::len), Some(TEXT_MAX));
        assert!(!event.to_string().contains("hidden"), "{event}");
    }
}
