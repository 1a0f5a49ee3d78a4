//! `rooflet logs`

use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use axum::body::Body;
use axum::extract::Request;
use camino::Utf8PathBuf;
use futures::StreamExt;
use kube::Api;

use crate::cli::{Failure, objects, ui};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_client::ApiError;
use rooflet_host::Host;
use rooflet_proxy::{Proxy, Upstream};
use rooflet_trust::operator_tls;

/// Maximum size of an agent's error message, in bytes.
const MAX_REFUSAL_BYTES: usize = 4 << 10;

/// Arguments of `rooflet logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Replica: mrep/NAME, modelreplica/NAME or NAME. `kubectl get mrep` lists the replicas.
    #[arg(value_name = "mrep/NAME")]
    replica: String,
    /// Namespace of the replica. Default: the namespace of the kubeconfig's context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Keep printing new log lines.
    #[arg(long, short)]
    follow: bool,
    /// Start with the last N lines; -1 prints the whole log.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    tail: Option<i64>,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up`.
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
        anyhow!("ModelReplica {name} has no node yet; `kubectl describe mrep {name}` shows the reason")
    })?;
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let endpoint = nodes
        .get_opt(&node)
        .await
        .map_err(ApiError::from)?
        .and_then(|node| node.status)
        .and_then(|status| status.endpoint)
        .ok_or_else(|| anyhow!("the agent of FleetNode {node} has not reported its endpoint"))?;
    let upstream = Upstream::of_node(&endpoint, &node).context("reading the agent's endpoint")?;
    let proxy = match &upstream {
        Upstream::Node { .. } => {
            let name = Host::Native.identity().hostname.to_lowercase();
            let tls = operator_tls(&client, &name).await;
            let tls = tls.context("getting a certificate for the connection to the agent")?;
            Proxy::with_tls(Arc::new(tls.client_config().context("setting up TLS")?))
        }
        Upstream::Tcp(_) | Upstream::Unix(_) => Proxy::new(),
    };
    let log = format!("/replicas/{namespace}/{name}/logs");
    Ok(print(&args, &node, &proxy, &upstream, &log).await?)
}

/// Prints the log at the path `log`.
async fn print(args: &Args, node: &str, proxy: &Proxy, upstream: &Upstream, log: &str) -> anyhow::Result<()> {
    let mut path = format!("{log}?follow={}", args.follow);
    if let Some(lines) = args.tail.filter(|lines| *lines >= 0) {
        path.push_str(&format!("&tailLines={lines}"));
    }
    let path = path.parse().context("building the path of the log")?;
    let response = proxy
        .forward(Request::new(Body::empty()), upstream, &path)
        .await
        .with_context(|| format!("requesting the log from the agent of node {node}"))?;
    let status = response.status();
    let mut bytes = response.into_body().into_data_stream();
    if !status.is_success() {
        let mut message = Vec::new();
        while let (true, Some(chunk)) = (message.len() < MAX_REFUSAL_BYTES, bytes.next().await) {
            message.extend_from_slice(&chunk?);
        }
        bail!("{}", String::from_utf8_lossy(&message).trim());
    }
    while let Some(chunk) = bytes.next().await {
        let chunk = chunk.context("the agent's answer was interrupted")?;
        if ui::output_bytes(&chunk)
            .context("writing to standard output")?
            .is_break()
        {
            break;
        }
    }
    Ok(())
}
