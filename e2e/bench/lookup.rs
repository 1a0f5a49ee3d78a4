//! Prompt lookup benchmark: its gain if an answer repeats its prompt, and its cost otherwise.
//!
//! Two workers with the guide, with and without prompt lookup, receive the same requests
//! alternately.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Http, Process, Scratch, eventually, free_port, repository};
use crate::stats::{Samples, head, row};

const ROUNDS: usize = 9;
/// Maximum numbers of draft tokens per step.
const DRAFT_TOKENS: [u32; 2] = [4, 16];
const QUESTIONS: [&str; 3] = [
    "What is rooflet?",
    "How do I add another Mac?",
    "What happens when a node goes away?",
];

/// Function that returns the turns of a conversation. The conversation ends with the question of
/// the given index.
type Turns<'a> = &'a dyn Fn(usize) -> Vec<String>;

pub(crate) fn run() {
    let scratch = Scratch::new();
    let plain = Worker::start(&scratch, None);
    let printed: Vec<String> = QUESTIONS
        .map(|question| plain.ask(&[question.to_owned()]).1)
        .into();
    let ask = |index: usize| QUESTIONS[index].to_owned();
    // A conversation that contains the same question and answer, and the question alone.
    let repeated = |index| vec![ask(index), printed[index].clone(), ask(index)];
    let alone = |index| vec![ask(index)];
    let workloads: [(&str, Turns<'_>); 2] = [("repeated", &repeated), ("new", &alone)];
    head(&[
        "answers",
        "draft tokens per step at most",
        "without, tokens/s",
        "with, tokens/s",
        "with / without",
        "draft tokens",
        "accepted",
    ]);
    for (name, turns) in workloads {
        for most in DRAFT_TOKENS {
            let drafting = Worker::start(&scratch, Some(most));
            let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            // Round 0 fills the prefix cache and is not measured.
            for round in 0..=ROUNDS {
                for index in 0..QUESTIONS.len() {
                    let (one, text) = plain.ask(&turns(index));
                    let (other, same) = drafting.ask(&turns(index));
                    assert_eq!(text, same);
                    if round > 0 {
                        without.push(one);
                        with.push(other);
                        ratios.push(other / one);
                    }
                }
            }
            row(&[
                name.to_owned(),
                most.to_string(),
                format!("{:.0}", Samples::new(without)),
                format!("{:.0}", Samples::new(with)),
                Samples::new(ratios).to_string(),
                drafting.metric("guessed"),
                drafting.metric("right"),
            ]);
        }
    }
}

struct Worker {
    http: Http,
    _process: Process,
}

impl Worker {
    fn start(scratch: &Scratch, draft_tokens: Option<u32>) -> Self {
        let port = free_port();
        let mut args = vec![
            "worker".to_owned(),
            format!("--model={}", repository("examples/models/guide").display()),
            format!("--listen=127.0.0.1:{port}"),
            "--name=guide".to_owned(),
        ];
        args.extend(draft_tokens.map(|tokens| format!("--prompt-lookup-tokens={tokens}")));
        let process = Process::start(args, &scratch.join("worker.log"));
        let http = Http::new(format!("http://127.0.0.1:{port}"));
        eventually("the worker being ready", || match http.get("/ready")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        });
        Self {
            http,
            _process: process,
        }
    }

    /// Returns tokens per second and the answer. The last turn is the user's.
    fn ask(&self, turns: &[String]) -> (f64, String) {
        let role = |index: usize| {
            if index.is_multiple_of(2) {
                "user"
            } else {
                "assistant"
            }
        };
        let messages: Vec<Value> = (0..)
            .zip(turns)
            .map(|(index, text)| json!({"role": role(index), "content": text}))
            .collect();
        let body = json!({"model": "guide", "messages": messages, "max_tokens": 200, "temperature": 0});
        let begin = Instant::now();
        let answer = self.http.post("/v1/chat/completions", &body).expect("a response");
        let seconds = begin.elapsed().as_secs_f64();
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        let tokens = answer["usage"]["completion_tokens"].as_f64().expect("a count");
        let text = answer["choices"][0]["message"]["content"].as_str().expect("text");
        (tokens / seconds, text.to_owned())
    }

    fn metric(&self, name: &str) -> String {
        let metrics = self.http.get("/metrics").expect("metrics").text;
        let name = format!("rooflet_worker_lookup_{name}_tokens_total ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.expect("the metric exists").to_owned()
    }
}
