//! `rooflet logs gateway`: the access logs of the gateways on all nodes.

use std::process::Output;

use serde_json::json;

use crate::harness::{Cluster, Http, Process, eventually};

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sends a request whose line in the access log contains `id`.
fn request(gateway: &Http, id: &str) {
    let body = json!({"model": "absent", "messages": [{"role": "user", "content": "hello"}]});
    let gateway = gateway.with_header("X-Request-Id", id);
    let answer = gateway.post("/v1/chat/completions", &body).expect("a response");
    assert_eq!(answer.status, 404, "{}", answer.text);
}

#[test]
fn access_logs_of_all_gateways_are_printed() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let (_second_process, second) = cluster.start_second_gateway(&[]);
    let log = |name: &str| format!("--gateway-log={}", cluster.scratch.join(name).display());
    let _agents = [
        cluster.agent("node-1", &[log("server.log")]),
        cluster.agent("node-2", &[log("gateway.log")]),
        cluster.agent("node-3", &[log("absent.log")]),
    ];
    for (node, serves) in [("node-1", true), ("node-2", true), ("node-3", false)] {
        eventually("the status of the node", || {
            let found = cluster.kubectl.json(&format!("mac {node}"))?;
            match found["status"]["gatewayLog"].as_bool().unwrap_or(false) == serves
                && found["status"]["endpoint"].is_string()
            {
                true => Ok(()),
                false => Err(found["status"].to_string()),
            }
        });
    }
    request(&cluster.gateway, "first-1");
    request(&second, "second-1");
    let printed = eventually("the lines of both gateways", || {
        let printed = text(&cluster.rooflet("logs gateway"));
        match printed.contains("first-1") && printed.contains("second-1") {
            true => Ok(printed),
            false => Err(printed),
        }
    });
    let line = |id: &str| {
        printed
            .lines()
            .find(|line| line.contains(id))
            .expect("a line")
            .to_owned()
    };
    assert!(line("first-1").starts_with("[node-1] "), "{printed}");
    assert!(line("second-1").starts_with("[node-2] "), "{printed}");
    assert!(line("second-1").contains("request finished"), "{printed}");
    assert!(!printed.contains("[node-3]"), "{printed}");

    let tail = text(&cluster.rooflet("logs gateway --tail=1"));
    assert_eq!(tail.lines().count(), 2, "{tail}");
    let recent = text(&cluster.rooflet("logs gateway --since=1h"));
    assert!(
        recent.contains("first-1") && recent.contains("second-1"),
        "{recent}"
    );
    let none = text(&cluster.rooflet("logs gateway --since=1ms"));
    assert_eq!(none, "");

    // A followed log shows new requests of both gateways.
    let followed = cluster.scratch.join("followed.log");
    let kubeconfig = format!("--kubeconfig={}", cluster.scratch.join("kubeconfig").display());
    let mut follower = Process::start(["logs", "gateway", "-f", "--tail=1", &kubeconfig], &followed);
    eventually("the start of the followed logs", || {
        let log = follower.log();
        match log.contains("[node-1] ") && log.contains("[node-2] ") {
            true => Ok(()),
            false => Err(log),
        }
    });
    request(&cluster.gateway, "first-2");
    request(&second, "second-2");
    eventually("the followed lines", || {
        let log = follower.log();
        match log.contains("first-2") && log.contains("second-2") {
            true => Ok(()),
            false => Err(log),
        }
    });
    assert!(!follower.has_ended());
    follower.terminate();
}
