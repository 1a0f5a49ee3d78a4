//! Renewal of the node's client certificate.

use std::time::Duration;

use camino::Utf8PathBuf;
use jiff::Timestamp;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_client as client;
use rooflet_client::{ConnectError, KubeconfigSource, Renewable, SigningError, sign_node};
use rooflet_pki::kubeconfig;
use rooflet_pki::kubeconfig::{Credentials, WriteKubeconfigError};
use rooflet_pki::{NodeCertificate, NodeRequest, certificate_pem};

/// Interval between checks of the certificate's age. It is short because Macs sleep and clocks
/// change.
const PERIOD: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(60);

/// The credentials of a node that has joined, in the kubeconfig that `rooflet join` wrote.
pub struct NodeCredentials {
    pub kubeconfig: Utf8PathBuf,
    pub certificate: NodeCertificate,
    pub client: Client,
    pub renewable: Renewable,
    pub clock: Clock,
}

/// Error of a certificate renewal.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error("generating a key")]
    Key(#[source] rcgen::Error),
    #[error(transparent)]
    Sign(#[from] SigningError),
    #[error("reading the kubeconfig")]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Write(#[from] WriteKubeconfigError),
    #[error("the server signed a certificate that is not this node's certificate")]
    Foreign,
}

impl NodeCredentials {
    /// Renews the certificate whenever it is due, until `stop`.
    pub async fn keep(mut self, stop: CancellationToken) {
        loop {
            if is_due(&self.certificate, self.clock.now()) {
                match self.renew().await {
                    Ok(()) => info!(until = %self.certificate.not_after, "renewed the node's certificate"),
                    Err(err) => warn!(
                        error = %Chain(&err),
                        until = %self.certificate.not_after,
                        "failed to renew the node's certificate; retrying in {} min", PERIOD.as_secs() / 60
                    ),
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    async fn renew(&mut self) -> Result<(), RenewError> {
        let node = self.certificate.node.as_deref().ok_or(RenewError::Foreign)?;
        let request = NodeRequest::new(node).map_err(RenewError::Key)?;
        let signed = sign_node(&self.client, &request.request_pem, PATIENCE).await?;
        let renewed =
            NodeCertificate::read(signed.as_bytes()).filter(|renewed| renewed.node.as_deref() == Some(node));
        let renewed = renewed.ok_or(RenewError::Foreign)?;
        let source = KubeconfigSource::File(self.kubeconfig.clone());
        let (url, authorities) = client::server_of(&source).await?;
        let authorities: String = authorities.iter().map(|der| certificate_pem(der)).collect();
        let credentials = Credentials::Certificate {
            certificate: &signed,
            key: &request.key_pem,
        };
        let url = url.to_string();
        kubeconfig::write(
            self.kubeconfig.as_std_path(),
            url.trim_end_matches('/'),
            &authorities,
            credentials,
        )?;
        self.renewable
            .replace(client::connect(&source, &self.clock).await?);
        self.certificate = renewed;
        Ok(())
    }
}

fn is_due(certificate: &NodeCertificate, now: Timestamp) -> bool {
    now >= certificate.renew_at()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_is_due_after_two_thirds_of_its_lifetime() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let certificate = NodeCertificate {
            node: Some("mini".to_owned()),
            not_before: at(1000),
            not_after: at(1900),
        };
        assert!(!is_due(&certificate, at(1599)));
        assert!(is_due(&certificate, at(1600)));
        assert!(is_due(&certificate, at(5000)));
    }
}
