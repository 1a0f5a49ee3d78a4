//! Serving certificate of the API server, which is renewed before it expires.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::authority::{Authority, BACKDATED, Issuing, validity};
use super::user::UserCertificates;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Age at which a certificate is renewed, long before it expires.
const RENEW_AFTER: Duration = Duration::from_secs(240 * 24 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("`{name}` is neither an IP address nor a DNS name")]
    Name { name: String },
    #[error("signing a serving certificate")]
    Sign(#[source] rcgen::Error),
    #[error("setting up TLS")]
    Tls(#[source] rustls::Error),
    #[error("setting up the verification of client certificates")]
    ClientAuthority(#[source] rustls::server::VerifierBuilderError),
}

/// Resolver that serves a valid certificate in each handshake.
pub struct ServingCertificate {
    authority: Arc<Authority>,
    names: Vec<String>,
    clock: Clock,
    current: Mutex<Issued>,
}

#[derive(Clone)]
struct Issued {
    at: Timestamp,
    key: Arc<CertifiedKey>,
    by: Arc<Issuing>,
}

impl ServingCertificate {
    /// Issues a certificate for the loopback addresses, `localhost` and `names` (IP addresses or
    /// DNS names).
    pub fn issue(
        authority: Arc<Authority>,
        names: impl IntoIterator<Item = String>,
        clock: Clock,
    ) -> Result<Arc<Self>, IssueError> {
        let mut all: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        for name in names {
            if !is_ip_or_dns_name(&name) {
                return Err(IssueError::Name { name });
            }
            if !all.contains(&name) {
                all.push(name);
            }
        }
        let current = Mutex::new(sign(authority.issuing(), &all, clock.now())?);
        Ok(Arc::new(Self {
            authority,
            names: all,
            clock,
            current,
        }))
    }

    /// Returns the TLS configuration for HTTP/2 and HTTP/1.1, selected by ALPN. Clients may present
    /// a certificate, which `users` verifies.
    pub fn server_config(self: &Arc<Self>, users: &UserCertificates) -> Result<ServerConfig, IssueError> {
        let mut config = ServerConfig::builder_with_provider(super::crypto())
            .with_safe_default_protocol_versions()
            .map_err(IssueError::Tls)?
            .with_client_cert_verifier(users.verifier())
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Returns the TLS configuration of a server that does not ask clients for a certificate.
    pub fn server_config_without_clients(self: &Arc<Self>) -> Result<ServerConfig, IssueError> {
        let mut config = ServerConfig::builder_with_provider(super::crypto())
            .with_safe_default_protocol_versions()
            .map_err(IssueError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Returns the certificate, renewed if it is due.
    pub(super) fn current(&self) -> Arc<CertifiedKey> {
        // Held while signing, which takes less than a millisecond, so that only one thread signs.
        let mut current = lock(&self.current);
        let now = self.clock.now();
        let is_from_future = now < current.at - BACKDATED;
        let issuing = self.authority.issuing();
        let is_rotated = !Arc::ptr_eq(&issuing, &current.by);
        if is_from_future || is_rotated || rooflet_base::clock::since(now, current.at) >= RENEW_AFTER {
            if is_from_future {
                tracing::warn!(issued = %current.at, "the clock was set back; issuing the serving certificate again");
            }
            match sign(issuing, &self.names, now) {
                Ok(issued) => *current = issued,
                Err(err) => {
                    tracing::warn!(error = %rooflet_base::error::Chain(&err), "failed to renew the serving certificate");
                }
            }
        }
        Arc::clone(&current.key)
    }
}

/// Returns true if a name is an IP address, or consists of letters, digits, hyphens, underscores
/// and dots, as certificates require.
pub fn is_ip_or_dns_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.parse::<IpAddr>().is_ok() || (name.len() <= 253 && name.split('.').all(label))
}

fn sign(issuing: Arc<Issuing>, names: &[String], now: Timestamp) -> Result<Issued, IssueError> {
    let key = KeyPair::generate().map_err(IssueError::Sign)?;
    let mut params = CertificateParams::new(names).map_err(IssueError::Sign)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "rooflet-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = validity(now, LIFETIME);
    let certificate = params
        .signed_by(&key, &*issuing.issuer)
        .map_err(IssueError::Sign)?;
    // A joining machine looks for the authority of its token from the end of the chain.
    let previous = issuing.previous.iter();
    let previous = previous.flat_map(|previous| [&previous.cross_signed, &previous.certificate]);
    let chain: Vec<_> = std::iter::once(certificate.der())
        .chain(previous)
        .chain([&issuing.certificate])
        .cloned()
        .collect();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let key = CertifiedKey::from_der(chain, key, &super::crypto()).map_err(IssueError::Tls)?;
    Ok(Issued {
        at: now,
        key: Arc::new(key),
        by: issuing,
    })
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingCertificate")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
