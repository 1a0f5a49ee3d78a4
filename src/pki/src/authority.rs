//! Certificate authorities of the server. Each has one key, one certificate and one file. The caller may store
//! an authority elsewhere instead ([`Authority::from_pem`]).
//!
//! A rotation replaces key and certificate. The replaced authority stays trusted until it is retired. It
//! has signed the new certificate, so that clients that trust only the replaced authority accept
//! certificates of the new one.

mod client;
mod in_memory;
mod previous;
pub(crate) mod server_check;

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use tokio::sync::watch;
use tracing::warn;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::time::ASN1Time;

pub use self::in_memory::ParseAuthorityError;
use self::previous::Previous;
use super::authority_hash::AuthorityHash;
use super::private_file::{self, WriteFileError};
use rooflet_base::clock::Clock;
use rooflet_base::file::if_there;
use rooflet_base::mutex::lock;

/// Lifetime of an authority. Its key is never replaced automatically, because people need a new
/// kubeconfig then.
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

/// Error of a rotation. The authority is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RotateAuthorityError {
    #[error("creating a certificate authority")]
    Generate(#[source] rcgen::Error),
    #[error("saving the certificate authority")]
    Write(#[source] WriteFileError),
    #[error("removing `{}`", path.display())]
    Remove { path: PathBuf, source: io::Error },
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

    /// File of the authority that was replaced, without its key.
    fn previous_file(self) -> &'static str {
        match self {
            Self::Serving => "ca-previous.pem",
            Self::Client => "client-ca-previous.pem",
            Self::Node => "node-ca-previous.pem",
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

/// Certificate authority with its key. Clones share it: after a rotation, all of them use the new key.
#[derive(Clone)]
pub struct Authority {
    /// Directory of the files. `None` if the caller stores the authority.
    directory: Option<Arc<Path>>,
    kind: AuthorityKind,
    issuing: Arc<Mutex<Arc<Issuing>>>,
    changed: Arc<watch::Sender<()>>,
}

/// Key and certificate of an authority between two rotations.
pub(super) struct Issuing {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) issuer: Arc<Issuer<'static, KeyPair>>,
    pub(super) previous: Option<Previous>,
}

impl Authority {
    /// Reads the authority in `directory`, or creates it.
    pub fn open(directory: &Path, kind: AuthorityKind, clock: &Clock) -> Result<Self, OpenAuthorityError> {
        let issuing = Issuing::open(directory, kind, clock.now())?;
        Ok(Self {
            directory: Some(directory.into()),
            kind,
            issuing: Arc::new(Mutex::new(Arc::new(issuing))),
            changed: Arc::default(),
        })
    }

    /// Reads the files again, which another process may have rotated. Writes no files: the current authority
    /// stays in use while there is no file, or if its authority is not valid now.
    pub fn reload(&self, clock: &Clock) -> Result<(), OpenAuthorityError> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let Some(stored) = Stored::read(directory, self.kind)? else {
            return Ok(());
        };
        if !stored.valid.contains(&clock.now()) {
            return Ok(());
        }
        let read = stored.issuing;
        let mut issuing = lock(&self.issuing);
        let is_same =
            read.certificate == issuing.certificate && read.previous.is_some() == issuing.previous.is_some();
        if !is_same {
            *issuing = Arc::new(read);
            self.changed.send_replace(());
        }
        Ok(())
    }

    /// Replaces key and certificate. The replaced authority stays trusted until
    /// [`retire_previous`](Self::retire_previous).
    pub fn rotate(&self, now: Timestamp) -> Result<(), RotateAuthorityError> {
        let mut issuing = lock(&self.issuing);
        let generated = Issuing::generate(self.kind, now, Some(&issuing));
        let (pem, next) = generated.map_err(RotateAuthorityError::Generate)?;
        if let Some(directory) = &self.directory {
            // If only the first file is written, it does not belong to the authority and is ignored.
            let previous = next.previous.as_ref().map(Previous::to_pem).unwrap_or_default();
            private_file::write(&directory.join(self.kind.previous_file()), &previous)
                .map_err(RotateAuthorityError::Write)?;
            private_file::write(&directory.join(self.kind.file()), &pem)
                .map_err(RotateAuthorityError::Write)?;
        }
        *issuing = Arc::new(next);
        self.changed.send_replace(());
        Ok(())
    }

    /// Ends the trust in the replaced authority.
    pub fn retire_previous(&self) -> Result<(), RotateAuthorityError> {
        if let Some(directory) = &self.directory {
            let path = directory.join(self.kind.previous_file());
            let removed = if_there(fs::remove_file(&path));
            removed.map_err(|source| RotateAuthorityError::Remove { path, source })?;
        }
        let mut issuing = lock(&self.issuing);
        *issuing = Arc::new(Issuing {
            certificate: issuing.certificate.clone(),
            issuer: Arc::clone(&issuing.issuer),
            previous: None,
        });
        self.changed.send_replace(());
        Ok(())
    }

    /// Returns a receiver of changes of [`certificate_pem`](Self::certificate_pem).
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns true if a replaced authority is trusted.
    pub fn has_previous(&self) -> bool {
        self.issuing().previous.is_some()
    }

    /// Returns the certificates for the trust store of clients: the current one, then a replaced one that is
    /// still trusted.
    pub fn certificate_pem(&self) -> String {
        let issuing = self.issuing();
        issuing
            .trusted()
            .map(|certificate| super::certificate_pem(certificate))
            .collect()
    }

    /// Returns the name of the fleet in the URIs of its machines: a hash of the authority's key.
    pub fn fleet(&self) -> Option<String> {
        AuthorityHash::of(&self.issuing().certificate).map(|hash| hash.hex_digits(FLEET_DIGITS))
    }

    pub(super) fn issuing(&self) -> Arc<Issuing> {
        Arc::clone(&lock(&self.issuing))
    }
}

/// Content of an authority's files.
struct Stored {
    issuing: Issuing,
    key: KeyPair,
    common_name: String,
    valid: RangeInclusive<Timestamp>,
}

impl Stored {
    /// Returns `None` if there is no authority.
    fn read(directory: &Path, kind: AuthorityKind) -> Result<Option<Self>, OpenAuthorityError> {
        let path = directory.join(kind.file());
        let read = |path: &Path| {
            private_file::read(path).map_err(|source| OpenAuthorityError::Read {
                path: path.to_owned(),
                source,
            })
        };
        let Some(pem) = read(&path)? else {
            return Ok(None);
        };
        let invalid = |detail| OpenAuthorityError::Invalid {
            path: path.clone(),
            detail,
        };
        let (mut issuing, key) = Issuing::parse(&pem).map_err(invalid)?;
        let (common_name, valid) = subject_and_validity(&issuing.certificate)
            .ok_or_else(|| invalid("certificate: its subject or validity is missing".to_owned()))?;
        let previous = read(&directory.join(kind.previous_file()))?;
        issuing.previous = previous.and_then(|pem| Previous::parse(&pem, &issuing.certificate));
        Ok(Some(Self {
            issuing,
            key,
            common_name,
            valid,
        }))
    }
}

impl Issuing {
    fn open(directory: &Path, kind: AuthorityKind, now: Timestamp) -> Result<Self, OpenAuthorityError> {
        let path = directory.join(kind.file());
        let Some(stored) = Stored::read(directory, kind)? else {
            let (pem, issuing) = Self::generate(kind, now, None).map_err(OpenAuthorityError::Generate)?;
            private_file::write(&path, &pem).map_err(OpenAuthorityError::Write)?;
            return Ok(issuing);
        };
        let Stored {
            issuing,
            key,
            common_name,
            valid,
        } = stored;
        if valid.contains(&now) {
            return Ok(issuing);
        }
        let (pem, issued) =
            Self::self_signed(&common_name, key, now, None).map_err(OpenAuthorityError::Generate)?;
        private_file::write(&path, &pem).map_err(OpenAuthorityError::Write)?;
        warn!(
            file = %path.display(),
            from = %valid.start(),
            until = %valid.end(),
            "the certificate authority was not valid now, probably because of a wrong clock; issued it again \
             with the same key: joined nodes need no change, copies of the kubeconfig must be replaced"
        );
        // It belongs to the key, which is the same.
        Ok(Self {
            previous: issuing.previous,
            ..issued
        })
    }

    /// Returns a new authority and its file. `replaced` signs the new certificate, too.
    fn generate(
        kind: AuthorityKind,
        now: Timestamp,
        replaced: Option<&Self>,
    ) -> Result<(String, Self), rcgen::Error> {
        // A unique name, so that clients of another authority report an unknown issuer instead of a
        // bad signature.
        let mut common_name = format!("{}@{}", kind.name(), now.as_second());
        let names = replaced.and_then(|replaced| subject_and_validity(&replaced.certificate));
        if names.is_some_and(|(name, _)| name == common_name) {
            common_name.push_str("-2");
        }
        Self::self_signed(&common_name, KeyPair::generate()?, now, replaced)
    }

    /// Returns an authority with this name and key, and its file.
    fn self_signed(
        common_name: &str,
        key: KeyPair,
        now: Timestamp,
        replaced: Option<&Self>,
    ) -> Result<(String, Self), rcgen::Error> {
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
        let previous = match replaced {
            Some(replaced) => Some(Previous {
                cross_signed: params.signed_by(&key, &*replaced.issuer)?.der().clone(),
                certificate: replaced.certificate.clone(),
            }),
            None => None,
        };
        let certificate = params.self_signed(&key)?;
        let pem = format!("{}{}", certificate.pem(), key.serialize_pem());
        let issuing = Self {
            certificate: certificate.der().clone(),
            issuer: Arc::new(Issuer::new(params, key)),
            previous,
        };
        Ok((pem, issuing))
    }

    /// Returns the current certificate, then the replaced one.
    pub(super) fn trusted(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        let previous = self.previous.as_ref().map(|previous| &previous.certificate);
        std::iter::once(&self.certificate).chain(previous)
    }

    /// Returns the certificates with which clients of the replaced authority verify a certificate of this one.
    pub(super) fn cross_signed(&self) -> Option<&CertificateDer<'static>> {
        self.previous.as_ref().map(|previous| &previous.cross_signed)
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
        let authority = Self {
            certificate,
            issuer: Arc::new(issuer),
            previous: None,
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
