//! Time from the start of `rooflet up --apply --ask --exit` to the first byte of the answer.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Scratch, free_port, repository, rooflet};
use crate::stats::{Samples, head, row};

const RUNS: usize = 7;

pub(crate) fn run() {
    let scratch = Scratch::new();
    let fresh = once(&scratch);
    let warm: Vec<(Duration, Duration)> = (0..RUNS).map(|_| once(&scratch)).collect();
    head(&[
        "`rooflet up --apply --ask --exit`",
        "first byte, s",
        "process ended, s",
    ]);
    let seconds = |duration: Duration| format!("{:.2}", duration.as_secs_f64());
    row(&[
        "fresh data directory, once".to_owned(),
        seconds(fresh.0),
        seconds(fresh.1),
    ]);
    row(&[
        format!("warm data directory, {RUNS} runs"),
        Samples::new(warm.iter().map(|(first, _)| first.as_secs_f64())).to_string(),
        Samples::new(warm.iter().map(|(_, ended)| ended.as_secs_f64())).to_string(),
    ]);
}

/// Runs the command once. Returns the time to the first byte on stdout, and to the exit.
fn once(scratch: &Scratch) -> (Duration, Duration) {
    let begin = Instant::now();
    let mut up = Command::new(rooflet())
        .arg("up")
        .arg(format!("--data-dir={}", scratch.join("data").display()))
        .arg(format!("--model-dir={}", repository("examples/models").display()))
        .arg(format!("--apply={}", repository("examples/guide.yaml").display()))
        .arg(format!("--listen=127.0.0.1:{}", free_port()))
        .arg(format!("--gateway-listen=127.0.0.1:{}", free_port()))
        .arg("--web-listen=127.0.0.1:0")
        .args(["--node-name=node-1", "--ask=What is rooflet?", "--exit"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let mut answer = up.stdout.take().expect("stdout is piped");
    let mut byte = [0];
    answer.read_exact(&mut byte).expect("an answer");
    let first = begin.elapsed();
    let mut rest = String::new();
    answer.read_to_string(&mut rest).expect("the rest of the answer");
    assert!(up.wait().expect("a child process").success());
    (first, begin.elapsed())
}
