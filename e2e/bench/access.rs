//! Cost of TLS and API keys on the request path: two fleets, one without both on loopback, and one with keys,
//! HTTPS at the gateway, and mutual TLS between gateway and agent.
//!
//! `ROOFLET_ACCESS_ROUNDS` is the number of rounds (default: 1000), a tenth of them with answers.

use std::process::Command;
use std::time::Instant;

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::harness::{Cluster, Process, eventually, network_address, rooflet};
use crate::stats::{Samples, head, milliseconds, row};

const QUESTION: &str = "What is rooflet?";
const ROUNDS: usize = 1000;
const WARM_UP_ROUNDS: usize = 20;
/// Concurrent requests of the measurement of throughput.
const STREAMS: usize = 4;
const ANSWERS_PER_STREAM: usize = 8;
const MAX_TOKENS: usize = 64;
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
    let (Some(plain), Some(secured)) = (Side::plain(), Side::secured(&address)) else {
        return;
    };
    let sides = [plain, secured];

    // A list of models needs no replica: the rest is the cost of the connection and of the key.
    let list = measure(rounds, &sides, |side| {
        side.runtime.block_on(side.list(&side.client))
    });
    let connect = measure(rounds / 10, &sides, |side| {
        side.runtime.block_on(side.list(&side.new_client()))
    });
    let answer = measure(rounds / 10, &sides, |side| side.runtime.block_on(side.answer()));
    let throughput = measure(rounds / 100, &sides, Side::throughput);

    println!(
        "{rounds} rounds (a tenth with new connections and answers, a hundredth with {STREAMS} streams of \
         {ANSWERS_PER_STREAM} answers); median (p10-p90).\n"
    );
    head(&["measured", "plain", "TLS and key", "difference per round"]);
    for (what, seen) in [
        ("list of models, ms", &list),
        ("list of models on a new connection, ms", &connect),
        ("answer of 64 tokens, ms", &answer),
    ] {
        let column =
            |value: &dyn Fn(&[f64; 2]) -> f64| format!("{:.3}", Samples::new(seen.iter().map(value)));
        row(&[
            what.to_owned(),
            column(&|both| both[0]),
            column(&|both| both[1]),
            column(&|both| both[1] - both[0]),
        ]);
    }
    let column = |value: &dyn Fn(&[f64; 2]) -> f64| Samples::new(throughput.iter().map(value)).to_string();
    row(&[
        "throughput, tokens/s".to_owned(),
        column(&|both| both[0]),
        column(&|both| both[1]),
        format!("x {}", column(&|both| both[1] / both[0])),
    ]);
}

/// Measures both sides in each round. Each is first equally often.
fn measure(rounds: usize, sides: &[Side; 2], once: impl Fn(&Side) -> f64) -> Vec<[f64; 2]> {
    let mut seen = Vec::new();
    let warm_up = WARM_UP_ROUNDS.min(rounds);
    for round in 0..warm_up + rounds.max(2) {
        let mut both = [0.0; 2];
        for turn in 0..2 {
            let side = (round + turn) % 2;
            both[side] = once(&sides[side]);
        }
        if round >= warm_up {
            seen.push(both);
        }
    }
    seen
}

/// Fleet of one node, and its client.
struct Side {
    url: String,
    key: Option<String>,
    /// Certificate of the gateway, in PEM.
    certificate: Option<String>,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    _processes: (Process, Cluster),
}

impl Side {
    fn plain() -> Option<Self> {
        let (cluster, address) = start(&[])?;
        let agent = cluster.agent("mini-1", &[]);
        let url = format!("http://{address}");
        Some(Self::start(cluster, agent, url, None, None))
    }

    fn secured(address: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        let files = ["certificate.pem", "key.pem"].map(|name| directory.path().join(name));
        std::fs::write(&files[0], &certificate).expect("writable");
        std::fs::write(&files[1], key.serialize_pem()).expect("writable");
        let (cluster, gateway) = start(&[
            "--require-keys",
            &format!("--tls-cert={}", files[0].display()),
            &format!("--tls-key={}", files[1].display()),
        ])?;
        let agent = joined_agent(&cluster, address);
        let created = cluster.rooflet("key create bench");
        assert!(created.status.success(), "{created:?}");
        let key = String::from_utf8_lossy(&created.stdout).trim().to_owned();
        let url = format!("https://{gateway}");
        Some(Self::start(cluster, agent, url, Some(key), Some(certificate)))
    }

    fn start(
        cluster: Cluster,
        agent: Process,
        url: String,
        key: Option<String>,
        certificate: Option<String>,
    ) -> Self {
        cluster.kubectl.apply(GUIDE).ok();
        cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
        drop(rustls::crypto::ring::default_provider().install_default());
        let side = Self {
            url,
            key,
            client: new_client(certificate.as_deref()),
            certificate,
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime"),
            _processes: (agent, cluster),
        };
        eventually("an answer", || {
            side.runtime
                .block_on(side.chat(1))
                .map(drop)
                .map_err(|err| err.to_string())
        });
        side
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

/// Starts a server. Also returns the address of its gateway.
fn start(args: &[&str]) -> Option<(Cluster, String)> {
    let args = [&["--access-log=off"], args].concat();
    let mut gateway = String::new();
    let cluster = Cluster::with(&args, |args, log| {
        let mut listens = args
            .iter()
            .filter_map(|arg| arg.strip_prefix("--gateway-listen="));
        gateway = listens.next().expect("an address").to_owned();
        Process::start(args, log)
    })?;
    Some((cluster, gateway))
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
