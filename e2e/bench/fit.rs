//! Run time of `rooflet fit` for one local model.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::harness::rooflet;
use crate::stats::{Samples, head, milliseconds, row};

const ROUNDS: usize = 50;

/// Models. The second one has a configuration and no weights.
const MODELS: [&str; 2] = [
    "examples/models/guide",
    "e2e/fixtures/models/llama-4bit/config.json",
];

pub(crate) fn run() {
    println!("`rooflet fit MODEL` on a named Mac, {ROUNDS} runs each, alternating; median (p10-p90).\n");
    head(&["model", "run time, ms"]);
    let mut times = MODELS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (model, times) in MODELS.iter().zip(&mut times) {
            let begin = Instant::now();
            let status = Command::new(rooflet())
                .args(["fit", model, "--chip=Apple M4 Pro", "--memory=24Gi", "-o=json"])
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
                .stdout(Stdio::null())
                .status();
            assert!(status.is_ok_and(|status| status.success()), "{model}");
            times.push(milliseconds(begin.elapsed()));
        }
    }
    for (model, times) in MODELS.iter().zip(times) {
        row(&[(*model).to_owned(), Samples::new(times).to_string()]);
    }
}
