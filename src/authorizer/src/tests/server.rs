//! API server with rooflet's kinds and authorizer in this process, and HTTP clients.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use crate::NodeAuthorizer;
use rooflet_apiserver::{ApiServer, ApiServerConfig, CertificateSigners};
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_pki::{Authority, AuthorityKind, Revocations, ServingCertificate, Token, UserCertificates};
use rooflet_store::Store;
use rooflet_testing::ApiClient;

/// Server on its own port, with a client.
pub(super) struct TestServer {
    api: ApiClient,
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

impl std::ops::Deref for TestServer {
    type Target = ApiClient;

    fn deref(&self) -> &ApiClient {
        &self.api
    }
}

impl TestServer {
    /// Returns a client of the same server with another token, or with a key and certificate in
    /// PEM.
    pub(super) fn as_user(&self, token: &str, identity: Option<&str>) -> Self {
        Self {
            api: self.api.as_user(token, identity, self.directory()),
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
            api: ApiClient::with_authority(format!("https://{address}"), secret, path),
            directory: Arc::new(Directory {
                path: directory,
                tasks,
            }),
        }
    }
}
