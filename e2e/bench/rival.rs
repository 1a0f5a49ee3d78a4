//! Comparison of `rooflet worker` and `mlx_lm.server`: the same model and requests, alternating.
//!
//! `ROOFLET_MLX_LM_PYTHON` is a Python interpreter with mlx-lm, and is required.
//! `ROOFLET_RIVAL_MODEL` is a model's directory (default: the guide), and `ROOFLET_RIVAL_ROUNDS`
//! the number of rounds (default: 7).

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Http, Scratch, eventually, free_port, rooflet};
use crate::resident::Usage;
use crate::stats::{Samples, head, milliseconds, row};

const PYTHON: &str = "ROOFLET_MLX_LM_PYTHON";
const MODEL: &str = "ROOFLET_RIVAL_MODEL";
const ROUNDS: &str = "ROOFLET_RIVAL_ROUNDS";
/// Tokens of the long answers, during which other requests join the batch.
const LONG_TOKENS: u32 = 1000;
const SHORT_TOKENS: u32 = 4;
/// Number of long streams in the batch when the seeded request is sent.
const BATCH: usize = 4;
/// Numbers of concurrent streams.
const STREAMS: [usize; 5] = [1, 2, 4, 8, 16];
/// Tokens of each stream's answer.
const STREAM_TOKENS: u32 = 96;
/// Characters of each prompt. For the models of `bench-roofline`, a character is a token.
const STREAM_CHARACTERS: usize = 1000;

/// A server under test; killed when dropped.
struct Server {
    child: Child,
    port: u16,
    model: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn run() {
    let Some(python) = std::env::var_os(PYTHON).map(PathBuf::from) else {
        println!("NOT RUN: set {PYTHON} to a Python interpreter with mlx-lm.");
        return;
    };
    let rounds = std::env::var(ROUNDS).map_or(7, |rounds| rounds.parse().expect("a number of rounds"));
    let scratch = Scratch::new();
    let given = std::env::var_os(MODEL).map(PathBuf::from);
    let of = given.unwrap_or_else(|| {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("examples/models/guide")
    });
    let model = endless(&of, scratch.path());
    let start: [&dyn Fn() -> Server; 2] = [&|| mlx_lm(&python, &model, scratch.path()), &|| worker(&model)];
    let mut figures: [Vec<Round>; 2] = Default::default();
    for round in 0..rounds {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            figures[which].push(Round::measure(start[which]));
        }
    }
    println!("{rounds} rounds, each with a new process; median (p10-p90).\n");
    head(&[
        "",
        "mlx_lm.server",
        "rooflet worker",
        "rooflet / mlx_lm, per round",
    ]);
    let line = |name: String, of: &dyn Fn(&Round) -> f64| {
        let column = |which: usize| Samples::new(figures[which].iter().map(of)).to_string();
        let ratios = figures[0]
            .iter()
            .zip(&figures[1])
            .map(|(mlx_lm, ours)| of(ours) / of(mlx_lm));
        row(&[name, column(0), column(1), Samples::new(ratios).to_string()]);
    };
    for (name, of) in MEASURES {
        line((*name).to_owned(), of);
    }
    for (index, streams) in STREAMS.into_iter().enumerate() {
        line(format!("tokens/s of {streams} streams"), &|round| {
            round.streams[index].tokens_per_second
        });
        line("first token, median, ms".to_owned(), &|round| {
            round.streams[index].first_ms
        });
        line("first token, 95th percentile, ms".to_owned(), &|round| {
            round.streams[index].slow_first_ms
        });
    }
    line("RSS at the end, MiB".to_owned(), &|round| round.end_mib);
}

/// Copies a model without its end token, so that answers have the requested length.
///
/// The guide's weights are float32. mlx-lm computes in the stored type, and MLX's CPU backend is
/// dozens of times slower with 16-bit types.
fn endless(of: &Path, directory: &Path) -> PathBuf {
    let model = directory.join("model");
    std::fs::create_dir(&model).expect("writable");
    for file in of.read_dir().expect("a model's directory") {
        let (path, name) = file
            .map(|file| (file.path(), file.file_name()))
            .expect("readable");
        if name == "config.json" || name == "tokenizer_config.json" {
            std::fs::copy(path, model.join(name)).expect("writable");
        } else if name != "generation_config.json" {
            let path = path.canonicalize().expect("a path");
            std::os::unix::fs::symlink(path, model.join(name)).expect("writable");
        }
    }
    for (file, field, value) in [
        ("config.json", "eos_token_id", json!([])),
        ("tokenizer_config.json", "eos_token", Value::Null),
    ] {
        let path = model.join(file);
        let text = std::fs::read_to_string(&path).expect("readable");
        let mut content: Value = serde_json::from_str(&text).expect("JSON");
        content[field] = value;
        std::fs::write(&path, content.to_string()).expect("writable");
    }
    model
}

type Measure = (&'static str, fn(&Round) -> f64);

const MEASURES: &[Measure] = &[
    ("start to the end of the first answer, ms", |round| round.start_ms),
    ("RSS after the first answer, MiB", |round| round.resident_mib),
    ("first token when idle, ms", |round| round.idle_first_ms),
    ("first token when idle, uncached prompt, ms", |round| {
        round.fresh_first_ms
    }),
    ("first token during a long answer, ms", |round| {
        round.joining_first_ms
    }),
    ("seeded answer, alone, ms", |round| round.seeded_alone_ms),
    ("seeded answer, behind 4 long ones, ms", |round| {
        round.seeded_behind_ms
    }),
];

/// Measurements of one process.
struct Round {
    start_ms: f64,
    resident_mib: f64,
    idle_first_ms: f64,
    fresh_first_ms: f64,
    joining_first_ms: f64,
    seeded_alone_ms: f64,
    seeded_behind_ms: f64,
    /// Results for each of [`STREAMS`].
    streams: Vec<Together>,
    end_mib: f64,
}

/// Measurements of concurrent streams.
struct Together {
    /// Tokens of all streams per second, from the first request to the end of the last answer.
    tokens_per_second: f64,
    first_ms: f64,
    /// 95th percentile; for fewer than 20 answers, the slowest.
    slow_first_ms: f64,
}

impl Together {
    fn measure(server: &Server, streams: usize) -> Self {
        let begin = Instant::now();
        let first: Vec<Duration> = std::thread::scope(|scope| {
            let ask = |number: usize| {
                let words = (0..STREAM_CHARACTERS).map(|at| format!("{number}. of {streams} says {at}, "));
                let mut question: String = words.collect();
                question.truncate(STREAM_CHARACTERS);
                let stream = server.ask(&question, STREAM_TOKENS, json!({}));
                let (first, rest) = stream.first();
                rest.finish();
                first
            };
            let asked: Vec<_> = (0..streams)
                .map(|number| scope.spawn(move || ask(number)))
                .collect();
            let first = asked.into_iter().map(|asked| asked.join().expect("a response"));
            first.collect()
        });
        let tokens = f64::from(STREAM_TOKENS) * streams as f64;
        let first = Samples::new(first.into_iter().map(milliseconds));
        Self {
            tokens_per_second: tokens / begin.elapsed().as_secs_f64(),
            first_ms: first.median(),
            slow_first_ms: first.quantile(0.95),
        }
    }
}

impl Round {
    fn measure(start: &dyn Fn() -> Server) -> Self {
        let begin = Instant::now();
        let server = start();
        let http = Http::new(format!("http://127.0.0.1:{}", server.port));
        let first = json!({"model": server.model, "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": SHORT_TOKENS});
        eventually("a first answer", || {
            match http.post("/v1/chat/completions", &first)? {
                answer if answer.status == 200 => Ok(()),
                answer => Err(answer.text),
            }
        });
        let start_ms = milliseconds(begin.elapsed());
        let resident_mib = resident_mib_of(&server);

        let short = |number: usize| {
            server.ask(
                &format!("a short question, number {number}"),
                SHORT_TOKENS,
                json!({}),
            )
        };
        short(0).finish();
        let (idle_first, rest) = short(1).first();
        rest.finish();
        let fresh = server.ask("Nobody has asked this before", SHORT_TOKENS, json!({}));
        let idle_first_ms = milliseconds(idle_first);
        let fresh_first_ms = milliseconds(fresh.first().0);
        let seeded = |number: usize| {
            let stream = server.ask(
                &format!("a seeded question, number {number}"),
                SHORT_TOKENS,
                json!({"seed": 7, "temperature": 0.8}),
            );
            milliseconds(stream.finish())
        };
        let seeded_alone_ms = seeded(1);

        let long = |number: usize| {
            let stream = server.ask(
                &format!("a long question, number {number}"),
                LONG_TOKENS,
                json!({}),
            );
            // The answer has started.
            stream.first().1
        };
        let under_way = long(0);
        let joining_first_ms = milliseconds(short(2).first().0);
        under_way.finish();
        let batch: Vec<Stream> = (1..=BATCH).map(long).collect();
        let seeded_behind_ms = seeded(2);
        drop(batch);
        let together = |streams| Together::measure(&server, streams);
        let streams = STREAMS.into_iter().map(together).collect();
        Self {
            start_ms,
            resident_mib,
            idle_first_ms,
            fresh_first_ms,
            joining_first_ms,
            seeded_alone_ms,
            seeded_behind_ms,
            streams,
            end_mib: resident_mib_of(&server),
        }
    }
}

fn resident_mib_of(server: &Server) -> f64 {
    Usage::of(server.child.id()).resident_bytes as f64 / f64::from(1 << 20)
}

fn mlx_lm(python: &Path, model: &Path, home: &Path) -> Server {
    let port = free_port();
    // mlx_lm.server lists models from a cache directory that must exist.
    std::fs::create_dir_all(home.join("hf/hub")).expect("writable");
    let child = Command::new(python)
        .args(["-m", "mlx_lm.server", "--port", &port.to_string(), "--model"])
        .arg(model)
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_HOME", home.join("hf"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("Python starts");
    Server {
        child,
        port,
        model: model.display().to_string(),
    }
}

fn worker(model: &Path) -> Server {
    let port = free_port();
    let child = Command::new(rooflet())
        .args([
            "worker",
            "--name=model",
            // The same limit as in mlx_lm.server.
            "--max-concurrency=32",
            &format!("--listen=127.0.0.1:{port}"),
            "--model",
        ])
        .arg(model)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    Server {
        child,
        port,
        model: "model".to_owned(),
    }
}

/// Answer that is being streamed.
struct Stream {
    begin: Instant,
    lines: BufReader<TcpStream>,
}

impl Server {
    fn ask(&self, question: &str, tokens: u32, more: Value) -> Stream {
        let mut body = json!({
            "model": self.model, "messages": [{"role": "user", "content": question}],
            "temperature": 0, "max_tokens": tokens, "stream": true,
        });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let body = body.to_string();
        let begin = Instant::now();
        loop {
            let mut lines = BufReader::new(self.send(&body));
            match lines.fill_buf() {
                Ok(_) => return Stream { begin, lines },
                // The server's listen backlog is full.
                Err(err) if err.kind() == ErrorKind::ConnectionReset => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(err) => panic!("no answer: {err}"),
            }
        }
    }

    fn send(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .expect("not zero");
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.1\r\nHost: server\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("the server reads");
        stream
    }
}

impl Stream {
    /// Waits for the first text.
    fn first(mut self) -> (Duration, Self) {
        while let Some(line) = self.line() {
            let event = line
                .trim_end()
                .strip_prefix("data: ")
                .and_then(|data| serde_json::from_str::<Value>(data).ok());
            let text =
                event.and_then(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned()));
            if text.is_some_and(|text| !text.is_empty()) {
                return (self.begin.elapsed(), self);
            }
        }
        panic!("the stream ended without text")
    }

    /// Waits for the end.
    fn finish(mut self) -> Duration {
        while let Some(line) = self.line() {
            if line.contains("[DONE]") {
                return self.begin.elapsed();
            }
        }
        panic!("the stream ended without [DONE]")
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).expect("a readable stream");
        (read > 0).then_some(line)
    }
}
