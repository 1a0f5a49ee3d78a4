//! Audit of denied requests: the time, the client, the requested path, and the reason.
//!
//! Events have the form of Kubernetes (`audit.k8s.io/v1`, level `Metadata`), as those of the API server: no
//! bodies, no credentials, no query parameters.
//!
//! Each client has a limit of events per second, and all unknown clients share one: a flood of requests must not
//! replace the other events of the file. The next event has the number of suppressed ones.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use http::{HeaderMap, Method, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

use crate::denial_limits::DenialLimits;

/// Annotation with the number of events of the user that were suppressed since the last one. All unknown clients count
/// as one user.
pub const SUPPRESSED: &str = "rooflet.dev/suppressed-events";
/// Characters of a text of a client in an event, for example of a path or a `User-Agent`.
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
pub struct DenialAudit {
    record: Arc<dyn Fn(Value) + Send + Sync>,
    limits: Arc<Mutex<DenialLimits>>,
}

impl DenialAudit {
    pub fn new(record: impl Fn(Value) + Send + Sync + 'static) -> Self {
        Self {
            record: Arc::new(record),
            limits: Arc::new(Mutex::new(DenialLimits::new(Clock::System.instant()))),
        }
    }

    pub fn record(&self, denied: &Denied<'_>, now: Timestamp) {
        self.record_at(denied, now, Clock::System.instant());
    }

    fn record_at(&self, denied: &Denied<'_>, now: Timestamp, instant: Instant) {
        let suppressed = lock(&self.limits).admit(denied.user, instant);
        if let Some(suppressed) = suppressed {
            (self.record)(event(denied, suppressed, now));
        }
    }
}

impl fmt::Debug for DenialAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DenialAudit")
    }
}

/// Returns the start of a text of a client, as events contain it.
pub fn audit_text(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

fn event(denied: &Denied<'_>, suppressed: u64, now: Timestamp) -> Value {
    let header = |name: &str| {
        let value = denied.headers.get(name).and_then(|value| value.to_str().ok());
        audit_text(value.unwrap_or_default())
    };
    let client = denied.client.map(|address| address.to_canonical().to_string());
    let now = format!("{now:.6}");
    let mut event = json!({
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": header(REQUEST_ID),
        "stage": "ResponseComplete",
        "requestURI": audit_text(denied.path),
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
    });
    if suppressed > 0 {
        event["annotations"][SUPPRESSED] = json!(suppressed.to_string());
    }
    event
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

    #[test]
    fn flood_of_a_client_leaves_the_events_of_others() {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let audit = DenialAudit::new(move |event| sink.lock().expect("no panic").push(event));
        let headers = HeaderMap::new();
        let start = Clock::System.instant();
        let deny = |user: &str, seconds: u64| {
            let denied = Denied {
                method: &Method::POST,
                path: "/v1/chat/completions",
                headers: &headers,
                client: None,
                user,
                status: StatusCode::UNAUTHORIZED,
                reason: "UnknownKey",
            };
            let now = "2026-03-01T10:00:00Z".parse().expect("a time");
            audit.record_at(&denied, now, start + std::time::Duration::from_secs(seconds));
        };
        for client in ["", "apikey:default/team-a"] {
            for _ in 0..1000 {
                deny(client, 0);
            }
            deny("apikey:default/team-b", 0);
            deny(client, 1);
            let events = std::mem::take(&mut *events.lock().expect("no panic"));
            assert_eq!(events.len(), 22, "{client}");
            assert_eq!(events[20]["user"]["username"], "apikey:default/team-b");
            assert_eq!(events[20]["annotations"][SUPPRESSED], Value::Null);
            assert_eq!(events[21]["annotations"][SUPPRESSED], "980");
        }
    }
}
