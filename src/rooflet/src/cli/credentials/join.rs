//! `rooflet join`: joins this machine to a remote control plane. As with kubeadm, a token and the
//! hash of the server's certificate authority are sufficient; `rooflet token create` prints both.

use std::time::Duration;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};

use crate::cli::agent::KUBECONFIG_FILE;
use crate::cli::{Failure, ui};
use crate::node::data_dir;
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{CertificateKind, sign, with_token};
use rooflet_launchd::Daemon;
use rooflet_pki::kubeconfig;
use rooflet_pki::kubeconfig::Credentials;
use rooflet_pki::{
    AuthorityHash, BootstrapToken, DiscoverError, Identity, KeyRequest, NodeCertificate, Role,
    certificate_pem, discover,
};

/// Port of the agent in the printed command.
const AGENT_PORT: u16 = 7500;

/// Arguments of `rooflet join`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// URL of the API server, such as https://10.0.0.5:7443.
    #[arg(value_name = "URL")]
    server: String,
    /// Token that `rooflet token create` printed.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "ROOFLET_JOIN_TOKEN",
        hide_env_values = true
    )]
    token: BootstrapToken,
    /// Hash of the server's certificate authority, with which this machine verifies the server;
    /// printed with the token.
    #[arg(long, value_name = "sha256:HASH")]
    ca_hash: AuthorityHash,
    /// Name of this machine's FleetNode. Default: the previous name, initially the host name.
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// State directory of the agent, which stores the credentials.
    #[arg(long, value_name = "DIR", env = "ROOFLET_STATE_DIR", value_parser = crate::cli::directory("ROOFLET_STATE_DIR"), default_value_t = crate::cli::default_data_dir().join("agent"))]
    state_dir: Utf8PathBuf,
    /// Seconds to wait for the signed certificate.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait_seconds: u64,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let node = crate::cli::node_name(args.node_name, &args.state_dir)?;
    if let Some(what) = rooflet_apimachinery::schema::names::dns_subdomain(&node).first() {
        let what = anyhow!("--node-name {node}: {what}");
        return Err(Failure::new(ExitStatus::Usage, what));
    }
    let server = discover(&args.server, args.ca_hash).await.map_err(|err| {
        let status = match err {
            DiscoverError::Url(_) => ExitStatus::Usage,
            DiscoverError::Connect { .. } | DiscoverError::Handshake { .. } => ExitStatus::Unavailable,
            DiscoverError::Tls(_) => ExitStatus::Failure,
        };
        Failure::new(status, err)
    })?;
    data_dir::create(&args.state_dir)
        .with_context(|| format!("creating the state directory `{}`", args.state_dir))
        .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let client = with_token(
        server.url.clone(),
        &server.authority,
        args.token.reveal(),
        &Clock::System,
    )?;
    let request = KeyRequest::client(&Identity::new(Role::Node, &node)).context("generating a key")?;
    let certificate = sign(
        &client,
        CertificateKind::NodeClient,
        &request.request_pem,
        Duration::from_secs(args.wait_seconds),
    )
    .await?;
    let named = NodeCertificate::read(certificate.as_bytes()).and_then(|certificate| certificate.node);
    if named.as_deref() != Some(node.as_str()) {
        return Err(anyhow!("the server signed a certificate that is not for node {node}").into());
    }
    let url = server.url.to_string();
    let url = url.trim_end_matches('/');
    let path = args.state_dir.join(KUBECONFIG_FILE);
    let credentials = Credentials::Certificate {
        certificate: &certificate,
        key: &request.key_pem,
    };
    kubeconfig::write(
        path.as_std_path(),
        url,
        &certificate_pem(&server.authority),
        credentials,
    )
    .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    ui::output(&format!(
        "node {node} joined {url}: its credentials are in {path}\n\nrun its agent with:\n  {}\n",
        agent_line(&args.state_dir, server.own_address)
    ));
    Ok(())
}

/// Returns the command that starts the agent so that a remote gateway reaches it.
fn agent_line(state_dir: &Utf8Path, own_address: std::net::IpAddr) -> String {
    let (_, installed) = Daemon::Agent.state_flag();
    let is_service = state_dir == installed;
    let mut line = match is_service {
        true => "sudo rooflet agent install".to_owned(),
        false => "rooflet agent --model-dir DIR".to_owned(),
    };
    if !is_service && state_dir != crate::cli::default_data_dir().join("agent") {
        line.push_str(&format!(" --state-dir {state_dir}"));
    }
    if !own_address.is_loopback() {
        let any = match own_address.is_ipv6() {
            true => "[::]",
            false => "0.0.0.0",
        };
        line.push_str(&format!(
            " --listen {any}:{AGENT_PORT} --advertise-address {own_address}"
        ));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_command_listens_on_the_address_that_the_server_sees() {
        let line = |address: &str| agent_line("/state".into(), address.parse().expect("an address"));
        assert_eq!(
            line("192.0.2.7"),
            "rooflet agent --model-dir DIR --state-dir /state --listen 0.0.0.0:7500 --advertise-address 192.0.2.7"
        );
        assert_eq!(
            line("127.0.0.1"),
            "rooflet agent --model-dir DIR --state-dir /state"
        );
    }

    #[test]
    fn state_directory_of_the_service_leads_to_its_installation() {
        let state_dir = Utf8Path::new("/usr/local/var/rooflet/agent");
        let line = agent_line(state_dir, "192.0.2.7".parse().expect("an address"));
        assert_eq!(
            line,
            "sudo rooflet agent install --listen 0.0.0.0:7500 --advertise-address 192.0.2.7"
        );
    }
}
