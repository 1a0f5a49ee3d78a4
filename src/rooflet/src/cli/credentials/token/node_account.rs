//! Tokens of nodes on a Kubernetes cluster.

use std::time::Duration;

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use kube::Client;
use serde_json::json;

use crate::cli::{Failure, ui};
use rooflet_api::meta::NODE_ANNOTATION;
use rooflet_base::error::ExitStatus;
use rooflet_pki::certificate_pem;
use rooflet_pki::kubeconfig::{self, Credentials};
use rooflet_trust::{IssueNodeTokenError, NodeTokens, issue_node_token, list_node_tokens};

/// Shortest lifetime that Kubernetes accepts.
const MIN_TTL: Duration = Duration::from_secs(600);

/// Creates what the node needs if it is missing, and prints a kubeconfig with a token for `rooflet join`.
pub(super) async fn create(
    client: &Client,
    node: &str,
    ttl: Duration,
    (server, authorities): (&str, &[Vec<u8>]),
) -> Result<(), Failure> {
    if ttl < MIN_TTL {
        let what = anyhow!("--ttl: tokens of this cluster expire: pass a duration of at least 10m");
        return Err(Failure::new(ExitStatus::Usage, what));
    }
    let token = issue_node_token(client, node, ttl)
        .await
        .map_err(|err| match err {
            IssueNodeTokenError::Api(err) => err.into(),
            IssueNodeTokenError::NoAccount(_) | IssueNodeTokenError::SeveralAccounts { .. } => {
                Failure::from(anyhow!(err))
            }
        })?;
    let authorities: String = authorities.iter().map(|der| certificate_pem(der)).collect();
    let text = kubeconfig::text(
        server,
        &authorities,
        Credentials::Token(&token),
        Some((NODE_ANNOTATION, json!({ "name": node }))),
    );
    ui::output(&text.context("encoding the kubeconfig")?);
    ui::progress(&format!(
        "on {node}, pass this kubeconfig to `rooflet join --token-file FILE`, or to standard input of `rooflet join \
         --token-file -`"
    ));
    Ok(())
}

/// Prints the nodes of the chart and their tokens.
pub(super) async fn list(client: &Client, now: Timestamp) -> Result<(), Failure> {
    let mut table = ui::Table::new(["NODE", "SERVICEACCOUNT", "ISSUED", "EXPIRES", "STATE"]);
    for tokens in list_node_tokens(client, now).await? {
        let NodeTokens {
            node,
            account,
            issued,
            expires,
            state,
        } = tokens;
        table.add_row([node, account, issued, expires, state.to_owned()]);
    }
    match table.is_empty() {
        true => ui::progress(
            "no node of this cluster may have a token: add nodes to the value agents.nodes, and run `helm upgrade`",
        ),
        false => ui::output(&format!("{table}\n")),
    }
    Ok(())
}
