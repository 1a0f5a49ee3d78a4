//! `rooflet claim`: standard errors, overheads, throughputs and batches of prompts.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Scratch, rooflet};

const MAC: &str = "
hardware: {chip: Apple M4 Pro, gpuCores: 20, memory: 24 GB}
model: {name: Qwen2.5-7B-Instruct-4bit}
";

/// Returns the exit code, and verdict and messages of a claim.
fn checked(scratch: &Scratch, claim: &str) -> (Option<i32>, String, String) {
    let file = scratch.write("claim.yaml", claim);
    let output = Command::new(rooflet())
        .args(["claim", "-o", "json", "-f"])
        .arg(&file)
        .output()
        .expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{err}"));
    let messages = json["findings"].as_array().into_iter().flatten();
    let messages: Vec<&str> = messages.filter_map(|one| one["message"].as_str()).collect();
    let verdict = json["verdict"].as_str().unwrap_or_default().to_owned();
    (output.status.code(), verdict, messages.join("\n"))
}

#[test]
fn compares_figures_of_a_claim_with_each_other() {
    let scratch = Scratch::new();
    for (figures, code, verdict, message) in [
        (
            "workload: {prompt: 4096, batch: 8}\nfigures: [{kind: prefillSeconds, value: 82 s}, \
             {kind: prefillTokensPerSecond, value: 400}]",
            0,
            "Plausible",
            "",
        ),
        (
            "workload: {prompt: 4096, batch: 8}\nfigures: [{kind: prefillSeconds, value: 82 s}, \
             {kind: prefillTokensPerSecond, value: 50}]",
            4,
            "MethodUnclear",
            "not the 32768 of all prompts",
        ),
        (
            "workload: {generated: 100}\nfigures: [{kind: throughputTokensPerSecond, value: 72}, \
             {kind: totalSeconds, value: 2 s}]",
            4,
            "Contradictory",
            "100 tokens in 2 s are 50 tok/s, not 72 tok/s",
        ),
        (
            "figures: [{kind: throughputGain, value: 1.2 % ± 2 %}]",
            4,
            "MethodUnclear",
            "below its own standard error",
        ),
        (
            "figures: [{name: overhead, kind: seconds, value: 215 ms}, {name: overhead, kind: ratio, value: 4.5 %}, \
             {kind: totalSeconds, value: 204.9 s}]",
            4,
            "Contradictory",
            "215 ms of 204.9 s are 0.105 %, not 4.5%",
        ),
        (
            "figures: [{kind: decodeTokensPerSecond, value: 120}]",
            4,
            "ExceedsRoofline",
            "it needs at least 2 accepted tokens per pass",
        ),
    ] {
        let (status, given, messages) = checked(&scratch, &format!("{MAC}{figures}\n"));
        assert_eq!(
            (status, given.as_str()),
            (Some(code), verdict),
            "{figures}: {messages}"
        );
        assert!(messages.contains(message), "{figures}: {messages}");
    }
}
