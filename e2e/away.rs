//! The control plane is away for longer than a node may be silent: what serves goes on serving, and nothing is taken
//! for lost when it comes back.
#![expect(
    clippy::disallowed_methods,
    reason = "how long the control plane is away is the real clock's"
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

/// Nodes are silent after forty seconds.
const AWAY: Duration = Duration::from_secs(45);

#[test]
fn workers_and_gateway_serve_on_and_nothing_is_restarted() {
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
    // When each condition became what it is.
    let conditions = |cluster: &Cluster, object: &str| {
        let found = cluster.kubectl.json(object).expect("there");
        let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
        let told = conditions.filter(|condition| condition["type"] == "Ready");
        let since = told.map(|condition| condition["lastTransitionTime"].to_string());
        (found["metadata"]["uid"].to_string(), since.collect::<Vec<_>>())
    };
    let replica = cluster.kubectl.run("get mrep -o name").ok();
    let objects = ["mac/node-1", "mdep/first", replica.trim()];
    let before = objects.map(|object| conditions(&cluster, object));

    cluster.stop();
    let since = Instant::now();
    let mut answered = 0;
    while since.elapsed() < AWAY {
        let answer = gateway.try_chat("first", "What is rooflet?").expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text);
        answered += 1;
    }
    assert!(answered > 3, "{answered}");
    cluster.start_again();

    // The agent is back, and does what is new.
    cluster.kubectl.apply(&GUIDE.replace("NAME", "second")).ok();
    ready(&cluster, "mdep/second");
    assert_eq!(objects.map(|object| conditions(&cluster, object)), before);
    assert!(workers.iter().all(|pid| cluster.workers("node-1").contains(pid)));
    assert!(!gateway.chat("first", "What is rooflet?").is_empty());
}
