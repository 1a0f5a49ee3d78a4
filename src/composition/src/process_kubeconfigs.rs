//! Kubeconfigs of the control plane's own processes: each authenticates as itself, and has only the
//! permissions of its role. After a rotation of the authorities, they are written again.

use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use tracing::warn;

use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_pki::kubeconfig::{self, Credentials, WriteKubeconfigError};
use rooflet_pki::{Authority, Identity, IssueClientError, Role};

/// Lifetime of the certificates. They are renewed after two thirds of it, and at each start.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Interval between attempts after a failure.
const RETRY: Duration = Duration::from_secs(60);
/// Interval between checks of the authorities and of the certificates' age.
const PERIOD: Duration = Duration::from_secs(1);

/// Returns the path of the gateway's kubeconfig in the server's data directory.
pub fn of_gateway(data_dir: &Utf8Path) -> Utf8PathBuf {
    data_dir.join("gateway.kubeconfig")
}

/// Returns the path of the controller's kubeconfig in the server's data directory.
pub(super) fn of_controller(data_dir: &Utf8Path) -> Utf8PathBuf {
    data_dir.join("controller.kubeconfig")
}

/// Function of the authorities of the API server, in PEM.
pub(super) type WriteKubeconfig = Box<dyn Fn(&str) -> Result<(), WriteKubeconfigError> + Send + Sync>;

/// Error of writing a kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum ProcessKubeconfigError {
    #[error("issuing the client certificate")]
    Issue(#[from] IssueClientError),
    #[error(transparent)]
    Write(#[from] WriteKubeconfigError),
}

/// Kubeconfigs of the gateway and the controller of one API server.
pub(super) struct ProcessKubeconfigs {
    pub(super) data_dir: Utf8PathBuf,
    /// URL of the API server.
    pub(super) server: String,
    /// Authority of the API server's certificate.
    pub(super) servers: Arc<Authority>,
    /// Signs the client certificates.
    pub(super) clients: Authority,
    /// Writes the kubeconfig of the administrator with these authorities in PEM.
    pub(super) write_administrator: WriteKubeconfig,
    /// Name of this machine, which becomes part of the user names.
    pub(super) hostname: String,
    pub(super) clock: Clock,
}

impl ProcessKubeconfigs {
    /// Writes both files with new certificates. Returns the time of their renewal.
    pub(super) fn write(&self) -> Result<Timestamp, ProcessKubeconfigError> {
        let authority = self.servers.certificate_pem();
        let gateway = self.write_one(Role::Gateway, &of_gateway(&self.data_dir), &authority)?;
        let controller = self.write_one(Role::Controller, &of_controller(&self.data_dir), &authority)?;
        Ok(gateway.min(controller))
    }

    /// Writes all files with the current authorities.
    fn write_all(&self) -> Result<Timestamp, ProcessKubeconfigError> {
        (self.write_administrator)(&self.servers.certificate_pem())?;
        self.write()
    }

    /// Like [`write`](Self::write). On a full disk, keeps the files of an earlier start, and the renewal
    /// is due immediately.
    pub(super) fn write_or_keep(&self) -> Result<Timestamp, ProcessKubeconfigError> {
        let authority = self.servers.certificate_pem();
        let is_usable = |path: Utf8PathBuf| kubeconfig::is_for(path.as_std_path(), &self.server, &authority);
        match self.write() {
            Err(ProcessKubeconfigError::Write(err))
                if err.is_disk_full()
                    && is_usable(of_gateway(&self.data_dir))
                    && is_usable(of_controller(&self.data_dir)) =>
            {
                warn!(
                    error = %Chain(&err),
                    "kept the certificates of gateway and controller; retrying in {} s",
                    RETRY.as_secs()
                );
                Ok(self.clock.now())
            }
            written => written,
        }
    }

    fn write_one(
        &self,
        role: Role,
        path: &Utf8Path,
        authority: &str,
    ) -> Result<Timestamp, ProcessKubeconfigError> {
        let identity = Identity::new(role, &self.hostname);
        let issued = self.clients.issue_client(&identity, LIFETIME, self.clock.now())?;
        let credentials = Credentials::Certificate {
            certificate: &issued.certificate_pem,
            key: &issued.key_pem,
        };
        kubeconfig::write(path.as_std_path(), &self.server, authority, credentials)?;
        Ok(issued.renew_at)
    }

    /// Renews the certificates until `tasks` stop. The processes read the files again when they
    /// change.
    pub(super) fn keep(self, mut renew_at: Timestamp, tasks: &Tasks) {
        let mut written_at = self.clock.now();
        let authorities = |own: &Self| (own.servers.certificate_pem(), own.clients.certificate_pem());
        let mut written = authorities(&self);
        let mut next_attempt = Timestamp::MIN;
        let stop = tasks.stop_token();
        tasks.spawn_detached(async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(PERIOD) => {}
                }
                let now = self.clock.now();
                let current = authorities(&self);
                // A clock that was set back makes the certificates valid only in the future.
                let is_due = now >= renew_at || now < written_at || current != written;
                if !is_due || (now < next_attempt && now >= written_at) {
                    continue;
                }
                match self.write_all() {
                    Ok(next) => (written_at, renew_at, written) = (now, next, current),
                    Err(err) => {
                        warn!(
                            error = %Chain(&err),
                            "failed to write the kubeconfigs of the server's processes; retrying in {} s",
                            RETRY.as_secs()
                        );
                        next_attempt = now + RETRY;
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::yaml;
    use rooflet_pki::AuthorityKind;
    use rooflet_testing::TempDir;
    use serde_json::Value;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn each_process_has_an_identity_of_its_own_in_a_private_file() {
        let directory = TempDir::new();
        let clock = Clock::System;
        let open = |kind| Authority::open(directory.path().as_std_path(), kind, &clock);
        let servers = Arc::new(open(AuthorityKind::Serving).expect("an authority"));
        let kubeconfigs = ProcessKubeconfigs {
            data_dir: directory.path().to_owned(),
            server: "https://127.0.0.1:1".into(),
            servers: Arc::clone(&servers),
            clients: open(AuthorityKind::Client).expect("an authority"),
            write_administrator: Box::new(|_| Ok(())),
            hostname: "mini".into(),
            clock: clock.clone(),
        };
        let renew_at = kubeconfigs.write().expect("written");
        let days = (renew_at.as_second() - clock.now().as_second()) / (24 * 3600);
        assert!((19..=20).contains(&days), "{days}");
        let path = of_gateway(directory.path());
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = |path: &Utf8Path| -> Value {
            let text = std::fs::read_to_string(path).expect("a file");
            yaml::from_str(&text).expect("YAML")
        };
        let first = read(&path);
        kubeconfigs.write().expect("written again");
        assert_ne!(read(&path)["users"], first["users"]);
        assert_eq!(read(&path)["clusters"], first["clusters"]);
        servers.rotate(clock.now()).expect("rotated");
        kubeconfigs.write().expect("written with new authorities");
        assert_ne!(read(&path)["clusters"], first["clusters"]);
        assert_ne!(
            read(&path)["users"],
            read(&of_controller(directory.path()))["users"]
        );
    }
}
