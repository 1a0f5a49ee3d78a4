//! Connections to the agents that store the logs of replicas.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Mutex;

use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_api::wire::GATEWAY_LOG_PATH;
use rooflet_base::clock::{Clock, Moment};
use rooflet_client::ApiError;
use rooflet_host::Host;
use rooflet_proxy::{AgentTls, Proxy, Upstream};
use rooflet_trust::{OPERATOR_LIFETIME, operator_tls};

/// Maximum size of an agent's error message, in bytes.
const MAX_REFUSAL_BYTES: usize = 4 << 10;

/// Connections to agents.
pub(super) struct Agents {
    client: Client,
    plain: Proxy,
    /// Connections with a certificate of the user, which is requested at the first use.
    secured: Mutex<Renewed<Proxy>>,
}

impl Agents {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            plain: Proxy::new(),
            secured: Mutex::new(Renewed::new(Clock::System)),
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

    async fn proxy(&self, upstream: &Upstream) -> anyhow::Result<Proxy> {
        match upstream {
            Upstream::Tcp(_) | Upstream::Unix(_) => Ok(self.plain.clone()),
            Upstream::Node { .. } => self.secured.lock().await.get(|| self.secure()).await,
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

/// Value that depends on a certificate of the user. A command that follows logs runs longer than the
/// certificate is valid.
struct Renewed<T> {
    clock: Clock,
    /// Value, and the time before its certificate was requested.
    held: Option<(Moment, T)>,
}

impl<T: Clone> Renewed<T> {
    fn new(clock: Clock) -> Self {
        Self { clock, held: None }
    }

    /// Returns the value. Creates a new one when half of the certificate's lifetime has passed. If that fails,
    /// the old value remains in use until its certificate expires.
    async fn get(&mut self, create: impl AsyncFnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        if let Some((_, value)) = self.younger_than(OPERATOR_LIFETIME / 2) {
            return Ok(value.clone());
        }
        let requested = Moment::now(&self.clock);
        match (create().await, self.younger_than(OPERATOR_LIFETIME)) {
            (Ok(value), _) => {
                self.held = Some((requested, value.clone()));
                Ok(value)
            }
            // The error is reported if no value is left.
            (Err(_), Some((_, value))) => Ok(value.clone()),
            (Err(err), None) => Err(err),
        }
    }

    fn younger_than(&self, age: Duration) -> Option<&(Moment, T)> {
        let is_young = |(created, _): &&(Moment, T)| created.age(&self.clock) < age;
        self.held.as_ref().filter(is_young)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::{ManualClock, at};

    #[tokio::test]
    async fn connections_are_renewed_before_the_certificate_expires() {
        let manual = ManualClock::new(at(0));
        let mut renewed = Renewed::new(Clock::Manual(manual.clone()));
        let fails = || async { Err(anyhow!("no answer")) };
        assert!(renewed.get(fails).await.is_err());
        assert_eq!(renewed.get(async || Ok(1)).await.unwrap(), 1);
        assert_eq!(renewed.get(async || Ok(2)).await.unwrap(), 1);
        manual.advance(OPERATOR_LIFETIME / 2);
        assert_eq!(
            renewed.get(fails).await.unwrap(),
            1,
            "the certificate is still valid"
        );
        assert_eq!(renewed.get(async || Ok(2)).await.unwrap(), 2);
        // The monotonic clock stops while the machine sleeps.
        manual.sleep(OPERATOR_LIFETIME);
        assert!(renewed.get(fails).await.is_err());
        assert_eq!(renewed.get(async || Ok(3)).await.unwrap(), 3);
    }
}
