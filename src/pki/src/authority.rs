//! Certificate authorities of the server. Each has one key, one certificate and one file.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use tracing::warn;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::time::ASN1Time;

use super::authority_hash::AuthorityHash;
use super::private_file::{self, WriteFileError};
use rooflet_base::clock::Clock;

/// Lifetime of an authority. Its key is never replaced automatically, because every client would
/// need a new kubeconfig. To replace it, remove its file.
const LIFETIME: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// Start of every authority's validity, 2020-01-01: before the first version, so that a clock that
/// was ahead at the first start does not make the authority invalid.
const EARLIEST: i64 = 1_577_836_800;
/// Length of the fleet's name in URIs.
const FLEET_DIGITS: usize = 32;
/// Tolerance for clocks of different machines.
pub(super) const BACKDATED: Duration = Duration::from_secs(3600);

#[derive(Debug, thiserror::Error)]
pub enum OpenAuthorityError {
    #[error("reading `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{}` is not a certificate authority ({detail}); restore it from a backup, or remove it to create a \
         new one, after which every client needs a new kubeconfig",
        path.display()
    )]
    Invalid { path: PathBuf, detail: String },
    #[error("creating a certificate authority")]
    Generate(#[source] rcgen::Error),
    #[error("saving the certificate authority")]
    Write(#[source] WriteFileError),
}

/// Purpose of an authority. Each has a separate key, so that a signer of user or node certificates
/// cannot impersonate the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorityKind {
    /// Signs serving certificates of the server.
    Serving,
    /// Signs client certificates of users and nodes.
    Client,
    /// Signs serving certificates of agents.
    Node,
}

impl AuthorityKind {
    fn file(self) -> &'static str {
        match self {
            Self::Serving => "ca.pem",
            Self::Client => "client-ca.pem",
            Self::Node => "node-ca.pem",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Serving => "rooflet-ca",
            Self::Client => "rooflet-client-ca",
            Self::Node => "rooflet-node-ca",
        }
    }
}

/// Certificate authority with its key.
pub struct Authority {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Reads the authority in `directory`, or creates it.
    pub fn open(directory: &Path, kind: AuthorityKind, clock: &Clock) -> Result<Self, OpenAuthorityError> {
        let path = directory.join(kind.file());
        let stored = private_file::read(&path).map_err(|source| OpenAuthorityError::Read {
            path: path.clone(),
            source,
        })?;
        let now = clock.now();
        let Some(pem) = stored else {
            let (pem, authority) = Self::generate(kind, now).map_err(OpenAuthorityError::Generate)?;
            private_file::write(&path, &pem).map_err(OpenAuthorityError::Write)?;
            return Ok(authority);
        };
        let invalid = |detail| OpenAuthorityError::Invalid {
            path: path.clone(),
            detail,
        };
        let (authority, key) = Self::parse(&pem).map_err(invalid)?;
        let (common_name, valid) = subject_and_validity(&authority.certificate)
            .ok_or_else(|| invalid("certificate: its subject or validity is missing".to_owned()))?;
        if valid.contains(&now) {
            return Ok(authority);
        }
        let (pem, authority) =
            Self::self_signed(&common_name, key, now).map_err(OpenAuthorityError::Generate)?;
        private_file::write(&path, &pem).map_err(OpenAuthorityError::Write)?;
        warn!(
            file = %path.display(),
            from = %valid.start(),
            until = %valid.end(),
            "the certificate authority was not valid now, probably because of a wrong clock; issued it again with \
             the same key: joined nodes need no change, copies of the kubeconfig must be replaced"
        );
        Ok(authority)
    }

    /// Returns the certificate for the trust store of clients.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Returns the name of the fleet in the URIs of its machines: a hash of the authority's key.
    pub fn fleet(&self) -> Option<String> {
        AuthorityHash::of(&self.certificate).map(|hash| hash.hex_digits(FLEET_DIGITS))
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    fn generate(kind: AuthorityKind, now: Timestamp) -> Result<(String, Self), rcgen::Error> {
        // A unique name, so that clients of another authority report an unknown issuer instead of a
        // bad signature.
        let common_name = format!("{}@{}", kind.name(), now.as_second());
        Self::self_signed(&common_name, KeyPair::generate()?, now)
    }

    /// Returns an authority with this name and key, and its file.
    fn self_signed(common_name: &str, key: KeyPair, now: Timestamp) -> Result<(String, Self), rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let (backdated, not_after) = validity(now, LIFETIME);
        let earliest = OffsetDateTime::from_unix_timestamp(EARLIEST).unwrap_or(backdated);
        (params.not_before, params.not_after) = (earliest.min(backdated), not_after);
        let certificate = params.self_signed(&key)?;
        let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
        let authority = Self {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        };
        Ok((pem, authority))
    }

    /// Returns the authority and its key.
    fn parse(pem: &str) -> Result<(Self, KeyPair), String> {
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|err| format!("certificate: {err}"))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|err| format!("key: {err}"))?;
        CertifiedKey::from_der(
            vec![certificate.clone()],
            PrivateKeyDer::Pkcs8(key.clone_key()),
            &super::crypto(),
        )
        .map_err(|err| format!("key and certificate: {err}"))?;
        let pair = || KeyPair::try_from(&key).map_err(|err| format!("key: {err}"));
        let issuer =
            Issuer::from_ca_cert_der(&certificate, pair()?).map_err(|err| format!("certificate: {err}"))?;
        if !issuer.key_usages().contains(&KeyUsagePurpose::KeyCertSign) {
            return Err("certificate: its key usage does not include certificate signing".to_owned());
        }
        let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
        let start = pem.find(begin).ok_or("certificate: missing")?;
        let length = pem[start..].find(end).ok_or("certificate: missing")? + end.len();
        let certificate_pem = format!("{}\n", &pem[start..start + length]);
        let authority = Self {
            certificate,
            certificate_pem,
            issuer,
        };
        Ok((authority, pair()?))
    }
}

/// Returns the common name and the validity of a certificate.
pub(super) fn subject_and_validity(certificate: &[u8]) -> Option<(String, RangeInclusive<Timestamp>)> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let common_name = certificate.subject().iter_common_name().last()?.as_str().ok()?;
    let at = |time: ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    let validity = certificate.validity();
    Some((
        common_name.to_owned(),
        at(validity.not_before)?..=at(validity.not_after)?,
    ))
}

/// Returns the start (shortly before `now`) and the end (`lifetime` after `now`) of a validity.
pub(super) fn validity(now: Timestamp, lifetime: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::from_unix_timestamp(now.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    (now - BACKDATED, now + lifetime)
}
