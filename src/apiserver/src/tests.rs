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

use serde_json::{Value, json};

use super::{ApiServer, ApiServerConfig, CertificateSigners, InFlightLimits};
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_pki::{
    AccountKey, Authority, AuthorityKind, Revocations, ServingCertificate, Token, UserCertificates,
};
use rooflet_store::{HistoryLimits, Store};
use rooflet_testing::ApiClient;

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
    api: ApiClient,
    /// Signs the certificate of a server with TLS.
    pub(super) authority: Option<Authority>,
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

/// TLS configuration of a server, and a client that trusts it.
struct Certificates {
    authority: Authority,
    tls: Arc<rustls::ServerConfig>,
    users: UserCertificates,
    signers: CertificateSigners,
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
        }
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
            api: self.api.as_user(token, identity, self.directory.path.path()),
            authority: self.authority.clone(),
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
        let (tls, users, signers) = match certificates {
            Some(own) => (Some(own.tls), Some(own.users), Some(own.signers)),
            None => (None, None, None),
        };
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
        let api = match &authority {
            Some(_) => ApiClient::with_authority(format!("https://{address}"), secret, directory.path()),
            None => ApiClient::new(format!("http://{address}"), secret),
        };
        Self {
            api,
            authority,
            tasks: tasks.clone(),
            directory: Arc::new(Directory {
                path: directory,
                tasks,
            }),
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
