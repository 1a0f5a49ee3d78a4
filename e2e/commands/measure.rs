//! `rooflet bench` with real workers, and its errors for invalid targets.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Scratch, repository, rooflet};

const QUICK: &[&str] = &["--contexts=64", "--tokens=8", "--runs=2", "--output=json"];

fn bench(args: &[&str]) -> (Option<i32>, Value, String) {
    let output = Command::new(rooflet())
        .arg("bench")
        .args(args)
        .output()
        .expect("the binary starts");
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code(), report, reported)
}

#[test]
fn two_targets_are_compared() {
    let scratch = Scratch::new();
    let page = scratch.join("report.html");
    let guide = repository("examples/models/guide").display().to_string();
    let html = format!("--html={}", page.display());
    let mut args = vec![
        guide.as_str(),
        guide.as_str(),
        "--states=cold",
        "--concurrency=1,2",
        &html,
    ];
    args.extend(QUICK);
    let (code, report, reported) = bench(&args);
    assert_eq!(code, Some(0), "{reported}");
    let cells = report["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 2, "{report}");
    for (cell, at_once) in cells.iter().zip([1, 2]) {
        assert_eq!(cell["concurrency"], at_once);
        for target in cell["targets"].as_array().expect("targets") {
            let samples = target["samples"].as_array().expect("samples");
            assert_eq!(samples.len(), 2 * at_once, "{target}");
            assert!(
                samples.iter().all(|sample| sample["completionTokens"] == 8),
                "{target}"
            );
            // The server counts about as many tokens as requested.
            let prompt = target["promptTokens"].as_u64().expect("counted");
            assert!((48..=80).contains(&prompt), "{prompt}");
            let first = &target["metrics"]["timeToFirstTokenSeconds"]["median"];
            assert!(first["low"].as_f64() <= first["value"].as_f64(), "{first}");
        }
        let ratio = &cell["ratios"]["throughputTokensPerSecond"];
        // Two rounds are too few for a significant difference.
        assert_eq!(
            (ratio["rounds"].as_u64(), ratio["p"].as_f64() >= Some(0.5)),
            (Some(2), true),
            "{ratio}"
        );
    }
    let page = std::fs::read_to_string(page).expect("written");
    assert!(page.contains("<svg") && !page.contains("<script"), "{page}");
}

#[test]
fn invalid_targets_are_rejected() {
    let server = "http://127.0.0.1:9";
    for (args, status, words) in [
        (
            &["nowhere"][..],
            69,
            "neither an http:// or https:// URL nor a model directory",
        ),
        (&[server], 69, "no answer from http://127.0.0.1:9/v1/models"),
        (
            &["http://127.0.0.1:port"],
            2,
            "`http://127.0.0.1:port` is not a URL",
        ),
        (&["nowhere", "http://"], 2, "`http:` is not a URL"),
        (&[server, "--api-key=two\nlines"], 2, "--api-key"),
    ] {
        let (code, _, reported) = bench(args);
        assert_eq!(code, Some(status), "{reported}");
        assert!(reported.contains(words), "{reported}");
    }
}
