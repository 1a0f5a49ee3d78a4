//! Certificate of this machine for connections between machines of the fleet: requests it from the
//! API server, renews it, and follows changes of the fleet's trust.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use kube::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::fleet_trust::FleetTrust;
use crate::published_trust::PublishedTrust;
use rooflet_api::meta::{FLEET_TRUST, FLEET_TRUST_NAMESPACE};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::file::replace;
use rooflet_base::task::Tasks;
use rooflet_client::{ApiError, CertificateKind, SigningError, own_service_account, sign};
use rooflet_pki::{
    Identity, KeyRequest, MachineTls, MachineTlsError, NodeCertificate, Revocations, Role, is_ip_or_dns_name,
    read_private,
};

/// Interval between checks of the certificate's age.
const PERIOD: Duration = Duration::from_secs(30);
/// Interval between requests after a failure.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum time to wait for a signed certificate.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lifetime of the client certificate of a gateway or of the web page's server.
const GATEWAY_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
/// Lifetime of the client certificate of one command. A command that runs longer requests another one.
pub const OPERATOR_LIFETIME: Duration = Duration::from_secs(600);

const UNUSABLE_TRUST: &str = "the published authorities of the fleet are unusable";

/// Use of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// Serves the agent of a node under these IP addresses and DNS names.
    Agent { node: String, names: Vec<String> },
    /// Authenticates a gateway to agents.
    Gateway { name: String },
    /// Reads logs and metrics of agents.
    Operator { name: String },
}

impl Purpose {
    /// Returns the purpose for log lines.
    fn label(&self) -> &'static str {
        match self {
            Self::Agent { .. } => "agent",
            Self::Gateway { .. } => "gateway",
            Self::Operator { .. } => "operator",
        }
    }

    /// Returns the purpose of an agent that other machines reach at `address`.
    pub fn agent(node: &str, address: &str, hostname: &str) -> Self {
        let hostname = hostname.to_lowercase();
        let mut names: Vec<String> = Vec::new();
        for name in [address, &hostname, node] {
            if is_ip_or_dns_name(name) && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        Self::Agent {
            node: node.to_owned(),
            names,
        }
    }

    /// Creates a key and a request for its certificate. `account` is the ServiceAccount of this
    /// process.
    pub(crate) fn key_request(&self, account: Option<&String>) -> Result<KeyRequest, rcgen::Error> {
        let (role, name) = match self {
            Self::Agent { node, names } => return KeyRequest::serving(node, names),
            Self::Gateway { name } => (Role::Gateway, name),
            Self::Operator { name } => (Role::Operator, name),
        };
        KeyRequest::client(&Identity::new(role, account.unwrap_or(name)))
    }

    pub(crate) fn names(&self) -> &[String] {
        match self {
            Self::Agent { names, .. } => names,
            Self::Gateway { .. } | Self::Operator { .. } => &[],
        }
    }
}

/// Certificate, key and trust, as stored in the state directory of an agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) names: Vec<String>,
    /// Authorities of nodes when the certificate was issued.
    pub(crate) authorities: String,
    pub(crate) trust: FleetTrust,
}

impl Held {
    /// Returns whether a new certificate is needed. `tls` has the revocations.
    pub(crate) fn is_due_or_revoked(&self, purpose: &Purpose, tls: &MachineTls, now: Timestamp) -> bool {
        self.is_due(purpose, now) || self.is_revoked(tls)
    }

    /// Returns whether the certificate is revoked, which a node that joined again replaces.
    fn is_revoked(&self, tls: &MachineTls) -> bool {
        let own = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        own.is_ok_and(|own| tls.revocations().contain(&own))
    }

    /// Uses a trust that the API server published. Returns whether it differs from the last one.
    pub(crate) fn follow(&mut self, trust: FleetTrust, tls: &MachineTls) -> Result<bool, MachineTlsError> {
        if trust == self.trust {
            return Ok(false);
        }
        trust.apply_to(tls)?;
        self.trust = trust;
        Ok(true)
    }

    /// Replaces certificate and key.
    pub(crate) fn renew(&mut self, certificate: String, key: String, names: &[String]) {
        *self = Self {
            certificate,
            key,
            names: names.to_vec(),
            authorities: self.trust.nodes.clone(),
            trust: std::mem::take(&mut self.trust),
        };
    }

    fn is_due(&self, purpose: &Purpose, now: Timestamp) -> bool {
        let Some(certificate) = NodeCertificate::read(self.certificate.as_bytes()) else {
            return true;
        };
        certificate.is_due(now)
            || self.names != purpose.names()
            || self.authorities != self.trust.nodes
            || match purpose {
                Purpose::Agent { node, .. } => certificate.node.as_ref() != Some(node),
                Purpose::Gateway { .. } | Purpose::Operator { .. } => false,
            }
    }
}

/// Error of a new certificate.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("generating a key")]
    Key(#[source] rcgen::Error),
    #[error("asking the API server for the ServiceAccount of this process")]
    Account(#[from] ApiError),
    #[error(transparent)]
    Sign(#[from] SigningError),
    #[error("using the signed certificate")]
    Tls(#[from] MachineTlsError),
}

/// Keeper of the certificate.
pub struct MachineCertificate {
    client: Client,
    published: PublishedTrust,
    tls: Arc<MachineTls>,
    purpose: Purpose,
    /// File that stores certificate and trust, so that they are available without an API server.
    file: Option<Utf8PathBuf>,
    clock: Clock,
    held: Held,
}

impl MachineCertificate {
    /// Reads the file, and keeps the certificate current until `tasks` stop.
    pub fn keep(
        client: Client,
        published: PublishedTrust,
        tls: Arc<MachineTls>,
        purpose: Purpose,
        file: Option<Utf8PathBuf>,
        tasks: &Tasks,
    ) {
        let held = file
            .as_deref()
            .map(|path| restore(path, &tls))
            .unwrap_or_default();
        let keeper = Self {
            client,
            published,
            tls,
            purpose,
            file,
            clock: Clock::System,
            held,
        };
        let stop = tasks.stop_token();
        tasks.spawn_detached(async move {
            stop.run_until_cancelled(keeper.run()).await;
        });
    }

    async fn run(mut self) {
        let mut changed_rx = self.published.changes.subscribe();
        let mut next_request = Timestamp::MIN;
        let mut is_warned = false;
        loop {
            changed_rx.mark_unchanged();
            if let Some(trust) = self.published.current() {
                self.follow(trust);
            }
            let is_agent = matches!(self.purpose, Purpose::Agent { .. });
            let is_synced = self.published.config_maps.is_synced();
            if is_agent && is_synced && self.published.config_maps.list().is_empty() && !is_warned {
                is_warned = true;
                warn!(
                    "the API server publishes no certificate authorities of a fleet, so other machines cannot connect; \
                     upgrade the control plane, or restart the agent with --allow-anonymous"
                );
            }
            let now = self.clock.now();
            let is_known = !self.held.trust.nodes.is_empty() && is_synced;
            let is_due = self.held.is_due_or_revoked(&self.purpose, &self.tls, now);
            if is_known && now >= next_request && is_due {
                match self.request(changed_rx.clone()).await {
                    Ok(()) => info!(
                        purpose = self.purpose.label(),
                        "received a certificate of the fleet"
                    ),
                    Err(err) => warn!(
                        error = %Chain(&err),
                        "failed to get a certificate of the fleet; retrying in {} s", RETRY.as_secs()
                    ),
                }
                next_request = self.clock.now() + RETRY;
            }
            if !self.held.certificate.is_empty() {
                self.published.set_serving(&self.held.authorities);
            }
            // A request that is due was rejected, or must wait for the end of the interval.
            let is_due = self
                .held
                .is_due_or_revoked(&self.purpose, &self.tls, self.clock.now());
            let wait = match is_due {
                true => RETRY,
                false => PERIOD,
            };
            tokio::select! {
                changed = changed_rx.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Uses a trust that the API server published.
    fn follow(&mut self, trust: FleetTrust) {
        match self.held.follow(trust, &self.tls) {
            Ok(true) => self.save(),
            Ok(false) => {}
            Err(err) => warn!(error = %Chain(&err), "{UNUSABLE_TRUST}"),
        }
    }

    /// Replaces the certificate. A request may wait for an administrator. Meanwhile, handshakes use the current
    /// trust, so that revoked nodes are refused.
    async fn request(&mut self, mut changed_rx: watch::Receiver<u64>) -> Result<(), RequestError> {
        let (certificate, key) = {
            let mut signed = pin!(self.sign());
            loop {
                tokio::select! {
                    signed = signed.as_mut() => break signed?,
                    Ok(()) = changed_rx.changed() => self.use_current_trust(),
                }
            }
        };
        self.tls.set_certificate(&certificate, &key)?;
        self.held.renew(certificate, key, self.purpose.names());
        self.save();
        Ok(())
    }

    fn use_current_trust(&self) {
        if let Some(trust) = self.published.current()
            && let Err(err) = trust.apply_to(&self.tls)
        {
            warn!(error = %Chain(&err), "{UNUSABLE_TRUST}");
        }
    }

    /// Returns a new certificate and its key.
    async fn sign(&self) -> Result<(String, String), RequestError> {
        let lifetime = GATEWAY_LIFETIME;
        let role = match &self.purpose {
            Purpose::Agent { .. } => Role::Node,
            Purpose::Gateway { .. } => Role::Gateway,
            Purpose::Operator { .. } => Role::Operator,
        };
        let has_own_signers = self.held.trust.has_own_signers;
        // The name of a process with a ServiceAccount is that of the account.
        let account = match has_own_signers && role != Role::Node {
            true => own_service_account(&self.client).await?,
            false => None,
        };
        let kind = match (role, has_own_signers) {
            (Role::Node, true) => CertificateKind::FleetServing,
            (Role::Node, false) => CertificateKind::NodeServing,
            (Role::Gateway | Role::Controller | Role::Operator, true) if account.is_some() => {
                CertificateKind::FleetAccount { lifetime }
            }
            (Role::Gateway | Role::Controller | Role::Operator, true) => {
                CertificateKind::FleetPerson { lifetime }
            }
            (Role::Gateway, false) => CertificateKind::Gateway { lifetime },
            (Role::Operator | Role::Controller, false) => CertificateKind::Client { lifetime },
        };
        let request = self.purpose.key_request(account.as_ref());
        let request = request.map_err(RequestError::Key)?;
        let certificate = sign(&self.client, kind, &request.request_pem, PATIENCE).await?;
        Ok((certificate, request.key_pem))
    }

    fn save(&self) {
        let Some(path) = &self.file else { return };
        let saved = serde_json::to_vec(&self.held)
            .map_err(std::io::Error::from)
            .and_then(|text| replace(path, &text));
        if let Err(err) = saved {
            warn!(%path, error = %err, "failed to save the certificate of this machine");
        }
    }
}

/// Returns the PEM text of the certificate that an agent stored in `path`. Returns `None` if there is none
/// or the file cannot be read.
pub fn stored_certificate(path: &Utf8Path) -> Option<String> {
    let text = read_private(path.as_std_path()).ok()??;
    let held: Held = serde_json::from_str(&text).ok()?;
    Some(held.certificate).filter(|certificate| !certificate.is_empty())
}

/// Reads a file and uses its certificate and trust. An unusable file is ignored.
fn restore(path: &Utf8Path, tls: &MachineTls) -> Held {
    let text = match read_private(path.as_std_path()) {
        Ok(Some(text)) => text,
        Ok(None) => return Held::default(),
        Err(err) => {
            warn!(%path, error = %err, "failed to read the certificate of this machine");
            return Held::default();
        }
    };
    let Ok(held) = serde_json::from_str::<Held>(&text) else {
        warn!(%path, "the file with the certificate of this machine is invalid; requesting a new one");
        return Held::default();
    };
    let used = held
        .trust
        .apply_to(tls)
        .and_then(|()| match held.certificate.is_empty() {
            true => Ok(()),
            false => tls.set_certificate(&held.certificate, &held.key),
        });
    match used {
        Ok(()) => held,
        Err(err) => {
            warn!(%path, error = %Chain(&err), "the stored certificate of this machine is unusable; requesting a new one");
            Held::default()
        }
    }
}

/// Error of the credentials of a command.
#[derive(Debug, thiserror::Error)]
pub enum OperatorTlsError {
    #[error(
        "the API server publishes no certificate authorities of the fleet (ConfigMap {FLEET_TRUST_NAMESPACE}/{FLEET_TRUST})"
    )]
    NoTrust,
    #[error("reading the certificate authorities of the fleet")]
    Trust(#[from] rooflet_client::ApiError),
    #[error("generating a key")]
    Key(#[source] rcgen::Error),
    #[error(transparent)]
    Sign(#[from] SigningError),
    #[error("setting up TLS")]
    Tls(#[from] MachineTlsError),
}

/// Returns TLS with a short-lived certificate for requests of a person to agents.
pub async fn operator_tls(client: &Client, name: &str) -> Result<Arc<MachineTls>, OperatorTlsError> {
    let trust = FleetTrust::read(client).await?.ok_or(OperatorTlsError::NoTrust)?;
    let tls = MachineTls::new(Revocations::default());
    trust.apply_to(&tls)?;
    let request = KeyRequest::client(&Identity::new(Role::Operator, name)).map_err(OperatorTlsError::Key)?;
    let lifetime = OPERATOR_LIFETIME;
    let kind = match trust.has_own_signers {
        true => CertificateKind::FleetPerson { lifetime },
        false => CertificateKind::Client { lifetime },
    };
    let certificate = sign(client, kind, &request.request_pem, PATIENCE).await?;
    tls.set_certificate(&certificate, &request.key_pem)?;
    Ok(tls)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::sync::Notify;

    use super::*;
    use rooflet_base::clock::at;

    /// Time until connected processes refuse a revoked certificate.
    const REVOCATION: Duration = Duration::from_secs(5);

    /// Returns the client of a server that signs no request, and revokes the node mini-2 as soon as it receives
    /// one.
    fn server_without_signers() -> Client {
        let authority = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["ca".to_owned()]).expect("a name");
        let authority = params.self_signed(&authority).expect("a certificate").pem();
        let trust = move |version: u64, revoked: Value| {
            json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": FLEET_TRUST, "namespace": FLEET_TRUST_NAMESPACE, "resourceVersion": version.to_string(),
                },
                "data": {
                    "client-ca.crt": authority, "node-ca.crt": authority, "revoked-nodes.json": revoked.to_string(),
                },
            })
        };
        let requested = Arc::new(Notify::new());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (requested, trust) = (requested.clone(), trust.clone());
            async move {
                let is_watch = request.uri().query().unwrap_or_default().contains("watch=");
                let is_trust = request.uri().path().contains("/configmaps");
                let answer = match (is_trust, is_watch) {
                    (true, false) => json!({
                        "apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"},
                        "items": [trust(1, json!({}))],
                    }),
                    (true, true) => {
                        requested.notified().await;
                        let revoked = json!({"mini-2": "2026-01-01T00:00:00Z"});
                        json!({"type": "MODIFIED", "object": trust(2, revoked)})
                    }
                    (false, _) => {
                        if request.method() == Method::POST {
                            requested.notify_one();
                        }
                        json!({
                            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                            "metadata": {"name": "node-csr-1"},
                            "spec": {"request": "", "signerName": "kubernetes.io/kubelet-serving"},
                        })
                    }
                };
                let body = format!("{answer}\n").into_bytes();
                Ok::<_, Infallible>(Response::new(Body::from(body)))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn revocation_takes_effect_while_a_request_waits_for_its_approval() {
        let tasks = Tasks::new();
        let client = server_without_signers();
        let published = PublishedTrust::watch(client.clone(), true, &tasks);
        let tls = MachineTls::new(Revocations::default());
        let purpose = Purpose::agent("mini-1", "192.0.2.7", "mini-1");
        MachineCertificate::keep(client, published, Arc::clone(&tls), purpose, None, &tasks);
        let revoked = async {
            while tls.revocations().revoked_at("mini-2").is_none() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let outcome = tokio::time::timeout(REVOCATION, revoked).await;
        outcome.expect("the node is revoked before the request ends");
    }

    #[test]
    fn agent_certificate_has_each_valid_name_once() {
        let names = |address: &str, hostname: &str| match Purpose::agent("mini-1", address, hostname) {
            Purpose::Agent { names, .. } => names,
            Purpose::Gateway { .. } | Purpose::Operator { .. } => unreachable!("an agent"),
        };
        assert_eq!(names("192.0.2.7", "Mini-1"), ["192.0.2.7", "mini-1"]);
        assert_eq!(names("2001:db8::7", "Bob's Mac"), ["2001:db8::7", "mini-1"]);
    }

    #[test]
    fn certificate_is_due_if_missing_old_or_for_other_names() {
        let purpose = |name: &str| Purpose::Agent {
            node: "mini-1".to_owned(),
            names: vec![name.to_owned()],
        };
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "system:node:mini-1");
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 4, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        let held = Held {
            certificate: params.self_signed(&key).expect("a certificate").pem(),
            names: vec!["a".to_owned()],
            ..Held::default()
        };
        let day = |day: i64| at(1_767_225_600 + day * 24 * 3600);
        assert!(!held.is_due(&purpose("a"), day(1)));
        assert!(held.is_due(&purpose("b"), day(1)));
        assert!(held.is_due(&purpose("a"), day(-1)));
        assert!(!held.is_due(&purpose("a"), day(59)));
        assert!(held.is_due(&purpose("a"), day(60)));
        assert!(Held::default().is_due(&purpose("a"), day(1)));
        let other_fleet = Held {
            trust: FleetTrust {
                nodes: "other".to_owned(),
                ..FleetTrust::default()
            },
            ..held
        };
        assert!(other_fleet.is_due(&purpose("a"), day(1)));
    }
}
