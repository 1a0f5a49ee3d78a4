//! Requests that other machines of the fleet may send to an agent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tracing::info;

use rooflet_api::wire::GATEWAY_LOG_PATH;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_http_server::{DenialAudit, Denied, LogLimit, PeerCertificates};
use rooflet_pki::{Identity, Revocations, Role};

/// Subject of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    /// Requests to models.
    Inference,
    /// Logs of workers and of a gateway.
    Logs,
    /// Health, metrics and the API document.
    Status,
}

impl Area {
    fn of(path: &str) -> Self {
        let segments: Vec<_> = path.split('/').skip(1).collect();
        match (path, segments.as_slice()) {
            ("/health" | "/ping" | "/ready" | "/metrics" | "/openapi.json", _) => Self::Status,
            (GATEWAY_LOG_PATH, _) | (_, ["replicas", _, _, "logs"]) => Self::Logs,
            _ => Self::Inference,
        }
    }
}

/// Returns whether a role may send requests of an area.
fn may_call(role: Role, area: Area) -> bool {
    match (role, area) {
        (Role::Operator, _)
        | (Role::Gateway, Area::Inference | Area::Status)
        | (Role::Node, Area::Status) => true,
        (Role::Gateway, Area::Logs)
        | (Role::Node, Area::Inference | Area::Logs)
        // A controller reads the API server only.
        | (Role::Controller, _) => false,
    }
}

/// Reason why a request is refused.
#[derive(Debug, thiserror::Error)]
enum RefuseError {
    #[error("the client presented no certificate of the fleet")]
    NoIdentity,
    #[error("the certificate of {0} is revoked: its FleetNode was deleted")]
    Revoked(Identity),
    #[error("{0} may not send this request to an agent")]
    Role(Identity),
}

impl RefuseError {
    /// Returns the fixed word of the audit log.
    fn code(&self) -> &'static str {
        match self {
            Self::NoIdentity => "NoIdentity",
            Self::Revoked(_) => "Revoked",
            Self::Role(_) => "RoleNotPermitted",
        }
    }

    fn identity(&self) -> Option<&Identity> {
        match self {
            Self::NoIdentity => None,
            Self::Revoked(identity) | Self::Role(identity) => Some(identity),
        }
    }
}

fn check(peer: Option<&PeerCertificates>, revocations: &Revocations, path: &str) -> Result<(), RefuseError> {
    let own = peer.and_then(|PeerCertificates(chain)| chain.first());
    let known = own.and_then(|own| Some((own, Identity::of_certificate(own)?)));
    let (own, identity) = known.ok_or(RefuseError::NoIdentity)?;
    if revocations.contain(own) {
        return Err(RefuseError::Revoked(identity));
    }
    match may_call(identity.role, Area::of(path)) {
        true => Ok(()),
        false => Err(RefuseError::Role(identity)),
    }
}

/// Clients of an agent, and the audit of their refused requests. Clones share the limit of the log.
#[derive(Debug, Clone)]
pub(super) struct Callers {
    revocations: Revocations,
    audit: Option<DenialAudit>,
    log: Arc<Mutex<LogLimit>>,
}

impl Callers {
    pub(super) fn new(revocations: Revocations, audit: Option<DenialAudit>) -> Self {
        Self {
            revocations,
            audit,
            log: Arc::new(Mutex::new(LogLimit::new(Clock::System.instant()))),
        }
    }
}

/// Refuses requests of clients whose certificate does not permit them. Checks every request, so
/// that a revocation also applies to open connections.
pub(super) async fn authorize(State(callers): State<Callers>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<PeerCertificates>();
    if let Err(err) = check(peer, &callers.revocations, request.uri().path()) {
        let client = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let client = client.map(|ConnectInfo(address)| *address);
        if let Some(audit) = &callers.audit {
            let denied = Denied {
                method: request.method(),
                path: request.uri().path(),
                headers: request.headers(),
                client: client.map(|address| address.ip()),
                user: &err.identity().map(ToString::to_string).unwrap_or_default(),
                status: StatusCode::FORBIDDEN,
                reason: err.code(),
            };
            audit.record(&denied, Clock::System.now());
        }
        if let Some(suppressed) = lock(&callers.log).admit(Clock::System.instant()) {
            let client = client.map(|address| address.to_string());
            info!(client = client.unwrap_or_default(), error = %err, suppressed, "request refused");
        }
        return (StatusCode::FORBIDDEN, format!("{err}\n")).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_determines_the_requests_of_a_machine() {
        let paths = [
            "/replicas/default/a/proxy/v1/chat/completions",
            "/v1/chat/completions",
            "/replicas/default/a/proxy/logs",
            "/replicas/default/proxy/proxy/logs",
            "/replicas/default/a/logs",
            "/replicas/proxy/guide-abc/logs",
            "/replicas/default/proxy/logs",
            "/gateway/logs",
            "/metrics",
            "/health",
        ];
        for (role, expect) in [
            (Role::Operator, [true, true, true]),
            (Role::Gateway, [true, false, true]),
            (Role::Node, [false, false, true]),
            (Role::Controller, [false; 3]),
        ] {
            let [inference, logs, status] = expect;
            let expect = [[inference; 4], [logs; 4]]
                .concat()
                .into_iter()
                .chain([status; 2]);
            let got = paths.map(|path| may_call(role, Area::of(path)));
            assert_eq!(got.to_vec(), expect.collect::<Vec<_>>(), "{role:?}");
        }
    }

    #[test]
    fn client_without_certificate_is_refused() {
        let refused = check(None, &Revocations::default(), "/health");
        assert!(matches!(refused, Err(RefuseError::NoIdentity)), "{refused:?}");
    }
}
