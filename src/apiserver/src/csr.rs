//! CertificateSigningRequests, approved and signed: what `csrapproving` and `csrsigning` do beside a real server.
//!
//! One task follows the requests. [`next_step`] says what one request needs next, from the request alone.

pub(crate) mod signer;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::authentication::MASTERS;
use super::builtin::{BuiltIn, CSR_STORAGE};
use super::engine::{Edit, Engine, Target, Warnings};
use super::object;
use super::options::WriteOptions;
use super::resource::Subresource;
use super::status::ApiError;
use super::typed::format_time;
use rooflet_base::clock::since;
use rooflet_base::error::Chain;
use rooflet_pki::{Authority, CertificateRequest, Grant, SignRequestError, end_of_certificate};
use rooflet_store::{ListOptions, Record};
use signer::{Requestor, Signer};

pub(crate) const APPROVED: &str = "Approved";
pub(crate) const DENIED: &str = "Denied";
pub(crate) const FAILED: &str = "Failed";

/// How long to wait before something that failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// A request that was answered is kept so long.
const ANSWERED_LIFETIME: Duration = Duration::from_secs(3600);
/// One without a certificate, whatever was said of it.
const PENDING_LIFETIME: Duration = Duration::from_secs(24 * 3600);

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

pub(crate) fn conditions(csr: &Value) -> impl Iterator<Item = &Value> {
    csr["status"]["conditions"].as_array().into_iter().flatten()
}

pub(crate) fn has_condition(csr: &Value, kind: &str) -> bool {
    conditions(csr).any(|condition| condition["type"] == kind)
}

fn has_certificate(csr: &Value) -> bool {
    !object::text(csr, &["status", "certificate"]).is_empty()
}

/// What is to be done with a request.
#[derive(Debug)]
enum Step {
    /// With this message.
    Approve(&'static str),
    /// For this reason.
    Fail(String),
    Sign(Signer, Box<CertificateRequest>, Grant),
}

fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).collect()
}

/// The request itself. It was checked when it was created.
fn request_of(csr: &Value) -> Option<CertificateRequest> {
    let pem = BASE64.decode(object::text(csr, &["spec", "request"])).ok()?;
    CertificateRequest::from_pem(&pem).ok()
}

/// The one group that no signer makes members of. The error says why.
pub(super) fn check_subject(csr: &Value) -> Result<(), String> {
    let name = object::text(csr, &["spec", "signerName"]);
    let is_user = Signer::of(name) == Some(Signer::UserClient);
    let Some(request) = is_user.then(|| request_of(csr)).flatten() else {
        return Ok(());
    };
    match request.organizations.iter().any(|group| group == MASTERS) {
        true => Err(format!(
            "use of {name} signer with {MASTERS} group is not allowed"
        )),
        false => Ok(()),
    }
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

/// Whether a request has been kept long enough.
pub(super) fn is_expired(csr: &Value, now: Timestamp) -> bool {
    let is_older = |time: &str, than: Duration| {
        let time = time.parse::<Timestamp>().ok();
        time.is_some_and(|time| since(now, time) >= than)
    };
    let certificate = BASE64.decode(object::text(csr, &["status", "certificate"]));
    let ends = certificate.ok().as_deref().and_then(end_of_certificate);
    let is_answered = has_certificate(csr) || has_condition(csr, DENIED) || has_condition(csr, FAILED);
    let mut answers = conditions(csr).filter(|condition| {
        let kind = object::text(condition, &["type"]);
        [APPROVED, DENIED, FAILED].contains(&kind)
    });
    ends.is_some_and(|ends| ends < now)
        || is_answered
            && answers.any(|answer| is_older(object::text(answer, &["lastUpdateTime"]), ANSWERED_LIFETIME))
        || !has_certificate(csr)
            && is_older(
                object::text(csr, &["metadata", "creationTimestamp"]),
                PENDING_LIFETIME,
            )
}

/// Approves and signs until `stop`.
pub(super) async fn run(engine: Engine, signers: Arc<CertificateSigners>, stop: CancellationToken) {
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
