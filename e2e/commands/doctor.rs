//! `rooflet doctor` as a user runs it: on this machine, and on the recording of a Mac.

use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Cluster, repository, rooflet};

fn doctor(args: &[&str]) -> Output {
    Command::new(rooflet())
        .arg("doctor")
        .args(args)
        .output()
        .expect("the binary starts")
}

fn statuses(report: &Value) -> Vec<(String, String)> {
    let checks = report["checks"].as_array().expect("a list");
    let text = |check: &Value, field: &str| check[field].as_str().expect("a text").to_owned();
    checks
        .iter()
        .map(|check| (text(check, "name"), text(check, "status")))
        .collect()
}

/// Users attach the report to public issues.
#[test]
fn report_contains_no_names_or_paths() {
    let directory = tempfile::tempdir().expect("a directory");
    let saved = directory.path().join("report.json");
    let saved = saved.to_str().expect("UTF-8");
    let models = repository("examples/models");
    let models = models.to_str().expect("UTF-8");
    let output = doctor(&[
        "--save",
        saved,
        "--model-dir",
        models,
        "--state-dir",
        "/nonexistent/agent",
    ]);
    let table = String::from_utf8_lossy(&output.stdout);
    // For an ordinary user, the check of a directory that only root may write to fails.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{table}");
    let text = std::fs::read_to_string(saved).expect("written");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let statuses = statuses(&report);
    for name in [
        "chip",
        "memory",
        "open files",
        "build",
        "engine",
        "product in bfloat16",
        "memory bandwidth",
        "worker processes",
        "addresses",
        "proxy",
        "model hub",
        "clock",
    ] {
        assert!(
            statuses.iter().any(|(found, _)| found == name),
            "{name} is missing: {statuses:?}"
        );
        assert!(table.contains(name), "{table}");
    }
    let kernels = statuses.iter().filter(|(name, _)| name.starts_with("product "));
    assert!(
        kernels.clone().count() == 4 && kernels.clone().all(|(_, status)| status == "ok"),
        "{statuses:?}"
    );
    let hostname = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    for private in [hostname.trim(), models, "/nonexistent"] {
        assert!(
            private.is_empty() || !text.contains(private),
            "{private} is in {text}"
        );
    }
}

#[test]
fn only_a_mac_has_daemons_of_launchd() {
    if cfg!(target_os = "macos") {
        return;
    }
    let output = doctor(&["--as-daemon"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("--as-daemon: only macOS has launchd"), "{error}");
}

#[test]
fn recordings_of_macs_are_checked_on_any_machine() {
    let fixture = |name: &str| repository(&format!("src/host/fixtures/facts/{name}.json"));
    let m4 = fixture("m4");
    let output = doctor(&["--recorded", m4.to_str().expect("UTF-8"), "-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let statuses = statuses(&report);
    assert!(
        statuses.contains(&("chip".to_owned(), "ok".to_owned())),
        "{statuses:?}"
    );
    // macOS 13 is too old for MLX.
    let old = fixture("m1-16gb");
    let output = doctor(&["--recorded", old.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("update macOS"));
    // Files that are not recordings.
    for file in ["README.md", "does-not-exist.json"] {
        let path = repository(file);
        let output = doctor(&["--recorded", path.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(78), "{file}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("--recorded") && error.contains(file), "{error}");
    }
}

#[test]
fn problems_of_the_api_server_are_reported_with_a_remedy() {
    let Some(mut cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let written = std::fs::read_to_string(cluster.scratch.join("kubeconfig")).expect("a kubeconfig");
    let directory = tempfile::tempdir().expect("a directory");
    let check = |kubeconfig: &str| {
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig).expect("written");
        let output = doctor(&[
            "--quick",
            "--state-dir=/nonexistent/agent",
            "--kubeconfig",
            path.to_str().expect("UTF-8"),
            "-o",
            "json",
        ]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let checks = report["checks"].as_array().expect("a list");
        let found = checks.iter().find(|check| check["name"] == "API server");
        let found = found.expect("the check").clone();
        assert!(!found.to_string().contains("127.0.0.1"), "{found}");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        (found["status"].clone(), found.to_string(), printed)
    };
    let (status, text, _) = check(&written);
    assert!(status == "ok" && text.contains("answers after"), "{text}");

    let line = |key: &str| {
        let found = written.lines().find_map(|line| line.trim().strip_prefix(key));
        found.expect("a value").trim().to_owned()
    };
    let token = line("token:");
    let (status, text, _) = check(&written.replace(&token, "abc"));
    assert!(status == "fail" && text.contains("rooflet join"), "{text}");

    let other = Cluster::start(&["--roles=apiserver"]).expect("kubectl is installed");
    let foreign = std::fs::read_to_string(other.scratch.join("kubeconfig")).expect("a kubeconfig");
    let (status, text, printed) = check(&foreign.replace(&other.address, &cluster.address));
    assert!(status == "fail" && text.contains("join again"), "{text}");
    assert!(printed.contains(&cluster.address), "{printed}");

    let address = cluster.address.clone();
    cluster.stop();
    let (status, text, printed) = check(&written);
    assert!(status == "fail" && text.contains("start the server"), "{text}");
    assert!(printed.contains(&address), "{printed}");
}
