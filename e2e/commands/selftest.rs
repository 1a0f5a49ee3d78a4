//! `rooflet selftest` as a user runs it.

use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::rooflet;

fn selftest(args: &[&str]) -> Output {
    Command::new(rooflet())
        .arg("selftest")
        .args(args)
        .output()
        .expect("the binary starts")
}

#[test]
fn kernels_models_and_soak_pass_on_this_machine() {
    let output = selftest(&["--only=kernels,models,soak", "--soak=1s", "--output=json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(0), "{report} {errors}");
    assert_eq!(report["failed"], 0);
    let checks = report["checks"].as_array().expect("a list");
    let count = |group: &str| checks.iter().filter(|check| check["group"] == group).count();
    assert!(
        count("kernels") > 10 && count("models") > 15 && count("soak") == 3,
        "{report}"
    );
    let total = ["ok", "failed", "skipped"].map(|status| report[status].as_u64().expect("a number"));
    assert_eq!(total.iter().sum::<u64>(), checks.len() as u64);
    for check in checks.iter().filter(|check| check["group"] == "models") {
        let number = |field: &str| check[field].as_f64().expect("a number");
        assert!(number("difference") <= number("tolerance"), "{check}");
    }
}

#[test]
fn lines_state_difference_and_tolerance() {
    let output = selftest(&["--only=kernels"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let product = text.lines().find(|line| line.contains("product in float32"));
    let product = product.expect("a line for each check");
    assert!(
        product.starts_with("ok") && product.contains(" of 1.0e-4"),
        "{product}"
    );
    assert!(
        text.lines()
            .last()
            .is_some_and(|total| total.contains("0 failed")),
        "{text}"
    );
}

#[test]
fn contradicting_arguments_are_rejected() {
    let output = selftest(&["--only=kernels", "--soak=1m"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("--soak") && error.contains("--only"), "{error}");
}
