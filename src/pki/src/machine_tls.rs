//! TLS between machines of a fleet. Both sides present a certificate, and each checks the role and
//! the name of the other, not only the authority.
//!
//! Certificate and authorities can be replaced while connections are open: each handshake uses the
//! current ones. Sessions are not resumed, so that every connection is verified.

use std::fmt;
use std::sync::{Arc, Mutex};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{ResolvesClientCert, Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};

use super::authority::server_check;
use super::identity::{Identity, Role};
use super::revocations::Revocations;
use rooflet_base::mutex::lock;

/// Error of a certificate, a key or an authority.
#[derive(Debug, thiserror::Error)]
pub enum MachineTlsError {
    #[error("the certificate is not PEM: {0}")]
    Certificate(pem::Error),
    #[error("the key is not PEM: {0}")]
    Key(pem::Error),
    #[error("the file contains no certificate")]
    NoCertificate,
    #[error("key and certificate are unusable: {0}")]
    Pair(rustls::Error),
    #[error("an authority is unusable: {0}")]
    Authority(String),
    #[error("setting up TLS: {0}")]
    Tls(rustls::Error),
}

/// Certificate, trusted authorities and revoked nodes of one process.
pub struct MachineTls {
    state: Mutex<State>,
    revocations: Revocations,
}

struct State {
    own: Option<Arc<CertifiedKey>>,
    /// Verifier of client certificates; `None` until the authorities are known.
    clients: Option<Arc<dyn ClientCertVerifier>>,
    /// Authorities of the serving certificates of nodes.
    nodes: Arc<RootCertStore>,
}

impl MachineTls {
    /// Returns a state without certificate and authorities, with which all handshakes fail.
    pub fn new(revocations: Revocations) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                own: None,
                clients: None,
                nodes: Arc::new(RootCertStore::empty()),
            }),
            revocations,
        })
    }

    /// Uses this certificate chain and key in all following handshakes.
    pub fn set_certificate(&self, certificate: &str, key: &str) -> Result<(), MachineTlsError> {
        lock(&self.state).own = Some(certified_key(certificate.as_bytes(), key.as_bytes())?);
        Ok(())
    }

    /// Trusts client certificates of the authorities `clients`, and serving certificates of the
    /// authorities `nodes`, each one or more certificates in PEM.
    pub fn set_authorities(&self, clients: &str, nodes: &str) -> Result<(), MachineTlsError> {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots(clients)?), super::crypto())
                .build()
                .map_err(|err| MachineTlsError::Authority(err.to_string()))?;
        let nodes = Arc::new(roots(nodes)?);
        let mut state = lock(&self.state);
        state.clients = Some(verifier);
        state.nodes = nodes;
        Ok(())
    }

    /// Returns the certificate chain and key of this process.
    pub(crate) fn own(&self) -> Option<Arc<CertifiedKey>> {
        lock(&self.state).own.clone()
    }

    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Returns the configuration of a server whose clients must have a role in the fleet.
    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, MachineTlsError> {
        let mut config = ServerConfig::builder_with_provider(super::crypto())
            .with_safe_default_protocol_versions()
            .map_err(MachineTlsError::Tls)?
            .with_client_cert_verifier(Arc::clone(self) as Arc<dyn ClientCertVerifier>)
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Returns the configuration of a client of agents, over HTTP/1.1. The server name of a
    /// connection is the name of the node.
    pub fn client_config(self: &Arc<Self>) -> Result<ClientConfig, MachineTlsError> {
        let tls = Arc::clone(self);
        let config = server_check::client_config(move |presented| {
            tls.check_node(presented.own, presented.rest, presented.name, presented.now)
        });
        let mut config = config.map_err(MachineTlsError::Tls)?;
        config.client_auth_cert_resolver = Arc::clone(self) as Arc<dyn ResolvesClientCert>;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// Checks that a server with this certificate and authorities is the node `name`.
    pub fn check_node(
        &self,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let roots = Arc::clone(&lock(&self.state).nodes);
        let algorithms = super::crypto().signature_verification_algorithms;
        let parsed = ParsedCertificate::try_from(own)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, rest, now, algorithms.all)?;
        let expected = Identity::new(Role::Node, &name.to_str());
        if Identity::of_certificate(own) != Some(expected) {
            return Err(CertificateError::NotValidForName.into());
        }
        self.check_not_revoked(own)
    }

    fn check_not_revoked(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match self.revocations.contain(certificate) {
            true => Err(CertificateError::Revoked.into()),
            false => Ok(()),
        }
    }
}

/// Parses a certificate chain and its key.
pub(super) fn certified_key(certificates: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, MachineTlsError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
        .collect::<Result<_, _>>()
        .map_err(MachineTlsError::Certificate)?;
    if chain.is_empty() {
        return Err(MachineTlsError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(MachineTlsError::Key)?;
    CertifiedKey::from_der(chain, key, &super::crypto())
        .map(Arc::new)
        .map_err(MachineTlsError::Pair)
}

fn roots(authorities: &str) -> Result<RootCertStore, MachineTlsError> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        let authority = authority.map_err(MachineTlsError::Certificate)?;
        roots
            .add(authority)
            .map_err(|err| MachineTlsError::Authority(err.to_string()))?;
    }
    Ok(roots)
}

impl ClientCertVerifier for MachineTls {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verifier = lock(&self.state).clients.clone();
        let unknown = || rustls::Error::General("the authorities of the fleet are not known yet".to_owned());
        let verified = verifier.ok_or_else(unknown)?.verify_client_cert(own, rest, now)?;
        if Identity::of_certificate(own).is_none() {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        self.check_not_revoked(own)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = super::crypto().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = super::crypto().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        super::crypto()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl ResolvesServerCert for MachineTls {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        lock(&self.state).own.clone()
    }
}

impl ResolvesClientCert for MachineTls {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        lock(&self.state).own.clone()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for MachineTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MachineTls")
    }
}
