//! Audit: who did what to which object, from where, and whether it was allowed.
//!
//! Events have the form of Kubernetes (`audit.k8s.io/v1`, level `Metadata`): no bodies, no
//! credentials, no query parameters.
//!
//! Each user has a limit of denied requests per second, and all unknown clients share one: a flood of requests must not
//! replace the other events of the file. The next event has the number of suppressed ones.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use http::{StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::authentication::User;
use crate::endpoints::request::Request;
use crate::endpoints::routes::{ResourcePath, Route};
use rooflet_apimachinery::verb::Verb;
use rooflet_base::mutex::lock;
use rooflet_http_server::{DenialLimits, SUPPRESSED, audit_text};
use rooflet_rbac::{Mode, UNAUTHENTICATED};

/// Characters of a path in an event. Paths with valid names are shorter.
const PATH_MAX: usize = 1024;

/// Requests that are recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuditPolicy {
    /// Denied requests, writes, and reads of Secrets. Without writes of status, Leases and Events,
    /// and without reviews.
    #[default]
    Writes,
    /// All requests to resources.
    All,
}

/// Receiver of events. Must not block.
pub trait AuditSink: Send + Sync {
    fn record(&self, event: Value);
}

/// Configured audit.
#[derive(Clone)]
pub struct Audit {
    policy: AuditPolicy,
    sink: Arc<dyn AuditSink>,
    limits: Arc<Mutex<DenialLimits>>,
}

/// User of a request, and the caller with the mode if it impersonates the user.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identity {
    /// `None` if the credentials were not accepted.
    pub(crate) user: Option<Arc<User>>,
    pub(crate) impersonated_by: Option<(Arc<User>, Mode)>,
}

/// Name of a created object, as an extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct CreatedName(pub(crate) String);

/// Annotations of admission policies, as an extension of the response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Annotations(pub(crate) BTreeMap<String, String>);

/// Facts of a finished request.
pub(crate) struct Finished<'a> {
    pub(crate) request: &'a Request,
    pub(crate) route: &'a Route,
    pub(crate) verb: Verb,
    pub(crate) identity: &'a Identity,
    pub(crate) client: Option<IpAddr>,
    pub(crate) status: StatusCode,
    /// Name of the created object, which the path of the request does not contain.
    pub(crate) created: Option<&'a str>,
    pub(crate) annotations: Option<&'a Annotations>,
    pub(crate) id: &'a str,
    pub(crate) received: Timestamp,
    pub(crate) finished: Timestamp,
}

impl AuditPolicy {
    /// Returns whether a request is recorded.
    fn includes(self, path: &ResourcePath, verb: Verb, status: StatusCode) -> bool {
        if self == Self::All || is_denial(status) {
            return true;
        }
        let is_in = |group: &str| path.group == group;
        let is_review = is_in("authorization.k8s.io") || is_in("authentication.k8s.io");
        let is_frequent = matches!(path.resource.as_str(), "leases" | "events")
            || path.subresource.as_deref() == Some("status");
        match verb {
            Verb::Get | Verb::List | Verb::Watch => is_in("") && path.resource == "secrets",
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
                !is_review && !is_frequent
            }
            Verb::Impersonate | Verb::Post | Verb::Put | Verb::Other => false,
        }
    }
}

impl Audit {
    pub fn new(policy: AuditPolicy, sink: Arc<dyn AuditSink>, now: Instant) -> Self {
        Self {
            policy,
            sink,
            limits: Arc::new(Mutex::new(DenialLimits::new(now))),
        }
    }

    /// Records a finished request, if the policy and the limits include it.
    pub(crate) fn finished(&self, finished: &Finished<'_>, now: Instant) {
        let Route::Resource(path) = finished.route else {
            return;
        };
        if !self.policy.includes(path, finished.verb, finished.status) {
            return;
        }
        let suppressed = match finished.limited_user() {
            Some(user) => lock(&self.limits).admit(user, now),
            None => Some(0),
        };
        if let Some(suppressed) = suppressed {
            self.sink.record(event(finished, path, suppressed));
        }
    }
}

impl Finished<'_> {
    /// Returns the user to whose limit the event counts, empty for an unknown client; `None` if there is no limit.
    fn limited_user(&self) -> Option<&str> {
        let impersonator = self.identity.impersonated_by.as_ref().map(|(caller, _)| caller);
        let caller = impersonator.or(self.identity.user.as_ref());
        match caller.filter(|caller| !caller.is_in(UNAUTHENTICATED)) {
            Some(caller) => is_denial(self.status).then_some(caller.name.as_str()),
            None => (!self.status.is_success()).then_some(""),
        }
    }
}

fn is_denial(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn user(user: &User) -> Value {
    json!({"username": user.name, "groups": user.groups})
}

fn event(finished: &Finished<'_>, path: &ResourcePath, suppressed: u64) -> Value {
    let agent = finished.request.headers.get(header::USER_AGENT);
    let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    let uri: String = finished.request.path.chars().take(PATH_MAX).collect();
    let anonymous = User::new("", &[]);
    let own = finished.identity.user.as_deref().unwrap_or(&anonymous);
    let impersonation = finished.identity.impersonated_by.as_ref();
    let mut object = json!({"resource": audit_text(&path.resource), "apiVersion": audit_text(&path.version)});
    let parts = [
        ("apiGroup", Some(&path.group).filter(|group| !group.is_empty())),
        ("namespace", path.namespace.as_ref()),
        ("name", path.name.as_ref()),
        ("subresource", path.subresource.as_ref()),
    ];
    if let Some(name) = finished.created {
        object["name"] = json!(audit_text(name));
    }
    for (name, value) in parts {
        if let Some(value) = value {
            object[name] = json!(audit_text(value));
        }
    }
    let mut event = json!({
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": finished.id,
        "stage": if finished.verb == Verb::Watch { "ResponseStarted" } else { "ResponseComplete" },
        "requestURI": uri,
        "verb": finished.verb,
        "user": user(impersonation.map_or(own, |(caller, _)| caller)),
        "sourceIPs": finished.client.map(|address| vec![address.to_canonical().to_string()]).unwrap_or_default(),
        "userAgent": audit_text(agent),
        "objectRef": object,
        "responseStatus": {"code": finished.status.as_u16()},
        "requestReceivedTimestamp": format!("{:.6}", finished.received),
        "stageTimestamp": format!("{:.6}", finished.finished),
        "annotations": {"authorization.k8s.io/decision": if is_denial(finished.status) { "forbid" } else { "allow" }},
    });
    for (key, value) in finished.annotations.iter().flat_map(|found| &found.0) {
        event["annotations"][key] = json!(value);
    }
    if suppressed > 0 {
        event["annotations"][SUPPRESSED] = json!(suppressed.to_string());
    }
    if let Some((_, mode)) = impersonation {
        event["impersonatedUser"] = user(own);
        if *mode != Mode::Legacy {
            event["authenticationMetadata"] = json!({"impersonationConstraint": mode.verb()});
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::endpoints::request::Query;
    use crate::endpoints::routes;
    use rooflet_base::clock::Clock;
    use rooflet_rbac::AUTHENTICATED;

    fn path(text: &str) -> ResourcePath {
        let Route::Resource(path) = routes::parse(text) else {
            panic!("{text} is no resource");
        };
        path
    }

    #[test]
    fn default_policy_records_writes_denials_and_reads_of_secrets() {
        let mdep = "/apis/rooflet.dev/v1alpha1/namespaces/default/modeldeployments/guide";
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a";
        for (text, verb, status, expect) in [
            (mdep, Verb::Patch, 200, true),
            (mdep, Verb::Delete, 404, true),
            (mdep, Verb::Get, 200, false),
            (mdep, Verb::Get, 403, true),
            (mdep, Verb::Watch, 401, true),
            (lease, Verb::Update, 200, false),
            (lease, Verb::Update, 403, true),
            ("/api/v1/namespaces/default/secrets/a", Verb::Get, 200, true),
            ("/api/v1/secrets", Verb::List, 200, true),
            ("/api/v1/namespaces/default/events", Verb::Create, 201, false),
            (
                "/apis/rooflet.dev/v1alpha1/fleetnodes/a/status",
                Verb::Patch,
                200,
                false,
            ),
            (
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                Verb::Create,
                201,
                false,
            ),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let (path, policy) = (path(text), AuditPolicy::Writes);
            assert_eq!(
                policy.includes(&path, verb, status),
                expect,
                "{verb} {text} {status}"
            );
            assert!(AuditPolicy::All.includes(&path, verb, status));
        }
    }

    #[test]
    fn event_names_caller_object_and_decision_without_credentials() {
        let mut headers = http::HeaderMap::new();
        headers.insert(
            header::AUTHORIZATION,
            http::HeaderValue::from_static("Bearer hidden"),
        );
        headers.insert(
            header::USER_AGENT,
            http::HeaderValue::from_static("kubectl/v1.36.2"),
        );
        let request = Request {
            method: http::Method::DELETE,
            path: "/api/v1/namespaces/team/secrets/hub".to_owned(),
            query: Query::parse("token=hidden"),
            headers,
            body: bytes::Bytes::from_static(b"hidden"),
            certificates: Arc::default(),
            client: None,
        };
        let alice = Arc::new(User::new("alice", &["team-a"]));
        let identity = Identity {
            user: Some(Arc::new(User::new("bob", &[]))),
            impersonated_by: Some((alice, Mode::UserInfo)),
        };
        let at: Timestamp = "2026-03-01T10:00:00Z".parse().expect("a time");
        let event = event(
            &Finished {
                request: &request,
                route: &routes::parse(&request.path),
                verb: Verb::Delete,
                identity: &identity,
                client: Some([192, 0, 2, 7].into()),
                status: StatusCode::FORBIDDEN,
                created: None,
                annotations: None,
                id: "id-1",
                received: at,
                finished: at,
            },
            &path(&request.path),
            0,
        );
        assert_eq!(event["user"]["username"], "alice");
        assert_eq!(event["impersonatedUser"]["username"], "bob");
        assert_eq!(
            event["authenticationMetadata"],
            json!({"impersonationConstraint": "impersonate:user-info"})
        );
        assert_eq!(event["sourceIPs"], json!(["192.0.2.7"]));
        assert_eq!(
            event["objectRef"],
            json!({"resource": "secrets", "apiVersion": "v1", "namespace": "team", "name": "hub"})
        );
        assert_eq!(event["verb"], "delete");
        assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "forbid");
        assert_eq!(event["stageTimestamp"], "2026-03-01T10:00:00.000000Z");
        assert!(!event.to_string().contains("hidden"), "{event}");
    }

    #[derive(Default)]
    struct Events(Mutex<Vec<Value>>);

    impl AuditSink for Events {
        fn record(&self, event: Value) {
            lock(&self.0).push(event);
        }
    }

    fn user_of(name: &str, group: &str) -> Identity {
        Identity {
            user: Some(Arc::new(User::new(name, &[group]))),
            impersonated_by: None,
        }
    }

    #[test]
    fn flood_of_denied_requests_leaves_the_other_events_of_the_api_server() {
        let start = Clock::System.instant();
        let long = "x".repeat(60_000);
        let record_in = |audit: &Audit, identity: &Identity, status: u16, seconds: u64| {
            let request = Request {
                method: http::Method::DELETE,
                path: format!("/apis/{long}/{long}/namespaces/{long}/{long}/{long}"),
                query: Query::parse(""),
                headers: http::HeaderMap::new(),
                body: bytes::Bytes::new(),
                certificates: Arc::default(),
                client: None,
            };
            let at: Timestamp = "2026-03-01T10:00:00Z".parse().expect("a time");
            let finished = Finished {
                request: &request,
                route: &routes::parse(&request.path),
                verb: Verb::Delete,
                identity,
                client: None,
                status: StatusCode::from_u16(status).expect("a status"),
                created: None,
                annotations: None,
                id: "id-1",
                received: at,
                finished: at,
            };
            audit.finished(&finished, start + Duration::from_secs(seconds));
        };
        let (alice, admin) = (
            user_of("alice", AUTHENTICATED),
            user_of("system:admin", AUTHENTICATED),
        );
        let anonymous = user_of("system:anonymous", UNAUTHENTICATED);
        for (identity, statuses) in [
            (&Identity::default(), [401, 429]),
            (&anonymous, [403, 413]),
            (&alice, [403, 403]),
        ] {
            let sink = Arc::new(Events::default());
            let audit = Audit::new(AuditPolicy::Writes, sink.clone(), start);
            let record = |identity: &Identity, status: u16, seconds: u64| {
                record_in(&audit, identity, status, seconds);
            };
            for status in statuses {
                (0..500).for_each(|_| record(identity, status, 0));
            }
            record(&admin, 403, 0);
            (0..30).for_each(|_| record(&admin, 200, 0));
            record(identity, statuses[0], 1);
            let events = std::mem::take(&mut *lock(&sink.0));
            assert_eq!(events.len(), 20 + 1 + 30 + 1, "{identity:?}");
            assert_eq!(events[51]["annotations"][SUPPRESSED], "980");
            assert_eq!(events[50]["annotations"][SUPPRESSED], Value::Null);
            assert!(events[0].to_string().len() < 4096, "{}", events[0]);
        }
    }
}
