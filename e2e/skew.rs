//! An API server that knows more than the agent: what a newer version wrote survives, and what the agent cannot read
//! takes nothing along.

use crate::harness::{Cluster, eventually, kill_9};

const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: NAME}
spec:
  model: {source: local://guide}
  serving: {contextTokens: 256, maxConcurrency: 1}
";

/// Adds to the schema of a kind what only a newer version knows.
fn extend(cluster: &Cluster, kind: &str, path: &str, value: &str) {
    let patch = format!(
        r#"[{{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/{path}","value":{value}}}]"#
    );
    let crd = format!("crd/{kind}.rooflet.dev");
    let args = ["patch", &crd, "--type=json", "-p", &patch];
    cluster.kubectl.run_with(&args, "").ok();
}

fn patch(cluster: &Cluster, object: &str, more: &str, patch: &str) {
    let mut args = vec!["patch", object, "--type=merge", "-p", patch];
    args.extend(more.split_whitespace());
    // The schema is taken up a moment after it was changed.
    eventually("the newer schema", || {
        let output = cluster.kubectl.run_with(&args, "");
        if output.success && !output.stderr.contains("unknown field") {
            Ok(())
        } else {
            Err(format!("{}{}", output.stdout, output.stderr))
        }
    });
}

#[test]
fn an_agent_gets_along_with_a_newer_server() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let mut agent = cluster.agent("node-1", &[]);
    let wait_for = |what: &str| {
        eventually(what, || kubectl.json(what));
        let command = format!("wait --for=condition=Ready {what} --timeout=120s");
        kubectl.run(&command).ok();
    };
    wait_for("mac/node-1");
    kubectl.apply(&GUIDE.replace("NAME", "first")).ok();
    wait_for("mdep/first");
    let workers = cluster.workers("node-1");
    assert_eq!(workers.len(), 1);

    // A field in the status that it writes, and a value in the spec that it cannot read.
    extend(
        &cluster,
        "fleetnodes",
        "status/properties/tomorrow",
        r#"{"type":"string"}"#,
    );
    patch(
        &cluster,
        "mac/node-1",
        "--subresource=status",
        r#"{"status":{"tomorrow":"known"}}"#,
    );
    let strategy = "spec/properties/placement/properties/strategy/enum/-";
    extend(&cluster, "modelreplicas", strategy, r#""Tomorrow""#);
    let replica = kubectl.json("mrep").expect("a list")["items"][0]["metadata"]["name"].clone();
    let replica = format!("mrep/{}", replica.as_str().expect("a name"));
    patch(
        &cluster,
        &replica,
        "",
        r#"{"spec":{"placement":{"strategy":"Tomorrow"}}}"#,
    );

    // Others come as ever, and the node's status is written beside what is not known.
    kubectl.apply(&GUIDE.replace("NAME", "second")).ok();
    wait_for("mdep/second");
    eventually("the node's status", || {
        let status = kubectl.json("mac/node-1")?["status"].clone();
        if status["replicas"] == 2 && status["tomorrow"] == "known" {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    assert!(cluster.workers("node-1").contains(&workers[0]));

    // Not even an agent that starts now takes it for deleted.
    kill_9(agent.pid());
    agent.wait();
    let _agent = cluster.agent("node-1", &[]);
    kubectl.apply(&GUIDE.replace("NAME", "third")).ok();
    wait_for("mdep/third");
    assert!(cluster.workers("node-1").contains(&workers[0]));
    assert!(!cluster.gateway.chat("first", "What is rooflet?").is_empty());
}
