//! Joining of a machine whose clock differs from that of the server.

use std::process::{Command, Output};
use std::time::Duration;

use super::join::{join, join_line, output_text};
use crate::harness::{Cluster, TestClock, not_run, rooflet};

const HOUR: Duration = Duration::from_secs(3600);

/// Runs the join command for a node with this clock.
fn join_with(clock: &TestClock, cluster: &Cluster, line: &[String], node: &str) -> Output {
    Command::new(rooflet())
        .args(line)
        .arg(format!("--node-name={node}"))
        .arg(format!("--state-dir={}", cluster.scratch.join(node).display()))
        .envs(clock.env())
        .output()
        .expect("the binary starts")
}

#[test]
fn join_reports_a_clock_that_differs() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver,controller"]) else {
        return;
    };
    let Some(clock) = TestClock::new(&cluster.scratch, "joining") else {
        return not_run("Linux and a C compiler");
    };
    let line = join_line(&cluster, "--uses=2");

    // The server's certificate is valid from one hour before its start.
    clock.set_back(HOUR + HOUR);
    let refused = join_with(&clock, &cluster, &line, "mini-1");
    let text = output_text(&refused);
    assert!(!refused.status.success(), "{text}");
    assert!(
        text.contains("the clock of this machine is 2 h behind that of the server"),
        "{text}"
    );
    assert!(text.contains("set date and time"), "{text}");
    assert!(!cluster.scratch.join("mini-1").join("kubeconfig").exists());

    // Neither the token nor the name is lost.
    let joined = join(&cluster, &line, "mini-1");
    let text = output_text(&joined);
    assert!(joined.status.success() && !text.contains("clock"), "{text}");

    // Certificates are valid on a machine whose clock is ahead.
    clock.set_offset(HOUR);
    let joined = join_with(&clock, &cluster, &line, "mini-2");
    let text = output_text(&joined);
    assert!(joined.status.success(), "{text}");
    assert!(
        text.contains("warning: the clock of this machine is 1 h ahead of that of the server"),
        "{text}"
    );
}
