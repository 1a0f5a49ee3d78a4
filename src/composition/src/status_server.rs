//! HTTP server with the health and the metrics of the process, for processes without a gateway.

use std::convert::Infallible;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use tokio::net::TcpListener;
use tracing::info;

use rooflet_base::metrics::{Registry, TEXT_FORMAT, render};
use rooflet_base::task::Tasks;
use rooflet_http_server as connection;

/// Serves `/health` and `/metrics` until `tasks` stop.
pub(super) fn serve(listener: TcpListener, registry: Registry, tasks: &Tasks) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, "serving health and metrics");
    }
    let metrics = || async move { ([(CONTENT_TYPE, TEXT_FORMAT)], render(&registry)).into_response() };
    let router = Router::new()
        .route("/health", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics));
    tasks.spawn("status-server", move |stop| {
        Box::pin(async move {
            connection::serve_tcp(listener, router, stop).await;
            Ok::<_, Infallible>(())
        })
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::metrics::IntCounter;

    #[tokio::test]
    async fn serves_health_and_metrics() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let (tasks, registry) = (Tasks::new(), Registry::new());
        let counter = IntCounter::new("rooflet_test_total", "A test.").expect("a valid name");
        registry.register(Box::new(counter)).expect("a fresh registry");
        serve(listener, registry, &tasks);
        // Fails if another test of the process has already installed the provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let get = async |path: &str| reqwest::get(format!("{url}{path}")).await.expect("a response");
        assert_eq!(get("/health").await.text().await.expect("a body"), "ok\n");
        let metrics = get("/metrics").await;
        assert_eq!(metrics.headers()[CONTENT_TYPE], TEXT_FORMAT);
        assert!(
            metrics
                .text()
                .await
                .expect("a body")
                .contains("rooflet_test_total 0\n")
        );
        assert_eq!(get("/").await.status().as_u16(), 404);
        tasks.cancel();
    }
}
