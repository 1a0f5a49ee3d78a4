//! An API server and an agent of which one knows more than the other: what a newer version wrote survives, and what
//! cannot be read or written takes nothing along.

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

/// Takes from the schema of a kind what an older version does not know: at each place a field, or a value of an enumeration.
fn forget(cluster: &Cluster, kind: &str, places: &[(&str, &str)]) {
    let crd = format!("crd/{kind}.rooflet.dev");
    let found = cluster.kubectl.json(&crd).expect("the definition");
    let root = "/spec/versions/0/schema/openAPIV3Schema/properties";
    let removals = places.iter().map(|(path, name)| {
        let path = format!("{root}/{path}");
        let place = found
            .pointer(&path)
            .unwrap_or_else(|| panic!("{kind} has no {path}"));
        let at = match place.as_array() {
            Some(values) => values
                .iter()
                .position(|value| value == name)
                .map(|at| at.to_string()),
            None => place.get(name).map(|_| (*name).to_owned()),
        };
        let at = at.unwrap_or_else(|| panic!("{kind} has no {name} in {path}"));
        serde_json::json!({"op": "remove", "path": format!("{path}/{at}")})
    });
    let patch = serde_json::Value::from_iter(removals).to_string();
    let args = ["patch", &crd, "--type=json", "-p", &patch];
    cluster.kubectl.run_with(&args, "").ok();
}

/// An agent that knows more than the API server: what it says is pruned or refused, and it serves all the same.
#[test]
fn an_agent_gets_along_with_an_older_server() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let status = "status/properties";
    forget(
        &cluster,
        "fleetnodes",
        &[(status, "summary"), (status, "dataSheet")],
    );
    forget(
        &cluster,
        "modelreplicas",
        &[
            (status, "requests"),
            (status, "measured"),
            (status, "admission"),
            ("status/properties/phase/enum", "Warming"),
            ("status/properties/phase/enum", "Loading"),
        ],
    );
    let ready = |what: &str| {
        eventually(what, || kubectl.json(what));
        kubectl.wait_for_condition(what, "Ready", "True");
    };
    let mut agent = cluster.agent("node-1", &[]);
    ready("mac/node-1");
    kubectl.apply(&GUIDE.replace("NAME", "first")).ok();
    ready("mdep/first");
    let node = kubectl.json("mac/node-1").expect("the node")["status"].clone();
    assert!(node["summary"].is_null() && node["dataSheet"].is_null(), "{node}");
    let replica = kubectl.json("mrep").expect("a list")["items"][0].clone();
    assert_eq!(replica["status"]["phase"], "Ready");
    assert!(replica["status"]["requests"].is_null(), "{replica}");
    assert!(!cluster.gateway.chat("first", "What is rooflet?").is_empty());

    // What is pruned again and again is no news: neither object is written while the agent is heard of.
    let replica = format!("mrep/{}", replica["metadata"]["name"].as_str().expect("a name"));
    let of = |what: &str, pointer: &str| -> Result<serde_json::Value, String> {
        let found = kubectl.json(what)?;
        found.pointer(pointer).cloned().ok_or_else(|| found.to_string())
    };
    let versions = || -> Result<_, String> {
        let version = "/metadata/resourceVersion";
        Ok((of("mac/node-1", version)?, of(&replica, version)?))
    };
    let renewed = || of("lease/fleetnode-node-1 -n kube-node-lease", "/spec/renewTime");
    eventually("both staying as they are", || {
        let (before, heard) = (versions()?, renewed()?);
        eventually("another sign of life", || match renewed()? {
            again if again != heard => Ok(()),
            same => Err(same.to_string()),
        });
        match versions()? {
            after if after == before => Ok(()),
            after => Err(format!("{before:?} {after:?}")),
        }
    });

    // Its worker is taken over by the next agent, and goes when it is told to.
    let workers = cluster.workers("node-1");
    kill_9(agent.pid());
    agent.wait();
    let _agent = cluster.agent("node-1", &[]);
    kubectl.apply(&GUIDE.replace("NAME", "second")).ok();
    ready("mdep/second");
    assert!(cluster.workers("node-1").contains(&workers[0]));
    kubectl.run("delete mdep first second").ok();
    eventually("no worker", || match cluster.workers("node-1").len() {
        0 => Ok(()),
        count => Err(format!("{count} workers")),
    });
}

/// A control plane that is upgraded last is told to be, by the word of an agent that is further ahead than was ever tried.
#[test]
fn an_agent_that_is_too_new_is_told_and_taken_back_when_it_is_not() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl
        .apply("apiVersion: rooflet.dev/v1alpha1\nkind: FleetNode\nmetadata: {name: ahead}\nspec: {}")
        .ok();
    let says = |version: &str| {
        let status = serde_json::json!({"status": {"nodeInfo": {"agentVersion": version}}});
        patch(&cluster, "mac/ahead", "--subresource=status", &status.to_string());
    };
    says("99.1.0");
    let told = kubectl.wait_for_condition("mac ahead", "VersionSkew", "True");
    assert_eq!(told["reason"], "AgentTooNew");
    let message = told["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("the agent is version 99.1.0 and the control plane ")
            && message.ends_with("upgrade the control plane"),
        "{message}"
    );
    says(env!("CARGO_PKG_VERSION"));
    let told = kubectl.wait_for_condition("mac ahead", "VersionSkew", "False");
    assert_eq!(told["reason"], "VersionsMatch");
}
