//! Thousands of mixed requests to one worker: right, wrong, broken and abandoned ones at the same time. Every right one
//! gets the text that it must get, every wrong one its own error, and nothing is left behind.
//!
//! Twice: with a model that follows a script, whose every answer is known beforehand, and with the guide, whose answers
//! depend on all that stood before and are those that it gives alone. What is sent follows a seed. `cargo xtask soak
//! --requests N` sends more than the tests do.

#![expect(clippy::print_stderr, reason = "what a test has to say of itself goes there")]

mod answers;
mod guide;
mod script;
mod wrong;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use self::answers::{Said, told};
use self::script::{Drawn, Question};
use crate::harness::{Http, Process, Scratch, eventually, free_port, repository};

const REQUESTS: &str = "ROOFLET_SOAK_REQUESTS";
const REQUESTS_IN_TESTS: usize = 600;
const CLIENTS: usize = 8;
const SEED: u64 = 11;
/// Parts of a run; between them the worker comes to rest and is measured.
const PARTS: usize = 4;

/// What a process may grow by from its first part to its last: buffers of allocators that are filled once. A leak of
/// 10 KiB for each of 10,000 requests is more.
const GROWTH_BYTES: u64 = 64 << 20;

/// The answers a guide gives alone.
type Alone = Vec<BTreeMap<u64, Said>>;

/// Who is asked.
enum Model {
    Script(Drawn),
    Guide(Alone),
}

#[test]
fn a_script_is_followed_to_the_letter() {
    let scratch = Scratch::new();
    let directory = scratch.join("model");
    std::fs::create_dir(&directory).expect("a directory");
    script::write(&directory);
    let subject = Subject::start("script", &directory, &scratch);
    subject.soak(Model::Script(Drawn::default()));
}

#[test]
fn mixed_requests_leave_nothing_behind() {
    let scratch = Scratch::new();
    let subject = Subject::start("guide", &repository("examples/models/guide"), &scratch);
    let alone = (0..guide::RIGHT)
        .map(|kind| {
            let (path, body) = guide::right(kind);
            let answer = subject.http.post(path, &body).expect("an answer");
            assert_eq!(answer.status, 200, "{body}: {}", answer.text);
            let choices = told(&answer).choices;
            // Of a call that must be made and is cut before its name, nothing is told.
            let empty = |said: &Said| said.text.is_empty() && said.calls.is_empty();
            let must_call = body["tool_choice"] == "required";
            assert!(
                must_call || !choices.values().all(empty),
                "{body}: {}",
                answer.text
            );
            choices
        })
        .collect();
    subject.soak(Model::Guide(alone));
}

/// A worker under test.
struct Subject {
    name: &'static str,
    port: u16,
    http: Http,
    worker: Process,
}

impl Subject {
    fn start(name: &'static str, model: &Path, scratch: &Scratch) -> Self {
        let port = free_port();
        let worker = Process::start(
            [
                "worker".to_owned(),
                format!("--model={}", model.display()),
                format!("--name={name}"),
                format!("--listen=127.0.0.1:{port}"),
                format!("--prefix-cache-dir={}", scratch.join("prefixes").display()),
                // Prefixes come and go between memory and disk.
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
            for (how, count) in self.storm(numbers, &model) {
                *counts.entry(how).or_default() += count;
            }
            self.at_rest();
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
        assert_eq!(self.http.get("/health").expect("an answer").status, 200);
    }

    /// Sends the requests of these numbers from several clients at once; panics at the first that gets a wrong answer.
    fn storm(&self, numbers: std::ops::Range<usize>, model: &Arc<Model>) -> Counts {
        let next = Arc::new(AtomicUsize::new(numbers.start));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (next, model, end) = (Arc::clone(&next), Arc::clone(model), numbers.end);
                let client = Client {
                    http: self.http.another(),
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
                        let how = client.one(&model, &mut random);
                        *counts.entry(how).or_default() += 1;
                    }
                })
            })
            .collect();
        let mut all = Counts::new();
        for client in clients {
            for (how, count) in client.join().expect("its requests were answered as they must") {
                *all.entry(how).or_default() += count;
            }
        }
        all
    }

    /// Waits until nothing runs or waits.
    fn at_rest(&self) {
        eventually("the worker being at rest", || {
            let status = self.http.get("/status")?.json();
            let requests = &status["requests"];
            if requests["running"] == 0 && requests["queued"] == 0 {
                Ok(())
            } else {
                Err(requests.to_string())
            }
        });
    }

    /// Resident bytes of the process, and what the engine holds.
    fn sizes(&self) -> (u64, u64) {
        let status = self.http.get("/status").expect("an answer").json();
        let engine = status["memory"]["activeBytes"].as_u64().expect("a number");
        let mut system = sysinfo::System::new();
        let pid = sysinfo::Pid::from_u32(self.worker.pid());
        system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), true);
        let resident = system.process(pid).expect("it runs").memory();
        (resident, engine)
    }
}

/// How many requests ended how.
type Counts = BTreeMap<&'static str, usize>;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

struct Client {
    http: Http,
    port: u16,
    /// The model's.
    name: &'static str,
}

/// A right request and how its answer is known to be.
enum Asked<'a> {
    Script(Box<Question>, &'a Drawn),
    Guide(&'a BTreeMap<u64, Said>),
}

impl Client {
    fn one(&self, model: &Model, random: &mut StdRng) -> &'static str {
        let (path, body, asked) = match model {
            Model::Script(drawn) => {
                let question = script::question(random);
                let (path, body) = (question.path, question.body.clone());
                (path, body, Asked::Script(Box::new(question), drawn))
            }
            Model::Guide(alone) => {
                let kind = random.random_range(0..alone.len());
                let (path, body) = guide::right(kind);
                (path, body, Asked::Guide(&alone[kind]))
            }
        };
        match random.random_range(0..10) {
            0..5 => self.ask(path, &body, &asked),
            5 | 6 => self.refused(random),
            7 => self.garbled(path, &body, random),
            8 => {
                // Half a body, then nobody.
                let body = body.to_string();
                let half = &body.as_bytes()[..random.random_range(1..body.len())];
                send(self.port, path, body.len(), half, 0);
                "broken off"
            }
            _ => self.abandoned(path, body, random),
        }
    }

    fn ask(&self, path: &str, body: &Value, asked: &Asked) -> &'static str {
        let answer = self.http.post(path, body).expect("an answer");
        if answer.status == 429 {
            assert!(answer.headers.contains_key("retry-after"), "{}", answer.text);
            return "refused for now";
        }
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
        let told = told(&answer);
        match asked {
            Asked::Script(question, drawn) => question.check(&told, drawn),
            Asked::Guide(alone) => assert_eq!(&told.choices, *alone, "{body}"),
        }
        "answered"
    }

    fn refused(&self, random: &mut StdRng) -> &'static str {
        let wrong = &wrong::WRONG[random.random_range(0..wrong::WRONG.len())];
        let body = wrong.body.replace("MODEL", self.name);
        let answer = self.http.post_text(wrong.path, &body).expect("an answer");
        assert_eq!(answer.status, wrong.status, "{body}: {}", answer.text);
        let error = &answer.json()["error"];
        assert!(error["message"].is_string(), "{body}: {}", answer.text);
        assert_eq!(error["param"].as_str(), wrong.param, "{body}: {}", answer.text);
        "refused"
    }

    /// Random bytes behind a valid beginning.
    fn garbled(&self, path: &str, body: &Value, random: &mut StdRng) -> &'static str {
        let mut bytes = body.to_string().into_bytes();
        bytes.truncate(random.random_range(0..bytes.len()));
        bytes.extend((0..random.random_range(1..200)).map(|_| random.random_range(b'!'..b'~')));
        let text = String::from_utf8(bytes).expect("ASCII");
        let answer = self.http.post_text(path, &text).expect("an answer");
        assert!((400..500).contains(&answer.status), "{text}: {}", answer.text);
        "garbled"
    }

    /// Gone while the answer comes, or is waited for.
    fn abandoned(&self, path: &str, mut body: Value, random: &mut StdRng) -> &'static str {
        let length = ["max_completion_tokens", "max_output_tokens", "max_tokens"]
            .into_iter()
            .find(|name| body.get(name).is_some())
            .expect("each has a length");
        body[length] = json!(500);
        let (stream, how) = match random.random_bool(0.7) {
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
        how
    }
}

/// Sends a part of a request, reads at most so many bytes of the answer, and goes.
fn send(port: u16, path: &str, length: usize, part: &[u8], read: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: worker\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.write_all(part).expect("it reads");
    let mut answer = vec![0; read];
    if read > 0 {
        // What it says does not matter to a client that goes.
        drop(stream.read(&mut answer));
    }
}
