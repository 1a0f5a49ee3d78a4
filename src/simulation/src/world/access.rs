//! API keys in the API server and in gateways, and certificates of the machines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::random::Random;
use crate::scenario::access::{Access, AccessKey};
use rooflet_api::v1alpha1::{ApiKey, ApiKeySpec};
use rooflet_base::clock::{Clock, ManualClock};
use rooflet_gateway::{AdmittedRequest, KeyGate, UsageReport};
use rooflet_trust::{CertificateChain, FleetDecisionError, Purpose, TrustMachine, TrustServer};

/// Namespace of all keys and deployments.
pub(crate) const NAMESPACE: &str = "default";

/// Key of a request that a gateway admitted.
#[derive(Debug)]
pub(crate) struct Permit {
    pub(crate) gateway: usize,
    /// Process of the gateway; a later one does not count the request.
    pub(crate) incarnation: u32,
    pub(crate) key: usize,
    pub(crate) admitted: AdmittedRequest,
}

/// Machine with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Gateway(usize),
    Node(usize),
}

/// Event of keys and certificates.
#[derive(Debug)]
pub(crate) enum AccessEvent {
    /// An administrator creates or deletes a key.
    ChangeKey {
        key: usize,
        exists: bool,
    },
    /// A gateway receives the stored version of a key.
    DeliverKey {
        gateway: usize,
        incarnation: u32,
        key: usize,
    },
    /// A gateway lists all keys after its start.
    ListKeys {
        gateway: usize,
        incarnation: u32,
    },
    /// A gateway reports the use of keys.
    Report {
        gateway: usize,
        incarnation: u32,
    },
    ReportArrives {
        gateway: usize,
        incarnation: u32,
        report: Box<UsageReport>,
        answers: bool,
    },
    ReportAnswered {
        gateway: usize,
        incarnation: u32,
        report: Box<UsageReport>,
        is_written: bool,
    },
    RestartGateway {
        gateway: usize,
    },
    /// An administrator requests a rotation of the authorities.
    Rotate {
        index: usize,
    },
    /// The server checks the progress of a rotation.
    RotationStep,
    DeliverTrust {
        peer: Peer,
    },
    /// A machine checks whether its certificates are due.
    KeepCertificates {
        peer: Peer,
    },
    /// An administrator joins a machine again.
    Rejoin {
        node: usize,
    },
    /// Credentials without permission are used, and two machines connect.
    Intrude,
}

/// Key in the API server.
#[derive(Debug)]
pub(crate) struct StoredKey {
    /// `None` before its creation and after its deletion.
    pub(crate) object: Option<Arc<ApiKey>>,
    pub(crate) version: u64,
    pub(crate) created: Option<Duration>,
    pub(crate) deleted: Option<Duration>,
}

/// Gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) identity: String,
    /// Number of starts of the process.
    pub(crate) incarnation: u32,
    pub(crate) gate: KeyGate,
    pub(crate) is_read: bool,
    /// Keys whose existence the gateway has received.
    pub(crate) received: BTreeSet<usize>,
    pub(crate) unanswered_reports: usize,
    pub(crate) trust: TrustMachine,
    /// Time since which the gateway receives changes; `None` while it does not.
    pub(crate) fresh_since: Option<Duration>,
}

/// Certificates of a node.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) trust: TrustMachine,
    /// Time at which the FleetNode was deleted, until the machine joins again.
    pub(crate) revoked: Option<Duration>,
    /// True while the API server rejects the node's credentials. The agent then has no connection.
    pub(crate) is_rejected: bool,
    /// Time since which the agent reaches the API server; `None` while it does not.
    pub(crate) connected_since: Option<Duration>,
    /// Last time at which the API server accepted the agent, which renewed what was due.
    pub(crate) last_kept: Duration,
    pub(crate) joined: Duration,
    /// True if old authorities were retired while the agent did not reach the API server.
    pub(crate) missed_retirement: bool,
}

/// Certificates that must not be accepted.
#[derive(Debug, Clone)]
pub(crate) struct Stolen {
    pub(crate) node: usize,
    pub(crate) serving: Option<CertificateChain>,
    pub(crate) client: Option<CertificateChain>,
    /// Time from which connected machines must reject it.
    pub(crate) since: Duration,
}

/// State of keys and certificates.
#[derive(Debug)]
pub(crate) struct AccessState {
    clock: ManualClock,
    advanced: Duration,
    pub(crate) server: TrustServer,
    pub(crate) keys: Vec<StoredKey>,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) machines: Vec<Machine>,
    /// Certificates of deleted FleetNodes and of retired authorities.
    pub(crate) stolen: Vec<Stolen>,
    /// Certificates of the authorities that a rotation replaces, until they are retired.
    pub(crate) replaced: Vec<Stolen>,
    /// UIDs of the FleetNodes that the server has received, by name.
    pub(crate) present: BTreeMap<String, String>,
    /// True while the API server does not respond.
    pub(crate) was_out: bool,
    /// Start of the last rotation.
    pub(crate) rotated: Duration,
    /// Time of the last retirement of authorities.
    pub(crate) retired: Option<Duration>,
    pub(crate) random: Random,
    pub(crate) lifetime: Duration,
}

impl AccessState {
    pub(crate) fn new(
        access: &Access,
        start: Timestamp,
        nodes: &[String],
        seed: u64,
    ) -> Result<Self, FleetDecisionError> {
        let clock = ManualClock::new(start);
        let mut server = TrustServer::new(Clock::Manual(clock.clone()))?;
        // Nodes join before the run. Their FleetNodes are created by the agents.
        server.observe_nodes(BTreeMap::new());
        let lifetime = access.certificate_lifetime;
        let issued = |purpose: Purpose| {
            let mut trust = TrustMachine::new(purpose);
            trust.follow(&server)?;
            trust.join(&server, lifetime)?;
            trust.renew(&server, lifetime, start)?;
            Ok::<_, FleetDecisionError>(trust)
        };
        let gateways = (0..access.gateways).map(|index| {
            let identity = format!("gateway-{index}");
            Ok::<_, FleetDecisionError>(Gateway {
                gate: KeyGate::new(&identity),
                incarnation: 0,
                is_read: false,
                received: BTreeSet::new(),
                unanswered_reports: 0,
                trust: issued(Purpose::Gateway {
                    name: identity.clone(),
                })?,
                fresh_since: Some(Duration::ZERO),
                identity,
            })
        });
        let gateways = gateways.collect::<Result<_, FleetDecisionError>>()?;
        let machines = nodes.iter().map(|node| {
            Ok::<_, FleetDecisionError>(Machine {
                trust: issued(Purpose::agent(node, node, node))?,
                revoked: None,
                is_rejected: false,
                connected_since: Some(Duration::ZERO),
                last_kept: Duration::ZERO,
                joined: Duration::ZERO,
                missed_retirement: false,
            })
        });
        let machines = machines.collect::<Result<_, FleetDecisionError>>()?;
        Ok(Self {
            clock,
            advanced: Duration::ZERO,
            server,
            keys: access
                .keys
                .iter()
                .map(|_| StoredKey {
                    object: None,
                    version: 0,
                    created: None,
                    deleted: None,
                })
                .collect(),
            gateways,
            machines,
            stolen: Vec::new(),
            replaced: Vec::new(),
            present: BTreeMap::new(),
            was_out: false,
            rotated: Duration::ZERO,
            retired: None,
            random: Random::stream(seed, "access"),
            lifetime,
        })
    }

    /// Advances the server's clock.
    pub(crate) fn advance_to(&mut self, now: Duration) {
        self.clock.advance(now.saturating_sub(self.advanced));
        self.advanced = self.advanced.max(now);
    }

    /// Returns whether two machines connect: each accepts the certificate of the other. `node_time`
    /// is the time of the node's clock.
    pub(crate) fn connects(
        &self,
        gateway: usize,
        node: usize,
        name: &str,
        now: Timestamp,
        node_time: Timestamp,
    ) -> bool {
        let (gateway, machine) = (&self.gateways[gateway].trust, &self.machines[node].trust);
        let certificates = gateway.certificate().zip(machine.certificate());
        certificates.is_some_and(|(client, server)| {
            gateway.accepts_server(&server, name, now) && machine.accepts_client(&client, node_time)
        })
    }

    /// Returns the credentials that a node has now.
    pub(crate) fn credentials(&self, node: usize, since: Duration) -> Stolen {
        let trust = &self.machines[node].trust;
        Stolen {
            node,
            serving: trust.certificate(),
            client: trust.client_certificate(),
            since,
        }
    }
}

/// Returns the secret of a key. Numbers without a key are unknown secrets.
pub(crate) fn secret(number: usize) -> String {
    // 32 bytes in base64: the last of 43 characters is a padding of zeros.
    format!("sk-rf-{number:A<43}")
}

/// Returns the object of a key.
pub(crate) fn object(
    key: &AccessKey,
    number: usize,
    hash: String,
    start: Timestamp,
    now: Timestamp,
) -> ApiKey {
    let spec = ApiKeySpec {
        secret_hash: hash,
        models: key.models.clone(),
        requests_per_minute: key.requests_per_minute,
        tokens_per_minute: key.tokens_per_minute,
        tokens_per_day: key.tokens_per_day,
        concurrent_requests: key.concurrent_requests,
        expires_at: (!key.expires.is_zero()).then(|| Time(start + key.expires)),
        ..ApiKeySpec::default()
    };
    let mut object = ApiKey::new(&key.name, spec);
    object.metadata.namespace = Some(NAMESPACE.to_owned());
    object.metadata.uid = Some(format!("key-{number:04}"));
    object.metadata.creation_timestamp = Some(Time(now));
    object.metadata.resource_version = Some("1".to_owned());
    object
}
