//! Version skew between the API server and the agent. Fields of a newer version survive, and a
//! field that cannot be read or written affects nothing else.

use crate::harness::{Cluster, eventually, kill_9};

const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: NAME}
spec:
  model: {source: local://guide}
  serving: {contextTokens: 256, maxConcurrency: 1}
";

/// Adds a property or an enumeration value of a newer version to the schema of a kind.
fn add_to_schema(cluster: &Cluster, kind: &str, path: &str, value: &str) {
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
    // The API server applies a changed schema asynchronously.
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
fn agent_works_with_a_newer_server() {
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

    // An unknown field in the status that the agent writes, and an unknown value in the spec that
    // the agent reads.
    add_to_schema(
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
    add_to_schema(&cluster, "modelreplicas", strategy, r#""Tomorrow""#);
    let replica = kubectl.json("mrep").expect("a list")["items"][0]["metadata"]["name"].clone();
    let replica = format!("mrep/{}", replica.as_str().expect("a name"));
    patch(
        &cluster,
        &replica,
        "",
        r#"{"spec":{"placement":{"strategy":"Tomorrow"}}}"#,
    );

    // Other replicas start as usual, and the agent's status updates keep the unknown field.
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

    // An agent that starts now does not treat the unreadable replica as deleted.
    kill_9(agent.pid());
    agent.wait();
    let _agent = cluster.agent("node-1", &[]);
    kubectl.apply(&GUIDE.replace("NAME", "third")).ok();
    wait_for("mdep/third");
    assert!(cluster.workers("node-1").contains(&workers[0]));
    assert!(!cluster.gateway.chat("first", "What is rooflet?").is_empty());
}

/// Removes properties or enumeration values, which an older version does not have, from the schema
/// of a kind.
fn remove_from_schema(cluster: &Cluster, kind: &str, places: &[(&str, &str)]) {
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

/// The API server prunes or rejects fields of the newer agent, which serves nevertheless.
#[test]
fn agent_works_with_an_older_server() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let status = "status/properties";
    remove_from_schema(
        &cluster,
        "fleetnodes",
        &[(status, "summary"), (status, "dataSheet")],
    );
    remove_from_schema(
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

    // A pruned field is not a change: the agent renews its lease and writes neither object.
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
    eventually("unchanged objects during a lease renewal", || {
        let (before, renewed_at) = (versions()?, renewed()?);
        eventually("a lease renewal", || match renewed()? {
            again if again != renewed_at => Ok(()),
            same => Err(same.to_string()),
        });
        match versions()? {
            after if after == before => Ok(()),
            after => Err(format!("{before:?} {after:?}")),
        }
    });

    // The next agent adopts the worker, and stops it when its replica is deleted.
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

/// The condition asks for an upgrade of the control plane if an agent is newer than supported.
#[test]
fn version_skew_condition_follows_the_agent_version() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl
        .apply("apiVersion: rooflet.dev/v1alpha1\nkind: FleetNode\nmetadata: {name: ahead}\nspec: {}")
        .ok();
    let set_version = |version: &str| {
        let status = serde_json::json!({"status": {"nodeInfo": {"agentVersion": version}}});
        patch(&cluster, "mac/ahead", "--subresource=status", &status.to_string());
    };
    set_version("99.1.0");
    let reported = kubectl.wait_for_condition("mac ahead", "VersionSkew", "True");
    assert_eq!(reported["reason"], "AgentTooNew");
    let message = reported["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("the agent has version 99.1.0 and the control plane ")
            && message.ends_with("upgrade the control plane"),
        "{message}"
    );
    set_version(env!("CARGO_PKG_VERSION"));
    let reported = kubectl.wait_for_condition("mac ahead", "VersionSkew", "False");
    assert_eq!(reported["reason"], "VersionsMatch");
}
