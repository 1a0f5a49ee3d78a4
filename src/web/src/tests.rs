//! Tests of the server over HTTP. The API server, the gateway and an agent are fakes that record
//! what they receive.

mod forwarding;
mod monitoring;
mod signing_in;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use camino::Utf8PathBuf;
use http::header::{CONTENT_TYPE, COOKIE, HOST, ORIGIN, SET_COOKIE};
use jiff::Timestamp;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::upstream::{ADMIN, ADMIN_TOKEN, PROMETHEUS_TOKEN, Upstream};
use super::{
    GatewayAddress, HistorySource, Planner, PrometheusConfig, WebConfig, kubeconfig_extension, serve,
};
use rooflet_base::clock::{Clock, ManualClock};
use rooflet_base::task::Tasks;
use rooflet_client::KubeconfigSource;
use rooflet_testing::{TempDir, within};

const CSRF: &str = "x-csrf-token";
/// Number of previews that end only when they must.
static ENDLESS_PREVIEWS: AtomicUsize = AtomicUsize::new(0);

/// Running server with its fakes.
struct Page {
    url: String,
    client: Client,
    clock: ManualClock,
    upstream: Arc<Upstream>,
    kubeconfig: Utf8PathBuf,
    tasks: Tasks,
    directory: TempDir,
}

/// Browser that has signed in.
struct Browser<'p> {
    page: &'p Page,
    cookie: String,
    csrf: String,
}

/// Serves `router` until `tasks` stop. Returns its address.
async fn start(router: Router, tasks: &Tasks) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let stop = tasks.stop_token();
    tasks.spawn_detached(rooflet_http_server::serve_tcp(listener, router, stop));
    address
}

impl Page {
    async fn start() -> Self {
        Self::with_gateway(true).await
    }

    async fn with_gateway(has_gateway: bool) -> Self {
        // Fails if another test of the process has already installed the provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let (tasks, directory) = (Tasks::new(), TempDir::new());
        let upstream = Arc::new(Upstream::default());
        let address = start(upstream::router(Arc::clone(&upstream)), &tasks).await;
        *rooflet_base::mutex::lock(&upstream.address) = address.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("bound");
        let url = format!("http://{own}");
        let kubeconfig = directory.path().join("kubeconfig");
        let (name, extension) = kubeconfig_extension(own);
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": format!("http://{address}"),
                "extensions": [{"name": name, "extension": extension}]}}],
            "users": [{"name": "a", "user": {"token": ADMIN_TOKEN}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        });
        std::fs::write(&kubeconfig, content.to_string()).expect("writable");
        let gateway = has_gateway.then(|| GatewayAddress::Local {
            address: address.parse().expect("an address"),
            tls: None,
        });
        let token_file = directory.path().join("prometheus-token");
        std::fs::write(&token_file, format!("{PROMETHEUS_TOKEN}\n")).expect("writable");
        let prometheus = has_gateway.then(|| PrometheusConfig {
            url: format!("http://{address}/prometheus").parse().expect("a URL"),
            token_file: Some(token_file),
        });
        let config = WebConfig {
            api_server: KubeconfigSource::File(kubeconfig.clone()),
            has_api_server: true,
            history: has_gateway.then(|| {
                HistorySource::new(
                    |uid| (uid == "1").then(|| json!({ "start": 60 })),
                    |uid| (uid == "mac").then(|| json!({ "times": [60] })),
                )
            }),
            planner: Planner::new(|objects, change, must_stop| match change {
                b"wrong" => Err("the patch is wrong".to_owned()),
                b"endless" => {
                    ENDLESS_PREVIEWS.fetch_add(1, Ordering::SeqCst);
                    while !must_stop() {
                        std::thread::yield_now();
                    }
                    Ok(json!({ "complete": false }))
                }
                change => Ok(json!({ "nodes": objects.nodes, "change": change.len() })),
            }),
            catalogue: json!({ "macs": [{ "chip": "Apple M4" }] }),
            prometheus,
            gateway,
            agent_tls: None,
            serving_tls: None,
            names: vec!["fleet.example".to_owned()],
        };
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        serve(listener, config, Clock::Manual(clock.clone()), &tasks).expect("serves");
        Self {
            url,
            client: Client::builder().no_proxy().build().expect("a client"),
            clock,
            upstream,
            kubeconfig,
            tasks,
            directory,
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        request.header(ORIGIN, &self.url)
    }

    async fn get(&self, path: &str) -> Response {
        send(self.request(Method::GET, path)).await
    }

    async fn post_session(&self, body: &Value) -> Response {
        send(self.request(Method::POST, "/session").json(body)).await
    }

    async fn browser(&self) -> Browser<'_> {
        let response = self.post_session(&json!({ "token": ADMIN_TOKEN })).await;
        assert_eq!(response.status(), 200);
        let cookie = response.headers()[SET_COOKIE].to_str().expect("text");
        let cookie = cookie.split(';').next().expect("a cookie").to_owned();
        let session: Value = json_of(response).await;
        assert_eq!(session["user"], ADMIN);
        Browser {
            page: self,
            cookie,
            csrf: session["csrfToken"].as_str().expect("a token").to_owned(),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

impl Browser<'_> {
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.page.request(method.clone(), path);
        let request = request.header(COOKIE, format!("other=1; {}", self.cookie));
        match method.is_safe() {
            true => request,
            false => request.header(CSRF, &self.csrf),
        }
    }

    async fn get(&self, path: &str) -> Response {
        send(self.request(Method::GET, path)).await
    }
}

async fn send(request: RequestBuilder) -> Response {
    within(request.send()).await.expect("a response")
}

async fn text_of(response: Response) -> String {
    within(response.text()).await.expect("a body")
}

async fn json_of(response: Response) -> Value {
    within(response.json()).await.expect("JSON")
}

/// Checks the status and the reason of an error.
#[track_caller]
fn check_error(status: u16, body: &Value, expect: (u16, &str)) {
    let reason = body["error"]["reason"].as_str().unwrap_or_default();
    assert_eq!((status, reason), expect, "{body}");
    assert!(!body["error"]["message"].as_str().unwrap_or_default().is_empty());
}

async fn is_error(response: Response, expect: (u16, &str)) {
    let status = response.status().as_u16();
    let text = text_of(response).await;
    let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status} {text}"));
    check_error(status, &body, expect);
}
