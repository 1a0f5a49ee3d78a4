//! Client certificates of users: the common name is the user name, the organizations are its
//! groups.
//!
//! As in Kubernetes, a handshake accepts any certificate whose key the client has. Issuer and
//! validity are checked with each request. So an invalid certificate results in a response (401),
//! and a certificate also expires on an open connection.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::authority::Authority;
use super::revocations::Revocations;
use super::serving::IssueError;
use super::subject::{UserName, subject};
use rooflet_base::clock::Clock;

/// Error of authenticating a user by certificate.
#[derive(Debug, thiserror::Error)]
pub enum UserCertificateError {
    #[error("the client sent no certificate")]
    Missing,
    #[error("the client's certificate is not valid")]
    Invalid(#[source] rustls::Error),
    #[error("the subject of the client's certificate is not valid")]
    Subject,
    #[error("the client's certificate is revoked: its FleetNode was deleted; join again")]
    Revoked,
}

/// Interval at which open connections are checked.
const REVOCATION_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Verifier of user certificates. Clones share one authority.
#[derive(Clone)]
pub struct UserCertificates {
    verifier: Arc<dyn ClientCertVerifier>,
    revocations: Revocations,
    clock: Clock,
}

impl UserCertificates {
    /// Accepts certificates that `authority` signed, except those in `revocations`.
    pub fn new(authority: &Authority, revocations: Revocations, clock: Clock) -> Result<Self, IssueError> {
        let mut roots = RootCertStore::empty();
        // An invalid trust anchor leaves the store empty, for which the builder returns an error.
        drop(roots.add(authority.certificate().clone()));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), super::crypto())
            .allow_unauthenticated()
            .build()
            .map_err(IssueError::ClientAuthority)?;
        Ok(Self {
            verifier,
            revocations,
            clock,
        })
    }

    /// Returns the user of a connection's certificate chain: the user's certificate first, then
    /// intermediate ones.
    pub fn user(&self, chain: &[CertificateDer<'_>]) -> Result<UserName, UserCertificateError> {
        let (own, intermediates) = chain.split_first().ok_or(UserCertificateError::Missing)?;
        // A certificate from the future was signed while the server's clock was ahead. The server
        // accepts it, so that its node can renew it.
        let from = validity_start(own).unwrap_or_default();
        let seconds = u64::try_from(self.clock.now().as_second().max(from)).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        self.verifier
            .verify_client_cert(own, intermediates, now)
            .map_err(UserCertificateError::Invalid)?;
        if self.revocations.contain(own) {
            return Err(UserCertificateError::Revoked);
        }
        subject(own).ok_or(UserCertificateError::Subject)
    }

    /// Waits until the certificate of an open connection is revoked. Never returns if it already is:
    /// the client then receives a response (401).
    pub async fn revoked(&self, chain: &[CertificateDer<'_>]) {
        let Some(own) = chain.first().filter(|own| !self.revocations.contain(own)) else {
            return std::future::pending().await;
        };
        while !self.revocations.contain(own) {
            tokio::time::sleep(REVOCATION_CHECK_INTERVAL).await;
        }
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(PossessionVerifier(Arc::clone(&self.verifier)))
    }
}

/// Returns the start of a certificate's validity, in seconds since 1970.
fn validity_start(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(certificate.validity().not_before.timestamp())
}

/// Verifier that accepts any certificate, or none, and only checks the possession of the key.
#[derive(Debug)]
struct PossessionVerifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for PossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
