//! Outage of the control plane that is longer than the silence timeout of nodes: workers and
//! gateway continue to serve, and no node is marked silent afterwards.
#![expect(
    clippy::disallowed_methods,
    reason = "the duration of the outage is measured by the real clock"
)]

use std::time::{Duration, Instant};

use crate::harness::{Cluster, Http, Process, eventually, free_port};

const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: NAME}
spec:
  model: {source: local://guide}
  serving: {contextTokens: 256, maxConcurrency: 2}
";

/// Duration of the outage. Nodes are silent after 40 s.
const OUTAGE: Duration = Duration::from_secs(45);

#[test]
fn workers_and_gateway_serve_during_an_outage_without_restarts() {
    let Some(mut cluster) = Cluster::start(&["--roles=apiserver,controller"]) else {
        return;
    };
    let port = free_port();
    let args = [
        "server".to_owned(),
        "--roles=gateway".to_owned(),
        format!("--data-dir={}", cluster.scratch.join("gateway").display()),
        format!("--kubeconfig={}", cluster.scratch.join("kubeconfig").display()),
        format!("--gateway-listen=127.0.0.1:{port}"),
    ];
    let _gateway = Process::start(args, &cluster.scratch.join("gateway.log"));
    let gateway = Http::new(format!("http://127.0.0.1:{port}"));
    let _agent = cluster.agent("node-1", &[]);
    eventually("the node", || cluster.kubectl.json("mac/node-1"));
    let ready = |cluster: &Cluster, object: &str| {
        let wait = format!("wait --for=condition=Ready {object} --timeout=120s");
        cluster.kubectl.run(&wait).ok();
    };
    ready(&cluster, "mac/node-1");
    cluster.kubectl.apply(&GUIDE.replace("NAME", "first")).ok();
    ready(&cluster, "mdep/first");
    eventually("an answer", || {
        match gateway.try_chat("first", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
    let workers = cluster.workers("node-1");
    // UID and last transition time of the condition Ready.
    let conditions = |cluster: &Cluster, object: &str| {
        let found = cluster.kubectl.json(object).expect("the object exists");
        let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.filter(|condition| condition["type"] == "Ready");
        let since = ready.map(|condition| condition["lastTransitionTime"].to_string());
        (found["metadata"]["uid"].to_string(), since.collect::<Vec<_>>())
    };
    let replica = cluster.kubectl.run("get mrep -o name").ok();
    let objects = ["mac/node-1", "mdep/first", replica.trim()];
    let before = objects.map(|object| conditions(&cluster, object));

    cluster.stop();
    let since = Instant::now();
    let mut answered = 0;
    while since.elapsed() < OUTAGE {
        let answer = gateway.try_chat("first", "What is rooflet?").expect("a response");
        assert_eq!(answer.status, 200, "{}", answer.text);
        answered += 1;
    }
    assert!(answered > 3, "{answered}");
    cluster.start_again();

    // The agent is connected again and starts new replicas.
    cluster.kubectl.apply(&GUIDE.replace("NAME", "second")).ok();
    ready(&cluster, "mdep/second");
    assert_eq!(objects.map(|object| conditions(&cluster, object)), before);
    assert!(workers.iter().all(|pid| cluster.workers("node-1").contains(pid)));
    assert!(!gateway.chat("first", "What is rooflet?").is_empty());
}
