//! Kubeconfigs of the control plane's own processes: each authenticates as itself, and has only the
//! permissions of its role.

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
/// Interval between checks of the certificates' age.
const PERIOD: Duration = Duration::from_secs(60);

/// Returns the path of the gateway's kubeconfig in the server's data directory.
pub(crate) fn of_gateway(data_dir: &Utf8Path) -> Utf8PathBuf {
    data_dir.join("gateway.kubeconfig")
}

/// Returns the path of the controller's kubeconfig in the server's data directory.
pub(super) fn of_controller(data_dir: &Utf8Path) -> Utf8PathBuf {
    data_dir.join("controller.kubeconfig")
}

/// Error of writing a kubeconfig.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessKubeconfigError {
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
    /// Authority of the API server's certificate, in PEM.
    pub(super) authority: String,
    /// Signs the client certificates.
    pub(super) clients: Authority,
    /// Name of this machine, which becomes part of the user names.
    pub(super) hostname: String,
    pub(super) clock: Clock,
}

impl ProcessKubeconfigs {
    /// Writes both files with new certificates. Returns the time of their renewal.
    pub(super) fn write(&self) -> Result<Timestamp, ProcessKubeconfigError> {
        let gateway = self.write_one(Role::Gateway, &of_gateway(&self.data_dir))?;
        let controller = self.write_one(Role::Controller, &of_controller(&self.data_dir))?;
        Ok(gateway.min(controller))
    }

    /// Like [`write`](Self::write). On a full disk, keeps the files of an earlier start, and the renewal
    /// is due immediately.
    pub(super) fn write_or_keep(&self) -> Result<Timestamp, ProcessKubeconfigError> {
        let is_usable =
            |path: Utf8PathBuf| kubeconfig::is_for(path.as_std_path(), &self.server, &self.authority);
        match self.write() {
            Err(ProcessKubeconfigError::Write(err))
                if err.is_disk_full()
                    && is_usable(of_gateway(&self.data_dir))
                    && is_usable(of_controller(&self.data_dir)) =>
            {
                warn!(
                    error = %Chain(&err),
                    "kept the certificates of gateway and controller; retrying in {} s",
                    PERIOD.as_secs()
                );
                Ok(self.clock.now())
            }
            written => written,
        }
    }

    fn write_one(&self, role: Role, path: &Utf8Path) -> Result<Timestamp, ProcessKubeconfigError> {
        let identity = Identity::new(role, &self.hostname);
        let issued = self.clients.issue_client(&identity, LIFETIME, self.clock.now())?;
        let credentials = Credentials::Certificate {
            certificate: &issued.certificate_pem,
            key: &issued.key_pem,
        };
        kubeconfig::write(path.as_std_path(), &self.server, &self.authority, credentials)?;
        Ok(issued.renew_at)
    }

    /// Renews the certificates until `tasks` stop. The processes read the files again when they
    /// change.
    pub(super) fn keep(self, mut renew_at: Timestamp, tasks: &Tasks) {
        let mut written_at = self.clock.now();
        let stop = tasks.stop_token();
        tasks.spawn_detached(async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(PERIOD) => {}
                }
                let now = self.clock.now();
                // A clock that was set back makes the certificates valid only in the future.
                if now < renew_at && now >= written_at {
                    continue;
                }
                match self.write() {
                    Ok(next) => (written_at, renew_at) = (now, next),
                    Err(err) => warn!(
                        error = %Chain(&err),
                        "failed to renew the certificates of gateway and controller; retrying in {} s",
                        PERIOD.as_secs()
                    ),
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
        let clients = Authority::open(directory.path().as_std_path(), AuthorityKind::Client, &clock);
        let kubeconfigs = ProcessKubeconfigs {
            data_dir: directory.path().to_owned(),
            server: "https://127.0.0.1:1".into(),
            authority: "authority".into(),
            clients: clients.expect("an authority"),
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
        assert_ne!(
            read(&path)["users"],
            read(&of_controller(directory.path()))["users"]
        );
    }
}
