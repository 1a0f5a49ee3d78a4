//! Credentials of the agent: renewal of the node's client certificate or token, rotated authorities, and
//! reload of a changed kubeconfig, for example after the machine joined a rebuilt control plane.

use std::time::Duration;

use camino::Utf8PathBuf;
use jiff::Timestamp;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use rooflet_base::clock::{Clock, Moment};
use rooflet_base::error::Chain;
use rooflet_client as client;
use rooflet_client::{
    ApiError, BoundToken, CertificateKind, ConnectError, KubeconfigSource, Renewable, SigningError, sign,
};
use rooflet_pki::kubeconfig;
use rooflet_pki::kubeconfig::{Credentials, WriteKubeconfigError};
use rooflet_pki::{Identity, KeyRequest, NodeCertificate, Role, certificate_pem, is_issued_by};
use rooflet_trust::{ClientAuthorities, PublishedTrust, node_of_token};

/// Interval between attempts to renew the certificate.
const RETRY: Duration = Duration::from_secs(600);
/// Interval between attempts to follow a rotation of the authorities.
const ROTATION_RETRY: Duration = Duration::from_secs(10);
/// Interval between checks of the kubeconfig and of the certificate's age.
const PERIOD: Duration = Duration::from_secs(5);
/// Lifetime of a renewed token, as of a node's certificate.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
/// Maximum time to wait for a signed certificate.
const PATIENCE: Duration = Duration::from_secs(60);

/// Credentials in the agent's kubeconfig.
pub struct NodeCredentials {
    pub kubeconfig: Utf8PathBuf,
    /// Certificate of a node that has joined.
    pub certificate: Option<NodeCertificate>,
    /// Token of a node that has joined a Kubernetes cluster. Without certificate and token, the credentials
    /// are not renewed.
    pub token: Option<NodeToken>,
    /// Published authorities, which a node that has joined follows.
    pub trust: Option<PublishedTrust>,
    pub client: Client,
    pub renewable: Renewable,
    pub clock: Clock,
}

/// Node and token in a kubeconfig of `rooflet join`.
pub struct NodeToken {
    pub node: String,
    token: BoundToken,
}

impl NodeToken {
    /// Reads the kubeconfig. Returns `None` if no token identifies the node.
    pub async fn read(source: &KubeconfigSource) -> Result<Option<Self>, ConnectError> {
        let Some(node) = node_of_token(source)? else {
            return Ok(None);
        };
        let token = client::bearer_token(source).await?;
        let token = token.and_then(|token| BoundToken::read(&token));
        Ok(token.map(|token| Self { node, token }))
    }
}

/// Error of a renewal.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error("generating a key")]
    Key(#[source] rcgen::Error),
    #[error(transparent)]
    Sign(#[from] SigningError),
    #[error("requesting a token")]
    Token(#[from] ApiError),
    #[error("reading the kubeconfig")]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Write(#[from] WriteKubeconfigError),
    #[error("the server issued credentials that are not those of this node")]
    Foreign,
}

/// Error of a changed kubeconfig.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error("reading the kubeconfig")]
    Connect(#[from] ConnectError),
    #[error("the kubeconfig is for node {node}: restart the agent to change the node's name")]
    OtherNode { node: String },
}

impl NodeCredentials {
    /// Renews certificate or token whenever it is due, and uses a changed kubeconfig, until `stop`.
    pub async fn keep(mut self, stop: CancellationToken) {
        let mut content = self.read();
        let mut last_renewal = None;
        let mut followed = None;
        let mut last_attempt = None;
        loop {
            let now = self.clock.now();
            let published = self.trust.as_ref().and_then(PublishedTrust::client_authorities);
            if let Some(published) = published.filter(|published| followed.as_ref() != Some(published))
                && has_passed(ROTATION_RETRY, last_attempt, &self.clock)
            {
                match self.follow(&published).await {
                    Ok(()) => followed = Some(published),
                    Err(err) => {
                        warn!(
                            error = %Chain(&err),
                            "failed to follow the rotated authorities of the fleet; retrying in {} s",
                            ROTATION_RETRY.as_secs()
                        );
                        last_attempt = Some(Moment::now(&self.clock));
                    }
                }
                content = self.read();
            }
            let may_renew = has_passed(RETRY, last_renewal, &self.clock);
            let due = self
                .certificate
                .as_ref()
                .filter(|certificate| may_renew && certificate.is_due(now));
            if let Some(certificate) = due
                && certificate.is_from_future(now)
            {
                warn!(
                    from = %certificate.not_before,
                    "the node's certificate is not valid yet, because a clock was wrong; renewing it"
                );
            }
            if let Some(until) = due.map(|certificate| certificate.not_after) {
                match self.renew(None).await {
                    Ok(()) => info!("renewed the node's certificate"),
                    Err(err) => self.log_failure("certificate", until, now, &err),
                }
                last_renewal = Some(Moment::now(&self.clock));
                content = self.read();
            }
            let due = self.token.as_ref().map(|own| &own.token);
            if let Some(until) = due
                .filter(|token| may_renew && now >= token.renew_at())
                .map(|token| token.expires)
            {
                match self.renew_token().await {
                    Ok(()) => info!("renewed the node's token"),
                    Err(err) => self.log_failure("token", until, now, &err),
                }
                last_renewal = Some(Moment::now(&self.clock));
                content = self.read();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            let current = self.read();
            // A file that is missing or being written is read again later.
            if current.is_some() && current != content {
                content = current;
                followed = None;
                match self.reload().await {
                    Ok(server) => {
                        info!(%server, kubeconfig = %self.kubeconfig, "kubeconfig changed; reconnecting")
                    }
                    Err(err) => warn!(
                        error = %Chain(&err),
                        "changed kubeconfig is unusable; the agent keeps its previous credentials"
                    ),
                }
            }
        }
    }

    fn read(&self) -> Option<Vec<u8>> {
        std::fs::read(&self.kubeconfig).ok()
    }

    /// Logs a failed renewal of credentials that are valid until `until`. `what` is certificate or token.
    fn log_failure(&self, what: &str, until: Timestamp, now: Timestamp, err: &RenewError) {
        let minutes = RETRY.as_secs() / 60;
        if now < until {
            warn!(error = %Chain(err), %until, "failed to renew the node's {what}; retrying in {minutes} min");
            return;
        }
        let node = self.name().unwrap_or("NAME");
        warn!(
            error = %Chain(err),
            %until,
            "the node's {what} has expired; run `rooflet token create --node {node}` as an administrator, and the \
             printed command on this machine; the agent needs no restart"
        );
    }

    /// Returns the name of the node in the credentials.
    fn name(&self) -> Option<&str> {
        match &self.certificate {
            Some(certificate) => certificate.node.as_deref(),
            None => self.token.as_ref().map(|token| token.node.as_str()),
        }
    }

    /// Uses the current content of the kubeconfig. Returns the address of its server.
    async fn reload(&mut self) -> Result<String, ReloadError> {
        let source = KubeconfigSource::File(self.kubeconfig.clone());
        let (server, _) = client::server_of(&source).await?;
        let pem = client::client_certificate(&source).await?;
        let certificate = pem
            .and_then(|pem| NodeCertificate::read(&pem))
            .filter(|certificate| certificate.node.is_some());
        let token = match &certificate {
            Some(_) => None,
            None => NodeToken::read(&source).await?,
        };
        let name = |certificate: &Option<NodeCertificate>, token: &Option<NodeToken>| match certificate {
            Some(certificate) => certificate.node.clone(),
            None => token.as_ref().map(|token| token.node.clone()),
        };
        if let (Some(current), Some(new)) = (name(&self.certificate, &self.token), name(&certificate, &token))
            && current != new
        {
            return Err(ReloadError::OtherNode { node: new });
        }
        self.renewable
            .replace(client::connect(&source, &self.clock).await?);
        self.certificate = certificate;
        self.token = token;
        Ok(server.to_string())
    }

    /// Requests a token for the same Secret, and writes it to the kubeconfig.
    async fn renew_token(&mut self) -> Result<(), RenewError> {
        let binding = self.token.as_ref().map(|own| &own.token.binding);
        let binding = binding.ok_or(RenewError::Foreign)?;
        let renewed = binding.request_token(&self.client, TOKEN_LIFETIME).await?;
        kubeconfig::set_token(self.kubeconfig.as_std_path(), &renewed)?;
        let source = KubeconfigSource::File(self.kubeconfig.clone());
        self.renewable
            .replace(client::connect(&source, &self.clock).await?);
        self.token = NodeToken::read(&source).await?;
        Ok(())
    }

    /// Trusts the published authorities, and replaces a certificate of another authority.
    async fn follow(&mut self, published: &ClientAuthorities) -> Result<(), RenewError> {
        let source = KubeconfigSource::File(self.kubeconfig.clone());
        let certificate = client::client_certificate(&source).await?;
        if !certificate.is_some_and(|pem| is_issued_by(&pem, &published.clients)) {
            self.renew(Some(&published.servers)).await?;
            info!("renewed the node's certificate, because the authorities of the fleet were rotated");
            return Ok(());
        }
        let (_, trusted) = client::server_of(&source).await?;
        let trusted: String = trusted.iter().map(|der| certificate_pem(der)).collect();
        if trusted != published.servers {
            kubeconfig::set_authorities(self.kubeconfig.as_std_path(), &published.servers)?;
            self.renewable
                .replace(client::connect(&source, &self.clock).await?);
            info!("trusting the rotated authorities of the fleet");
        }
        Ok(())
    }

    /// Requests a certificate and writes it to the kubeconfig, with the authorities of the API server in PEM
    /// if they changed.
    async fn renew(&mut self, authorities: Option<&str>) -> Result<(), RenewError> {
        let node = self
            .certificate
            .as_ref()
            .and_then(|certificate| certificate.node.as_deref())
            .ok_or(RenewError::Foreign)?;
        let request = KeyRequest::client(&Identity::new(Role::Node, node)).map_err(RenewError::Key)?;
        let signed = sign(
            &self.client,
            CertificateKind::NodeClient,
            &request.request_pem,
            PATIENCE,
        )
        .await?;
        let renewed =
            NodeCertificate::read(signed.as_bytes()).filter(|renewed| renewed.node.as_deref() == Some(node));
        let renewed = renewed.ok_or(RenewError::Foreign)?;
        let source = KubeconfigSource::File(self.kubeconfig.clone());
        let (url, trusted) = client::server_of(&source).await?;
        let authorities = match authorities {
            Some(authorities) => authorities.to_owned(),
            None => trusted.iter().map(|der| certificate_pem(der)).collect(),
        };
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
        self.certificate = Some(renewed);
        Ok(())
    }
}

/// Returns true if `wait` has passed since the last attempt, also if the clock was set back in between.
fn has_passed(wait: Duration, last: Option<Moment>, clock: &Clock) -> bool {
    last.is_none_or(|last| last.age(clock) >= wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::ManualClock;

    #[test]
    fn renewal_is_retried_after_the_clock_was_set_back() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        assert!(has_passed(RETRY, None, &clock));
        let last = Some(Moment::now(&clock));
        manual.set_back(Duration::from_secs(30 * 24 * 3600));
        manual.advance(RETRY - Duration::from_secs(1));
        assert!(!has_passed(RETRY, last, &clock));
        manual.advance(Duration::from_secs(1));
        assert!(has_passed(RETRY, last, &clock));
    }

    #[test]
    fn certificate_is_due_after_two_thirds_of_its_lifetime_and_before_its_validity() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let certificate = NodeCertificate {
            node: Some("mini".to_owned()),
            not_before: at(1000),
            not_after: at(1900),
        };
        assert!(certificate.is_due(at(999)));
        assert!(!certificate.is_due(at(1000)));
        assert!(!certificate.is_due(at(1599)));
        assert!(certificate.is_due(at(1600)));
        assert!(certificate.is_due(at(5000)));
    }
}
