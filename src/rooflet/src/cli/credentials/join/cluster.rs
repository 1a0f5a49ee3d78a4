//! Joining of a Kubernetes cluster, with the kubeconfig that `rooflet token create --node` prints.

use anyhow::{Context, anyhow};
use camino::Utf8Path;
use serde_json::json;

use crate::cli::{Failure, ui};
use rooflet_agent::TOKEN_LIFETIME;
use rooflet_api::meta::NODE_ANNOTATION;
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{BoundToken, PassedKubeconfig};
use rooflet_composition::data_dir;
use rooflet_pki::certificate_pem;
use rooflet_pki::kubeconfig::{self, Credentials};
use rooflet_trust::{KUBECONFIG_FILE, Membership};

/// Returns whether the text is a kubeconfig instead of a token.
pub(super) fn is_kubeconfig(text: &str) -> bool {
    text.contains("kind: Config")
}

/// Replaces the token of the kubeconfig by one of this machine, and stores it in the state directory.
pub(super) async fn join(text: &str, node_name: Option<&str>, state_dir: &Utf8Path) -> Result<(), Failure> {
    let config = |err: anyhow::Error| Failure::new(ExitStatus::Config, err);
    let passed = PassedKubeconfig::parse(text, &Clock::System)
        .await
        .map_err(|err| config(err.into()))?;
    let node = passed
        .extension(NODE_ANNOTATION)
        .and_then(|node| Some(node["name"].as_str()?.to_owned()));
    let token = passed.token.as_deref().and_then(BoundToken::read);
    let (Some(node), Some(token)) = (node, token) else {
        return Err(config(anyhow!(
            "the kubeconfig does not contain the token of a node: create it with `rooflet token create --node NAME`"
        )));
    };
    if let Some(named) = node_name.filter(|named| *named != node) {
        let what = anyhow!("--node-name {named}: the kubeconfig is for node {node}; omit the flag");
        return Err(Failure::new(ExitStatus::Usage, what));
    }
    data_dir::create(state_dir)
        .with_context(|| format!("creating the state directory `{state_dir}`"))
        .map_err(config)?;
    let server = passed.server.to_string().trim_end_matches('/').to_owned();
    let path = state_dir.join(KUBECONFIG_FILE);
    let start = format!(
        "its credentials are in {path}\n\nrun its agent with:\n  {} --listen 0.0.0.0:{} --advertise-address HOST\n",
        super::agent_command(state_dir),
        super::AGENT_PORT
    );
    let known = Membership::read(state_dir, &Clock::System)
        .await
        .map_err(|err| config(err.into()))?;
    if let Some(known) = known.filter(|known| known.node == node && known.server == server)
        && known.is_accepted().await?
    {
        ui::output(&format!("node {node} has joined {server} before: {start}"));
        return Ok(());
    }
    let own = token
        .binding
        .request_token(&passed.client, TOKEN_LIFETIME)
        .await?;
    let authorities: String = passed
        .authorities
        .iter()
        .map(|der| certificate_pem(der))
        .collect();
    kubeconfig::write_extended(
        path.as_std_path(),
        &server,
        &authorities,
        Credentials::Token(&own),
        Some((NODE_ANNOTATION, json!({ "name": node }))),
    )
    .map_err(|err| config(err.into()))?;
    ui::output(&format!("node {node} joined {server}: {start}"));
    Ok(())
}
