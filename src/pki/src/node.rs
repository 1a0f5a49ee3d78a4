//! Credentials of a node: a key that never leaves the node, and a request to sign it.

use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Kubernetes' group of nodes, the organization of every node's certificate.
pub const NODES_GROUP: &str = "system:nodes";
/// Prefix of a node's user name, as in Kubernetes.
pub const NODE_USER_PREFIX: &str = "system:node:";

/// New key with a signing request.
pub struct NodeRequest {
    pub key_pem: String,
    /// Request in PKCS #10.
    pub request_pem: String,
}

impl NodeRequest {
    /// Creates a key and a request for the node's client certificate.
    pub fn new(node: &str) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, NODES_GROUP);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("{NODE_USER_PREFIX}{node}"));
        let request_pem = params.serialize_request(&key)?.pem()?;
        Ok(Self {
            key_pem: key.serialize_pem(),
            request_pem,
        })
    }
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

    /// Returns the time of the renewal: after two thirds of the lifetime.
    pub fn renew_at(&self) -> Timestamp {
        let lifetime = self.not_after.as_second() - self.not_before.as_second();
        Timestamp::from_second(self.not_before.as_second() + lifetime * 2 / 3).unwrap_or(self.not_before)
    }
}
