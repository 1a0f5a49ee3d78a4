//! Connections to the agents that store the logs of replicas.

use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::{Api, Client, ResourceExt};
use tokio::sync::OnceCell;

use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_api::wire::GATEWAY_LOG_PATH;
use rooflet_client::ApiError;
use rooflet_host::Host;
use rooflet_proxy::{AgentTls, Proxy, Upstream};
use rooflet_trust::operator_tls;

/// Maximum size of an agent's error message, in bytes.
const MAX_REFUSAL_BYTES: usize = 4 << 10;

/// Connections to agents.
pub(super) struct Agents {
    client: Client,
    plain: Proxy,
    /// Connections with a certificate of the user, which is requested at the first use.
    secured: OnceCell<Proxy>,
}

impl Agents {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            plain: Proxy::new(),
            secured: OnceCell::new(),
        }
    }

    /// Returns the log of a replica, from the agent of its node.
    pub(super) async fn log(
        &self,
        replica: &ModelReplica,
        follow: bool,
        tail: Option<i64>,
    ) -> anyhow::Result<BoxStream<'static, anyhow::Result<Bytes>>> {
        let (namespace, name) = (replica.namespace().unwrap_or_default(), replica.name_any());
        let node = replica.spec.node_name.as_deref().ok_or_else(|| {
            anyhow!("ModelReplica {name} has no node yet; `kubectl describe mrep {name}` shows the reason")
        })?;
        let path = format!("/replicas/{namespace}/{name}/logs");
        self.read(node, &path, follow, tail).await
    }

    /// Returns the log of the gateway on a node.
    pub(super) async fn gateway_log(
        &self,
        node: &str,
        follow: bool,
        tail: Option<i64>,
    ) -> anyhow::Result<BoxStream<'static, anyhow::Result<Bytes>>> {
        self.read(node, GATEWAY_LOG_PATH, follow, tail).await
    }

    async fn read(
        &self,
        node: &str,
        path: &str,
        follow: bool,
        tail: Option<i64>,
    ) -> anyhow::Result<BoxStream<'static, anyhow::Result<Bytes>>> {
        let mut path = format!("{path}?follow={follow}");
        if let Some(lines) = tail.filter(|lines| *lines >= 0) {
            path.push_str(&format!("&tailLines={lines}"));
        }
        let path = path.parse().context("building the path of the log")?;
        let upstream = self.upstream(node).await?;
        let response = self
            .proxy(&upstream)
            .await?
            .forward(Request::new(Body::empty()), &upstream, &path)
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
        Ok(bytes
            .map(|chunk| chunk.context("the agent's answer was interrupted"))
            .boxed())
    }

    async fn upstream(&self, node: &str) -> anyhow::Result<Upstream> {
        let nodes: Api<FleetNode> = Api::all(self.client.clone());
        let endpoint = nodes
            .get_opt(node)
            .await
            .map_err(ApiError::from)?
            .and_then(|node| node.status)
            .and_then(|status| status.endpoint)
            .ok_or_else(|| anyhow!("the agent of FleetNode {node} has not reported its endpoint"))?;
        Upstream::of_node(&endpoint, node).context("reading the agent's endpoint")
    }

    async fn proxy(&self, upstream: &Upstream) -> anyhow::Result<&Proxy> {
        match upstream {
            Upstream::Tcp(_) | Upstream::Unix(_) => Ok(&self.plain),
            Upstream::Node { .. } => self.secured.get_or_try_init(|| self.secure()).await,
        }
    }

    async fn secure(&self) -> anyhow::Result<Proxy> {
        let name = Host::Native.identity().hostname.to_lowercase();
        let tls = operator_tls(&self.client, &name).await;
        let tls = tls.context("getting a certificate for the connection to the agent")?;
        let config = tls.client_config().context("setting up TLS")?;
        Ok(Proxy::with_tls(AgentTls::new(Arc::new(config), |_| false)))
    }
}
