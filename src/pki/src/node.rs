//! A node's credentials: the key that it makes and never gives away, and what it asks the server to
//! sign.

use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Organization of every node's certificate: Kubernetes' group of nodes.
pub const NODES_GROUP: &str = "system:nodes";
/// Before a node's name in its user name, as in Kubernetes.
pub const NODE_USER_PREFIX: &str = "system:node:";

/// A new key, and the request to sign it.
pub struct NodeRequest {
    pub key_pem: String,
    /// PKCS #10.
    pub request_pem: String,
}

impl NodeRequest {
    /// For the node's name as a client.
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

/// When a certificate counts, and for which node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCertificate {
    /// `None`: it is no node's.
    pub node: Option<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl NodeCertificate {
    /// Of the first certificate of a PEM text; `None`: there is none that can be read.
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

    /// When a new one should be asked for: after two thirds of its time, long before anybody
    /// refuses it.
    pub fn renew_at(&self) -> Timestamp {
        let lifetime = self.not_after.as_second() - self.not_before.as_second();
        Timestamp::from_second(self.not_before.as_second() + lifetime * 2 / 3).unwrap_or(self.not_before)
    }
}
