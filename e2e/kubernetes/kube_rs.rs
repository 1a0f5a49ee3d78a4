//! kube-rs' own tests with a cluster, without changes, on both servers.
//!
//! `cargo xtask test-kubernetes` builds them from the published crates. These contain all tests
//! that need a cluster, except for two examples and the programs in the folder `e2e` of kube-rs'
//! repository. The test of TLS with OpenSSL is not built. A new test of kube-rs runs without
//! changes here.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cluster::KubernetesCluster;
use crate::harness::{Cluster, not_run};

/// Names of the programs, one per crate.
const PROGRAMS: [&str; 3] = ["kube", "kube-client", "kube-runtime"];

const KUBELET: &str = "waits for a container of its Pod";
const SHELL: &str = "uses no server";

/// Tests that run on neither server.
const NOT_RUN: [(&str, &str); 8] = [
    ("client::auth::test::exec_auth_command", SHELL),
    (
        "client::auth::test::exec_token_refresh_does_not_block_runtime",
        SHELL,
    ),
    ("client::auth::test::exec_token_refresh_via_to_header", SHELL),
    ("test::can_get_pod_logs_and_evict", KUBELET),
    ("test::pod_can_await_conditions", KUBELET),
    ("test::pod_can_exec_and_write_to_stdin", KUBELET),
    ("test::pod_can_exec_and_write_to_stdin_from_node_proxy", KUBELET),
    // Passes on kube-apiserver after it waited for 15 s.
    ("test::pod_can_use_core_apis", KUBELET),
];

const NOT_FOUND: &str = "code: 404";

/// Tests of kinds that the embedded server does not serve, each with the error that results.
const FAIL_ON_EMBEDDED: [(&str, &str); 13] = [
    ("api::util::test::node_cordon_and_uncordon_works", NOT_FOUND),
    (
        "client::client_ext::test::client_ext_fetch_ref_pods_svcs",
        NOT_FOUND,
    ),
    (
        "client::client_ext::test::client_ext_list_get_pods_svcs",
        NOT_FOUND,
    ),
    ("client::client_ext::test::fetch_fails", NOT_FOUND),
    ("events::test::event_recorder_attaches_events", NOT_FOUND),
    (
        "events::test::event_recorder_attaches_events_without_namespace",
        NOT_FOUND,
    ),
    ("test::aggregated_discovery_apis", "should have apps group"),
    ("test::aggregated_discovery_core", "core/v1 should have pods"),
    ("test::can_operate_on_ephemeral_containers", NOT_FOUND),
    ("test::can_operate_on_pod_metadata", "left: 404"),
    (
        "test::custom_serialized_objects_are_queryable_and_iterable",
        NOT_FOUND,
    ),
    ("test::discovery_run_aggregated", "should have apps group"),
    ("test::group_discovery_oneshot", "apiregistration.k8s.io"),
];

fn programs() -> Option<Vec<PathBuf>> {
    let Some(directory) = std::env::var_os("ROOFLET_KUBE_RS_TESTS") else {
        not_run("the tests of kube-rs, which `cargo xtask test-kubernetes` builds");
        return None;
    };
    Some(PROGRAMS.map(|name| Path::new(&directory).join(name)).into())
}

/// Runs all tests but those in `NOT_RUN`. Those in `failing` must fail with the given text, and all
/// others must pass.
fn run_tests(programs: &[PathBuf], kubeconfig: &Path, failing: &[(&str, &str)]) {
    let mut report = std::io::stderr();
    for (name, reason) in NOT_RUN {
        drop(writeln!(report, "NOT RUN: {name}: it {reason}"));
    }
    let (mut listed, mut printed) = (String::new(), String::new());
    for program in programs {
        // Tests that need a cluster are marked as ignored.
        let run = |args: &[&str]| {
            let mut command = Command::new(program);
            let output = command
                .arg("--ignored")
                .args(args)
                .env("KUBECONFIG", kubeconfig)
                .output();
            let output = output.expect("the program starts");
            // 101: a test failed.
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 101)), "{}: {code:?}", program.display());
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        listed += &run(&["--list"]);
        let skipped = NOT_RUN.iter().flat_map(|(name, _)| ["--skip", name]);
        printed += &run(&["--exact"].into_iter().chain(skipped).collect::<Vec<_>>());
    }
    for (name, _) in NOT_RUN {
        assert!(
            listed.contains(&format!("{name}: test\n")),
            "kube-rs has no test {name}"
        );
    }
    let (passed, failed) = (named(&printed, "ok"), named(&printed, "FAILED"));
    drop(writeln!(
        report,
        "{} tests passed, {} failed as expected",
        passed.len(),
        failing.len()
    ));
    let mut expected: Vec<&str> = failing.iter().map(|(name, _)| *name).collect();
    expected.sort_unstable();
    assert_eq!(failed, expected, "{printed}");
    assert!(!passed.is_empty(), "{printed}");
    for (name, error) in failing {
        let output = printed.split_once(&format!("---- {name} stdout ----\n"));
        let output = output.and_then(|(_, rest)| rest.split("\n----").next());
        let output = output.unwrap_or_else(|| panic!("{name} has no output: {printed}"));
        assert!(output.contains(error), "{name}: {output}");
    }
}

/// Returns the names of the tests with a result, sorted.
fn named<'a>(printed: &'a str, result: &str) -> Vec<&'a str> {
    let end = format!(" ... {result}");
    let lines = printed.lines();
    let names = lines.filter_map(|line| line.strip_prefix("test ")?.strip_suffix(&end));
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn tests_of_kube_rs_pass_on_the_embedded_server() {
    let Some(programs) = programs() else { return };
    let Some(cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    run_tests(&programs, &cluster.scratch.join("kubeconfig"), &FAIL_ON_EMBEDDED);
}

/// Checks the lists of tests.
#[test]
fn tests_of_kube_rs_pass_on_kube_apiserver() {
    let Some(programs) = programs() else { return };
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    run_tests(&programs, &cluster.kubeconfig, &[]);
}
