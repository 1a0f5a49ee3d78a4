//! Certificate authorities of the server. Each has one key, one certificate and one file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;

use super::private_file::{self, WriteFileError};
use rooflet_base::clock::Clock;

/// Lifetime of an authority. It is never replaced automatically, because every client would need a
/// new kubeconfig. To replace it, remove its file.
const LIFETIME: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// Tolerance for clocks of different machines.
const BACKDATED: Duration = Duration::from_secs(3600);

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
        if let Some(pem) = stored {
            return Self::parse(&pem).map_err(|detail| OpenAuthorityError::Invalid { path, detail });
        }
        let (pem, authority) = Self::generate(kind, clock.now()).map_err(OpenAuthorityError::Generate)?;
        private_file::write(&path, &pem).map_err(OpenAuthorityError::Write)?;
        Ok(authority)
    }

    /// Returns the certificate for the trust store of clients.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    fn generate(kind: AuthorityKind, now: Timestamp) -> Result<(String, Self), rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        // A unique name, so that clients of another authority report an unknown issuer instead of a
        // bad signature.
        params
            .distinguished_name
            .push(DnType::CommonName, format!("{}@{}", kind.name(), now.as_second()));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        (params.not_before, params.not_after) = validity(now, LIFETIME);
        let certificate = params.self_signed(&key)?;
        let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
        let authority = Self {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        };
        Ok((pem, authority))
    }

    fn parse(pem: &str) -> Result<Self, String> {
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|err| format!("certificate: {err}"))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|err| format!("key: {err}"))?;
        CertifiedKey::from_der(
            vec![certificate.clone()],
            PrivateKeyDer::Pkcs8(key.clone_key()),
            &super::crypto(),
        )
        .map_err(|err| format!("key and certificate: {err}"))?;
        let key = KeyPair::try_from(&key).map_err(|err| format!("key: {err}"))?;
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|err| format!("certificate: {err}"))?;
        if !issuer.key_usages().contains(&KeyUsagePurpose::KeyCertSign) {
            return Err("certificate: its key usage does not include certificate signing".to_owned());
        }
        let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
        let start = pem.find(begin).ok_or("certificate: missing")?;
        let length = pem[start..].find(end).ok_or("certificate: missing")? + end.len();
        let certificate_pem = format!("{}\n", &pem[start..start + length]);
        Ok(Self {
            certificate,
            certificate_pem,
            issuer,
        })
    }
}

/// Returns the start (shortly before `now`) and the end (`lifetime` after `now`) of a validity.
pub(super) fn validity(now: Timestamp, lifetime: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::from_unix_timestamp(now.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    (now - BACKDATED, now + lifetime)
}
