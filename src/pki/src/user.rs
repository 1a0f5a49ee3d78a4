//! Client certificates of users: the common name is the user name, the organizations are its
//! groups.
//!
//! As in Kubernetes, a handshake accepts any certificate whose key the client has. Issuer and
//! validity are checked with each request. So an invalid certificate results in a response (401),
//! and a certificate also expires on an open connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::authority::{Authority, Issuing};
use super::revocations::Revocations;
use super::serving::IssueError;
use super::subject::{UserName, subject, was_issued_by};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

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

/// Maximum number of users whose last use is recorded during a rotation.
const MAX_USES: usize = 10_000;

/// Verifier of user certificates. Clones share one authority.
#[derive(Clone)]
pub struct UserCertificates {
    authority: Authority,
    trust: Arc<Mutex<Trust>>,
    /// Last use of a certificate by user, while a replaced authority is trusted.
    uses: Arc<Mutex<BTreeMap<String, Use>>>,
    revocations: Revocations,
    clock: Clock,
}

/// Trust in the authority between two rotations.
#[derive(Clone)]
struct Trust {
    issuing: Arc<Issuing>,
    verifier: Arc<dyn ClientCertVerifier>,
}

struct Use {
    at: Timestamp,
    /// Whether the current authority signed the certificate.
    is_current: bool,
}

impl Trust {
    fn new(issuing: Arc<Issuing>) -> Result<Self, IssueError> {
        let mut roots = RootCertStore::empty();
        for certificate in issuing.trusted() {
            // An invalid trust anchor leaves the store empty, for which the builder returns an error.
            drop(roots.add(certificate.clone()));
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), super::crypto())
            .allow_unauthenticated()
            .build()
            .map_err(IssueError::ClientAuthority)?;
        Ok(Self { issuing, verifier })
    }
}

impl UserCertificates {
    /// Accepts certificates that `authority` signed, except those in `revocations`.
    pub fn new(authority: &Authority, revocations: Revocations, clock: Clock) -> Result<Self, IssueError> {
        Ok(Self {
            authority: authority.clone(),
            trust: Arc::new(Mutex::new(Trust::new(authority.issuing())?)),
            uses: Arc::default(),
            revocations,
            clock,
        })
    }

    /// Returns the users whose last certificate, used after `since`, is of a replaced authority.
    pub fn users_of_previous(&self, since: Timestamp) -> Vec<String> {
        let uses = lock(&self.uses);
        let is_previous = |(_, last): &(&String, &Use)| !last.is_current && last.at >= since;
        uses.iter()
            .filter(is_previous)
            .map(|(user, _)| user.clone())
            .collect()
    }

    fn trust(&self) -> Trust {
        let issuing = self.authority.issuing();
        let mut trust = lock(&self.trust);
        if !Arc::ptr_eq(&trust.issuing, &issuing) {
            match Trust::new(issuing) {
                Ok(rotated) => *trust = rotated,
                Err(err) => {
                    tracing::warn!(error = %rooflet_base::error::Chain(&err), "failed to use the rotated authority");
                }
            }
        }
        trust.clone()
    }

    /// Records the use of a certificate while a replaced authority is trusted.
    fn record(&self, user: &UserName, own: &CertificateDer<'_>, issuing: &Issuing, now: Timestamp) {
        if issuing.previous.is_none() {
            return;
        }
        let is_current = was_issued_by(own, &issuing.certificate);
        let mut uses = lock(&self.uses);
        if uses.len() < MAX_USES || uses.contains_key(&user.common_name) {
            uses.insert(user.common_name.clone(), Use { at: now, is_current });
        }
    }

    /// Returns the user of a connection's certificate chain: the user's certificate first, then
    /// intermediate ones.
    pub fn user(&self, chain: &[CertificateDer<'_>]) -> Result<UserName, UserCertificateError> {
        let (own, intermediates) = chain.split_first().ok_or(UserCertificateError::Missing)?;
        // A certificate from the future was signed while the server's clock was ahead. The server
        // accepts it, so that its node can renew it.
        let from = validity_start(own).unwrap_or_default();
        let now = self.clock.now();
        let seconds = u64::try_from(now.as_second().max(from)).unwrap_or_default();
        let valid_at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let trust = self.trust();
        trust
            .verifier
            .verify_client_cert(own, intermediates, valid_at)
            .map_err(UserCertificateError::Invalid)?;
        if self.revocations.contain(own) {
            return Err(UserCertificateError::Revoked);
        }
        let user = subject(own).ok_or(UserCertificateError::Subject)?;
        self.record(&user, own, &trust.issuing, now);
        Ok(user)
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
        Arc::new(PossessionVerifier(Arc::clone(&lock(&self.trust).verifier)))
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

    /// Returns no authorities: clients then present any certificate, also after a rotation.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
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
