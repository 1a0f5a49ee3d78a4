//! Nodes whose certificates are no longer valid.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::authority::BACKDATED;
use super::identity::{Identity, Role};
use rooflet_base::mutex::lock;

/// Time of revocation by node. Certificates that were issued to the node before this time are
/// refused. Clones share the content.
#[derive(Debug, Clone, Default)]
pub struct Revocations {
    times: Arc<Mutex<BTreeMap<String, Timestamp>>>,
}

impl Revocations {
    pub fn replace(&self, times: BTreeMap<String, Timestamp>) {
        *lock(&self.times) = times;
    }

    /// Returns the time at which a node was revoked; `None` if it was not.
    pub fn revoked_at(&self, node: &str) -> Option<Timestamp> {
        lock(&self.times).get(node).copied()
    }

    /// Returns true if the certificate was issued to a node before the node was revoked.
    pub fn contain(&self, certificate: &CertificateDer<'_>) -> bool {
        if lock(&self.times).is_empty() {
            return false;
        }
        let Some(Identity {
            role: Role::Node,
            name,
        }) = Identity::of_certificate(certificate)
        else {
            return false;
        };
        let revoked = self.revoked_at(&name);
        revoked.is_some_and(|revoked| issued_at(certificate).is_none_or(|issued| issued <= revoked))
    }

    /// Returns the time of issue for a certificate of `identity`: `now`, or the first second after
    /// the revocation. Certificates state whole seconds, so one that is issued in the second of the
    /// revocation would be refused.
    pub fn time_of_issue(&self, identity: &Identity, now: Timestamp) -> Timestamp {
        let revoked = match identity.role {
            Role::Node => self.revoked_at(&identity.name),
            Role::Gateway | Role::Controller | Role::Operator => None,
        };
        let first = revoked.and_then(|revoked| Timestamp::from_second(revoked.as_second() + 1).ok());
        first.map_or(now, |first| now.max(first))
    }
}

/// Returns the time at which an authority of this crate signed the certificate.
fn issued_at(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let start = certificate.validity().not_before.timestamp();
    let backdated = i64::try_from(BACKDATED.as_secs()).ok()?;
    Timestamp::from_second(start + backdated).ok()
}
