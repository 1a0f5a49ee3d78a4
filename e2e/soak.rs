//! Thousands of mixed requests to one worker: right, wrong, broken and abandoned ones at the same time. Every right one
//! gets the text it gets alone, every wrong one its own error, and nothing is left behind.
//!
//! What is sent follows a seed. `cargo xtask soak --requests N` sends more than the tests do.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::harness::{Answer, Http, Process, Scratch, eventually, free_port, repository};

const REQUESTS: &str = "ROOFLET_SOAK_REQUESTS";
const REQUESTS_IN_TESTS: usize = 600;
const CLIENTS: usize = 8;
const SEED: u64 = 11;

/// What a process may grow by while it serves: buffers of allocators that are filled once. A leak of 10 KiB for each of
/// 10,000 requests is more.
const GROWTH_BYTES: u64 = 64 << 20;

const QUESTIONS: [&str; 4] = [
    "What is rooflet?",
    "How do I install it?",
    "What does the agent do?",
    "Tell me about the roofline.",
];

/// Requests whose answer is known: the one that came when nothing else ran.
fn right(kind: usize) -> (&'static str, Value) {
    let question = QUESTIONS[kind % QUESTIONS.len()];
    let messages = json!([{"role": "user", "content": question}]);
    match kind / QUESTIONS.len() % 11 {
        0 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 20}),
        ),
        1 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 12, "stream": true}),
        ),
        2 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0.9, "top_p": 0.9, "seed": kind, "max_tokens": 9}),
        ),
        3 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "seed": 3, "n": 3, "max_tokens": 5, "logprobs": true,
                   "presence_penalty": 0.5, "logit_bias": {"7": -100}}),
        ),
        5 => (
            "/v1/completions",
            json!({"model": "guide", "prompt": format!("{}{question}", "rooflet serves models. ".repeat(60 + kind)),
                   "temperature": 0, "max_tokens": 5}),
        ),
        4 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "repetition_penalty": 1.3, "max_tokens": 15, "stream": true}),
        ),
        // The model was never taught to write JSON: what it says follows from the masks.
        7 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 20, "response_format": {
                "type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {
                    "type": "object", "additionalProperties": false, "required": ["a", "b"],
                    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 6 + kind}}}}}}),
        ),
        8 => (
            "/v1/chat/completions",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 30, "stream": kind.is_multiple_of(2),
                   "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {
                       "type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "maximum": 99, "minimum": 0}}}}}]}),
        ),
        9 => (
            "/v1/messages",
            json!({"model": "guide", "messages": messages, "temperature": 0, "max_tokens": 11}),
        ),
        10 => (
            "/v1/responses",
            json!({"model": "guide", "input": question, "temperature": 0, "max_output_tokens": 10}),
        ),
        _ => (
            "/v1/completions",
            json!({"model": "guide", "prompt": [question, "rooflet"], "temperature": 0, "max_tokens": 7, "stop": "."}),
        ),
    }
}
const RIGHT: usize = 44;

/// Bodies that no server can answer, and how they must be refused.
const WRONG: [(&str, u16); 12] = [
    ("", 400),
    ("{", 400),
    ("[1, 2]", 400),
    (r#"{"model": "guide"}"#, 400),
    (
        r#"{"model": "nobody", "messages": [{"role": "user", "content": "a"}]}"#,
        404,
    ),
    (r#"{"model": "guide", "messages": []}"#, 400),
    (
        r#"{"model": "guide", "messages": [{"role": "user", "content": 5}]}"#,
        400,
    ),
    (
        r#"{"model": "guide", "messages": [{"role": "user", "content": "a"}], "stop": 5}"#,
        400,
    ),
    (
        r#"{"model": "guide", "messages": [{"role": "user", "content": "a"}], "max_tokens": -1}"#,
        400,
    ),
    (
        r#"{"model": "guide", "messages": [{"role": "user", "content": "a"}], "temperature": "hot"}"#,
        400,
    ),
    (
        r#"{"model": "guide", "messages": [{"role": "user", "content": "\ud800"}]}"#,
        400,
    ),
    (
        r#"{"model": "guide", "messages": [{"role": "user", "content": "a"}], "nonsense": true}"#,
        400,
    ),
];

/// Texts of all choices, however they came.
fn texts(answer: &Answer) -> BTreeMap<u64, String> {
    let bodies: Vec<Value> = match answer.headers["content-type"].to_str() {
        Ok("text/event-stream") => answer
            .events()
            .iter()
            .filter(|event| *event != "[DONE]")
            .map(|event| serde_json::from_str(event).expect("JSON"))
            .collect(),
        _ => vec![answer.json()],
    };
    let mut texts = BTreeMap::<u64, String>::new();
    for choice in bodies
        .iter()
        .flat_map(|body| body["choices"].as_array().into_iter().flatten())
    {
        let text = texts
            .entry(choice["index"].as_u64().expect("an index"))
            .or_default();
        for piece in [
            &choice["message"]["content"],
            &choice["message"]["tool_calls"][0]["function"]["arguments"],
            &choice["delta"]["content"],
            &choice["delta"]["tool_calls"][0]["function"]["arguments"],
            &choice["text"],
        ] {
            text.push_str(piece.as_str().unwrap_or(""));
        }
    }
    for body in &bodies {
        for piece in [
            &body["content"][0]["text"],
            &body["output"][0]["content"][0]["text"],
        ] {
            if let Some(piece) = piece.as_str() {
                texts.entry(0).or_default().push_str(piece);
            }
        }
    }
    texts
}

#[test]
fn mixed_requests_leave_nothing_behind() {
    let requests: usize = std::env::var(REQUESTS).map_or(REQUESTS_IN_TESTS, |text| {
        text.parse()
            .unwrap_or_else(|err| panic!("{REQUESTS}={text}: {err}"))
    });
    let scratch = Scratch::new();
    let port = free_port();
    let worker = Process::start(
        [
            "worker".to_owned(),
            format!("--model={}", repository("examples/models/guide").display()),
            "--name=guide".to_owned(),
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
    let alone: Arc<Vec<_>> = Arc::new(
        (0..RIGHT)
            .map(|kind| {
                let (path, body) = right(kind);
                let answer = http.post(path, &body).expect("an answer");
                assert_eq!(answer.status, 200, "{body}: {}", answer.text);
                let texts = texts(&answer);
                assert!(
                    texts.values().any(|text| !text.is_empty()),
                    "{body}: {}",
                    answer.text
                );
                texts
            })
            .collect(),
    );
    // A first part fills what is filled once.
    let counts = storm(requests / 3, SEED, port, &alone);
    at_rest(&http);
    let before = sizes(&http, &worker);
    let more = storm(requests - requests / 3, SEED + 1, port, &alone);
    at_rest(&http);
    let after = sizes(&http, &worker);
    eprintln!(
        "{requests} requests: {counts:?}, then {more:?}; RSS and engine bytes {before:?}, then {after:?}"
    );
    for (before, after) in [(before.0, after.0), (before.1, after.1)] {
        assert!(after < before + GROWTH_BYTES, "{before} bytes grew to {after}");
    }
    assert_eq!(http.get("/health").expect("an answer").status, 200);
}

/// How many requests ended how.
type Counts = BTreeMap<&'static str, usize>;

/// Sends `requests` from several clients at once; panics at the first that gets a wrong answer.
fn storm(requests: usize, seed: u64, port: u16, alone: &Arc<Vec<BTreeMap<u64, String>>>) -> Counts {
    let next = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (next, alone) = (Arc::clone(&next), Arc::clone(alone));
            std::thread::spawn(move || {
                let http = Http::new(format!("http://127.0.0.1:{port}"));
                let mut counts = Counts::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= requests {
                        return counts;
                    }
                    let mut random = StdRng::seed_from_u64(seed << 32 | number as u64);
                    let how = one(&http, port, &alone, &mut random);
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

fn one(http: &Http, port: u16, alone: &[BTreeMap<u64, String>], random: &mut StdRng) -> &'static str {
    let kind = random.random_range(0..RIGHT);
    let (path, body) = right(kind);
    match random.random_range(0..10) {
        0..5 => {
            let answer = http.post(path, &body).expect("an answer");
            if answer.status == 429 {
                assert!(answer.headers.contains_key("retry-after"), "{}", answer.text);
                return "refused for now";
            }
            assert_eq!(answer.status, 200, "{body}: {}", answer.text);
            assert_eq!(texts(&answer), alone[kind], "{body}");
            "answered"
        }
        5 | 6 => {
            let (body, status) = WRONG[random.random_range(0..WRONG.len())];
            let answer = http.post_text("/v1/chat/completions", body).expect("an answer");
            assert_eq!(answer.status, status, "{body}: {}", answer.text);
            assert!(
                answer.json()["error"]["message"].is_string(),
                "{body}: {}",
                answer.text
            );
            "refused"
        }
        7 => {
            // Random bytes, now and then a valid beginning of them.
            let mut bytes = body.to_string().into_bytes();
            bytes.truncate(random.random_range(0..bytes.len()));
            bytes.extend((0..random.random_range(1..200)).map(|_| random.random_range(b'!'..b'~')));
            let text = String::from_utf8(bytes).expect("ASCII");
            let answer = http.post_text(path, &text).expect("an answer");
            assert!((400..500).contains(&answer.status), "{text}: {}", answer.text);
            "garbled"
        }
        8 => {
            // Half a body, then nobody.
            let body = body.to_string();
            let half = &body[..random.random_range(1..body.len())];
            send(port, path, body.len(), half, 0);
            "broken off"
        }
        _ => {
            // Gone while the answer comes.
            let mut body = body;
            body["stream"] = json!(true);
            body["max_tokens"] = json!(500);
            let body = body.to_string();
            send(port, path, body.len(), &body, random.random_range(0..2000));
            "abandoned"
        }
    }
}

/// Sends a part of a request, reads at most so many bytes of the answer, and goes.
fn send(port: u16, path: &str, length: usize, part: &str, read: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: worker\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{part}"
    )
    .expect("it reads");
    let mut answer = vec![0; read];
    if read > 0 {
        // What it says does not matter to a client that goes.
        drop(stream.read(&mut answer));
    }
}

/// Waits until nothing runs or waits.
fn at_rest(http: &Http) {
    eventually("the worker being at rest", || {
        let status = http.get("/status")?.json();
        let requests = &status["requests"];
        if requests["running"] == 0 && requests["queued"] == 0 {
            Ok(())
        } else {
            Err(requests.to_string())
        }
    });
}

/// Resident bytes of the process, and what the engine holds.
fn sizes(http: &Http, worker: &Process) -> (u64, u64) {
    let status = http.get("/status").expect("an answer").json();
    let engine = status["memory"]["activeBytes"].as_u64().expect("a number");
    let mut system = sysinfo::System::new();
    let pid = sysinfo::Pid::from_u32(worker.pid());
    system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), true);
    let resident = system.process(pid).expect("it runs").memory();
    (resident, engine)
}
