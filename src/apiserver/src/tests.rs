//! Tests with an in-process server over real HTTP.

mod apply;
mod certificates;
mod crud;
mod definitions;
mod garbage_collection;
mod impersonation;
mod kube_client;
mod overload;
mod policies;
mod reads;
mod reviews;
mod roles;
mod service_accounts;
mod watches;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use reqwest::Client;
use serde_json::{Value, json};

use super::{ApiServer, ApiServerConfig, CertificateSigners, InFlightLimits};
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_pki::{
    AccountKey, Authority, AuthorityKind, Revocations, ServingCertificate, Token, UserCertificates,
};
use rooflet_store::{HistoryLimits, Store};

/// Upper bound of every wait.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// Options of a test server.
#[derive(Default)]
pub(super) struct Options {
    pub(super) history: HistoryLimits,
    pub(super) in_flight: InFlightLimits,
    pub(super) clock: Clock,
    /// Serves TLS, verifies client certificates and signs certificates.
    pub(super) has_certificates: bool,
}

/// Server on its own port, with a client that uses the administrator's token.
pub(super) struct TestServer {
    pub(super) url: String,
    pub(super) token: String,
    /// Signs the certificate of a server with TLS.
    pub(super) authority: Option<Authority>,
    client: Client,
    pub(super) tasks: Tasks,
    directory: Arc<Directory>,
}

/// Resources of the server, released with its last client.
pub(super) struct Directory {
    path: tempfile::TempDir,
    tasks: Tasks,
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

/// Response: status code and body.
#[derive(Debug)]
pub(super) struct TestResponse {
    pub(super) code: u16,
    pub(super) body: Value,
    pub(super) headers: http::HeaderMap,
}

impl TestResponse {
    pub(super) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub(super) fn warnings(&self) -> Vec<&str> {
        self.headers
            .get_all("warning")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect()
    }

    /// Returns the media type, or an empty text without one.
    pub(super) fn content_type(&self) -> String {
        let found = self.headers.get("content-type");
        found
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    }

    pub(super) fn version(&self) -> String {
        self.body["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// TLS configuration of a server, and a client that trusts it.
struct Certificates {
    authority: Authority,
    tls: Arc<rustls::ServerConfig>,
    users: UserCertificates,
    signers: CertificateSigners,
    client: Client,
}

impl Certificates {
    fn open(directory: &Path, clock: &Clock) -> Self {
        let open = |kind| Authority::open(directory, kind, clock).expect("an authority");
        let authority = open(AuthorityKind::Serving);
        let serving = Arc::new(authority.clone());
        let signers = CertificateSigners {
            client: open(AuthorityKind::Client),
            node: open(AuthorityKind::Node),
            uri_of: None,
            revocations: Revocations::default(),
            nodes: None,
        };
        let users = UserCertificates::new(&signers.client, Revocations::default(), clock.clone())
            .expect("a trust anchor");
        let certificate = ServingCertificate::issue(serving, [], clock.clone()).expect("a certificate");
        Self {
            authority,
            tls: Arc::new(certificate.server_config(&users).expect("a configuration")),
            users,
            signers,
            client: client_of(directory, None),
        }
    }
}

/// Returns a client that trusts the authority in `directory`, with an optional identity in PEM.
fn client_of(directory: &Path, identity: Option<&str>) -> Client {
    let ca = std::fs::read(directory.join("ca.pem")).expect("an authority");
    let ca = reqwest::Certificate::from_pem(&ca).expect("a certificate");
    let mut builder = Client::builder().tls_certs_only([ca]);
    if let Some(pem) = identity {
        builder =
            builder.identity(reqwest::Identity::from_pem(pem.as_bytes()).expect("a key and a certificate"));
    }
    builder.build().expect("a client")
}

impl TestServer {
    /// Returns a client of the same server with another token, or with a key and certificate in
    /// PEM.
    pub(super) fn as_user(&self, token: &str, identity: Option<&str>) -> Self {
        Self {
            url: self.url.clone(),
            token: token.to_owned(),
            authority: self.authority.clone(),
            client: client_of(self.directory.path.path(), identity),
            tasks: self.tasks.clone(),
            directory: Arc::clone(&self.directory),
        }
    }

    pub(super) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub(super) async fn start_with(options: Options) -> Self {
        let clock = options.clock;
        // Fails if another test of the process has already installed the provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let token = Token::open(directory.path()).expect("a token");
        let account_key = AccountKey::open(directory.path()).expect("a key");
        let mut config = crate::store_config(directory.path().join("store.redb"));
        config.history = options.history;
        let store = Store::open(config, clock.clone()).expect("a new store");
        let tasks = Tasks::new();
        let registry = rooflet_base::metrics::Registry::new();
        let secret = token.reveal().to_owned();
        let certificates = options
            .has_certificates
            .then(|| Certificates::open(directory.path(), &clock));
        let authority = certificates.as_ref().map(|own| own.authority.clone());
        let (tls, users, signers, client) = match certificates {
            Some(own) => (Some(own.tls), Some(own.users), Some(own.signers), own.client),
            None => (None, None, None, Client::new()),
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let server = ApiServer::new(
            ApiServerConfig {
                account_key: Some(Arc::new(account_key)),
                tls,
                authority: authority.clone(),
                users,
                signers,
                in_flight: options.in_flight,
                ..ApiServerConfig::new(token)
            },
            store,
            clock,
            &registry,
        )
        .expect("a fresh registry");
        server
            .install_crds(&[gizmos()])
            .await
            .expect("a valid definition");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        server.serve(listener, &tasks).await.expect("serves");
        Self {
            url: format!("{scheme}://{address}"),
            token: secret,
            authority,
            client,
            tasks: tasks.clone(),
            directory: Arc::new(Directory {
                path: directory,
                tasks,
            }),
        }
    }

    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> TestResponse {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .body(body);
        request = request.bearer_auth(&self.token);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = tokio::time::timeout(DEADLINE, request.send())
            .await
            .expect("in time")
            .expect("a response");
        let (code, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await.expect("a body");
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()));
        TestResponse { code, body, headers }
    }

    pub(super) async fn get(&self, path: &str) -> TestResponse {
        self.send(Method::GET, path, &[], Vec::new()).await
    }

    pub(super) async fn get_as(&self, path: &str, accept: &str) -> TestResponse {
        self.send(Method::GET, path, &[("accept", accept)], Vec::new())
            .await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> TestResponse {
        let json = &[("content-type", "application/json")];
        self.send(Method::POST, path, json, body.to_string().into_bytes())
            .await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> TestResponse {
        let json = &[("content-type", "application/json")];
        self.send(Method::PUT, path, json, body.to_string().into_bytes())
            .await
    }

    pub(super) async fn merge(&self, path: &str, body: &Value) -> TestResponse {
        let merge = &[("content-type", "application/merge-patch+json")];
        self.send(Method::PATCH, path, merge, body.to_string().into_bytes())
            .await
    }

    pub(super) async fn delete(&self, path: &str) -> TestResponse {
        self.send(Method::DELETE, path, &[], Vec::new()).await
    }

    /// Starts a watch whose frames are read as they arrive.
    pub(super) async fn watch(&self, path: &str) -> Frames {
        self.watch_as(path, "application/json").await
    }

    pub(super) async fn watch_as(&self, path: &str, accept: &str) -> Frames {
        let request = self
            .client
            .get(format!("{}{path}", self.url))
            .bearer_auth(&self.token);
        let response = request.header("accept", accept).send().await.expect("a response");
        assert_eq!(response.status().as_u16(), 200, "{path}");
        Frames {
            response,
            buffer: Vec::new(),
        }
    }
}

/// Frames of a watch.
pub(super) struct Frames {
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl Frames {
    /// Returns the next frame, or `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a frame is JSON"));
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk())
                .await
                .expect("a frame in time");
            match chunk.expect("no transport error") {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return None,
            }
        }
    }

    /// Returns the next frame as `TYPE name`.
    pub(super) async fn brief(&mut self) -> String {
        match self.next().await {
            Some(frame) => format!(
                "{} {}",
                frame["type"].as_str().unwrap_or_default(),
                frame["object"]["metadata"]["name"].as_str().unwrap_or("-")
            ),
            None => "END".to_owned(),
        }
    }
}

pub(super) const GIZMOS: &str = "/apis/example.com/v1/namespaces/default/gizmos";

/// Returns a definition with defaults, rules, subresources, columns and a selectable field.
pub(super) fn gizmos() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gizmos.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "gizmos", "kind": "Gizmo", "shortNames": ["gz"], "categories": ["all"]},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
            "selectableFields": [{"jsonPath": ".spec.node"}],
            "additionalPrinterColumns": [
                {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "required": ["image"], "properties": {
                    "image": {"type": "string"},
                    "node": {"type": "string"},
                    "replicas": {"type": "integer", "minimum": 0, "default": 1},
                    "tier": {"type": "string", "enum": ["gold", "silver"], "default": "silver"}},
                    "x-kubernetes-validations": [
                        {"rule": "self.replicas <= 10", "message": "replicas must not exceed 10"}]},
                "status": {"type": "object", "properties": {
                    "phase": {"type": "string"}, "replicas": {"type": "integer"},
                    "selector": {"type": "string"}}}}}}}]}})
}

pub(super) fn gizmo(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Gizmo", "metadata": {"name": name}, "spec": {"image": "a"}})
}
