//! `rooflet join`: joins this machine to a remote control plane. The token of `rooflet token create`
//! is sufficient: it contains the hash of the server's certificate authority.

mod cluster;

use std::time::Duration;

use anyhow::{Context, anyhow};
use camino::{Utf8Path, Utf8PathBuf};

use crate::cli::ui::duration::seconds_within;
use crate::cli::{Failure, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{ApiError, CertificateKind, SigningError, sign, with_token};
use rooflet_composition::data_dir;
use rooflet_launchd::Daemon;
use rooflet_pki::kubeconfig;
use rooflet_pki::kubeconfig::Credentials;
use rooflet_pki::{
    AuthorityHash, BootstrapToken, DiscoverError, Identity, JoinToken, KeyRequest, NodeCertificate, Role,
    certificate_pem, discover,
};
use rooflet_trust::{KUBECONFIG_FILE, Membership};

/// Port of the agent in the printed command.
const AGENT_PORT: u16 = 7500;

/// Maximum time to wait for the certificate.
const MAX_WAIT_SECONDS: u64 = 86_400;

fn wait_seconds(text: &str) -> Result<u64, String> {
    seconds_within(text, 1..=MAX_WAIT_SECONDS)
}

/// Arguments of `rooflet join`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// URL of the API server, such as https://10.0.0.5:7443. Not needed for a Kubernetes cluster.
    #[arg(value_name = "URL")]
    server: Option<String>,
    /// Token that `rooflet token create` printed, or a bootstrap token of Kubernetes, which also
    /// needs --ca-hash.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "ROOFLET_JOIN_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// File that contains the token, or the kubeconfig that `rooflet token create` printed on a Kubernetes
    /// cluster; `-` for standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<Utf8PathBuf>,
    /// Hash of the server's certificate authority, with which this machine verifies the server.
    /// Required if the token does not contain it.
    #[arg(long, value_name = "sha256:HASH")]
    ca_hash: Option<AuthorityHash>,
    /// Name of this machine's FleetNode. Default: the previous name, initially the host name.
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// State directory of the agent, which stores the credentials.
    #[arg(long, value_name = "DIR", env = "ROOFLET_STATE_DIR", value_parser = crate::cli::directory("ROOFLET_STATE_DIR"), default_value_t = crate::cli::default_data_dir().join("agent"))]
    state_dir: Utf8PathBuf,
    /// Time to wait for the signed certificate, such as 60s.
    #[arg(long, value_name = "DURATION", default_value_t = 60, value_parser = wait_seconds)]
    wait_seconds: u64,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let text = token_text(args.token, args.token_file.as_deref())?;
    let usage = |what: anyhow::Error| Failure::new(ExitStatus::Usage, what);
    if cluster::is_kubeconfig(&text) {
        if args.server.is_some() || args.ca_hash.is_some() {
            return Err(usage(anyhow!(
                "URL and --ca-hash: omit them, because the kubeconfig contains the server"
            )));
        }
        return cluster::join(&text, args.node_name.as_deref(), &args.state_dir).await;
    }
    let server = args.server.ok_or_else(|| {
        usage(anyhow!(
            "URL of the API server is missing; `rooflet token create` prints the command"
        ))
    })?;
    let node = crate::cli::node_name(args.node_name, &args.state_dir)?;
    if let Some(what) = rooflet_schema::names::dns_subdomain(&node).first() {
        let what = anyhow!("--node-name {node}: {what}");
        return Err(Failure::new(ExitStatus::Usage, what));
    }
    let JoinToken { authority, token } = join_token(&text, args.ca_hash)?;
    let server = discover(&server, authority, &Clock::System)
        .await
        .map_err(|err| {
            let status = match err {
                DiscoverError::Url(_) => ExitStatus::Usage,
                DiscoverError::Connect { .. } | DiscoverError::Handshake { .. } => ExitStatus::Unavailable,
                DiscoverError::OtherAuthority { .. }
                | DiscoverError::NoAuthority { .. }
                | DiscoverError::Clock { .. }
                | DiscoverError::Tls(_) => ExitStatus::Failure,
            };
            Failure::new(status, err)
        })?;
    if let Some(difference) = server.clock {
        ui::progress(&format!(
            "warning: {difference}; set date and time automatically in the system settings of both machines"
        ));
    }
    data_dir::create(&args.state_dir)
        .with_context(|| format!("creating the state directory `{}`", args.state_dir))
        .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let url = server.url.to_string();
    let url = url.trim_end_matches('/');
    let path = args.state_dir.join(KUBECONFIG_FILE);
    let known = Membership::read(&args.state_dir, &Clock::System)
        .await
        .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    if let Some(known) = known.filter(|known| known.node == node)
        && known.is_valid(authority).await?
    {
        if known.server != url {
            kubeconfig::set_server(path.as_std_path(), url)
                .map_err(|err| Failure::new(ExitStatus::Config, err))?;
        }
        ui::output(&format!(
            "node {node} has joined {url} before: its credentials in {path} are valid\n\nrun its agent with:\n  {}\n",
            agent_line(&args.state_dir, server.own_address)
        ));
        return Ok(());
    }
    let client = with_token(
        server.url.clone(),
        &server.authority,
        token.reveal(),
        &Clock::System,
    )?;
    let request = KeyRequest::client(&Identity::new(Role::Node, &node)).context("generating a key")?;
    let certificate = sign(
        &client,
        CertificateKind::NodeClient,
        &request.request_pem,
        Duration::from_secs(args.wait_seconds),
    )
    .await
    .map_err(|err| explained(err, &node))?;
    let named = NodeCertificate::read(certificate.as_bytes()).and_then(|certificate| certificate.node);
    if named.as_deref() != Some(node.as_str()) {
        return Err(anyhow!("the server signed a certificate that is not for node {node}").into());
    }
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

/// Returns the text that was passed as the token.
fn token_text(token: Option<String>, file: Option<&Utf8Path>) -> Result<String, Failure> {
    Ok(match (token, file) {
        (Some(text), _) => text,
        (None, Some(file)) => match file.as_str() {
            "-" => std::io::read_to_string(std::io::stdin()),
            file => std::fs::read_to_string(file),
        }
        .with_context(|| format!("reading the token from `{file}`"))
        .map_err(|err| Failure::new(ExitStatus::Config, err))?,
        (None, None) => {
            let what = anyhow!("--token or --token-file is missing; `rooflet token create` prints a token");
            return Err(Failure::new(ExitStatus::Usage, what));
        }
    })
}

/// Returns the token with the hash of the authority.
fn join_token(text: &str, ca_hash: Option<AuthorityHash>) -> Result<JoinToken, Failure> {
    let usage = |what: anyhow::Error| Failure::new(ExitStatus::Usage, what);
    let text = text.trim();
    if JoinToken::is_likely(text) {
        let parsed: JoinToken = text.parse().context("the token").map_err(usage)?;
        return match ca_hash.is_none_or(|hash| hash == parsed.authority) {
            true => Ok(parsed),
            false => Err(usage(anyhow!("--ca-hash differs from the hash in the token"))),
        };
    }
    let token: BootstrapToken = text
        .parse()
        .context("the token is neither rf1.HASH.ID.SECRET nor a bootstrap token ID.SECRET")
        .map_err(usage)?;
    let authority = ca_hash.ok_or_else(|| {
        usage(anyhow!(
            "--ca-hash is missing: this token does not contain the hash"
        ))
    })?;
    Ok(JoinToken { authority, token })
}

/// Adds the remedy if the name of the node is in use.
fn explained(err: SigningError, node: &str) -> anyhow::Error {
    let is_in_use = matches!(&err, SigningError::Refused { message, .. } if message.contains(&format!("node {node} exists")));
    let is_unknown_token = matches!(&err, SigningError::Api(ApiError::Unauthorized(_)));
    let err = anyhow::Error::from(err);
    match is_in_use {
        false if is_unknown_token => err.context(
            "the token is wrong, expired, deleted or used up: get a new one with `rooflet token create` on the \
             control plane",
        ),
        true => err.context(format!(
            "the name {node} is in use: pass another --node-name; if this machine is {node}, use a token of \
             `rooflet token create --node {node}`"
        )),
        false => err,
    }
}

/// Returns the command that starts the agent so that a remote gateway reaches it.
fn agent_line(state_dir: &Utf8Path, own_address: std::net::IpAddr) -> String {
    let mut line = agent_command(state_dir);
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

/// Returns the command that starts the agent, without its addresses.
fn agent_command(state_dir: &Utf8Path) -> String {
    let (_, installed) = Daemon::Agent.state_flag();
    if state_dir == installed {
        return "sudo rooflet agent install".to_owned();
    }
    let mut line = "rooflet agent --model-dir DIR".to_owned();
    if state_dir != crate::cli::default_data_dir().join("agent") {
        line.push_str(&format!(" --state-dir {state_dir}"));
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
