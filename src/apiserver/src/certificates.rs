//! Content and retention of CertificateSigningRequests. Pure; `controller::certificates` approves
//! and signs.

pub(crate) mod signer;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::Value;

use crate::authentication::MASTERS;
use crate::object;
use rooflet_base::clock::since;
use rooflet_pki::{CertificateRequest, end_of_certificate};
use signer::Signer;

pub(crate) const APPROVED: &str = "Approved";
pub(crate) const DENIED: &str = "Denied";
pub(crate) const FAILED: &str = "Failed";

/// Retention of completed requests (issued, denied or failed).
const COMPLETED_LIFETIME: Duration = Duration::from_secs(3600);
/// Retention of requests without a certificate.
const PENDING_LIFETIME: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn conditions(csr: &Value) -> impl Iterator<Item = &Value> {
    csr["status"]["conditions"].as_array().into_iter().flatten()
}

pub(crate) fn has_condition(csr: &Value, kind: &str) -> bool {
    conditions(csr).any(|condition| condition["type"] == kind)
}

pub(crate) fn has_certificate(csr: &Value) -> bool {
    !object::text(csr, &["status", "certificate"]).is_empty()
}

pub(crate) fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).collect()
}

/// Returns the decoded request. It was validated at creation.
pub(crate) fn request_of(csr: &Value) -> Option<CertificateRequest> {
    let pem = BASE64.decode(object::text(csr, &["spec", "request"])).ok()?;
    CertificateRequest::from_pem(&pem).ok()
}

/// Error of a request for membership in `system:masters`, which no signer grants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("use of {signer} signer with {MASTERS} group is not allowed")]
pub(crate) struct MastersRequested {
    signer: String,
}

/// Rejects a user request for the group `system:masters`.
pub(crate) fn check_subject(csr: &Value) -> Result<(), MastersRequested> {
    let name = object::text(csr, &["spec", "signerName"]);
    let is_user = Signer::of(name) == Some(Signer::UserClient);
    let Some(request) = is_user.then(|| request_of(csr)).flatten() else {
        return Ok(());
    };
    match request.organizations.iter().any(|group| group == MASTERS) {
        true => Err(MastersRequested {
            signer: name.to_owned(),
        }),
        false => Ok(()),
    }
}

/// Returns true if the retention of a request has ended.
pub(crate) fn is_expired(csr: &Value, now: Timestamp) -> bool {
    let is_older = |time: &str, than: Duration| {
        let time = time.parse::<Timestamp>().ok();
        time.is_some_and(|time| since(now, time) >= than)
    };
    let certificate = BASE64.decode(object::text(csr, &["status", "certificate"]));
    let ends = certificate.ok().as_deref().and_then(end_of_certificate);
    let is_completed = has_certificate(csr) || has_condition(csr, DENIED) || has_condition(csr, FAILED);
    let mut completions = conditions(csr).filter(|condition| {
        let kind = object::text(condition, &["type"]);
        [APPROVED, DENIED, FAILED].contains(&kind)
    });
    ends.is_some_and(|ends| ends < now)
        || is_completed
            && completions
                .any(|completion| is_older(object::text(completion, &["lastUpdateTime"]), COMPLETED_LIFETIME))
        || !has_certificate(csr)
            && is_older(
                object::text(csr, &["metadata", "creationTimestamp"]),
                PENDING_LIFETIME,
            )
}
