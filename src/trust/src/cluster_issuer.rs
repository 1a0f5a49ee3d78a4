//! Certificates of a fleet on a Kubernetes cluster. kube-apiserver's own signers issue no certificates that only
//! machines of the fleet trust. So the leading controller approves requests of the chart's ServiceAccounts for
//! their own identity, and signs approved requests.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::cluster_authorities::ClusterAuthorities;
use crate::cluster_request::{
    AcceptedRequest, FleetSigner, RejectRequestError, RequestState, check, check_deletion, check_requestor,
};
use crate::cluster_rotation::{ClusterRotation, IssuedNodes};
use crate::node_ledger::{PublishedAuthorities, TrustPublisher};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_client::{ApiError, Attempts, Cache, Changes, FIELD_MANAGER, SERVICE_ACCOUNT_PREFIX};
use rooflet_pki::{Identity, Revocations, Role};

/// Interval between passes without a change.
const PERIOD: Duration = Duration::from_secs(60);

/// Issuer of certificates. Run it in one process at a time.
pub struct ClusterIssuer {
    /// Client whose default namespace is that of the chart.
    pub client: Client,
    pub clock: Clock,
}

impl ClusterIssuer {
    /// Publishes the fleet's trust, and issues certificates, until `tasks` stop.
    pub fn start(self, tasks: &Tasks) {
        let changes = Changes::new();
        let fleet: Cache<FleetNode> = rooflet_client::watch(
            tasks,
            Api::all(self.client.clone()),
            watcher::Config::default(),
            &self.clock,
            &changes,
        );
        let requests = FleetSigner::ALL.map(|signer| {
            let config = watcher::Config::default().fields(&format!("spec.signerName={}", signer.name()));
            let api = Api::all(self.client.clone());
            (
                signer,
                rooflet_client::watch(tasks, api, config, &self.clock, &changes),
            )
        });
        let rotations = ClusterRotation::watch(&self.client, &self.clock, tasks);
        let stop = tasks.stop_token();
        tasks.spawn_detached(async move {
            let running = Box::pin(self.run(fleet, requests, changes, rotations));
            stop.run_until_cancelled(running).await;
        });
    }

    async fn run(
        self,
        fleet: Cache<FleetNode>,
        requests: [(FleetSigner, Cache<CertificateSigningRequest>); 2],
        changes: Changes,
        (rotations, rotation_rx): (Cache<ConfigMap>, watch::Receiver<u64>),
    ) {
        let mut attempts = Attempts::new("opening the certificate authorities of the fleet");
        let authorities = loop {
            match ClusterAuthorities::open(&self.client, self.clock.now()).await {
                Ok(authorities) => break authorities,
                Err(err) => tokio::time::sleep(attempts.failed(&err)).await,
            }
        };
        attempts.succeeded();
        let revocations = Revocations::default();
        let publisher = TrustPublisher {
            client: self.client.clone(),
            clock: self.clock.clone(),
            authorities: PublishedAuthorities::Cluster(authorities.clone()),
            revocations: revocations.clone(),
        };
        let issued = IssuedNodes::default();
        let rotation = ClusterRotation {
            client: self.client.clone(),
            clock: self.clock.clone(),
            authorities: authorities.clone(),
            fleet: fleet.clone(),
            issued: issued.clone(),
        };
        let issuer = Issuer {
            requests: Api::all(self.client.clone()),
            accounts: Api::default_namespaced(self.client.clone()),
            users: format!("{SERVICE_ACCOUNT_PREFIX}{}:", self.client.default_namespace()),
            clock: self.clock,
            authorities,
            revocations,
            fleet: fleet.clone(),
            issued,
        };
        // Both use the same cache of nodes: see `Issuer::process`.
        tokio::join!(
            publisher.run(fleet, changes.subscribe()),
            issuer.run(requests, changes.subscribe()),
            rotation.run(rotations, rotation_rx)
        );
    }
}

struct Issuer {
    requests: Api<CertificateSigningRequest>,
    accounts: Api<ServiceAccount>,
    /// Prefix of the user names of the chart's ServiceAccounts.
    users: String,
    clock: Clock,
    authorities: ClusterAuthorities,
    revocations: Revocations,
    fleet: Cache<FleetNode>,
    issued: IssuedNodes,
}

impl Issuer {
    async fn run(
        self,
        requests: [(FleetSigner, Cache<CertificateSigningRequest>); 2],
        mut changed_rx: watch::Receiver<u64>,
    ) {
        self.fleet.synced().await;
        let mut attempts = Attempts::new("issuing certificates of the fleet");
        loop {
            changed_rx.mark_unchanged();
            let mut wait = PERIOD;
            for (signer, requests) in &requests {
                for csr in requests.list() {
                    match self.process(*signer, &csr).await {
                        Ok(None) => {}
                        Ok(Some(processed)) => {
                            attempts.succeeded();
                            requests.wrote(processed);
                        }
                        // The watch delivers the current state.
                        Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => {}
                        Err(err) => wait = attempts.failed(&err),
                    }
                }
            }
            tokio::select! {
                changed = changed_rx.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Denies, fails, or approves and signs a request. Returns it, or `None` if there is nothing to do.
    async fn process(
        &self,
        signer: FleetSigner,
        csr: &CertificateSigningRequest,
    ) -> Result<Option<CertificateSigningRequest>, ApiError> {
        let state = RequestState::of(csr);
        if state == RequestState::Finished {
            return Ok(None);
        }
        let user = csr.spec.username.as_deref().unwrap_or_default();
        let account = user.strip_prefix(&self.users);
        if state == RequestState::Pending && account.is_none() {
            // An administrator approves requests of people.
            return Ok(None);
        }
        let accepted = check(signer, csr);
        // The time precedes the check of the node. If the node is deleted after the check, the certificate counts as
        // issued before the deletion, and is revoked.
        let issued = match &accepted {
            Ok(accepted) => self
                .revocations
                .time_of_issue(&accepted.identity, self.clock.now()),
            Err(_) => self.clock.now(),
        };
        let permitted = match (accepted, state) {
            (Ok(accepted), RequestState::Pending) => self.check_account(account, accepted).await?,
            (accepted, RequestState::Approved | RequestState::Finished) => accepted,
            (Err(reason), RequestState::Pending) => Err(reason),
        };
        let permitted = permitted.and_then(|accepted| self.check_node(csr, accepted));
        let name = csr.name_any();
        let AcceptedRequest { identity, request } = match permitted {
            Ok(accepted) => accepted,
            Err(reason) => {
                let reason = reason.to_string();
                warn!(
                    request = name,
                    user, reason, "rejected a certificate signing request"
                );
                let rejected = match state {
                    RequestState::Pending => {
                        self.decide(csr, "Denied", "RequestorNotPermitted", &reason).await
                    }
                    RequestState::Approved | RequestState::Finished => self.fail(csr, &reason).await,
                };
                return rejected.map(Some);
            }
        };
        if state == RequestState::Pending {
            let message = format!("The requestor is {identity}.");
            self.decide(csr, "Approved", "RequestorIsSubject", &message)
                .await?;
        }
        let authority = match signer {
            FleetSigner::NodeServing => &self.authorities.nodes,
            FleetSigner::Client => &self.authorities.clients,
        };
        let uri = self.authorities.clients.fleet().map(|fleet| identity.uri(&fleet));
        let policy = signer.policy(uri, csr.spec.expiration_seconds);
        let signed = authority.sign(&request, &policy, issued);
        let processed = match signed.map_err(|err| Chain(&err).to_string()) {
            Ok(certificate) => {
                let encoded = ByteString(certificate.clone().into_bytes());
                let patch = json!({"status": {"certificate": encoded}});
                let signed = self.patch_status(&name, &patch).await?;
                info!(request = name, %identity, "signed a certificate of the fleet");
                if identity.role == Role::Node {
                    self.issued.record(&identity.name, &certificate);
                }
                signed
            }
            Err(what) => self.fail(csr, &what).await?,
        };
        Ok(Some(processed))
    }

    async fn check_account(
        &self,
        account: Option<&str>,
        accepted: AcceptedRequest,
    ) -> Result<Result<AcceptedRequest, RejectRequestError>, ApiError> {
        let account = account.unwrap_or_default();
        let found = self.accounts.get_opt(account).await?;
        let checked = check_requestor(account, found.as_ref(), &accepted.identity);
        Ok(checked.map(|()| accepted))
    }

    fn check_node(
        &self,
        csr: &CertificateSigningRequest,
        accepted: AcceptedRequest,
    ) -> Result<AcceptedRequest, RejectRequestError> {
        let Identity { role, name } = &accepted.identity;
        let revoked = self.revocations.revoked_at(name);
        check_deletion(&accepted.identity, csr, revoked, self.clock.now())?;
        let is_listed = || {
            let unreadable = self.fleet.unreadable();
            self.fleet.get(None, name).is_some() || unreadable.iter().any(|node| node.name == *name)
        };
        match *role == Role::Node && !is_listed() {
            true => Err(RejectRequestError::NoNode(name.clone())),
            false => Ok(accepted),
        }
    }

    /// Approves or denies a request.
    async fn decide(
        &self,
        csr: &CertificateSigningRequest,
        kind: &str,
        reason: &str,
        message: &str,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let patch = Patch::Merge(with_condition(csr, kind, reason, message));
        Ok(self
            .requests
            .patch_approval(&csr.name_any(), &params(), &patch)
            .await?)
    }

    async fn fail(
        &self,
        csr: &CertificateSigningRequest,
        message: &str,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let patch = with_condition(csr, "Failed", "SignerValidationFailure", message);
        self.patch_status(&csr.name_any(), &patch).await
    }

    async fn patch_status(&self, name: &str, patch: &Value) -> Result<CertificateSigningRequest, ApiError> {
        let patch = Patch::Merge(patch);
        Ok(self.requests.patch_status(name, &params(), &patch).await?)
    }
}

/// Returns a patch that adds a condition.
fn with_condition(csr: &CertificateSigningRequest, kind: &str, reason: &str, message: &str) -> Value {
    let status = csr.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut all: Vec<Value> = conditions.into_iter().flatten().map(|one| json!(one)).collect();
    all.push(json!({"type": kind, "status": "True", "reason": reason, "message": message}));
    json!({"status": {"conditions": all}})
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}
