//! First week of an administrator with twelve simulated Macs, as a script: deployments, a rollout, maintenance of a
//! Mac, a mistake and its correction, a key, a backup.

use std::process::Output;

use crate::harness::{Cluster, eventually};

const FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 7}
    - {name: pro, chip: M4 Pro, gpuCores: 20, memory: 48Gi, count: 4}
    - {name: studio, chip: M3 Ultra, gpuCores: 80, memory: 256Gi, count: 1}
models:
  - {name: small, model: qwen3-4b, quantization: mlx4}
  - {name: medium, model: qwen3-30b-a3b, quantization: mlx4, on: [pro, studio]}
";

/// Maximum number of lines of `kubectl describe mac` for a node with two models and two replicas. kubectl
/// prints 22 lines of metadata and events, and five for each condition.
const MAX_DESCRIBED_LINES: usize = 85;

fn deployment(name: &str, model: &str, replicas: u32, streams: u32) -> String {
    format!(
        "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\n\
         spec: {{replicas: {replicas}, model: {{source: 'local://{model}'}}, \
         serving: {{contextTokens: 4096, maxConcurrency: {streams}}}}}\n"
    )
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    let all = [out.as_slice(), err.as_slice()].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&all));
    String::from_utf8_lossy(out).into_owned()
}

/// Waits until `rooflet status` names no problem of the deployments.
fn wait_for_no_problem(cluster: &Cluster) {
    eventually("a status without problems", || {
        let status = text(&cluster.rooflet("status"));
        match status.starts_with("No problems.") || !status.contains("mdep/") {
            true => Ok(()),
            false => Err(status),
        }
    });
}

#[test]
fn first_week_of_an_administrator() {
    let Some(cluster) = Cluster::simulated(FLEET, &[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    eventually("twelve Macs", || {
        let found = kubectl.json("mac")?;
        match found["items"].as_array().map_or(0, Vec::len) {
            12 => Ok(()),
            count => Err(format!("{count} Macs")),
        }
    });

    // Monday: two models.
    kubectl.apply(&deployment("chat", "small", 3, 2)).ok();
    kubectl.apply(&deployment("code", "medium", 2, 2)).ok();
    let ready = "wait --for=condition=Ready mdep/chat mdep/code --timeout=180s";
    kubectl.run(ready).ok();
    let listed = kubectl.run("get mdep").ok();
    assert!(
        listed.contains("REASON") && listed.matches("AllReplicasReady").count() == 2,
        "{listed}"
    );
    for model in ["chat", "code"] {
        cluster.gateway.chat(model, "hello");
    }
    wait_for_no_problem(&cluster);
    models_logs_and_nodes_are_shown(&cluster);

    // Tuesday: more users. Wednesday: more streams, by a rollout.
    kubectl.run("scale mdep chat --replicas=5").ok();
    kubectl.run(ready).ok();
    kubectl.apply(&deployment("chat", "small", 5, 4)).ok();
    let rolled = cluster.rooflet("rollout status mdep/chat --timeout=180s");
    assert!(text(&rolled).contains("chat"), "{rolled:?}");

    // Thursday: a Mac is updated.
    let node = node_of(&cluster, "chat");
    text(&cluster.rooflet(&format!("drain {node} --timeout=180s")));
    let state = kubectl.run(&format!("get mac {node}")).ok();
    assert!(state.contains("true") && state.contains("Drained"), "{state}");
    let status = text(&cluster.rooflet("status"));
    assert!(status.contains(&format!("mac/{node}")), "{status}");
    text(&cluster.rooflet(&format!("uncordon {node}")));
    kubectl.run(ready).ok();

    // Friday: two mistakes. The server rejects the first one.
    let wrong = deployment("chat", "small", 5, 4).replace(
        "spec: {",
        "spec: {strategy: {rollingUpdate: {minThroughput: '500%'}}, ",
    );
    let rejected = kubectl.apply(&wrong).expect_failure();
    assert!(rejected.contains("at most 100%"), "{rejected}");
    // The running replicas keep serving, and the rollout is undone.
    kubectl.apply(&deployment("chat", "absent", 5, 4)).ok();
    eventually("the mistake in the status", || {
        let status = text(&cluster.rooflet("status"));
        match status.contains("mdep/default/chat") {
            true => Ok(()),
            false => Err(status),
        }
    });
    cluster.gateway.chat("chat", "hello");
    text(&cluster.rooflet("rollout undo mdep/chat"));
    text(&cluster.rooflet("rollout status mdep/chat --timeout=180s"));
    wait_for_no_problem(&cluster);
    let events = text(&cluster.rooflet("events --around mdep/chat --since 3h"));
    assert!(events.lines().count() > 5, "{events}");

    // Saturday: a team receives a key.
    let created = cluster.rooflet("key create team-a --models chat --tokens-per-minute 60k");
    let created = text(&created);
    let key = created.split_whitespace().find(|word| word.starts_with("sk-rf-"));
    let bearer = format!("Bearer {}", key.expect("a key"));
    let team = cluster.gateway.with_header("Authorization", &bearer);
    eventually("an answer with the key", || {
        match team.try_chat("chat", "hello")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
    let refused = team.try_chat("code", "hello").expect("a response");
    assert!(matches!(refused.status, 403 | 404), "{}", refused.text);

    // Sunday: what the fleet can do, and its end.
    let plan = cluster.rooflet("plan --current");
    assert_eq!(plan.status.code(), Some(0), "{plan:?}");
    kubectl.run("delete mdep chat code --timeout=120s").ok();
    eventually("no replica", || match kubectl.run("get mrep -o name").stdout {
        left if left.is_empty() => Ok(()),
        left => Err(left),
    });
}

/// Checks what an administrator looks up: models and their nodes, logs, and one node.
fn models_logs_and_nodes_are_shown(cluster: &Cluster) {
    let listed = text(&cluster.rooflet("models list"));
    let used = |line: &&str| line.contains("local://small") && line.contains("1 replica");
    assert_eq!(listed.lines().filter(used).count(), 3, "{listed}");
    let names = cluster.kubectl.run("get mac -o name").ok();
    let mut names = names.lines().filter_map(|name| name.split('/').next_back());
    let studio = names.find(|name| name.starts_with("studio")).expect("a Mac");
    let only = text(&cluster.rooflet(&format!("models list --node {studio}")));
    assert!(
        only.contains("local://medium") && !only.contains("mini"),
        "{only}"
    );
    text(&cluster.rooflet("logs mdep/chat --tail=5"));
    let described = cluster.kubectl.run(&format!("describe mac {studio}")).ok();
    let lines = described.lines().count();
    assert!(lines <= MAX_DESCRIBED_LINES, "{lines} lines:\n{described}");
    let bundle = cluster.scratch.join("bundle.tar.gz");
    let doctor = cluster.rooflet(&format!("doctor --bundle {}", bundle.display()));
    assert!(bundle.exists(), "{doctor:?}");
}

/// Returns the node of a replica.
fn node_of(cluster: &Cluster, deployment: &str) -> String {
    let selector = format!("mrep -l rooflet.dev/deployment={deployment}");
    let found = cluster.kubectl.json(&selector).expect("a list");
    let node = found["items"][0]["spec"]["nodeName"].as_str();
    node.expect("a bound replica").to_owned()
}
