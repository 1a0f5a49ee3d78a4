//! Recovery time: from the kill of a worker, an agent, the control plane or a node to the next
//! answer.
//!
//! Processes are killed with SIGKILL, and their supervisors restart them. A lost node is an agent
//! and its worker that are killed and not restarted.

use std::time::{Duration, Instant};

use crate::harness::{Cluster, Fleet, Http, Process, eventually, kill_9, repository};
use crate::stats::{Samples, head, row};

const RUNS: usize = 5;
/// Nodes of the lost-node runs, which run concurrently because they mostly wait for timeouts.
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(180);

pub(crate) fn run() {
    head(&["killed", "next answer after, s", "recovery"]);
    let Some((fleet, _kubectl)) = Fleet::with_guide() else {
        return;
    };
    for (what, verb, restarts) in [
        ("a worker", "worker", "its agent restarts it"),
        (
            "an agent",
            "agent",
            "`rooflet up` restarts it; its worker keeps running",
        ),
        (
            "API server and controller",
            "server",
            "`rooflet up` restarts them; the gateway continues",
        ),
        ("the gateway", "gateway", "`rooflet up` restarts it"),
    ] {
        let times = (0..RUNS).map(|_| one_process(&fleet, verb).as_secs_f64());
        let times = Samples::new(times);
        row(&[what.to_owned(), times.to_string(), restarts.to_owned()]);
    }
    drop(fleet);
    let lost: Vec<f64> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..RUNS).map(|_| scope.spawn(lost_node)).collect();
        let ended = runs
            .into_iter()
            .filter_map(|run| run.join().expect("the run recovers"));
        ended.map(|time| time.as_secs_f64()).collect()
    });
    row(&[
        "a node with the only replica".to_owned(),
        Samples::new(lost).to_string(),
        "its Lease expires after 40 s, its replicas are replaced 30 s later, another node loads the model"
            .to_owned(),
    ]);
    println!("\nMedian of {RUNS} runs (shortest-longest).");
}

fn one_process(fleet: &Fleet, verb: &str) -> Duration {
    let pid = eventually(&format!("one {verb}"), || {
        answers(&fleet.gateway)?;
        match fleet.processes(verb)[..] {
            [pid] => Ok(pid),
            ref other => Err(format!("{other:?}")),
        }
    });
    kill_9(pid);
    let begin = Instant::now();
    // An answer of the killed process, while it exits, does not count.
    until(&fleet.gateway, || {
        fleet.processes(verb).iter().all(|other| *other != pid)
    });
    begin.elapsed()
}

/// Returns the recovery time after the loss of a node, or `None` if kubectl is not installed.
fn lost_node() -> Option<Duration> {
    let cluster = Cluster::start(&[])?;
    let kubectl = &cluster.kubectl;
    let agents: Vec<(&str, Process)> = NODES.map(|node| (node, cluster.pausable_agent(node))).into();
    for node in NODES {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
    }
    kubectl
        .run(&format!(
            "apply -f {}",
            repository("examples/guide.yaml").display()
        ))
        .ok();
    eventually("an answer", || answers(&cluster.gateway));
    let home = eventually("the replica's node", || {
        let listed = kubectl.json("mrep")?;
        let name = listed["items"][0]["spec"]["nodeName"].as_str();
        name.map(str::to_owned).ok_or_else(|| listed.to_string())
    });
    for (node, agent) in &agents {
        if *node == home {
            kill_9(agent.pid());
            for worker in cluster.workers(node) {
                kill_9(worker);
            }
        }
    }
    let begin = Instant::now();
    until(&cluster.gateway, || true);
    Some(begin.elapsed())
}

fn answers(gateway: &Http) -> Result<(), String> {
    match gateway.try_chat("guide", "What is rooflet?")? {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.text),
    }
}

/// Sends requests until one succeeds and `holds` returns true.
fn until(gateway: &Http, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !(answers(gateway).is_ok() && holds()) {
        assert!(begin.elapsed() < TIMEOUT, "no answer in {TIMEOUT:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
