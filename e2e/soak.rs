//! Soak test: one worker receives valid, invalid, garbled and abandoned requests at the same time.
//!
//! Every valid request must return the expected text, and every invalid request the expected error.
//! The process must not leak memory. The test runs with two models:
//!
//! - a scripted model, whose answers are computed from the script;
//! - the guide, whose answers must equal those of an idle worker.
//!
//! Requests are generated from a fixed seed. `cargo xtask soak --requests N` sends more requests
//! than the tests do.

#![expect(clippy::print_stderr, reason = "tests report their figures on stderr")]

mod guide;
mod invalid;
mod parsed_answer;
mod script;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use self::parsed_answer::{Choice, parse};
use self::script::{Question, SeededTexts};
use crate::harness::{Http, Process, Scratch, eventually, free_port, repository};

const REQUESTS: &str = "ROOFLET_SOAK_REQUESTS";
const REQUESTS_IN_TESTS: usize = 600;
const CLIENTS: usize = 8;
const SEED: u64 = 11;
/// Number of parts of a run. After each part, the worker becomes idle and its memory is measured.
const PARTS: usize = 4;

/// Maximum memory growth from the first part to the last, for allocators' buffers. A leak of 10 KiB
/// per request over 10,000 requests exceeds it.
const GROWTH_BYTES: u64 = 64 << 20;

/// Answers of the guide on an idle worker, by request kind.
type ReferenceAnswers = Vec<BTreeMap<u64, Choice>>;

/// Model under test, with its expected answers.
enum Model {
    Script(SeededTexts),
    Guide(ReferenceAnswers),
}

#[test]
fn answers_equal_the_script() {
    let scratch = Scratch::new();
    let directory = scratch.join("model");
    std::fs::create_dir(&directory).expect("a directory");
    script::write(&directory);
    let worker = TestWorker::start("script", &directory, &scratch);
    worker.soak(Model::Script(SeededTexts::default()));
}

#[test]
fn mixed_requests_leak_nothing() {
    let scratch = Scratch::new();
    let worker = TestWorker::start("guide", &repository("examples/models/guide"), &scratch);
    let reference = (0..guide::REQUEST_KINDS)
        .map(|kind| {
            let (path, body) = guide::request(kind);
            let answer = worker.http.post(path, &body).expect("a response");
            assert_eq!(answer.status, 200, "{body}: {}", answer.text);
            let choices = parse(&answer).choices;
            // A required tool call that is cut off before its name leaves the answer empty.
            let empty = |choice: &Choice| choice.text.is_empty() && choice.calls.is_empty();
            let must_call = body["tool_choice"] == "required";
            assert!(
                must_call || !choices.values().all(empty),
                "{body}: {}",
                answer.text
            );
            choices
        })
        .collect();
    worker.soak(Model::Guide(reference));
}

/// A worker under test.
struct TestWorker {
    name: &'static str,
    port: u16,
    http: Http,
    worker: Process,
}

impl TestWorker {
    fn start(name: &'static str, model: &Path, scratch: &Scratch) -> Self {
        let port = free_port();
        let worker = Process::start(
            [
                "worker".to_owned(),
                format!("--model={}", model.display()),
                format!("--name={name}"),
                format!("--listen=127.0.0.1:{port}"),
                format!("--prefix-cache-dir={}", scratch.join("prefixes").display()),
                // Little memory, so that prefixes move between memory and disk.
                "--prefix-cache-memory=4Mi".to_owned(),
            ],
            &scratch.join("worker.log"),
        );
        let http = Http::new(format!("http://127.0.0.1:{port}"));
        eventually("the worker being ready", || match http.get("/ready")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        });
        Self {
            name,
            port,
            http,
            worker,
        }
    }

    fn soak(&self, model: Model) {
        let requests: usize = std::env::var(REQUESTS).map_or(REQUESTS_IN_TESTS, |text| {
            text.parse()
                .unwrap_or_else(|err| panic!("{REQUESTS}={text}: {err}"))
        });
        let model = Arc::new(model);
        let mut counts = Counts::new();
        let mut sizes = Vec::new();
        for part in 0..PARTS {
            let numbers = requests * part / PARTS..requests * (part + 1) / PARTS;
            for (outcome, count) in self.send_all(numbers, &model) {
                *counts.entry(outcome).or_default() += count;
            }
            self.wait_until_idle();
            sizes.push(self.sizes());
        }
        let (first, last) = (&sizes[0], &sizes[PARTS - 1]);
        eprintln!(
            "{}, {requests} requests: {counts:?}; after the first quarter and at the end: RSS {:.1} and {:.1} MiB, \
             MLX active {:.2} and {:.2} MiB",
            self.name,
            mib(first.0),
            mib(last.0),
            mib(first.1),
            mib(last.1),
        );
        for (before, after) in [(first.0, last.0), (first.1, last.1)] {
            assert!(after < before + GROWTH_BYTES, "{before} bytes grew to {after}");
        }
        assert_eq!(self.http.get("/health").expect("a response").status, 200);
    }

    /// Sends the requests of these numbers from several clients at once. Panics at the first
    /// unexpected answer.
    fn send_all(&self, numbers: std::ops::Range<usize>, model: &Arc<Model>) -> Counts {
        let next = Arc::new(AtomicUsize::new(numbers.start));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (next, model, end) = (Arc::clone(&next), Arc::clone(model), numbers.end);
                let client = Client {
                    http: self.http.duplicate(),
                    port: self.port,
                    name: self.name,
                };
                std::thread::spawn(move || {
                    let mut counts = Counts::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= end {
                            return counts;
                        }
                        let mut random = StdRng::seed_from_u64(SEED << 32 | number as u64);
                        let outcome = client.send_one(&model, &mut random);
                        *counts.entry(outcome).or_default() += 1;
                    }
                })
            })
            .collect();
        let mut all = Counts::new();
        for client in clients {
            for (outcome, count) in client.join().expect("every answer is as expected") {
                *all.entry(outcome).or_default() += count;
            }
        }
        all
    }

    /// Waits until no request is running or queued.
    fn wait_until_idle(&self) {
        eventually("an idle worker", || {
            let status = self.http.get("/status")?.json();
            let requests = &status["requests"];
            if requests["running"] == 0 && requests["queued"] == 0 {
                Ok(())
            } else {
                Err(requests.to_string())
            }
        });
    }

    /// Returns the resident bytes of the process, and the bytes allocated by MLX.
    fn sizes(&self) -> (u64, u64) {
        let status = self.http.get("/status").expect("a response").json();
        let engine = status["memory"]["activeBytes"].as_u64().expect("a number");
        let mut system = sysinfo::System::new();
        let pid = sysinfo::Pid::from_u32(self.worker.pid());
        system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), true);
        let resident = system.process(pid).expect("the worker runs").memory();
        (resident, engine)
    }
}

/// Number of requests by outcome.
type Counts = BTreeMap<&'static str, usize>;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

struct Client {
    http: Http,
    port: u16,
    /// Name of the model.
    name: &'static str,
}

/// Expected answer of a valid request.
enum Expectation<'a> {
    Script(Box<Question>, &'a SeededTexts),
    Guide(&'a BTreeMap<u64, Choice>),
}

impl Client {
    fn send_one(&self, model: &Model, random: &mut StdRng) -> &'static str {
        let (path, body, expectation) = match model {
            Model::Script(seeded) => {
                let question = script::question(random);
                let (path, body) = (question.path, question.body.clone());
                (path, body, Expectation::Script(Box::new(question), seeded))
            }
            Model::Guide(reference) => {
                let kind = random.random_range(0..reference.len());
                let (path, body) = guide::request(kind);
                (path, body, Expectation::Guide(&reference[kind]))
            }
        };
        match random.random_range(0..10) {
            0..5 => self.send_valid(path, &body, &expectation),
            5 | 6 => self.send_invalid(random),
            7 => self.send_garbled(path, &body, random),
            8 => {
                // Part of a body, then a closed connection.
                let body = body.to_string();
                let half = &body.as_bytes()[..random.random_range(1..body.len())];
                send(self.port, path, body.len(), half, 0);
                "truncated"
            }
            _ => self.send_abandoned(path, body, random),
        }
    }

    fn send_valid(&self, path: &str, body: &Value, expectation: &Expectation) -> &'static str {
        let answer = self.http.post(path, body).expect("a response");
        if answer.status == 429 {
            assert!(answer.headers.contains_key("retry-after"), "{}", answer.text);
            return "rejected with 429";
        }
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
        let parsed = parse(&answer);
        match expectation {
            Expectation::Script(question, seeded) => question.check(&parsed, seeded),
            Expectation::Guide(reference) => assert_eq!(&parsed.choices, *reference, "{body}"),
        }
        "answered"
    }

    fn send_invalid(&self, random: &mut StdRng) -> &'static str {
        let invalid = &invalid::INVALID_REQUESTS[random.random_range(0..invalid::INVALID_REQUESTS.len())];
        let body = invalid.body.replace("MODEL", self.name);
        let answer = self.http.post_text(invalid.path, &body).expect("a response");
        assert_eq!(answer.status, invalid.status, "{body}: {}", answer.text);
        let error = &answer.json()["error"];
        assert!(error["message"].is_string(), "{body}: {}", answer.text);
        assert_eq!(error["param"].as_str(), invalid.param, "{body}: {}", answer.text);
        "rejected"
    }

    /// Sends a valid beginning followed by random bytes.
    fn send_garbled(&self, path: &str, body: &Value, random: &mut StdRng) -> &'static str {
        let mut bytes = body.to_string().into_bytes();
        bytes.truncate(random.random_range(0..bytes.len()));
        bytes.extend((0..random.random_range(1..200)).map(|_| random.random_range(b'!'..b'~')));
        let text = String::from_utf8(bytes).expect("ASCII");
        let answer = self.http.post_text(path, &text).expect("a response");
        assert!((400..500).contains(&answer.status), "{text}: {}", answer.text);
        "garbled"
    }

    /// Closes the connection while the answer is streamed, or before it starts.
    fn send_abandoned(&self, path: &str, mut body: Value, random: &mut StdRng) -> &'static str {
        let length = ["max_completion_tokens", "max_output_tokens", "max_tokens"]
            .into_iter()
            .find(|name| body.get(name).is_some())
            .expect("every request has a maximum length");
        body[length] = json!(500);
        let (stream, outcome) = match random.random_bool(0.7) {
            true => (true, "abandoned"),
            false => (false, "not waited for"),
        };
        body["stream"] = json!(stream);
        if !stream && let Some(body) = body.as_object_mut() {
            body.remove("stream_options");
        }
        let body = body.to_string();
        let read = if stream { random.random_range(0..2000) } else { 0 };
        send(self.port, path, body.len(), body.as_bytes(), read);
        outcome
    }
}

/// Sends the part `part` of a request with a body of `length` bytes, reads at most `read` bytes of
/// the response, and closes the connection.
fn send(port: u16, path: &str, length: usize, part: &[u8], read: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the worker listens");
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: worker\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("the worker reads");
    stream.write_all(part).expect("the worker reads");
    let mut answer = vec![0; read];
    if read > 0 {
        // The content does not matter to a client that disconnects.
        drop(stream.read(&mut answer));
    }
}
