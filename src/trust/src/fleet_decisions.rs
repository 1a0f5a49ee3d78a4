//! Decisions on the trust of a fleet without network connections and files, for the simulation.
//!
//! Uses the authorities, the rotation and the revocations of a server, and the verification and
//! renewal of its machines. Certificates are real. The caller delivers published trust and
//! requests, and provides the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use crate::authority_rotation::{
    Content, FleetAuthorities, OBSERVATION, Observed, Request, RotationPhase, Step, next_step,
};
use crate::cluster_request::FleetSigner;
use crate::machine_certificate::{Held, Purpose};
use crate::node_ledger::Ledger;
use rooflet_base::clock::Clock;
use rooflet_pki::{
    Authority, AuthorityKind, CertificateRequest, Identity, IssueClientError, IssueError, MachineTls,
    MachineTlsError, NodeCertificate, Revocations, Role, RotateAuthorityError, SignRequestError,
    UserCertificates, is_issued_by,
};

/// Error of a decision.
#[derive(Debug, thiserror::Error)]
pub enum FleetDecisionError {
    #[error("generating a key")]
    Key(#[from] rcgen::Error),
    #[error("reading a generated request: {0}")]
    Request(String),
    #[error(transparent)]
    Sign(#[from] SignRequestError),
    #[error(transparent)]
    IssueClient(#[from] IssueClientError),
    #[error(transparent)]
    Users(#[from] IssueError),
    #[error(transparent)]
    Rotate(#[from] RotateAuthorityError),
    #[error(transparent)]
    Tls(#[from] MachineTlsError),
}

/// Certificate that a machine presents, with intermediate ones.
#[derive(Debug, Clone)]
pub struct CertificateChain(Vec<CertificateDer<'static>>);

impl CertificateChain {
    fn parse(pem: &str) -> Option<Self> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        chain.ok().filter(|chain| !chain.is_empty()).map(Self)
    }
}

/// Server of a fleet: authorities, their rotation, and revocations.
pub struct TrustServer {
    authorities: FleetAuthorities,
    users: UserCertificates,
    revocations: Revocations,
    ledger: Ledger,
    rotation: Content,
    started: Timestamp,
    clock: Clock,
}

impl TrustServer {
    /// Creates the authorities of a new fleet.
    pub fn new(clock: Clock) -> Result<Self, FleetDecisionError> {
        let now = clock.now();
        let generate = |kind| Authority::generate(kind, now).map(|(authority, _)| authority);
        let authorities = FleetAuthorities {
            servers: Arc::new(generate(AuthorityKind::Serving)?),
            clients: generate(AuthorityKind::Client)?,
            nodes: generate(AuthorityKind::Node)?,
        };
        let revocations = Revocations::default();
        Ok(Self {
            users: UserCertificates::new(&authorities.clients, revocations.clone(), clock.clone())?,
            authorities,
            revocations,
            ledger: Ledger::default(),
            rotation: Content::default(),
            started: now,
            clock,
        })
    }

    /// Restarts the server: authorities and stored objects remain.
    pub fn restart(&mut self) -> Result<(), FleetDecisionError> {
        let clients = &self.authorities.clients;
        self.users = UserCertificates::new(clients, self.revocations.clone(), self.clock.clone())?;
        self.started = self.clock.now();
        Ok(())
    }

    /// Revokes nodes whose FleetNode is gone or was created again. `present` has the UIDs of all
    /// FleetNodes.
    pub fn observe_nodes(&mut self, present: BTreeMap<String, String>) {
        self.ledger.observe(present, self.clock.now());
        self.revocations.replace(self.ledger.revoked.clone());
    }

    /// Requests a rotation of the authorities. The old ones are trusted for `after` at least.
    pub fn request_rotation(&mut self, after: Duration) {
        self.rotation.request = Some(Request {
            requested: self.clock.now(),
            after_seconds: after.as_secs(),
        });
    }

    /// Executes the next step of a requested rotation. Returns the phase that it begins.
    pub fn step_rotation(&mut self) -> Result<Option<RotationPhase>, FleetDecisionError> {
        let now = self.clock.now();
        let observed = Observed {
            now,
            since: self.started,
            users_of_previous: self.users.users_of_previous(now - OBSERVATION),
            have_previous: self.authorities.have_previous(),
        };
        let Some(step) = next_step(&self.rotation, observed) else {
            return Ok(None);
        };
        let (status, phase) = match step {
            Step::Rotate(status) => {
                self.authorities.rotate(now)?;
                (Some(status), Some(RotationPhase::Rotating))
            }
            Step::Retire(status) => {
                self.authorities.retire()?;
                (status, Some(RotationPhase::Completed))
            }
            Step::Report(status) => (Some(status), None),
        };
        self.rotation.status = status.or_else(|| self.rotation.status.take());
        Ok(phase)
    }

    /// Returns true while two generations of authorities are trusted.
    pub fn is_rotating(&self) -> bool {
        self.authorities.have_previous()
    }

    /// Returns whether the API server accepts the certificate of a client.
    pub fn accepts(&self, client: &CertificateChain) -> bool {
        self.users.user(&client.0).is_ok()
    }

    fn sign(
        &self,
        purpose: &Purpose,
        request_pem: &str,
        lifetime: Duration,
    ) -> Result<String, FleetDecisionError> {
        let (signer, authority, identity) = match purpose {
            Purpose::Agent { node, .. } => (
                FleetSigner::NodeServing,
                &self.authorities.nodes,
                Identity::new(Role::Node, node),
            ),
            Purpose::Gateway { name } => (
                FleetSigner::Client,
                &self.authorities.clients,
                Identity::new(Role::Gateway, name),
            ),
            Purpose::Operator { name } => (
                FleetSigner::Client,
                &self.authorities.clients,
                Identity::new(Role::Operator, name),
            ),
        };
        let request = CertificateRequest::from_pem(request_pem.as_bytes())
            .map_err(|err| FleetDecisionError::Request(err.to_string()))?;
        let uri = self.authorities.clients.fleet().map(|fleet| identity.uri(&fleet));
        let policy = signer.policy(uri, i32::try_from(lifetime.as_secs()).ok());
        let issued = self.revocations.time_of_issue(&identity, self.clock.now());
        Ok(authority.sign(&request, &policy, issued)?)
    }
}

/// Machine of a fleet: its certificates, and the trust that it last received.
pub struct TrustMachine {
    purpose: Purpose,
    tls: Arc<MachineTls>,
    held: Held,
    /// Certificate of a node for the API server, in PEM.
    client: Option<String>,
}

impl TrustMachine {
    /// Returns a machine without certificates.
    pub fn new(purpose: Purpose) -> Self {
        Self {
            purpose,
            tls: MachineTls::new(Revocations::default()),
            held: Held::default(),
            client: None,
        }
    }

    /// Gives a node its certificate for the API server, as after `rooflet join`.
    pub fn join(&mut self, server: &TrustServer, lifetime: Duration) -> Result<(), FleetDecisionError> {
        if let Purpose::Agent { node, .. } = &self.purpose {
            let identity = Identity::new(Role::Node, node);
            let issued = server.revocations.time_of_issue(&identity, server.clock.now());
            let clients = &server.authorities.clients;
            self.client = Some(clients.issue_client(&identity, lifetime, issued)?.certificate_pem);
        }
        Ok(())
    }

    /// Uses the trust that the server publishes now.
    pub fn follow(&mut self, server: &TrustServer) -> Result<(), FleetDecisionError> {
        let trust = server.authorities.trust(server.ledger.revoked.clone());
        self.held.follow(trust, &self.tls)?;
        Ok(())
    }

    /// Renews the certificates that are due by this machine's clock. Returns the number of new
    /// ones. The server must accept the machine.
    pub fn renew(
        &mut self,
        server: &TrustServer,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<u32, FleetDecisionError> {
        let mut renewed = 0;
        if self.held.is_due_or_revoked(&self.purpose, &self.tls, now) {
            let request = self.purpose.key_request(None)?;
            let certificate = server.sign(&self.purpose, &request.request_pem, lifetime)?;
            self.tls.set_certificate(&certificate, &request.key_pem)?;
            self.held
                .renew(certificate, request.key_pem, self.purpose.names());
            renewed += 1;
        }
        let is_due = self.client.as_deref().is_some_and(|pem| {
            let read = NodeCertificate::read(pem.as_bytes());
            read.is_none_or(|read| read.is_due(now))
                || !is_issued_by(pem.as_bytes(), &self.held.trust.clients)
        });
        if is_due {
            self.join(server, lifetime)?;
            renewed += 1;
        }
        Ok(renewed)
    }

    /// Returns the certificate for connections between machines.
    pub fn certificate(&self) -> Option<CertificateChain> {
        CertificateChain::parse(&self.held.certificate)
    }

    /// Returns the certificate of a node for the API server.
    pub fn client_certificate(&self) -> Option<CertificateChain> {
        CertificateChain::parse(self.client.as_deref()?)
    }

    /// Returns whether this machine accepts a server as the agent of `node`.
    pub fn accepts_server(&self, server: &CertificateChain, node: &str, now: Timestamp) -> bool {
        let (Some((own, rest)), Ok(name)) = (server.0.split_first(), ServerName::try_from(node)) else {
            return false;
        };
        self.tls.check_node(own, rest, &name, unix_time(now)).is_ok()
    }

    /// Returns whether this machine accepts a client.
    pub fn accepts_client(&self, client: &CertificateChain, now: Timestamp) -> bool {
        let Some((own, rest)) = client.0.split_first() else {
            return false;
        };
        self.tls.verify_client_cert(own, rest, unix_time(now)).is_ok()
    }
}

fn unix_time(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(
        u64::try_from(at.as_second()).unwrap_or_default(),
    ))
}

impl std::fmt::Debug for TrustServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TrustServer")
    }
}

impl std::fmt::Debug for TrustMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TrustMachine")
    }
}
