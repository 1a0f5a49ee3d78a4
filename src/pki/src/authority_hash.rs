//! Authority pinned by its hash: a joining machine with one line of text verifies the server that
//! issued the line.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::authority::server_check::{self, Presented};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

const PREFIX: &str = "sha256:";
const BYTES: usize = 32;
/// Error of the handshake with a server whose authority has another hash.
pub(super) const OTHER_AUTHORITY: &str = "the server's authority has another hash";
/// Error of the handshake with a server whose chain contains its own certificate only.
pub(super) const NO_AUTHORITY: &str = "the server does not present its certificate authority";

/// SHA-256 of an authority's public key (its SubjectPublicKeyInfo, in DER), as in kubeadm's
/// `--discovery-token-ca-cert-hash` and [RFC 7469](https://www.rfc-editor.org/rfc/rfc7469).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AuthorityHash([u8; BYTES]);

/// Error: the text is not a hash.
#[derive(Debug, thiserror::Error)]
#[error("a hash consists of {PREFIX} and 64 hexadecimal digits; `rooflet token create` prints it")]
pub struct ParseAuthorityHashError;

impl AuthorityHash {
    /// Hashes a certificate in DER; `None` if it is invalid.
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        Some(Self(Sha256::digest(certificate.public_key().raw).into()))
    }

    /// Parses 64 hexadecimal digits.
    pub(super) fn from_hex(digits: &str) -> Result<Self, ParseAuthorityHashError> {
        if digits.len() != 2 * BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(ParseAuthorityHashError);
        }
        let mut bytes = [0; BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte =
                u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| ParseAuthorityHashError)?;
        }
        Ok(Self(bytes))
    }

    /// Returns all hexadecimal digits.
    pub(super) fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the first `count` hexadecimal digits.
    pub(super) fn hex_digits(self, count: usize) -> String {
        self.hex().chars().take(count).collect()
    }
}

impl FromStr for AuthorityHash {
    type Err = ParseAuthorityHashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_hex(text.strip_prefix(PREFIX).ok_or(ParseAuthorityHashError)?)
    }
}

impl fmt::Display for AuthorityHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for AuthorityHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Verifier that accepts a server if its chain contains the authority with this hash, and if that
/// authority signed the server's certificate for its name. Without a hash, any authority is accepted.
///
/// A certificate whose validity does not include the current time is accepted too, and
/// [`Discovery::invalid_now`] returns the error: the connection then serves only to read the clock of the server.
#[derive(Debug)]
pub(super) struct Discovery {
    hash: Option<AuthorityHash>,
    clock: Clock,
    found: Mutex<Option<CertificateDer<'static>>>,
    invalid_now: Mutex<Option<CertificateError>>,
}

impl Discovery {
    pub(super) fn of(hash: Option<AuthorityHash>, clock: &Clock) -> Arc<Self> {
        Arc::new(Self {
            hash,
            clock: clock.clone(),
            found: Mutex::default(),
            invalid_now: Mutex::default(),
        })
    }

    /// Returns the TLS configuration of one handshake.
    pub(super) fn client_config(self: &Arc<Self>) -> Result<ClientConfig, rustls::Error> {
        let discovery = Arc::clone(self);
        server_check::client_config(move |presented| discovery.check(&presented))
    }

    fn check(&self, presented: &Presented<'_>) -> Result<(), rustls::Error> {
        let Presented {
            own,
            rest,
            name,
            ocsp,
            now: _,
        } = *presented;
        let now = u64::try_from(self.clock.now().as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let matches = |certificate: &&CertificateDer<'_>| {
            self.hash
                .is_none_or(|hash| AuthorityHash::of(certificate) == Some(hash))
        };
        if rest.is_empty() {
            return Err(rustls::Error::General(NO_AUTHORITY.to_owned()));
        }
        // The authority is at the end of the chain.
        let authority = rest
            .iter()
            .rev()
            .find(matches)
            .ok_or_else(|| rustls::Error::General(OTHER_AUTHORITY.to_owned()))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), super::crypto())
            .build()
            .map_err(|err| rustls::Error::General(err.to_string()))?;
        let verify = |at| verifier.verify_server_cert(own, rest, name, ocsp, at);
        let mut outcome = verify(now);
        if let Err(rustls::Error::InvalidCertificate(why)) = &outcome
            && let Some(valid_at) = end_of_validity(why)
        {
            let why = why.clone();
            outcome = verify(valid_at);
            *lock(&self.invalid_now) = Some(why);
        }
        outcome?;
        *lock(&self.found) = Some(authority.clone().into_owned());
        Ok(())
    }

    /// Returns the authority after a successful handshake.
    pub(super) fn authority(&self) -> Option<CertificateDer<'static>> {
        lock(&self.found).clone()
    }

    /// Returns why the certificate of the server is not valid at the current time.
    pub(super) fn invalid_now(&self) -> Option<CertificateError> {
        lock(&self.invalid_now).clone()
    }
}

/// Returns the start or the end of a validity that does not include the current time; `None` for another problem.
fn end_of_validity(why: &CertificateError) -> Option<UnixTime> {
    if let CertificateError::NotValidYetContext { not_before, .. } = why {
        return Some(*not_before);
    }
    if let CertificateError::ExpiredContext { not_after, .. } = why {
        return Some(*not_after);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_display_format() {
        let text = format!("sha256:{}", "0a".repeat(32));
        let hash: AuthorityHash = text.parse().expect("a hash");
        assert_eq!(hash.to_string(), text);
        let digits = "0a".repeat(32);
        for wrong in [
            digits.clone(),
            format!("sha512:{digits}"),
            format!("sha256:{}", &digits[2..]),
            format!("sha256:{digits}0a"),
            format!("sha256:{}+1", &digits[2..]),
            format!("sha256:{}é", &digits[2..]),
        ] {
            wrong.parse::<AuthorityHash>().expect_err(&wrong);
        }
    }
}
