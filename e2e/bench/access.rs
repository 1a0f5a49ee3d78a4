//! Cost of TLS and API keys on the request path: two fleets, one without both on loopback, and one with keys,
//! HTTPS at the gateway, and mutual TLS between gateway and agent. A third gateway rejects unknown keys.
//!
//! The fleets serve in turns, in many short rounds. The CPU time of their processes depends little on the load of
//! the machine, the wall time does.
//!
//! `ROOFLET_ACCESS_ROUNDS` is the number of rounds (default: 200). Each has some lists of models, one answer, and
//! in every second round the throughput of several streams.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::harness::{
    Cluster, Flood, Process, eventually, free_port, network_address, rooflet, with_unknown_key,
};
use crate::resident::Usage;
use crate::stats::{Samples, head, milliseconds, row};

const QUESTION: &str = "What is rooflet?";
const ROUNDS: usize = 200;
const WARM_UP_ROUNDS: usize = 5;
/// Lists of models in a round, over one connection and over new connections.
const LISTS: usize = 40;
const CONNECTIONS: usize = 5;
/// Concurrent requests of the measurement of throughput.
const STREAMS: usize = 4;
const ANSWERS_PER_STREAM: usize = 2;
const MAX_TOKENS: usize = 64;
/// Connections and duration of a flood of requests.
const FLOOD_CONNECTIONS: usize = 4;
const FLOOD: Duration = Duration::from_secs(10);
/// Pause between two valid requests meanwhile.
const LIST_PAUSE: Duration = Duration::from_millis(10);
/// Duration of the measurement without a flood.
const QUIET: Duration = Duration::from_secs(3);
const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  model: {source: local://guide}
  serving: {name: guide, contextTokens: 512, maxConcurrency: 4}
  placement: {tolerations: [{operator: Exists}]}
";

pub(crate) fn run() {
    let Some(address) = network_address() else {
        println!("not run: this machine has only the loopback address");
        return;
    };
    let asked = std::env::var("ROOFLET_ACCESS_ROUNDS").ok();
    let rounds = asked.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    compare(rounds, &address);
    println!();
    reject();
}

/// Measures the requests of both fleets.
fn compare(rounds: usize, address: &str) {
    let (Some(plain), Some(secured)) = (Side::plain(), Side::secured(address)) else {
        return;
    };
    let sides = [plain, secured];
    // A list of models needs no replica: the rest is the cost of the connection and of the key.
    let (mut list, mut connect) = (Pairs::default(), Pairs::default());
    let (mut answer, mut throughput) = (Pairs::default(), Pairs::default());
    for round in 0..WARM_UP_ROUNDS + rounds.max(2) {
        let is_measured = round >= WARM_UP_ROUNDS;
        let pair = |pairs: &mut Pairs, requests: usize, once: &dyn Fn(&Side) -> f64| {
            let mut both = [Cost::default(); 2];
            // Each side is first equally often.
            for turn in 0..2 {
                let side = (pairs.0.len() + turn) % 2;
                both[side] = sides[side].cost(requests, once);
            }
            if is_measured {
                pairs.0.push(both);
            }
        };
        pair(&mut list, LISTS, &|side| {
            side.runtime.block_on(side.list(&side.client))
        });
        pair(&mut connect, CONNECTIONS, &|side| {
            side.runtime.block_on(side.list(&side.new_client()))
        });
        pair(&mut answer, 1, &|side| side.runtime.block_on(side.answer()));
        if round % 2 == 0 {
            pair(&mut throughput, 1, &Side::throughput);
        }
    }

    println!(
        "{rounds} rounds of {LISTS} lists, {CONNECTIONS} lists on new connections and one answer of {MAX_TOKENS} tokens \
         per fleet; in every second round {STREAMS} streams of {ANSWERS_PER_STREAM} answers. Median (p10-p90); \
         differences per round: median (95 % confidence interval of the median).\n"
    );
    head(&["measured", "plain", "TLS and key", "difference"]);
    let gateway = |cost: &Cost| milliseconds(cost.cpu.gateway);
    let service = |cost: &Cost| milliseconds(cost.cpu.gateway + cost.cpu.agent);
    let wall = |cost: &Cost| cost.figure;
    list.print("list of models, ms", &wall);
    list.print("list of models, CPU of the gateway, ms", &gateway);
    connect.print("list of models on a new connection, ms", &wall);
    connect.print(
        "list of models on a new connection, CPU of the gateway, ms",
        &gateway,
    );
    answer.print("answer of 64 tokens, ms", &wall);
    answer.print("answer of 64 tokens, CPU of gateway and agent, ms", &service);
    throughput.print("throughput, tokens/s", &wall);
    let all = |cost: &Cost| milliseconds(cost.cpu.gateway + cost.cpu.agent + cost.cpu.worker);
    throughput.print("the same answers, CPU of gateway and agent, ms", &service);
    throughput.print("the same answers, CPU of gateway, agent and worker, ms", &all);
    let ratio = throughput.samples(&|[plain, secured]| secured.figure / plain.figure);
    println!("\nThroughput with TLS and key / plain: {}", median(&ratio));
    // On a machine that computes all the time, the throughput falls by this share.
    let share =
        throughput.samples(&|[plain, secured]| (service(secured) - service(plain)) / all(plain) * 100.0);
    println!(
        "Additional CPU of gateway and agent, % of the CPU of the plain answers: {}",
        median(&share)
    );
}

/// Returns the text of a request to `ADDR:PORT`, which the number distinguishes.
type RequestText = fn(&str, u64) -> String;

/// Measures a gateway that receives requests with unknown keys.
fn reject() {
    head(&[
        "requests",
        "per second",
        "CPU of the gateway, us each",
        "per second of one core",
        "RSS of the gateway before, after, MiB",
        "list with a valid key: quiet, ms",
        "meanwhile, ms",
        "p99, ms",
    ]);
    let floods: [(&str, &str, RequestText, &str); 3] = [
        ("unknown key", "writes", with_unknown_key, "401"),
        ("unknown key, no audit log", "none", with_unknown_key, "401"),
        ("health, no key needed", "writes", health, "200"),
    ];
    for (name, audit, request, status) in floods {
        let started = start(&["--require-keys".to_owned(), format!("--audit={audit}")]);
        let Some(started) = started else { return };
        let address = started.address.clone();
        let side = Side::of_gateway(started);
        let list = || side.runtime.block_on(side.list(&side.client));
        let lists_for = |duration: Duration| {
            let begin = Instant::now();
            let mut times = Vec::new();
            while begin.elapsed() < duration {
                times.push(list());
                std::thread::sleep(LIST_PAUSE);
            }
            Samples::new(times)
        };
        let quiet = lists_for(QUIET);
        let rss = || Usage::of(side.pids.gateway).resident_bytes as f64 / f64::from(1 << 20);
        let rss_before = rss();
        let flood = Flood::start(&address, FLOOD_CONNECTIONS, request, status);
        let (begin, cpu, answered) = (Instant::now(), run_time(side.pids.gateway), flood.answered());
        let meanwhile = lists_for(FLOOD);
        let cpu = run_time(side.pids.gateway).saturating_sub(cpu);
        let (elapsed, answered) = (begin.elapsed(), (flood.answered() - answered) as f64);
        assert_eq!(flood.others(), 0, "responses with another status than {status}");
        row(&[
            name.to_owned(),
            format!("{:.0}", answered / elapsed.as_secs_f64()),
            format!("{:.1}", cpu.as_secs_f64() * 1e6 / answered),
            format!("{:.0}", answered / cpu.as_secs_f64()),
            format!("{rss_before:.1}, {:.1}", rss()),
            quiet.to_string(),
            meanwhile.to_string(),
            format!("{:.2}", meanwhile.quantile(0.99)),
        ]);
    }
}

/// Returns the text of a request that needs no key.
fn health(address: &str, _number: u64) -> String {
    format!("GET /health HTTP/1.1\r\nhost: {address}\r\n\r\n")
}

/// CPU time of the processes of a fleet.
#[derive(Debug, Clone, Copy, Default)]
struct CpuTimes {
    gateway: Duration,
    agent: Duration,
    worker: Duration,
}

impl CpuTimes {
    fn map2(self, other: Self, with: impl Fn(Duration, Duration) -> Duration) -> Self {
        Self {
            gateway: with(self.gateway, other.gateway),
            agent: with(self.agent, other.agent),
            worker: with(self.worker, other.worker),
        }
    }
}

/// Cost of one request.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// Milliseconds of wall time, or tokens per second.
    figure: f64,
    cpu: CpuTimes,
}

/// Costs of both sides, one pair per round.
#[derive(Debug, Default)]
struct Pairs(Vec<[Cost; 2]>);

impl Pairs {
    fn samples(&self, value: &dyn Fn(&[Cost; 2]) -> f64) -> Samples {
        Samples::new(self.0.iter().map(value))
    }

    fn print(&self, what: &str, value: &dyn Fn(&Cost) -> f64) {
        let column = |side: usize| format!("{:.3}", self.samples(&|both| value(&both[side])));
        let difference = self.samples(&|[plain, secured]| value(secured) - value(plain));
        row(&[what.to_owned(), column(0), column(1), median(&difference)]);
    }
}

/// Returns the text of a median and its confidence interval.
fn median(samples: &Samples) -> String {
    let (low, high) = samples.interval();
    format!("{:.3} ({low:.3} to {high:.3})", samples.median())
}

/// Returns the CPU time of a process.
fn run_time(pid: u32) -> Duration {
    match fs::read_dir(format!("/proc/{pid}/task")) {
        // Linux: in nanoseconds. A thread may end meanwhile.
        Ok(threads) => threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
            .filter_map(|text| text.split_whitespace().next()?.parse().ok())
            .map(Duration::from_nanos)
            .sum(),
        Err(_) => Usage::of(pid).cpu,
    }
}

/// Process ids of a fleet. The gateway of [`reject`] has neither agent nor worker.
#[derive(Debug)]
struct Pids {
    gateway: u32,
    agent: Option<u32>,
    worker: Option<u32>,
}

impl Pids {
    fn cpu(&self) -> CpuTimes {
        let of = |pid: Option<u32>| pid.map(run_time).unwrap_or_default();
        CpuTimes {
            gateway: run_time(self.gateway),
            agent: of(self.agent),
            worker: of(self.worker),
        }
    }
}

/// Fleet, and its client.
struct Side {
    url: String,
    key: Option<String>,
    /// Certificate of the gateway, in PEM.
    certificate: Option<String>,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    pids: Pids,
    _agent: Option<Process>,
    _started: Started,
}

impl Side {
    fn plain() -> Option<Self> {
        let started = start(&[])?;
        let agent = started.cluster.agent("mini-1", &[]);
        let url = format!("http://{}", started.address);
        Some(Self::start(started, agent, url, None, None))
    }

    fn secured(address: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        let files = ["certificate.pem", "key.pem"].map(|name| directory.path().join(name));
        std::fs::write(&files[0], &certificate).expect("writable");
        std::fs::write(&files[1], key.serialize_pem()).expect("writable");
        let started = start(&[
            "--require-keys".to_owned(),
            format!("--tls-cert={}", files[0].display()),
            format!("--tls-key={}", files[1].display()),
        ])?;
        let agent = joined_agent(&started.cluster, address);
        let key = create_key(&started.cluster);
        let url = format!("https://{}", started.address);
        Some(Self::start(started, agent, url, Some(key), Some(certificate)))
    }

    fn start(
        started: Started,
        agent: Process,
        url: String,
        key: Option<String>,
        certificate: Option<String>,
    ) -> Self {
        let kubectl = &started.cluster.kubectl;
        kubectl.apply(GUIDE).ok();
        kubectl.wait_for_condition("mdep/guide", "Ready", "True");
        let side = Self::new(started, Some(agent), url, key, certificate);
        eventually("an answer", || {
            side.runtime
                .block_on(side.chat(1))
                .map(drop)
                .map_err(|err| err.to_string())
        });
        side
    }

    /// Returns the gateway of a server without nodes, with a valid key.
    fn of_gateway(started: Started) -> Self {
        let key = create_key(&started.cluster);
        let url = format!("http://{}", started.address);
        let side = Self::new(started, None, url, Some(key), None);
        eventually("the key being valid", || {
            let request = side.with_key(side.client.get(format!("{}/v1/models", side.url)));
            let status = side.runtime.block_on(request.send());
            match status.map_err(|err| err.to_string())?.status() {
                status if status.is_success() => Ok(()),
                status => Err(status.to_string()),
            }
        });
        side
    }

    fn new(
        started: Started,
        agent: Option<Process>,
        url: String,
        key: Option<String>,
        certificate: Option<String>,
    ) -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        Self {
            url,
            key,
            client: new_client(certificate.as_deref()),
            certificate,
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime"),
            pids: Pids {
                gateway: started.gateway.pid(),
                agent: agent.as_ref().map(Process::pid),
                worker: started.cluster.workers("mini-1").first().copied(),
            },
            _agent: agent,
            _started: started,
        }
    }

    /// Returns the median figure of `once`, and the CPU time per request.
    fn cost(&self, requests: usize, once: &dyn Fn(&Self) -> f64) -> Cost {
        let before = self.pids.cpu();
        let figures = Samples::new((0..requests).map(|_| once(self)));
        let per_request = |after: Duration, before: Duration| {
            after.saturating_sub(before) / u32::try_from(requests).expect("few")
        };
        Cost {
            figure: figures.median(),
            cpu: self.pids.cpu().map2(before, per_request),
        }
    }

    fn new_client(&self) -> reqwest::Client {
        new_client(self.certificate.as_deref())
    }

    fn with_key(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Returns the milliseconds of a request that reaches only the gateway.
    async fn list(&self, client: &reqwest::Client) -> f64 {
        let request = self.with_key(client.get(format!("{}/v1/models", self.url)));
        let begin = Instant::now();
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), 200);
        response.bytes().await.expect("a body");
        milliseconds(begin.elapsed())
    }

    /// Returns the milliseconds of an answer.
    async fn answer(&self) -> f64 {
        let begin = Instant::now();
        self.chat(MAX_TOKENS).await.expect("an answer");
        milliseconds(begin.elapsed())
    }

    /// Returns the tokens per second of concurrent requests.
    fn throughput(&self) -> f64 {
        let begin = Instant::now();
        let streams = (0..STREAMS).map(|_| async {
            let mut tokens = 0;
            for _ in 0..ANSWERS_PER_STREAM {
                tokens += self.chat(MAX_TOKENS).await.expect("an answer");
            }
            tokens
        });
        let tokens: u64 = self
            .runtime
            .block_on(futures::future::join_all(streams))
            .iter()
            .sum();
        tokens as f64 / begin.elapsed().as_secs_f64()
    }

    /// Streams an answer, and returns the number of its tokens.
    async fn chat(&self, max_tokens: usize) -> Result<u64, reqwest::Error> {
        let body = json!({
            "model": "guide", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0,
            "max_tokens": max_tokens, "stream": true, "stream_options": {"include_usage": true},
        });
        let request = self.client.post(format!("{}/v1/chat/completions", self.url));
        let response = self
            .with_key(request)
            .json(&body)
            .send()
            .await?
            .error_for_status()?;
        let text = response.text().await?;
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
        Ok(events
            .filter_map(|event| event["usage"]["completion_tokens"].as_u64())
            .next_back()
            .unwrap_or_default())
    }
}

/// Creates an API key, and returns its secret.
fn create_key(cluster: &Cluster) -> String {
    let created = cluster.rooflet("key create bench");
    assert!(created.status.success(), "{created:?}");
    String::from_utf8_lossy(&created.stdout).trim().to_owned()
}

/// Control plane, and a gateway in a process of its own. The gateway ends first.
struct Started {
    gateway: Process,
    cluster: Cluster,
    /// `ADDR:PORT` of the gateway.
    address: String,
}

/// Starts a control plane, and a gateway with additional arguments.
fn start(args: &[String]) -> Option<Started> {
    let cluster = Cluster::start(&["--roles=apiserver,controller"])?;
    let address = format!("127.0.0.1:{}", free_port());
    let own = [
        "server".to_owned(),
        "--roles=gateway".to_owned(),
        "--access-log=off".to_owned(),
        format!("--data-dir={}", cluster.scratch.join("gateway").display()),
        format!("--kubeconfig={}", cluster.scratch.join("kubeconfig").display()),
        format!("--gateway-listen={address}"),
    ];
    let gateway = Process::start(own.iter().chain(args), &cluster.scratch.join("gateway.log"));
    Some(Started {
        cluster,
        gateway,
        address,
    })
}

fn new_client(certificate: Option<&str>) -> reqwest::Client {
    let builder = reqwest::Client::builder().no_proxy();
    let builder = match certificate {
        Some(pem) => {
            let certificate = reqwest::Certificate::from_pem(pem.as_bytes());
            builder.tls_certs_only([certificate.expect("a certificate")])
        }
        None => builder,
    };
    builder.build().expect("a client")
}

/// Joins a node, and starts its agent on an address of the network, which requires mutual TLS.
fn joined_agent(cluster: &Cluster, address: &str) -> Process {
    let server = format!("https://{}", cluster.address);
    let created = cluster.rooflet(&format!("token create --server={server}"));
    assert!(created.status.success(), "{created:?}");
    let state = format!("--state-dir={}", cluster.scratch.join("mini-1").display());
    let line = String::from_utf8_lossy(&created.stdout).into_owned();
    let joined = Command::new(rooflet())
        .args(line.split_whitespace().skip(1))
        .args(["--node-name=mini-1", &state])
        .output()
        .expect("the binary starts");
    assert!(joined.status.success(), "{joined:?}");
    let args = [
        "agent".to_owned(),
        state,
        format!("--model-dir={}", cluster.model_dir.display()),
        format!("--listen={address}:0"),
        "--no-probe".to_owned(),
    ];
    Process::start(args, &cluster.scratch.join("mini-1.log"))
}
