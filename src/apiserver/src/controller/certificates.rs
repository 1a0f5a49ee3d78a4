//! Approval and signing of CertificateSigningRequests, like the controllers `csrapproving` and
//! `csrsigning`.
//!
//! One task watches the requests. [`next_step`] determines the next step of a request from its
//! content.

mod joining;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::builtin::{BuiltIn, CSR_STORAGE};
use crate::certificates::signer::{self, RejectRequestError, Requestor, Signer};
use crate::certificates::{
    APPROVED, DENIED, FAILED, conditions, has_certificate, has_condition, request_of, texts,
};
use crate::endpoints::options::WriteOptions;
use crate::engine::{Edit, Engine, Target, Warnings};
use crate::object;
use crate::registry::resource::Subresource;
use crate::status::ApiError;
use rooflet_apimachinery::time::format_time;
use rooflet_base::error::Chain;
use rooflet_pki::{
    Authority, CertificateRequest, Identity, NODE_USER_PREFIX, Revocations, SignRequestError, SigningPolicy,
};
use rooflet_store::{ListOptions, Record};

pub use joining::NodeResource;

/// Delay before failed steps are retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Authorities that sign requests.
pub struct CertificateSigners {
    /// Signs client certificates of nodes and users for the API server.
    pub client: Authority,
    /// Signs serving certificates of nodes.
    pub node: Authority,
    /// Returns a URI that certificates contain in addition to the names of their request.
    pub uri_of: Option<UriOf>,
    /// Nodes whose earlier certificates are refused. New certificates are issued after the revocation.
    pub revocations: Revocations,
    /// Kind whose names a machine with a bootstrap token cannot take over.
    pub nodes: Option<NodeResource>,
}

/// Function of the common name and the organizations of a request.
pub(crate) type UriOf = Box<dyn Fn(&str, &[String]) -> Option<String> + Send + Sync>;

impl CertificateSigners {
    fn sign(
        &self,
        signer: Signer,
        request: &CertificateRequest,
        mut policy: SigningPolicy,
        now: Timestamp,
    ) -> Result<String, SignRequestError> {
        policy.uri = self
            .uri_of
            .as_ref()
            .and_then(|uri_of| uri_of(&request.common_name, &request.organizations));
        let authority = match signer {
            Signer::NodeClient | Signer::UserClient => &self.client,
            Signer::NodeServing => &self.node,
        };
        let identity = Identity::of_subject(&request.common_name, &request.organizations);
        let issued = identity.map_or(now, |identity| self.revocations.time_of_issue(&identity, now));
        authority.sign(request, &policy, issued)
    }
}

/// Next step of a request.
#[derive(Debug)]
enum Step {
    /// Approve the request for this common name, with this message.
    Approve(String, &'static str),
    /// Fail with this reason.
    Fail(RejectRequestError),
    Sign(Signer, Box<CertificateRequest>, SigningPolicy),
}

fn next_step(csr: &Value) -> Option<Step> {
    let spec = &csr["spec"];
    let signer = Signer::of(object::text(spec, &["signerName"]))?;
    if has_certificate(csr) || has_condition(csr, DENIED) || has_condition(csr, FAILED) {
        return None;
    }
    let usages = texts(&spec["usages"]);
    let request = request_of(csr)?;
    if !has_condition(csr, APPROVED) {
        let by = Requestor {
            name: object::text(spec, &["username"]),
            groups: &texts(&spec["groups"]),
        };
        let message = signer.approves(&request, &usages, by)?;
        return Some(Step::Approve(request.common_name, message));
    }
    Some(match signer.check(&request, &usages) {
        Err(reason) => Step::Fail(reason),
        Ok(()) => {
            let policy = signer::signing_policy(&usages, spec["expirationSeconds"].as_i64());
            Step::Sign(signer, Box::new(request), policy)
        }
    })
}

/// Approves and signs requests until `stop`.
pub(crate) async fn run(engine: Engine, signers: Arc<CertificateSigners>, stop: CancellationToken) {
    loop {
        let after = engine.store.revision();
        if let Ok(mut watcher) = engine.store.watch(CSR_STORAGE, after) {
            while settle(&engine, &signers).await {
                let event = tokio::select! {
                    () = stop.cancelled() => return,
                    event = watcher.next() => event,
                };
                if event.is_none() {
                    break;
                }
            }
        }
        // A step failed, the watch lagged, or the store is closing.
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY_DELAY) => {}
        }
    }
}

/// Executes the next step of every request. Returns false if a step must be retried.
async fn settle(engine: &Engine, signers: &CertificateSigners) -> bool {
    let Ok(listing) = engine.store.list(CSR_STORAGE, &ListOptions::default()) else {
        return false;
    };
    let mut is_settled = true;
    for record in &listing.records {
        let Some(step) = next_step(&record.json()) else {
            continue;
        };
        match advance(engine, signers, record, step).await {
            Ok(()) => {}
            // The watch will deliver an event for the changed request.
            Err(err) if matches!(err.code(), StatusCode::CONFLICT | StatusCode::NOT_FOUND) => {}
            Err(err) => {
                warn!(request = object::name(&record.json()), error = %err, "failed to process certificate signing request");
                is_settled = false;
            }
        }
    }
    is_settled
}

async fn advance(
    engine: &Engine,
    signers: &CertificateSigners,
    record: &Record,
    step: Step,
) -> Result<(), ApiError> {
    let now = engine.clock.now();
    let stored = record.json();
    let mut csr = Value::clone(&stored);
    let name = object::name(&stored);
    let subresource = match step {
        Step::Approve(common_name, message) => {
            let node = common_name.strip_prefix(NODE_USER_PREFIX).unwrap_or(&common_name);
            match joining::admit(engine, signers.nodes.as_ref(), &csr, node).await? {
                Ok(()) => add_condition(&mut csr, APPROVED, "AutoApproved", message, now),
                Err(reason) => {
                    let reason = reason.to_string();
                    warn!(
                        request = name,
                        node, reason, "certificate signing request of a joining machine denied"
                    );
                    add_condition(&mut csr, DENIED, "JoinDenied", &reason, now);
                }
            }
            Subresource::Approval
        }
        Step::Fail(reason) => {
            let reason = reason.to_string();
            info!(request = name, reason, "certificate signing request rejected");
            add_condition(&mut csr, FAILED, "SignerValidationFailure", &reason, now);
            Subresource::Status
        }
        Step::Sign(signer, request, policy) => {
            match signers.sign(signer, &request, policy, now) {
                Ok(pem) => {
                    info!(
                        request = name,
                        subject = request.common_name,
                        "certificate signed"
                    );
                    csr["status"]["certificate"] = json!(BASE64.encode(pem));
                }
                Err(err) => {
                    let reason = Chain(&err).to_string();
                    add_condition(&mut csr, FAILED, "SignerValidationFailure", &reason, now);
                }
            }
            Subresource::Status
        }
    };
    let snapshot = engine.registry.snapshot();
    let resource = snapshot.built_in(BuiltIn::CertificateSigningRequest);
    let mut target = Target::new(resource, None, name);
    target.subresource = Some(subresource);
    let mut warnings = Warnings::default();
    let edit = Edit::Replace(csr);
    let written = engine.update(&target, edit, WriteOptions::INTERNAL, &mut warnings);
    written.await.map(drop)
}

fn add_condition(csr: &mut Value, kind: &str, reason: &str, message: &str, now: Timestamp) {
    let now = format_time(now);
    let condition = json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now});
    let mut all: Vec<Value> = conditions(csr).cloned().collect();
    all.push(condition);
    csr["status"]["conditions"] = Value::from(all);
}

#[cfg(test)]
pub(crate) mod tests;
