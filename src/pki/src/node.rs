//! Credentials of a machine: a key that never leaves the machine, and a request to sign it.

use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::identity::{Identity, Role};
use super::subject::was_issued_by;

/// Kubernetes' group of nodes, the organization of every node's certificate.
pub const NODES_GROUP: &str = "system:nodes";
/// Prefix of a node's user name, as in Kubernetes.
pub const NODE_USER_PREFIX: &str = "system:node:";

/// New key with a signing request.
pub struct KeyRequest {
    pub key_pem: String,
    /// Request in PKCS #10.
    pub request_pem: String,
}

impl KeyRequest {
    /// Creates a key and a request for the identity's client certificate.
    pub fn client(identity: &Identity) -> Result<Self, rcgen::Error> {
        Self::new(identity, &[])
    }

    /// Creates a key and a request for the node's serving certificate. `names` are IP addresses and
    /// DNS names.
    pub fn serving(node: &str, names: &[String]) -> Result<Self, rcgen::Error> {
        Self::new(&Identity::new(Role::Node, node), names)
    }

    fn new(identity: &Identity, names: &[String]) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        let (common_name, organization) = identity.subject();
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, common_name);
        let request_pem = params.serialize_request(&key)?.pem()?;
        Ok(Self {
            key_pem: key.serialize_pem(),
            request_pem,
        })
    }
}

/// Returns whether the first authority in a PEM text issued the first certificate of another.
pub fn is_issued_by(certificate_pem: &[u8], authorities_pem: &str) -> bool {
    let first = |pem: &[u8]| CertificateDer::from_pem_slice(pem).ok();
    first(certificate_pem)
        .zip(first(authorities_pem.as_bytes()))
        .is_some_and(|(certificate, authority)| was_issued_by(&certificate, &authority))
}

/// Node and validity of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCertificate {
    /// Name of the node; `None` if it is not a node's certificate.
    pub node: Option<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl NodeCertificate {
    /// Parses the first certificate of a PEM text; `None` if there is no valid one.
    pub fn read(pem: &[u8]) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(pem).ok()?;
        let (_, certificate) = X509Certificate::from_der(&certificate).ok()?;
        let common_name = certificate.subject().iter_common_name().last()?.as_str().ok()?;
        let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        Some(Self {
            node: common_name.strip_prefix(NODE_USER_PREFIX).map(str::to_owned),
            not_before: at(certificate.validity().not_before)?,
            not_after: at(certificate.validity().not_after)?,
        })
    }

    /// Returns whether the certificate is to be renewed: because of its age, or because its
    /// validity has not begun.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.renew_at() || self.is_from_future(now)
    }

    /// Returns whether the validity has not begun, because a clock was wrong.
    pub fn is_from_future(&self, now: Timestamp) -> bool {
        now < self.not_before
    }

    /// Returns the time of the renewal: after two thirds of the lifetime.
    pub fn renew_at(&self) -> Timestamp {
        let lifetime = self.not_after.as_second() - self.not_before.as_second();
        Timestamp::from_second(self.not_before.as_second() + lifetime * 2 / 3).unwrap_or(self.not_before)
    }
}
