//! Serving certificate from files.

use std::sync::Arc;

use camino::Utf8PathBuf;
use rustls::ServerConfig;

use super::anonymous::Transport;
use rooflet_base::clock::Clock;
use rooflet_pki::{CertificateFiles, CertificateFilesError, CertificateMetrics, MachineTlsError};

/// Files of a serving certificate.
#[derive(Debug, Clone, clap::Args)]
pub struct TlsFiles {
    /// Serve HTTPS with the certificate in this PEM file, followed by intermediate certificates. The
    /// file is loaded again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<Utf8PathBuf>,
    /// Private key of --tls-cert, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<Utf8PathBuf>,
}

/// Error of the files.
#[derive(Debug, thiserror::Error)]
pub enum TlsFilesError {
    #[error("--tls-cert, --tls-key")]
    Files(#[from] CertificateFilesError),
    #[error("--tls-cert")]
    Tls(#[from] MachineTlsError),
}

impl TlsFiles {
    /// Returns the encryption of a listener that only these files encrypt.
    pub fn transport(&self) -> Transport {
        match self.tls_cert {
            Some(_) => Transport::Tls,
            None => Transport::Plain,
        }
    }

    /// Opens the files, if they are set. `metrics` then shows the certificate.
    pub fn open(
        &self,
        clock: &Clock,
        metrics: &CertificateMetrics,
    ) -> Result<Option<Arc<CertificateFiles>>, TlsFilesError> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let files = CertificateFiles::open(certificate.as_std_path(), key.as_std_path(), clock.clone())?;
        metrics.observe_files(&files);
        Ok(Some(files))
    }

    /// Returns the TLS configuration, if files are set. `metrics` then shows the certificate.
    pub fn load(
        &self,
        clock: &Clock,
        metrics: &CertificateMetrics,
    ) -> Result<Option<Arc<ServerConfig>>, TlsFilesError> {
        let files = self.open(clock, metrics)?;
        Ok(files
            .map(|files| files.server_config())
            .transpose()?
            .map(Arc::new))
    }
}
