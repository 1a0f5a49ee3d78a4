//! API server benchmark: rates, CPU time and watch latency, over TLS with one HTTP/1.1 connection
//! per client.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{join, join_all};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Certificate, RequestBuilder};
use serde_json::{Value, json};

use crate::harness::{Process, Scratch, eventually, free_port};
use crate::resident::Usage;
use crate::stats::{Samples, head, milliseconds, row};

pub(crate) const CLIENTS: [usize; 3] = [1, 16, 64];
/// Number of runs of each operation at each number of clients.
const REPEATS: usize = 3;
/// Duration of one run.
const WINDOW: Duration = Duration::from_secs(2);
/// Number of objects in the namespace that is listed and watched.
const LISTED: usize = 500;

/// Namespace of the objects that are listed, watched and patched.
pub(crate) const NAMESPACE: &str = "listed";

/// Running API server without other roles.
pub(crate) struct ApiServer {
    pub(crate) process: Process,
    pub(crate) api: Api,
    pub(crate) runtime: tokio::runtime::Runtime,
    args: Vec<String>,
    /// Working directory of the process; dropped last.
    scratch: Scratch,
}

impl ApiServer {
    /// Starts the server, and waits until it is ready.
    pub(crate) fn start() -> Self {
        let scratch = Scratch::new();
        let port = free_port();
        let (data_dir, kubeconfig) = (scratch.join("data"), scratch.join("kubeconfig"));
        let args = vec![
            "server".to_owned(),
            "--roles=apiserver".to_owned(),
            format!("--data-dir={}", data_dir.display()),
            format!("--listen=127.0.0.1:{port}"),
            format!("--kubeconfig-out={}", kubeconfig.display()),
        ];
        let process = Process::start(&args, &scratch.join("server.log"));
        eventually("the kubeconfig", || {
            kubeconfig.is_file().then_some(()).ok_or_else(|| process.log())
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let server = Self {
            api: Api::new(&data_dir, port),
            process,
            runtime,
            args,
            scratch,
        };
        server.wait_until_ready();
        server
    }

    /// Stops the server and starts it again with the same data.
    pub(crate) fn restart(&mut self) {
        self.process.terminate();
        self.process = Process::start(&self.args, &self.scratch.join("server.log"));
        self.wait_until_ready();
    }

    fn wait_until_ready(&self) {
        eventually("the server being ready", || {
            let ready = self.api.client.get(format!("{}/readyz", self.api.base)).send();
            match self.runtime.block_on(ready) {
                Ok(response) if response.status().is_success() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}

pub(crate) fn run() {
    let begin = Instant::now();
    let server = ApiServer::start();
    println!("Ready {:.2} s after its start.\n", begin.elapsed().as_secs_f64());
    server.runtime.block_on(measure(&server.api, &server.process));
}

async fn measure(api: &Api, server: &Process) {
    for namespace in [NAMESPACE, "created"] {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        api.done(
            api.client
                .post(format!("{}/api/v1/namespaces", api.base))
                .json(&body),
        )
        .await;
    }
    for number in 0..LISTED {
        api.done(api.create(NAMESPACE, number)).await;
    }
    let list = api.done(api.client.get(api.collection(NAMESPACE))).await;
    let list: Value = serde_json::from_slice(&list).expect("a list");
    let listed = list["items"].as_array().expect("a list has items");
    assert_eq!(listed.len(), LISTED);
    let object_bytes = listed[0].to_string().len();

    let created = Cell::new(0);
    let patched = Cell::new(0);
    head(&[
        "operations/s at 1 / 16 / 64 clients",
        "rate",
        "p50, ms",
        "server CPU, ms/op",
    ]);
    let operations: [(&str, &Request<'_>); 4] = [
        ("create", &|| {
            api.create("created", created.replace(created.get() + 1))
        }),
        ("get", &|| api.object(7)),
        ("patch status", &|| {
            let number = patched.replace(patched.get() + 1);
            let change = json!({"status": {"observedGeneration": number}});
            api.patch(&format!("{}/status", name(number % LISTED)), &change)
        }),
        ("list 500", &|| api.list(LISTED)),
    ];
    for (operation, request) in operations {
        let mut loads = Vec::new();
        for clients in CLIENTS {
            loads.push(load(api, &[server.pid()], clients, request).await);
        }
        let columns = |value: fn(&Load) -> String| loads.iter().map(value).collect::<Vec<_>>().join(" / ");
        row(&[
            operation.to_owned(),
            columns(|load| format!("{:.0}", load.rate)),
            columns(|load| format!("{:.2}", load.median_ms)),
            columns(|load| format!("{:.2}", load.cpu_ms)),
        ]);
    }

    println!("\nFrom sending a write to its event at a watcher, 100 writes/s:\n");
    head(&["watchers", "p50, ms", "p99, ms"]);
    for count in CLIENTS {
        let watches = Watches {
            count,
            writes: 500,
            interval: Duration::from_millis(10),
        };
        let latencies = watch_latencies(api, watches).await;
        row(&[
            count.to_string(),
            format!("{:.1}", latencies.quantile(0.5)),
            format!("{:.1}", latencies.quantile(0.99)),
        ]);
    }
    let resident = Usage::of(server.pid()).resident_bytes >> 20;
    println!(
        "\nObjects of {object_bytes} bytes of JSON, {} of them at the end; RSS then {resident} MiB.",
        created.get() + LISTED
    );
}

/// Function that returns the next request of a client.
pub(crate) type Request<'a> = dyn Fn() -> RequestBuilder + 'a;

/// Result of the run with the median rate.
pub(crate) struct Load {
    pub(crate) rate: f64,
    /// Lowest and highest rate of all runs.
    pub(crate) rates: (f64, f64),
    pub(crate) median_ms: f64,
    /// CPU time of the server per request.
    pub(crate) cpu_ms: f64,
}

/// Sends requests to a server with these processes.
pub(crate) async fn load(api: &Api, processes: &[u32], clients: usize, request: &Request<'_>) -> Load {
    let cpu = || -> Duration { processes.iter().map(|pid| Usage::of(*pid).cpu).sum() };
    let mut repeats = Vec::new();
    for _ in 0..REPEATS {
        let (cpu_before, begin) = (cpu(), Instant::now());
        let client = async || {
            let mut took = Vec::new();
            while begin.elapsed() < WINDOW {
                let sent = Instant::now();
                api.done(request()).await;
                took.push(milliseconds(sent.elapsed()));
            }
            took
        };
        let took: Vec<f64> = join_all((0..clients).map(|_| client())).await.concat();
        let rate = took.len() as f64 / begin.elapsed().as_secs_f64();
        repeats.push(Load {
            rate,
            rates: (rate, rate),
            cpu_ms: milliseconds(cpu() - cpu_before) / took.len() as f64,
            median_ms: Samples::new(took).median(),
        });
    }
    repeats.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let rates = (repeats[0].rate, repeats[REPEATS - 1].rate);
    Load {
        rates,
        ..repeats.swap_remove(REPEATS / 2)
    }
}

/// Watches of the same objects, and the writes that they receive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watches {
    pub(crate) count: usize,
    pub(crate) writes: u32,
    pub(crate) interval: Duration,
}

/// Returns the latencies of the same writes at all watches.
pub(crate) async fn watch_latencies(api: &Api, watches: Watches) -> Samples {
    let list = format!("{}?limit=1", api.collection(NAMESPACE));
    let list: Value = serde_json::from_slice(&api.done(api.client.get(list)).await).expect("a list");
    let version = list["metadata"]["resourceVersion"]
        .as_str()
        .expect("a list has a resourceVersion");
    let url = format!(
        "{}?watch=true&resourceVersion={version}",
        api.collection(NAMESPACE)
    );
    // All watches are open before the first write, because the response head is sent when a watch
    // starts.
    let opened = join_all((0..watches.count).map(|_| async {
        let watch = api.client.get(&url).send().await.expect("a watch");
        assert!(watch.status().is_success(), "{watch:?}");
        watch
    }))
    .await;
    let epoch = Instant::now();
    let watch = async |mut response: reqwest::Response| {
        let (mut latencies, mut bytes) = (Vec::new(), Vec::new());
        while latencies.len() < watches.writes as usize {
            let chunk = response
                .chunk()
                .await
                .expect("an open watch")
                .expect("more events");
            let now = epoch.elapsed();
            bytes.extend_from_slice(&chunk);
            while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = bytes.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).expect("an event");
                let sent = event["object"]["metadata"]["annotations"]["sent"].as_str();
                let nanos = sent
                    .and_then(|nanos| nanos.parse().ok())
                    .expect("a number in the annotation");
                latencies.push(milliseconds(now.saturating_sub(Duration::from_nanos(nanos))));
            }
        }
        latencies
    };
    let write = async {
        for number in 0..watches.writes {
            let due = watches.interval * number;
            tokio::time::sleep(due.saturating_sub(epoch.elapsed())).await;
            let sent = epoch.elapsed().as_nanos().to_string();
            let change = json!({"metadata": {"annotations": {"sent": sent}}});
            api.done(api.patch(&name(number as usize % LISTED), &change))
                .await;
        }
    };
    let ((), latencies) = join(write, join_all(opened.into_iter().map(watch))).await;
    Samples::new(latencies.concat())
}

/// Client of the server under test.
pub(crate) struct Api {
    pub(crate) base: String,
    pub(crate) client: reqwest::Client,
}

impl Api {
    pub(crate) fn new(data_dir: &Path, port: u16) -> Self {
        let read = |name: &str| std::fs::read_to_string(data_dir.join(name)).expect("written by the server");
        let base = format!("https://127.0.0.1:{port}");
        Self::with(&base, read("token").trim(), read("ca.pem").as_bytes())
    }

    /// Returns a client of any server, with the certificate of its authority in PEM.
    pub(crate) fn with(base: &str, token: &str, authority: &[u8]) -> Self {
        // The installation fails if another client has installed the provider already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).expect("a token is plain text");
        let client = reqwest::Client::builder()
            .tls_certs_only(Certificate::from_pem_bundle(authority).expect("certificates"))
            .default_headers(HeaderMap::from_iter([(AUTHORIZATION, bearer)]))
            .http1_only()
            .build()
            .expect("a client");
        Self {
            base: base.to_owned(),
            client,
        }
    }

    fn collection(&self, namespace: &str) -> String {
        format!(
            "{}/apis/rooflet.dev/v1alpha1/namespaces/{namespace}/modeldeployments",
            self.base
        )
    }

    /// Returns a request that creates an object of about 1 KB. No controller runs that could act on
    /// the object.
    pub(crate) fn create(&self, namespace: &str, number: usize) -> RequestBuilder {
        let body = json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": name(number), "annotations": {"padding": "x".repeat(600)}},
            "spec": {"model": {"source": "local://guide"}},
        });
        self.client.post(self.collection(namespace)).json(&body)
    }

    pub(crate) fn patch(&self, path: &str, change: &Value) -> RequestBuilder {
        self.client
            .patch(format!("{}/{path}", self.collection(NAMESPACE)))
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(change.to_string())
    }

    /// Returns a request for one of the listed objects.
    pub(crate) fn object(&self, number: usize) -> RequestBuilder {
        self.client
            .get(format!("{}/{}", self.collection(NAMESPACE), name(number)))
    }

    /// Returns a request for a page of the listed objects.
    pub(crate) fn list(&self, limit: usize) -> RequestBuilder {
        self.client
            .get(format!("{}?limit={limit}", self.collection(NAMESPACE)))
    }

    /// Returns a server-side apply that changes an annotation of one of the listed objects.
    pub(crate) fn apply(&self, number: usize, change: usize) -> RequestBuilder {
        let body = json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": name(number), "annotations": {"applied": change.to_string()}},
            "spec": {"model": {"source": "local://guide"}},
        });
        let object = format!("{}/{}", self.collection(NAMESPACE), name(number));
        self.client
            .patch(format!("{object}?fieldManager=benchmark&force=true"))
            .header(CONTENT_TYPE, "application/apply-patch+yaml")
            .body(body.to_string())
    }

    /// Sends a request and returns the response body. Panics if the response is not a success.
    pub(crate) async fn done(&self, request: RequestBuilder) -> Bytes {
        let response = request.send().await.expect("a response");
        let status = response.status();
        let body = response.bytes().await.expect("a complete response");
        assert!(
            status.is_success(),
            "{status}: {}",
            String::from_utf8_lossy(&body)
        );
        body
    }
}

pub(crate) fn name(number: usize) -> String {
    format!("object-{number:06}")
}
