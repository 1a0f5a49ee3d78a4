//! HTTP overhead: the same streamed greedy answer through gateway, agent and worker; from a worker
//! alone; and from the engine in this process.
//!
//! `ROOFLET_OVERHEAD_MODEL` is a model's directory (default: the guide), and
//! `ROOFLET_OVERHEAD_ROUNDS` the number of rounds (default: 150).

use std::path::PathBuf;
use std::time::Instant;

use rooflet::bench::BareEngine;
use serde_json::{Value, json};

use crate::harness::{Fleet, Http, Options, Process, Scratch, eventually, free_port, repository};
use crate::stats::{Samples, head, milliseconds, row};

const QUESTION: &str = "What is rooflet?";
const MAX_TOKENS: usize = 64;
const WARM_UP_ROUNDS: usize = 10;
const ROUNDS: usize = 150;
const NAME: &str = "model";

/// Answer with its latencies at the client.
struct Timed {
    text: String,
    first_ms: f64,
    total_ms: f64,
}

pub(crate) fn run() {
    let named = std::env::var_os("ROOFLET_OVERHEAD_MODEL").map(PathBuf::from);
    let model = named.unwrap_or_else(|| repository("examples/models/guide"));
    let asked = std::env::var("ROOFLET_OVERHEAD_ROUNDS").ok();
    let total = asked.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    let scratch = Scratch::new();
    let manifest = scratch.join("model.yaml");
    let deployment = json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": NAME},
        "spec": {"model": {"source": format!("file://{}", model.display())}},
    });
    std::fs::write(&manifest, deployment.to_string()).expect("room");
    let fleet = Fleet::with(Options {
        args: vec![format!("--apply={}", manifest.display())],
        ..Options::default()
    });
    let port = free_port();
    let worker = Process::start(
        [
            "worker".to_owned(),
            format!("--model={}", model.display()),
            format!("--listen=127.0.0.1:{port}"),
            format!("--name={NAME}"),
        ],
        &fleet.scratch.join("worker.log"),
    );
    let direct = Http::new(format!("http://127.0.0.1:{port}"));
    eventually("the worker being ready", || match direct.get("/ready")? {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    });
    let through_gateway = Client::new(fleet.gateway_port);
    let to_worker = Client::new(port);
    let engine = BareEngine::load(model, 1).expect("a model");

    let mut tokens = 0;
    let mut bare = || {
        let answer = engine.chat(QUESTION, MAX_TOKENS).expect("an answer");
        tokens = answer.completion_tokens;
        Timed {
            text: answer.text,
            first_ms: milliseconds(answer.time_to_first_token),
            total_ms: milliseconds(answer.total),
        }
    };
    let mut rounds = Vec::new();
    for round in 0..WARM_UP_ROUNDS + total {
        // Each path is first, second and last equally often.
        let mut seen = [None, None, None];
        for turn in 0..3 {
            let path = (round + turn) % 3;
            seen[path] = Some(match path {
                0 => bare(),
                1 => to_worker.ask(),
                _ => through_gateway.ask(),
            });
        }
        let seen = seen.map(|seen| seen.expect("every path was measured"));
        assert!(
            seen.iter().all(|other| other.text == seen[0].text),
            "the texts differ"
        );
        if round >= WARM_UP_ROUNDS {
            rounds.push(seen);
        }
    }
    drop(worker);

    println!("{total} rounds, {tokens} tokens per answer; median (p10-p90).\n");
    head(&[
        "path",
        "first text, ms",
        "x engine",
        "whole answer, ms",
        "x engine",
    ]);
    let paths = ["engine, no HTTP", "worker over HTTP", "gateway, agent, worker"];
    let column = |value: &dyn Fn(&[Timed; 3]) -> f64| Samples::new(rounds.iter().map(value)).to_string();
    for (path, name) in paths.into_iter().enumerate() {
        row(&[
            name.to_owned(),
            column(&|seen| seen[path].first_ms),
            column(&|seen| seen[path].first_ms / seen[0].first_ms),
            column(&|seen| seen[path].total_ms),
            column(&|seen| seen[path].total_ms / seen[0].total_ms),
        ]);
    }
    println!("\nAdded per request, ms, compared with the engine in the same round:\n");
    head(&["path", "to the first text", "to the end"]);
    for (path, name) in paths.into_iter().enumerate().skip(1) {
        row(&[
            name.to_owned(),
            column(&|seen| seen[path].first_ms - seen[0].first_ms),
            column(&|seen| seen[path].total_ms - seen[0].total_ms),
        ]);
    }
}

/// Streaming client with one persistent connection.
struct Client {
    url: String,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    fn new(port: u16) -> Self {
        Self {
            url: format!("http://127.0.0.1:{port}/v1/chat/completions"),
            client: reqwest::Client::new(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
        }
    }

    fn ask(&self) -> Timed {
        self.runtime.block_on(self.ask_streaming()).expect("an answer")
    }

    async fn ask_streaming(&self) -> Result<Timed, reqwest::Error> {
        let body = json!({
            "model": NAME, "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0, "max_tokens": MAX_TOKENS, "stream": true,
        });
        let begin = Instant::now();
        let mut response = self
            .client
            .post(&self.url)
            .json(&body)
            .send()
            .await?
            .error_for_status()?;
        let (mut bytes, mut first_ms) = (Vec::new(), None);
        while let Some(chunk) = response.chunk().await? {
            bytes.extend_from_slice(&chunk);
            if first_ms.is_none() && !text_in(&bytes).is_empty() {
                first_ms = Some(milliseconds(begin.elapsed()));
            }
        }
        let total_ms = milliseconds(begin.elapsed());
        let text = text_in(&bytes);
        Ok(Timed {
            text,
            first_ms: first_ms.unwrap_or(total_ms),
            total_ms,
        })
    }
}

/// Returns the text of the complete server-sent events in `bytes`.
fn text_in(bytes: &[u8]) -> String {
    let stream = String::from_utf8_lossy(bytes);
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let parsed = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    parsed
        .filter_map(|event| {
            event["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect()
}
