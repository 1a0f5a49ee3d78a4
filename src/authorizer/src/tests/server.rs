//! API server with rooflet's kinds and authorizer in this process, and HTTP clients.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use reqwest::Client;
use serde_json::{Value, json};

use crate::NodeAuthorizer;
use rooflet_apiserver::{ApiServer, ApiServerConfig, CertificateSigners};
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_pki::{Authority, AuthorityKind, Revocations, ServingCertificate, Token, UserCertificates};
use rooflet_store::Store;

/// Upper bound of every wait.
const DEADLINE: Duration = Duration::from_secs(20);

/// Server on its own port, with a client.
pub(super) struct TestServer {
    url: String,
    token: String,
    client: Client,
    directory: Arc<Directory>,
}

/// Resources of the server, released with its last client.
struct Directory {
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
pub(super) struct Response {
    pub(super) code: u16,
    pub(super) body: Value,
}

impl Response {
    pub(super) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
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
            client: client_of(self.directory(), identity),
            directory: Arc::clone(&self.directory),
        }
    }

    /// Returns the directory of the authorities.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path.path()
    }

    /// Starts a server and returns a client of its administrator.
    pub(super) async fn start() -> Self {
        // Fails if another test of the process has already installed the provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let clock = Clock::System;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path();
        let token = Token::open(path).expect("a token");
        let secret = token.reveal().to_owned();
        let config = rooflet_apiserver::store_config(path.join("store.redb"));
        let store = Store::open(config, clock.clone()).expect("a new store");
        let open = |kind| Authority::open(path, kind, &clock).expect("an authority");
        let signers = CertificateSigners {
            client: open(AuthorityKind::Client),
            node: open(AuthorityKind::Node),
            uri_of: None,
            revocations: Revocations::default(),
            nodes: None,
        };
        let users = UserCertificates::new(&signers.client, Revocations::default(), clock.clone())
            .expect("a trust anchor");
        let serving = Arc::new(open(AuthorityKind::Serving));
        let certificate = ServingCertificate::issue(serving, [], clock.clone()).expect("a certificate");
        let mut config = ApiServerConfig::new(token);
        config.tls = Some(Arc::new(
            certificate.server_config(&users).expect("a configuration"),
        ));
        config.users = Some(users);
        config.signers = Some(signers);
        config.authorizers = vec![Arc::new(NodeAuthorizer)];
        config.policies = vec![Arc::new(NodeAuthorizer)];
        let registry = rooflet_base::metrics::Registry::new();
        let server = ApiServer::new(config, store, clock, &registry).expect("a fresh registry");
        let definitions: Vec<_> = rooflet_api::crd::all()
            .iter()
            .map(|definition| json!(definition))
            .collect();
        server
            .install_crds(&definitions)
            .await
            .expect("valid definitions");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let tasks = Tasks::new();
        server.serve(listener, &tasks).await.expect("serves");
        Self {
            url: format!("https://{address}"),
            token: secret,
            client: client_of(path, None),
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
    ) -> Response {
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
        let code = response.status().as_u16();
        let bytes = response.bytes().await.expect("a body");
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()));
        Response { code, body }
    }

    pub(super) async fn get(&self, path: &str) -> Response {
        self.send(Method::GET, path, &[], Vec::new()).await
    }

    pub(super) async fn get_as(&self, path: &str, accept: &str) -> Response {
        self.send(Method::GET, path, &[("accept", accept)], Vec::new())
            .await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Response {
        let json = &[("content-type", "application/json")];
        self.send(Method::POST, path, json, body.to_string().into_bytes())
            .await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> Response {
        let json = &[("content-type", "application/json")];
        self.send(Method::PUT, path, json, body.to_string().into_bytes())
            .await
    }

    pub(super) async fn merge(&self, path: &str, body: &Value) -> Response {
        let merge = &[("content-type", "application/merge-patch+json")];
        self.send(Method::PATCH, path, merge, body.to_string().into_bytes())
            .await
    }

    pub(super) async fn delete(&self, path: &str) -> Response {
        self.send(Method::DELETE, path, &[], Vec::new()).await
    }

    /// Starts a watch whose frames are read as they arrive.
    pub(super) async fn watch(&self, path: &str) -> Frames {
        let request = self
            .client
            .get(format!("{}{path}", self.url))
            .bearer_auth(&self.token);
        let response = request.send().await.expect("a response");
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
}
