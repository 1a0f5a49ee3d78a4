//! Upstream's integration tests of CustomResourceDefinitions, without changes, on both servers.
//!
//! `cargo xtask test-kubernetes` builds them. The folder `upstream` has the fixture that connects
//! them to a running server. The package `conversion` with four tests of webhooks is not built: it
//! reads objects in etcd.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cluster::KubernetesCluster;
use crate::harness::{Cluster, not_run};

const INTERNALS: &str = "reads or writes the objects in etcd";
const GATES: &str = "starts the server with feature gates or an emulated version";
const WEBHOOKS: &str = "needs a conversion webhook, which the embedded server does not call";

/// Tests that run on neither server.
const NOT_RUN: [(&str, &str); 11] = [
    ("TestCBORServingEnablement", GATES),
    ("TestCBORStorageEnablement", GATES),
    ("TestCustomResourceDefaultingOfMetaFields", INTERNALS),
    ("TestEtcdStorage", INTERNALS),
    ("TestFieldSelectorDisablement", GATES),
    ("TestFieldSelectorDropFields", GATES),
    ("TestInvalidObjectMetaInStorage", INTERNALS),
    (
        "TestNonStructuralSchemaConditionForCRDV1Beta1MigratedData",
        INTERNALS,
    ),
    ("TestNonStructuralSchemaConditionUpdate", INTERNALS),
    ("TestPruningFromStorage", INTERNALS),
    ("TestRatchetingDropFields", GATES),
];

/// Tests that run on kube-apiserver only.
const NOT_RUN_ON_EMBEDDED: [(&str, &str); 3] = [
    ("TestInvalidCABundle", WEBHOOKS),
    ("TestSelectableFields", WEBHOOKS),
    ("TestValidCABundle", WEBHOOKS),
];

fn program() -> Option<PathBuf> {
    let program = std::env::var_os("ROOFLET_UPSTREAM_TESTS");
    if program.is_none() {
        not_run("upstream's tests, which `cargo xtask test-kubernetes` builds with Go");
    }
    program.map(PathBuf::from)
}

fn run_tests(program: &Path, kubeconfig: &Path, skipped: &[(&str, &str)]) {
    let names: Vec<&str> = skipped.iter().map(|(name, _)| *name).collect();
    let output = Command::new(program)
        .args(["-test.v", "-test.timeout=9m"])
        .arg(format!("-test.skip=^({})$", names.join("|")))
        .env("KUBECONFIG", kubeconfig)
        .output()
        .expect("the program starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut report = std::io::stderr();
    for (name, reason) in skipped {
        drop(writeln!(report, "NOT RUN: {name}: it {reason}"));
    }
    let count = |prefix: &str| printed.lines().filter(|line| line.starts_with(prefix)).count();
    let (passed, failed) = (count("--- PASS: "), count("--- FAIL: "));
    drop(writeln!(report, "{passed} tests passed, {failed} failed"));
    assert!(output.status.success() && passed > 0, "{printed}");
}

#[test]
fn upstreams_tests_pass_on_the_embedded_server() {
    let Some(program) = program() else { return };
    let Some(cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let skipped = [&NOT_RUN[..], &NOT_RUN_ON_EMBEDDED].concat();
    run_tests(&program, &cluster.scratch.join("kubeconfig"), &skipped);
}

/// Checks the fixture and the list of tests.
#[test]
fn upstreams_tests_pass_on_kube_apiserver() {
    let Some(program) = program() else { return };
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    run_tests(&program, &cluster.kubeconfig, &NOT_RUN);
}
