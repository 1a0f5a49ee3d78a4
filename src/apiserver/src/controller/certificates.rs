//! CertificateSigningRequests, approved and signed: what `csrapproving` and `csrsigning` do beside
//! a real server.
//!
//! One task follows the requests. [`next_step`] says what one request needs next, from the request
//! alone.

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
use crate::object::typed::format_time;
use crate::registry::resource::Subresource;
use crate::status::ApiError;
use rooflet_base::error::Chain;
use rooflet_pki::{Authority, CertificateRequest, Grant, SignRequestError};
use rooflet_store::{ListOptions, Record};

/// How long to wait before something that failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The authorities that sign requests.
pub struct CertificateSigners {
    /// Signs nodes and users that connect to the API server.
    pub client: Authority,
    /// Signs what nodes show to who connects to them.
    pub node: Authority,
}

impl CertificateSigners {
    fn sign(
        &self,
        signer: Signer,
        request: &CertificateRequest,
        grant: &Grant,
        now: Timestamp,
    ) -> Result<String, SignRequestError> {
        let authority = match signer {
            Signer::NodeClient | Signer::UserClient => &self.client,
            Signer::NodeServing => &self.node,
        };
        authority.sign(request, grant, now)
    }
}

/// What is to be done with a request.
#[derive(Debug)]
enum Step {
    /// With this message.
    Approve(&'static str),
    /// For this reason.
    Fail(RejectRequestError),
    Sign(Signer, Box<CertificateRequest>, Grant),
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
        return signer.approves(&request, &usages, by).map(Step::Approve);
    }
    Some(match signer.check(&request, &usages) {
        Err(why) => Step::Fail(why),
        Ok(()) => {
            let grant = signer::grant(&usages, spec["expirationSeconds"].as_i64());
            Step::Sign(signer, Box::new(request), grant)
        }
    })
}

/// Approves and signs until `stop`.
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
        // A step failed, the watch fell behind, or the store is closing.
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY_DELAY) => {}
        }
    }
}

/// Takes the next step of every request. False if one has to be tried again.
async fn settle(engine: &Engine, signers: &CertificateSigners) -> bool {
    let Ok(listing) = engine.store.list(CSR_STORAGE, &ListOptions::default()) else {
        return false;
    };
    let mut is_settled = true;
    for record in &listing.records {
        let Some(step) = next_step(record.json()) else {
            continue;
        };
        match advance(engine, signers, record, step).await {
            Ok(()) => {}
            // Its event is on the way.
            Err(err) if matches!(err.code(), StatusCode::CONFLICT | StatusCode::NOT_FOUND) => {}
            Err(err) => {
                warn!(request = object::name(record.json()), error = %err, "answering a certificate request failed");
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
    let mut csr = record.json().clone();
    let name = object::name(record.json());
    let subresource = match step {
        Step::Approve(why) => {
            add_condition(&mut csr, APPROVED, "AutoApproved", why, now);
            Subresource::Approval
        }
        Step::Fail(why) => {
            let why = why.to_string();
            info!(request = name, why, "a certificate request cannot be signed");
            add_condition(&mut csr, FAILED, "SignerValidationFailure", &why, now);
            Subresource::Status
        }
        Step::Sign(signer, request, grant) => {
            match signers.sign(signer, &request, &grant, now) {
                Ok(pem) => {
                    info!(
                        request = name,
                        subject = request.common_name,
                        "signed a certificate"
                    );
                    csr["status"]["certificate"] = json!(BASE64.encode(pem));
                }
                Err(err) => {
                    let why = Chain(&err).to_string();
                    add_condition(&mut csr, FAILED, "SignerValidationFailure", &why, now);
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
