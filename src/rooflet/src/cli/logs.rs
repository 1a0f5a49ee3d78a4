//! `rooflet logs`

use anyhow::{Context, anyhow, bail};
use camino::Utf8PathBuf;
use futures::StreamExt;
use kube::Api;

use super::{Failure, objects, ui};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_client::ApiError;

/// The most that is read of an agent's refusal, in bytes.
const MAX_REFUSAL_BYTES: usize = 4 << 10;

/// Arguments of `rooflet logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The replica: mrep/NAME, modelreplica/NAME or NAME. `kubectl get mrep` lists them.
    #[arg(value_name = "mrep/NAME")]
    replica: String,
    /// The replica's namespace. Default: that of the kubeconfig's context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Go on with what is logged from now on.
    #[arg(long, short)]
    follow: bool,
    /// Begin with the last N lines; -1 begins with the first line, as without it.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    tail: Option<i64>,
    /// Which API server to ask. Default: what kubectl would use, else the one that `rooflet up` wrote.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let name = objects::name_of::<ModelReplica>(&args.replica)?;
    let client = objects::client(args.kubeconfig.clone()).await?;
    let namespace = objects::namespace(args.namespace.clone(), &client);
    let replicas: Api<ModelReplica> = Api::namespaced(client.clone(), &namespace);
    let replica = replicas.get_opt(name).await.map_err(ApiError::from)?;
    let replica = replica.ok_or_else(|| {
        anyhow!("no ModelReplica {name} in namespace {namespace}; `kubectl get mrep -A` lists them")
    })?;
    let node = replica.spec.node_name.ok_or_else(|| {
        anyhow!("ModelReplica {name} is on no node yet; `kubectl describe mrep {name}` says why")
    })?;
    let nodes: Api<FleetNode> = Api::all(client);
    let endpoint = nodes
        .get_opt(&node)
        .await
        .map_err(ApiError::from)?
        .and_then(|node| node.status)
        .and_then(|status| status.endpoint)
        .ok_or_else(|| anyhow!("the agent of FleetNode {node} has not said where it listens"))?;
    let log = format!("{endpoint}/replicas/{namespace}/{name}/logs");
    Ok(print(&args, &node, &log).await?)
}

/// `log` is its URL.
async fn print(args: &Args, node: &str, log: &str) -> anyhow::Result<()> {
    let mut url = format!("{log}?follow={}", args.follow);
    if let Some(lines) = args.tail.filter(|lines| *lines >= 0) {
        url.push_str(&format!("&tailLines={lines}"));
    }
    // The agent is reached directly: a proxy meant for the world outside does not know it.
    let http = reqwest::Client::builder()
        .no_proxy()
        .build()
        .context("setting up HTTP")?;
    let response = http
        .get(url)
        .send()
        .await
        .with_context(|| format!("the agent of node {node} cannot be reached from here: {log}"))?;
    let status = response.status();
    let mut bytes = response.bytes_stream();
    if !status.is_success() {
        let mut said = Vec::new();
        while let (true, Some(chunk)) = (said.len() < MAX_REFUSAL_BYTES, bytes.next().await) {
            said.extend_from_slice(&chunk?);
        }
        bail!("{}", String::from_utf8_lossy(&said).trim());
    }
    while let Some(chunk) = bytes.next().await {
        let chunk = chunk.context("the agent's answer broke off")?;
        if ui::output_bytes(&chunk)
            .context("writing to standard output")?
            .is_break()
        {
            break;
        }
    }
    Ok(())
}
