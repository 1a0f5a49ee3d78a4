//! Comparison of the embedded API server with kube-apiserver and etcd: the same kind, requests, client and limits.
//!
//! Rates, states and starts are measured with separate stores. Rates are measured for a fixed time, so the faster
//! server creates more objects. Memory, files and restarts are measured with the same objects on both servers.
//!
//! `ROOFLET_KUBERNETES_PATH` has the directories of both programs; `cargo xtask bench-apiserver` sets it.
//! `ROOFLET_BENCH_OBJECTS` is the number of objects for memory, files and restarts (default: 50,000).

use std::cell::Cell;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use rcgen::KeyPair;
use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::apiserver::{Api, CLIENTS, NAMESPACE, Request, Watches, load, name, watch_latencies};
use crate::harness::{Process, Scratch, free_port, repository};
use crate::resident::Usage;
use crate::stats::{Samples, head, row};

const BINARIES: &str = "ROOFLET_KUBERNETES_PATH";
const OBJECTS: &str = "ROOFLET_BENCH_OBJECTS";
const TOKEN: &str = "admin-of-the-benchmark";
/// Number of objects that are listed, watched and changed while rates are measured.
const LISTED: usize = 500;
/// Clients that create objects.
const WRITERS: usize = 16;
/// Time after which the memory of the start has been returned.
const SETTLE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const START_MAX: Duration = Duration::from_secs(120);
/// Watches, writes per second and number of writes.
const WATCHES: [Watches; 2] = [
    Watches {
        count: 64,
        writes: 500,
        interval: Duration::from_millis(10),
    },
    Watches {
        count: 1_000,
        writes: 100,
        interval: Duration::from_millis(100),
    },
];

#[derive(Debug, Clone, Copy)]
enum Program {
    Kubernetes,
    Rooflet,
}

const PROGRAMS: [Program; 2] = [Program::Kubernetes, Program::Rooflet];

pub(crate) fn run() {
    let Some(binaries) = std::env::var_os(BINARIES) else {
        println!("NOT RUN: set {BINARIES}, or run `cargo xtask bench-apiserver`.");
        return;
    };
    let objects = std::env::var(OBJECTS).map_or(50_000, |count| count.parse().expect("a number of objects"));
    let binaries: Vec<PathBuf> = std::env::split_paths(&binaries).collect();
    let figures = PROGRAMS.map(|program| measure(program, &binaries, objects));
    head(&["", "kube-apiserver 1.36.2 and etcd", "rooflet server"]);
    let [theirs, ours] = figures;
    for ((measure, theirs), (_, ours)) in theirs.into_iter().zip(ours) {
        row(&[measure, theirs, ours]);
    }
    println!(
        "\nRates: median (lowest-highest) of three runs of two seconds, then the median latency and the CPU time of the \
         server per request. Watches: from sending a write to its event, median and 99th percentile. Both servers have \
         their default limits of requests. Memory, files and restart: {objects} equal objects on each server."
    );
}

/// Lines of the table: measure and result.
type Figures = Vec<(String, String)>;

fn measure(program: Program, binaries: &[PathBuf], objects: usize) -> Figures {
    let mut starts = Vec::new();
    let mut start = || {
        let begin = Instant::now();
        let server = Server::start(program, binaries);
        starts.push(begin.elapsed().as_secs_f64());
        server
    };
    drop(start());
    let rates = rates(program, &start());
    let states = states(program, start(), objects);
    let ready = (
        "ready after its start, s".to_owned(),
        Samples::new(starts).to_string(),
    );
    [vec![ready], rates, states].concat()
}

/// Measures the requests per second and the latency of watches. Objects are created last, so that all other
/// operations run with the same objects on both servers.
fn rates(program: Program, server: &Server) -> Figures {
    let mut figures = Figures::new();
    let processes = server.pids();
    let api = &server.api;
    let next = |cell: &Cell<usize>| cell.replace(cell.get() + 1);
    let (created, patched, applied) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let operations: [(&str, &Request<'_>); 4] = [
        ("get", &|| api.object(7)),
        ("list 500", &|| api.list(LISTED)),
        ("patch status", &|| {
            let number = next(&patched);
            let change = json!({"status": {"observedGeneration": number}});
            api.patch(&format!("{}/status", name(number % LISTED)), &change)
        }),
        ("server-side apply", &|| {
            let number = next(&applied);
            api.apply(number % LISTED, number)
        }),
    ];
    let create: (&str, &Request<'_>) = ("create", &|| api.create("created", next(&created)));
    server.runtime.block_on(async {
        prepare(program, api, &[NAMESPACE, "created"]).await;
        create_all(api, NAMESPACE, LISTED).await;
        for (operation, request) in operations {
            figures.extend(loads(api, &processes, operation, request).await);
        }
        for watches in WATCHES {
            let latencies = watch_latencies(api, watches).await;
            figures.push((
                format!("event at {} watches, ms", watches.count),
                format!("{:.1}, {:.1}", latencies.quantile(0.5), latencies.quantile(0.99)),
            ));
        }
        figures.extend(loads(api, &processes, create.0, create.1).await);
    });
    figures.push((
        "objects created by these runs".to_owned(),
        created.get().to_string(),
    ));
    figures
}

async fn loads(api: &Api, processes: &[u32], operation: &str, request: &Request<'_>) -> Figures {
    let mut figures = Figures::new();
    for clients in CLIENTS {
        let load = load(api, processes, clients, request).await;
        let (low, high) = load.rates;
        figures.push((
            format!("{operation}, {clients} clients: requests/s, ms, CPU ms"),
            format!(
                "{:.0} ({low:.0}-{high:.0}), {:.1}, {:.2}",
                load.rate, load.median_ms, load.cpu_ms
            ),
        ));
    }
    figures
}

/// Measures memory, files and a restart, with an empty store and with a fixed number of objects.
fn states(program: Program, mut server: Server, objects: usize) -> Figures {
    let mut figures = Figures::new();
    let mut add = |measure: &str, result: String| figures.push((measure.to_owned(), result));
    std::thread::sleep(SETTLE);
    add("RSS with an empty store, MiB", server.resident_mib());
    add("files with an empty store, MiB", server.files_mib());
    let took = server.runtime.block_on(async {
        prepare(program, &server.api, &[NAMESPACE]).await;
        let begin = Instant::now();
        create_all(&server.api, NAMESPACE, objects).await;
        begin.elapsed()
    });
    add(
        &format!("{objects} objects: creation, s"),
        format!("{:.1}", took.as_secs_f64()),
    );
    let count = |server: &Server| server.runtime.block_on(count(&server.api));
    assert_eq!(count(&server), objects, "objects before the restart");
    std::thread::sleep(SETTLE);
    add("then RSS, MiB", server.resident_mib());
    add("then files, MiB", server.files_mib());
    let begin = Instant::now();
    server.restart();
    server.runtime.block_on(server.api.done(server.api.list(1)));
    add(
        "restart until a list succeeds, s",
        format!("{:.1}", begin.elapsed().as_secs_f64()),
    );
    assert_eq!(count(&server), objects, "objects after the restart");
    std::thread::sleep(SETTLE);
    add("RSS after the restart, MiB", server.resident_mib());
    figures
}

/// Returns the number of objects in the namespace.
async fn count(api: &Api) -> usize {
    let page: Value = serde_json::from_slice(&api.done(api.list(1)).await).expect("a list");
    let remaining = page["metadata"]["remainingItemCount"]
        .as_u64()
        .unwrap_or_default();
    let listed = page["items"].as_array().expect("a list has items").len();
    listed + usize::try_from(remaining).expect("a number of objects")
}

/// Creates the kind, unless the server has it, and namespaces.
async fn prepare(program: Program, api: &Api, namespaces: &[&str]) {
    if matches!(program, Program::Kubernetes) {
        let definitions = std::fs::read_to_string(repository("manifests/crds.yaml")).expect("readable");
        for definition in definitions
            .split("\n---\n")
            .filter(|text| text.contains("\nkind:"))
        {
            let url = format!(
                "{}/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                api.base
            );
            let request = api.client.post(url).header(CONTENT_TYPE, "application/yaml");
            api.done(request.body(definition.to_owned())).await;
        }
        until("the kind", async || {
            let listed = api.list(1).send().await.map(|answer| answer.status());
            (listed.ok() == Some(StatusCode::OK)).then_some(())
        })
        .await;
    }
    for namespace in namespaces {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        api.done(
            api.client
                .post(format!("{}/api/v1/namespaces", api.base))
                .json(&body),
        )
        .await;
    }
}

/// Creates objects with a number of requests at a time that both servers accept.
async fn create_all(api: &Api, namespace: &str, count: usize) {
    let requests = stream::iter((0..count).map(|number| api.done(api.create(namespace, number))));
    let mut created = requests.buffer_unordered(WRITERS);
    while created.next().await.is_some() {}
}

async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(begin.elapsed() < START_MAX, "timed out waiting for {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Running API server with the program of its store.
struct Server {
    processes: Vec<Process>,
    /// Starts the processes again with the same data.
    commands: Vec<Command>,
    api: Api,
    runtime: tokio::runtime::Runtime,
    /// Directory of the store.
    data: PathBuf,
    /// Working directory of the processes; dropped last.
    scratch: Scratch,
}

impl Server {
    /// Starts the server with an empty store, and waits until it is ready.
    fn start(program: Program, binaries: &[PathBuf]) -> Self {
        let scratch = Scratch::new();
        let port = free_port();
        let base = format!("https://127.0.0.1:{port}");
        let (commands, data, authority, token) = match program {
            Program::Kubernetes => (
                kubernetes(binaries, &scratch, port),
                scratch.join("etcd"),
                scratch.join("certificates/apiserver.crt"),
                scratch.join("token"),
            ),
            Program::Rooflet => (
                vec![rooflet(&scratch, port)],
                scratch.join("data"),
                scratch.join("data/ca.pem"),
                scratch.join("data/token"),
            ),
        };
        let mut commands = commands;
        let processes = spawn(&mut commands, &scratch);
        let files = [&authority, &token, &scratch.join("kubeconfig")];
        let begin = Instant::now();
        while !files.iter().all(|file| file.is_file()) {
            assert!(begin.elapsed() < START_MAX, "{}", processes[0].log());
            std::thread::sleep(POLL_INTERVAL);
        }
        let token = std::fs::read_to_string(token).expect("readable");
        let authority = std::fs::read(authority).expect("readable");
        let server = Self {
            processes,
            commands,
            api: Api::with(&base, token.trim(), &authority),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
            data,
            scratch,
        };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&self) {
        self.runtime.block_on(until("the server being ready", async || {
            let ready = self.api.client.get(format!("{}/readyz", self.api.base));
            let status = ready.send().await.map(|answer| answer.status());
            (status.ok() == Some(StatusCode::OK)).then_some(())
        }));
    }

    /// Stops all processes and starts them again.
    fn restart(&mut self) {
        for process in self.processes.iter_mut().rev() {
            process.terminate();
        }
        self.processes = spawn(&mut self.commands, &self.scratch);
        self.wait_until_ready();
    }

    fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }

    fn files_mib(&self) -> String {
        (disk_bytes(&self.data) >> 20).to_string()
    }

    /// Returns the sum over the processes, and its parts if there are several.
    fn resident_mib(&self) -> String {
        let parts = self
            .pids()
            .into_iter()
            .map(|pid| Usage::of(pid).resident_bytes >> 20);
        let parts: Vec<u64> = parts.collect();
        let sum: u64 = parts.iter().sum();
        match parts.len() {
            1 => sum.to_string(),
            _ => format!("{sum} (etcd: {})", parts[0]),
        }
    }
}

fn spawn(commands: &mut [Command], scratch: &Scratch) -> Vec<Process> {
    commands
        .iter_mut()
        .enumerate()
        .map(|(index, command)| Process::run(command, &scratch.join(&format!("{index}.log"))))
        .collect()
}

fn rooflet(scratch: &Scratch, port: u16) -> Command {
    let mut command = Command::new(crate::harness::rooflet());
    command
        .args(["server", "--roles=apiserver"])
        .arg(format!("--data-dir={}", scratch.join("data").display()))
        .arg(format!("--listen=127.0.0.1:{port}"))
        .arg(format!(
            "--kubeconfig-out={}",
            scratch.join("kubeconfig").display()
        ));
    command
}

/// Returns the commands of etcd and kube-apiserver. etcd syncs each write, as rooflet does.
fn kubernetes(binaries: &[PathBuf], scratch: &Scratch, port: u16) -> Vec<Command> {
    let program = |name: &str| {
        let found = binaries
            .iter()
            .map(|directory| directory.join(name))
            .find(|file| file.is_file());
        Command::new(found.unwrap_or_else(|| panic!("{name} is not in {BINARIES}")))
    };
    let (client, peer) = (
        format!("http://127.0.0.1:{}", free_port()),
        format!("http://127.0.0.1:{}", free_port()),
    );
    let mut etcd = program("etcd");
    etcd.arg(format!("--data-dir={}", scratch.join("etcd").display()))
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .arg(format!("--initial-cluster=default={peer}"));
    let key = KeyPair::generate().expect("a key");
    let public_key = scratch.write("service-account.pub", &key.public_key_pem());
    let key = scratch.write("service-account.key", &key.serialize_pem());
    let tokens = scratch.write("tokens.csv", &format!("{TOKEN},admin,admin,system:masters\n"));
    scratch.write("token", TOKEN);
    // The other server writes this file when it is ready.
    scratch.write("kubeconfig", "");
    let mut api_server = program("kube-apiserver");
    let flags = [
        ("etcd-servers", client),
        ("bind-address", "127.0.0.1".to_owned()),
        ("secure-port", port.to_string()),
        ("cert-dir", scratch.join("certificates").display().to_string()),
        ("token-auth-file", tokens.display().to_string()),
        ("authorization-mode", "RBAC".to_owned()),
        (
            "service-account-issuer",
            "https://kubernetes.default.svc".to_owned(),
        ),
        ("service-account-key-file", public_key.display().to_string()),
        ("service-account-signing-key-file", key.display().to_string()),
        ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
    ];
    api_server.args(flags.map(|(flag, value)| format!("--{flag}={value}")));
    vec![etcd, api_server]
}

/// Returns the allocated space of the files in a directory.
fn disk_bytes(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let sizes = entries.map(|entry| {
        let entry = entry.expect("readable");
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            // A file was removed meanwhile.
            Err(_) => 0,
        }
    });
    sizes.sum()
}
