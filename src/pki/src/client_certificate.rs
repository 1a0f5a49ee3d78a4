//! Client certificates of the server's own processes, which need no signing request.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};

use super::authority::Authority;
use super::certificate_request::{CertificateRequest, ReadRequestError, SignRequestError, SigningPolicy};
use super::identity::Identity;
use super::node::{KeyRequest, NodeCertificate};

/// Error of issuing a client certificate.
#[derive(Debug, thiserror::Error)]
pub enum IssueClientError {
    #[error("generating a key")]
    Key(#[source] rcgen::Error),
    #[error("reading the generated request")]
    Request(#[source] ReadRequestError),
    #[error("signing the certificate")]
    Sign(#[from] SignRequestError),
}

/// Client certificate with its key.
pub struct ClientCertificate {
    pub certificate_pem: String,
    pub key_pem: String,
    /// Time of the renewal: after two thirds of the lifetime.
    pub renew_at: Timestamp,
}

impl Authority {
    /// Issues a client certificate for `identity`, with a new key.
    pub fn issue_client(
        &self,
        identity: &Identity,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<ClientCertificate, IssueClientError> {
        let key = KeyRequest::client(identity).map_err(IssueClientError::Key)?;
        let request =
            CertificateRequest::from_pem(key.request_pem.as_bytes()).map_err(IssueClientError::Request)?;
        let policy = SigningPolicy {
            key_usages: vec![KeyUsagePurpose::DigitalSignature],
            extended_key_usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
            uri: self.fleet().map(|fleet| identity.uri(&fleet)),
            lifetime,
        };
        let certificate_pem = self.sign(&request, &policy, now)?;
        let issued = NodeCertificate::read(certificate_pem.as_bytes());
        Ok(ClientCertificate {
            renew_at: issued.map_or(now, |issued| issued.renew_at()),
            certificate_pem,
            key_pem: key.key_pem,
        })
    }
}
