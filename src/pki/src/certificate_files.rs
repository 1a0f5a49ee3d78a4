//! Serving certificate that an administrator provides as files, and that is reloaded when they
//! change.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, ServerConfig};
use tracing::{info, warn};

use super::authority::server_check;
use super::machine_tls::{MachineTlsError, certified_key};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;

/// Minimum interval between checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Error of the files.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFilesError {
    #[error("reading `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("`{}` and `{}`", certificate.display(), key.display())]
    Invalid {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        err: MachineTlsError,
    },
}

/// Certificate chain and key in PEM files.
pub struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    clock: Clock,
    current: Mutex<Loaded>,
}

struct Loaded {
    pair: Arc<CertifiedKey>,
    version: Version,
    checked: Instant,
}

/// Modification time and length of both files.
type Version = [Option<(SystemTime, u64)>; 2];

impl CertificateFiles {
    pub fn open(certificate: &Path, key: &Path, clock: Clock) -> Result<Arc<Self>, CertificateFilesError> {
        let version = [version(certificate), version(key)];
        let loaded = Loaded {
            pair: load(certificate, key)?,
            version,
            checked: clock.instant(),
        };
        Ok(Arc::new(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            clock,
            current: Mutex::new(loaded),
        }))
    }

    /// Returns the configuration of a server whose clients need no certificate, for HTTP/2 and
    /// HTTP/1.1.
    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, MachineTlsError> {
        let mut config = ServerConfig::builder_with_provider(super::crypto())
            .with_safe_default_protocol_versions()
            .map_err(MachineTlsError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Returns the configuration of a client on this machine that trusts exactly the certificate in the
    /// file. Its names and its authority do not matter.
    pub fn client_config(self: &Arc<Self>) -> Result<ClientConfig, rustls::Error> {
        let files = Arc::clone(self);
        server_check::client_config(move |presented| match files.current().end_entity_cert() {
            Ok(own) if own == presented.own => Ok(()),
            Ok(_) | Err(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
        })
    }

    /// Returns the pair, after loading it again if the files have changed. Files that are unusable,
    /// for example because only one of both is replaced yet, leave the previous pair in use.
    pub(crate) fn current(&self) -> Arc<CertifiedKey> {
        let mut current = lock(&self.current);
        let now = self.clock.instant();
        if now.saturating_duration_since(current.checked) < CHECK_INTERVAL {
            return Arc::clone(&current.pair);
        }
        current.checked = now;
        let version = [version(&self.certificate), version(&self.key)];
        if version != current.version {
            current.version = version;
            match load(&self.certificate, &self.key) {
                Ok(pair) => {
                    info!(certificate = %self.certificate.display(), "serving certificate reloaded");
                    current.pair = pair;
                }
                Err(err) => warn!(
                    error = %Chain(&err),
                    "changed serving certificate is unusable; keeping the previous one"
                ),
            }
        }
        Arc::clone(&current.pair)
    }
}

fn version(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn load(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, CertificateFilesError> {
    let read = |path: &Path| {
        fs::read(path).map_err(|err| CertificateFilesError::Read {
            path: path.to_owned(),
            err,
        })
    };
    certified_key(&read(certificate)?, &read(key)?).map_err(|err| CertificateFilesError::Invalid {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        err,
    })
}

impl ResolvesServerCert for CertificateFiles {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl fmt::Debug for CertificateFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateFiles")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}
