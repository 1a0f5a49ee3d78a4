//! Routes, and the start of the server.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Json, Router};
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::info;

use super::api_proxy;
use super::assets::Assets;
use super::combined_watch;
use super::connections::{GatewayAddress, Upstreams};
use super::failures::Failures;
use super::guard::{self, Guard};
use super::history;
use super::history_source::HistorySource;
use super::monitoring;
use super::preview::{self, Planner};
use super::prometheus::{Prometheus, PrometheusConfig};
use super::sessions::Sessions;
use super::sign_in;
use super::sign_in_code::SignInCodes;
use super::state::{Web, require_session};
use super::upstreams;
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_client::KubeconfigSource;
use rooflet_http_server as connection;
use rooflet_proxy::AgentTls;

/// Interval of the search for sessions that have ended.
const SWEEP: Duration = Duration::from_secs(30);

/// Configuration of the server.
#[derive(Debug)]
pub struct WebConfig {
    /// API server. If the file contains a bearer token, the server accepts the codes of the holders
    /// of the file.
    pub api_server: KubeconfigSource,
    /// True if the API server is part of this process. Its metrics are then those of the control plane.
    pub has_api_server: bool,
    /// History of the deployments. `None` without a controller in this process.
    pub history: Option<HistorySource>,
    /// Previews of changes.
    pub planner: Planner,
    /// Macs that are sold, for the form of a plan.
    pub catalogue: Value,
    /// Prometheus that scrapes the fleet, for histories of more than 24 hours.
    pub prometheus: Option<PrometheusConfig>,
    /// Gateway of the playground. `None` if there is none.
    pub gateway: Option<GatewayAddress>,
    /// Connects to agents that require TLS.
    pub agent_tls: Option<AgentTls>,
    /// Serves HTTPS instead of HTTP.
    pub serving_tls: Option<Arc<ServerConfig>>,
    /// Names and addresses of the server, besides the loopback names and its address.
    pub names: Vec<String>,
}

/// Serves the page on `listener` until `tasks` stop.
pub fn serve(listener: TcpListener, config: WebConfig, clock: Clock, tasks: &Tasks) -> io::Result<()> {
    let address = listener.local_addr()?;
    let has_tls = config.serving_tls.is_some();
    let prometheus = config.prometheus.map(Prometheus::new).transpose();
    let prometheus = prometheus.map_err(io::Error::other)?;
    let guard = Arc::new(Guard::new(address.ip(), &config.names, has_tls));
    // Browsers send cookies to all ports of a host, so the name contains the port.
    let prefix = if has_tls { "__Host-" } else { "" };
    let web = Arc::new(Web {
        api_server: config.api_server,
        upstreams: Upstreams::new(config.gateway, config.agent_tls),
        cookie: format!("{prefix}rooflet-session-{}", address.port()),
        has_tls,
        sessions: Mutex::new(Sessions::default()),
        scrapers: Mutex::new(Sessions::default()),
        has_api_server: config.has_api_server,
        history: config.history,
        planner: config.planner,
        catalogue: config.catalogue,
        previews: Arc::new(Semaphore::new(preview::MAX_PREVIEWS)),
        prometheus,
        failures: Mutex::new(Failures::default()),
        scrape_failures: Mutex::new(Failures::default()),
        codes: Mutex::new(SignInCodes::new(clock.now())),
        clock,
        stop: tasks.stop_token(),
    });
    info!(%address, tls = has_tls, "serving the web page");
    let router = router(Arc::clone(&web), guard);
    let stop = tasks.stop_token();
    tasks.spawn_detached(async move {
        while stop
            .run_until_cancelled(tokio::time::sleep(SWEEP))
            .await
            .is_some()
        {
            web.end_sessions();
        }
    });
    let tls = config.serving_tls;
    tasks.spawn("web", move |stop| {
        Box::pin(async move {
            match tls {
                Some(tls) => connection::serve_tls(listener, tls, router, stop).await,
                None => connection::serve_tcp(listener, router, stop).await,
            }
            Ok::<_, Infallible>(())
        })
    });
    Ok(())
}

fn router(web: Arc<Web>, guard: Arc<Guard>) -> Router {
    let proxy = Router::new()
        .route("/proxy/api/{*path}", any(api_proxy::forward_request))
        .route("/proxy/watch", get(combined_watch::watch))
        .route("/proxy/preview", post(preview::preview))
        .route("/proxy/catalogue", get(catalogue))
        .route("/proxy/openai/{*path}", any(upstreams::openai))
        .route("/proxy/metrics/gateway", get(upstreams::gateway_metrics))
        .route("/proxy/metrics/agents/{node}", get(upstreams::agent_metrics))
        .route(
            "/proxy/metrics/replicas/{namespace}/{name}",
            get(upstreams::replica_metrics),
        )
        .route("/proxy/logs/{namespace}/{name}", get(upstreams::replica_log))
        .route(
            "/proxy/history/deployments/{namespace}/{name}",
            get(history::of_deployment),
        )
        .route("/proxy/history/nodes/{node}", get(history::of_node))
        .layer(from_fn_with_state(Arc::clone(&web), require_session));
    let monitoring = Router::new()
        .route("/monitoring/targets", get(monitoring::targets))
        .route(
            "/monitoring/metrics/control-plane",
            get(monitoring::control_plane),
        )
        .route("/monitoring/metrics/gateway", get(monitoring::gateway))
        .route("/monitoring/metrics/agents/{node}", get(upstreams::agent_metrics))
        .route(
            "/monitoring/metrics/replicas/{namespace}/{name}",
            get(upstreams::replica_metrics),
        )
        .layer(from_fn_with_state(Arc::clone(&web), monitoring::require_token));
    let assets = Arc::new(Assets::load());
    let session = get(sign_in::session)
        .post(sign_in::sign_in)
        .delete(sign_in::sign_out);
    Router::new()
        .route("/session", session)
        .with_state(Arc::clone(&web))
        .merge(proxy.with_state(Arc::clone(&web)))
        .merge(monitoring.with_state(web))
        .fallback(file)
        .with_state(assets)
        .layer(from_fn_with_state(guard, guard::middleware))
}

/// Handler of `GET /proxy/catalogue`.
async fn catalogue(State(web): State<Arc<Web>>) -> Json<Value> {
    Json(web.catalogue.clone())
}

async fn file(State(assets): State<Arc<Assets>>, request: Request) -> Response {
    assets.respond(request.method(), request.uri().path(), request.headers())
}
