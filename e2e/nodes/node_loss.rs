//! Loss of a node under load: all its processes are killed, or its network is cut.
//!
//! Only streams that the lost node was serving may fail. The other node answers all other requests.
#![expect(
    clippy::disallowed_methods,
    reason = "requests are compared with the loss on the real clock"
)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::json;

use crate::harness::{Cluster, Http, Netns, Process, eventually, kill_9, not_run};

const CLIENTS: usize = 4;
/// Number of requests after the loss that must succeed.
const ANSWERS_AFTER: usize = 3 * CLIENTS;

const TWO_REPLICAS: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 2
  model: {source: 'local://guide'}
  serving: {contextTokens: 512}
  # The test machine may report memory pressure.
  placement: {strategy: Spread, tolerations: [{operator: Exists}]}
";

/// Request and its outcome.
#[derive(Debug)]
struct RequestRecord {
    began: Instant,
    /// Replica that started to answer.
    replica: Option<String>,
    failure: Option<String>,
}

/// Clients that continuously stream long answers, and their requests.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    requests: Mutex<Vec<RequestRecord>>,
    /// Replica that is answering, by client.
    open: Mutex<BTreeMap<usize, String>>,
}

impl Load {
    fn run(&self, client: usize, gateway: &Http) {
        let body = json!({
            "model": "guide",
            "messages": [{ "role": "user", "content": "What is rooflet?" }],
            "stream": true,
            "temperature": 0,
            "max_tokens": 300,
            "ignore_eos": true,
        });
        while !self.stop.load(Ordering::SeqCst) {
            let began = Instant::now();
            let mut replica = None;
            let outcome = gateway.post_with_head("/v1/chat/completions", &body, |status, headers| {
                if status == 200 {
                    let name = headers["x-rooflet-replica"].to_str().expect("a name").to_owned();
                    self.open
                        .lock()
                        .expect("no panic under the lock")
                        .insert(client, name.clone());
                    replica = Some(name);
                }
            });
            self.open.lock().expect("no panic under the lock").remove(&client);
            let failure = match outcome {
                Ok(answer) if answer.status != 200 => Some(answer.text),
                Ok(answer) if answer.events().last().map(String::as_str) != Some("[DONE]") => {
                    Some(format!("no [DONE] at the end: …{:?}", answer.events().last()))
                }
                Ok(_) => None,
                Err(err) => Some(err),
            };
            self.requests
                .lock()
                .expect("no panic under the lock")
                .push(RequestRecord {
                    began,
                    replica,
                    failure,
                });
        }
    }
}

/// Runs clients, causes the loss of the node `lost` with `lose` while a stream runs there, and
/// checks the outcome of every request.
fn check_node_loss(cluster: &Cluster, lost: &str, lose: impl FnOnce()) {
    let kubectl = &cluster.kubectl;
    for node in ["node-1", "node-2"] {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
        kubectl
            .run(&format!("wait --for=condition=Ready mac/{node} --timeout=120s"))
            .ok();
    }
    kubectl.apply(TWO_REPLICAS).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/guide --timeout=120s")
        .ok();
    let replicas = kubectl.json("mrep").expect("a list")["items"].clone();
    let on_lost = |replica: &&serde_json::Value| replica["spec"]["nodeName"] == lost;
    let lost_replica: Vec<_> = replicas
        .as_array()
        .into_iter()
        .flatten()
        .filter(on_lost)
        .collect();
    assert_eq!(lost_replica.len(), 1, "one on each node: {replicas:#}");
    let lost_replica = format!(
        "default/{}",
        lost_replica[0]["metadata"]["name"].as_str().expect("a name")
    );

    let load = Load::default();
    let lost_at = std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (load, gateway) = (&load, cluster.gateway.duplicate());
            scope.spawn(move || load.run(client, &gateway));
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("streams on both nodes", || {
                let open = load.open.lock().expect("no panic under the lock").clone();
                let is_lost = |name: &&String| **name == lost_replica;
                let on_lost = open.values().filter(is_lost).count();
                if on_lost > 0 && on_lost < open.len() {
                    Ok(())
                } else {
                    Err(format!("{open:?}"))
                }
            });
            lose();
            let lost_at = Instant::now();
            eventually("answers after the loss", || {
                let requests = load.requests.lock().expect("no panic under the lock");
                let after = requests.iter().filter(|one| one.began > lost_at).count();
                if after >= ANSWERS_AFTER {
                    Ok(())
                } else {
                    Err(format!("{after} answers"))
                }
            });
            lost_at
        }));
        // The clients must stop even after a panic.
        load.stop.store(true, Ordering::SeqCst);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let requests = load.requests.into_inner().expect("no panic under the lock");
    let failed: Vec<_> = requests.iter().filter(|one| one.failure.is_some()).collect();
    let is_expected =
        |one: &&&RequestRecord| one.began <= lost_at && one.replica.as_ref() == Some(&lost_replica);
    let unexpected: Vec<_> = failed.iter().filter(|one| !is_expected(one)).collect();
    assert!(
        unexpected.is_empty(),
        "{} of {} requests failed unexpectedly: {unexpected:#?}",
        unexpected.len(),
        requests.len()
    );
    assert!(!failed.is_empty(), "the lost node's streams must fail");
    assert!(
        failed.len() <= CLIENTS,
        "more failures than open streams: {failed:#?}"
    );
}

#[test]
fn killed_node_breaks_only_its_open_streams() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let _stays = cluster.agent("node-1", &[]);
    let agent = cluster.agent("node-2", &[]);
    check_node_loss(&cluster, "node-2", || {
        // The agent is killed first, because it would restart its worker.
        kill_9(agent.pid());
        for worker in cluster.workers("node-2") {
            kill_9(worker);
        }
    });
}

#[test]
fn disconnected_node_breaks_only_its_open_streams() {
    let netns = match Netns::new() {
        Ok(netns) => netns,
        Err(err) => {
            return not_run(&format!(
                "Linux and the right to create a network namespace: {err}"
            ));
        }
    };
    let started = Cluster::with(&[], |args, log| {
        let listens = |arg: &String| match arg.strip_prefix("--listen=127.0.0.1:") {
            Some(port) => format!("--listen={}:{port}", netns.outer_address()),
            None => arg.clone(),
        };
        let args: Vec<_> = args.iter().map(listens).collect();
        Process::start(&args, log)
    });
    let Some(cluster) = started else { return };
    let _stays = cluster.agent("node-1", &[]);
    let listen = [
        format!("--listen={}:0", netns.inner_address()),
        "--allow-anonymous".to_owned(),
    ];
    let _cut_off = cluster.agent_with("node-2", &listen, |args, log| netns.start(args, log));
    check_node_loss(&cluster, "node-2", || netns.cut());
}
