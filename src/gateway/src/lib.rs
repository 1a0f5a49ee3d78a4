//! The gateway: one OpenAI URL for all models of the fleet.
//!
//! The gateway watches ModelReplicas, FleetNodes and ModelDeployments. It routes each request by
//! its `model` to the ready replica with the earliest predicted finish time and streams the
//! response. If all replicas are busy, the gateway queues requests by priority, fair between
//! clients.
//!
//! Invariants:
//! - While the API server is unreachable, the gateway serves with its last routing table.
//! - A request is retried on another replica only before the first token of its response.
//! - Prompts are stored as hashes only, and never logged.
//! - Secrets of API keys are neither stored, logged nor forwarded.

mod access;
pub mod bench;
mod demand;
mod dispatch;
mod headers;
mod keys;
mod metrics;
mod ollama;
mod queue;
mod request;
mod request_router;
mod response;
mod routes;
mod routing;
mod server;
mod state;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::Arc;

use kube::runtime::watcher;
use kube::{Api, Client};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;

use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_base::clock::Clock;
use rooflet_base::metrics::{Registry, Result};
use rooflet_base::task::Tasks;
use rooflet_client::{Cache, Changes, watch};
use rooflet_host::Host;
use rooflet_http_server::DenialAudit;
use rooflet_inference_api::openai::origins::{AllowedOrigins, OriginRules};
use rooflet_proxy::{AgentTls, BodyRoom, MAX_KEPT_BODY_BYTES, Proxy};
use rooflet_telemetry::trace::Tracer;

pub use access::AccessLog;
pub use keys::{AdmittedRequest, KeyGate, KeyRefusal, UsageReport};
pub use request_router::{Assignment, Decision, QueuedRequest, RequestRouter};
pub use routes::MAX_TRIES;

use demand::DemandReporter;
use keys::{KeyMetrics, Keys};
use metrics::GatewayMetrics;
use routes::Gateway;
use routing::index::RouteIndex;
use routing::table::RoutingTable;

/// Registers all metrics of the gateway without starting it. The reference of metrics lists them.
pub fn register_metrics(registry: &Registry) -> Result<()> {
    GatewayMetrics::register(registry)?;
    KeyMetrics::register(registry).map(drop)
}

/// Access of clients to the gateway.
#[derive(Debug, Clone, Default)]
pub struct GatewayAccess {
    /// Web origins whose pages may send requests.
    pub allowed_origins: AllowedOrigins,
    /// True if every request needs an API key.
    pub requires_keys: bool,
    pub log: AccessLog,
    /// Receives every denied use of a key.
    pub audit: Option<DenialAudit>,
    /// Serves HTTPS instead of HTTP.
    pub serving_tls: Option<Arc<ServerConfig>>,
    /// Connects to agents on other machines. Without it, agents that require TLS are unreachable.
    pub agent_tls: Option<AgentTls>,
}

/// Starts the gateway's tasks. The gateway serves on `listener` until `tasks` stop.
///
/// Returns an error if a metric is already registered.
pub fn serve(
    listener: TcpListener,
    client: Client,
    clock: Clock,
    tasks: &Tasks,
    registry: &Registry,
    tracer: Tracer,
    access: GatewayAccess,
) -> Result<()> {
    let metrics = GatewayMetrics::register(registry)?;
    let table_rx = watch_routes(tasks, client.clone(), &clock);
    let room = BodyRoom::new(MAX_KEPT_BODY_BYTES);
    let address = listener.local_addr().ok();
    let hostname = Host::Native.identity().hostname;
    let identity = format!(
        "{hostname}_{}",
        address.map(|address| address.to_string()).unwrap_or_default()
    );
    let keys = Keys::watch(
        tasks,
        client.clone(),
        &identity,
        access.requires_keys,
        clock.clone(),
        KeyMetrics::register(registry)?,
    )
    .with_audit(access.audit);
    let anonymous = address.filter(|address| !access.requires_keys && !address.ip().is_loopback());
    metrics.set_anonymous_access(anonymous.is_some());
    let gateway = Gateway::new(table_rx.clone(), room, clock.clone(), metrics, registry.clone())
        .with_tracer(tracer)
        .with_access_log(access.log)
        .with_anonymous_address(anonymous)
        .with_keys(keys)
        .with_proxy(access.agent_tls.map_or_else(Proxy::new, Proxy::with_tls));
    let origin_rules = OriginRules::new(access.allowed_origins, address, [hostname]);
    let reporter = DemandReporter::new(client, &identity, gateway.dispatcher().clone(), table_rx, clock)
        .with_anonymous_address(anonymous);
    tasks.spawn_detached(reporter.run(tasks.stop_token()));
    let (dispatcher, stop) = (gateway.dispatcher().clone(), tasks.stop_token());
    tasks.spawn_detached(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = dispatcher.follow() => {}
        }
    });
    tasks.spawn("gateway", move |stop| {
        Box::pin(async move {
            server::run(
                listener,
                access.serving_tls,
                Arc::new(gateway),
                origin_rules,
                stop,
            )
            .await;
            Ok::<_, Infallible>(())
        })
    });
    Ok(())
}

/// Updates the routing table after every change of the watched objects. The channel holds `None`
/// until all kinds are listed.
fn watch_routes(tasks: &Tasks, client: Client, clock: &Clock) -> watch::Receiver<Option<Arc<RoutingTable>>> {
    let changes = Changes::new();
    let config = watcher::Config::default;
    let replicas: Cache<ModelReplica> = watch(tasks, Api::all(client.clone()), config(), clock, &changes);
    let nodes: Cache<FleetNode> = watch(tasks, Api::all(client.clone()), config(), clock, &changes);
    let deployments: Cache<ModelDeployment> = watch(tasks, Api::all(client), config(), clock, &changes);
    let (table_tx, table_rx) = watch::channel(None);
    let mut changed_rx = changes.subscribe();
    let stop = tasks.stop_token();
    tasks.spawn_detached(async move {
        let synced = async {
            replicas.synced().await;
            nodes.synced().await;
            deployments.synced().await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = synced => {}
        }
        let (replicas, nodes, deployments) = (replicas.feed(), nodes.feed(), deployments.feed());
        let mut index = RouteIndex::default();
        loop {
            changed_rx.mark_unchanged();
            for change in deployments.take() {
                index.set_deployment(&change.key, change.object.as_deref());
            }
            for change in replicas.take() {
                index.set_replica(&change.key, change.object.as_deref());
            }
            for change in nodes.take() {
                index.set_node(&change.key.name, change.object.as_deref());
            }
            let is_changed = index.update();
            table_tx.send_if_modified(|known: &mut Option<Arc<RoutingTable>>| {
                let is_modified = is_changed || known.is_none();
                if is_modified {
                    *known = Some(Arc::new(index.table().clone()));
                }
                is_modified
            });
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changed_rx.changed() => {}
            }
        }
    });
    table_rx
}
