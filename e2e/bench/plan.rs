//! Run time of `rooflet plan` for 500 Macs of ten kinds and 100 models, also with `--recommend`.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::harness::{Scratch, rooflet};
use crate::stats::{Samples, head, row};

const RUNS: usize = 7;
/// Number of demands for which the bound is compared with the result.
const SEEDS: u64 = 30;
const MODELS: usize = 100;
/// Ten kinds of Macs, 500 Macs in total: chip, GPU cores, memory, count.
const MACS: [(&str, u32, &str, u32); 10] = [
    ("M4", 10, "16Gi", 120),
    ("M4", 10, "24Gi", 60),
    ("M4", 10, "32Gi", 60),
    ("M3", 10, "24Gi", 40),
    ("M4 Pro", 16, "24Gi", 50),
    ("M4 Pro", 20, "48Gi", 60),
    ("M4 Max", 40, "64Gi", 40),
    ("M4 Max", 40, "128Gi", 30),
    ("M3 Ultra", 60, "96Gi", 20),
    ("M3 Ultra", 80, "256Gi", 20),
];
/// Catalogue: name, chip, GPU cores, memory, price.
const OFFERS: [(&str, &str, u32, &str, u32); 4] = [
    ("mini-32", "M4", 10, "32Gi", 999),
    ("mini-pro", "M4 Pro", 20, "48Gi", 1999),
    ("studio", "M4 Max", 40, "64Gi", 2999),
    ("ultra", "M3 Ultra", 60, "96Gi", 3999),
];
const NAMES: [&str; 16] = [
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "llama3.2-3b",
    "llama3-8b",
    "llama3-70b",
    "gemma3-12b",
    "gemma2-27b",
    "phi-4",
    "mistral-7b",
    "mistral-small-24b",
    "gpt-oss-20b",
];

pub(crate) fn run() {
    let scratch = Scratch::new();
    head(&[
        "`rooflet plan`, 500 Macs, 100 models",
        "s",
        "carried",
        "no placement carries more than",
    ]);
    for (name, scale) in [
        ("half the demand", 0.5),
        ("the demand", 1.0),
        ("three times the demand", 3.0),
    ] {
        let file = scratch.write("plan.yaml", &plan(scale, 1));
        let runs: Vec<(f64, Value)> = (0..RUNS).map(|_| once(&file, &[])).collect();
        let verdict = &runs[0].1;
        let times = |field: &str| format!("{:.3} times", verdict[field].as_f64().expect("a number"));
        row(&[
            format!("{name}, {RUNS} runs"),
            Samples::new(runs.iter().map(|(seconds, _)| *seconds)).to_string(),
            times("demandFactor"),
            times("demandFactorBound"),
        ]);
    }
    gaps(&scratch);
    head(&[
        "`--recommend`, four offers",
        "s",
        "lowest price found",
        "lower bound",
    ]);
    for (name, scale) in [
        ("one and a half times the demand", 1.5),
        ("three times the demand", 3.0),
    ] {
        let file = scratch.write("plan.yaml", &plan(scale, 1));
        let runs: Vec<(f64, Value)> = (0..RUNS).map(|_| once(&file, &["--recommend"])).collect();
        let purchase = &runs[0].1["purchase"];
        let price = |price: &Value| format!("{:.0}", price.as_f64().expect("a number"));
        row(&[
            format!("{name}, {RUNS} runs"),
            Samples::new(runs.iter().map(|(seconds, _)| *seconds)).to_string(),
            price(&purchase["best"]["price"]),
            price(&purchase["lowerBound"]),
        ]);
    }
}

/// Prints the gap between the result and its upper bound over many random demands.
fn gaps(scratch: &Scratch) {
    head(&["demands of seeds 1 to 30", "median", "worst"]);
    let gap = |seed: u64| {
        let verdict = once(&scratch.write("plan.yaml", &plan(1.0, seed)), &[]).1;
        let factor = |field: &str| verdict[field].as_f64().expect("a number");
        100.0 * (factor("demandFactorBound") / factor("demandFactor") - 1.0)
    };
    let mut gaps: Vec<f64> = (1..=SEEDS).map(gap).collect();
    gaps.sort_by(f64::total_cmp);
    let percent = |at: usize| format!("{:.1} %", gaps[at]);
    row(&[
        "gap between result and bound".to_owned(),
        percent(gaps.len() / 2),
        percent(gaps.len() - 1),
    ]);
}

/// Runs `rooflet plan` once. Returns the run time in seconds and the verdict.
fn once(file: &Path, more: &[&str]) -> (f64, Value) {
    let begin = Instant::now();
    let output = Command::new(rooflet())
        .args(["plan", "-o", "json", "-f"])
        .arg(file)
        .args(more)
        .output()
        .expect("the binary starts");
    let seconds = begin.elapsed().as_secs_f64();
    let reported = String::from_utf8_lossy(&output.stderr);
    (
        seconds,
        serde_json::from_slice(&output.stdout).unwrap_or_else(|err| panic!("{err}: {reported}")),
    )
}

/// Returns a random plan. The numbers come from a linear congruential generator with Knuth's
/// constants, so equal seeds return equal plans.
fn plan(scale: f64, seed: u64) -> String {
    let mut state = seed;
    let mut next = |many: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % many
    };
    let mut text = String::from(
        "apiVersion: rooflet.dev/v1alpha1\nkind: CapacityPlan\nmetadata: {name: large}\nspec:\n  demand:\n",
    );
    for index in 0..MODELS {
        let name = NAMES[next(NAMES.len())];
        let rate = scale * [0.05, 0.1, 0.2, 0.4][next(4)];
        let (prompt, answer) = ([300, 800, 1500, 4000][next(4)], [80, 200, 400][next(3)]);
        let replicas = 1 + next(2);
        writeln!(
            text,
            "    - {{name: team-{index}, model: {name}, quantization: mlx4, requestsPerSecond: {rate}, promptTokens: {prompt}, \
             answerTokens: {answer}, contextTokens: 8192, replicas: {replicas}}}"
        )
        .expect("writing into a String cannot fail");
    }
    text += "  fleet:\n    macs:\n";
    for (chip, cores, memory, count) in MACS {
        writeln!(
            text,
            "      - {{chip: {chip}, gpuCores: {cores}, memory: {memory}, count: {count}}}"
        )
        .expect("writing into a String cannot fail");
    }
    text += "  catalogue:\n";
    for (name, chip, cores, memory, price) in OFFERS {
        writeln!(
            text,
            "    - {{name: {name}, chip: {chip}, gpuCores: {cores}, memory: {memory}, price: {price}}}"
        )
        .expect("writing into a String cannot fail");
    }
    text
}
