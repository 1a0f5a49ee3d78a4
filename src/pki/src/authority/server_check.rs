//! TLS of clients that decide about the server's certificate themselves.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::crypto;

/// Handshake in which a server presents its certificate.
pub(crate) struct Presented<'a> {
    pub(crate) own: &'a CertificateDer<'a>,
    /// Certificates of authorities, in the order of the chain.
    pub(crate) rest: &'a [CertificateDer<'a>],
    pub(crate) name: &'a ServerName<'a>,
    pub(crate) ocsp: &'a [u8],
    pub(crate) now: UnixTime,
}

/// Returns the configuration of a client that trusts a server if `check` accepts its certificate. The server
/// must also prove that it has the key of the certificate.
pub(crate) fn client_config<F>(check: F) -> Result<ClientConfig, Error>
where
    F: Fn(Presented<'_>) -> Result<(), Error> + Send + Sync + 'static,
{
    Ok(ClientConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerCheck(check)))
        .with_no_client_auth())
}

struct ServerCheck<F>(F);

impl<F> ServerCertVerifier for ServerCheck<F>
where
    F: Fn(Presented<'_>) -> Result<(), Error> + Send + Sync,
{
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let presented = Presented {
            own,
            rest,
            name,
            ocsp,
            now,
        };
        (self.0)(presented).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = crypto().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = crypto().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        crypto().signature_verification_algorithms.supported_schemes()
    }
}

impl<F> fmt::Debug for ServerCheck<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCheck")
    }
}
