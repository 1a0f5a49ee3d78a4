//! A node that is lost while streams run: by a kill -9 of all it runs, and by a cut cable. Only streams that it was
//! answering may fail; every other request is answered by the other node.
#![expect(
    clippy::disallowed_methods,
    reason = "when a request began is the real clock's"
)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::json;

use crate::harness::{Cluster, Http, Netns, Process, eventually, kill_9, not_run};

const CLIENTS: usize = 4;
/// Answers after the loss that have to come without a failure.
const ANSWERS_AFTER: usize = 3 * CLIENTS;

const TWO: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 2
  model: {source: 'local://guide'}
  serving: {contextTokens: 512}
  # A machine that builds and tests may be short of memory.
  placement: {strategy: Spread, tolerations: [{operator: Exists}]}
";

/// One request and what became of it.
#[derive(Debug)]
struct Asked {
    began: Instant,
    /// Who began to answer.
    replica: Option<String>,
    failure: Option<String>,
}

/// Clients that stream long answers all the time, and what they saw.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    asked: Mutex<Vec<Asked>>,
    /// Who answers each client now.
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
            let outcome = gateway.post_hearing("/v1/chat/completions", &body, |status, headers| {
                if status == 200 {
                    let name = headers["x-rooflet-replica"].to_str().expect("a name").to_owned();
                    self.open.lock().expect("ok").insert(client, name.clone());
                    replica = Some(name);
                }
            });
            self.open.lock().expect("ok").remove(&client);
            let failure = match outcome {
                Ok(answer) if answer.status != 200 => Some(answer.text),
                Ok(answer) if answer.events().last().map(String::as_str) != Some("[DONE]") => {
                    Some(format!("without its end: …{:?}", answer.events().last()))
                }
                Ok(_) => None,
                Err(err) => Some(err),
            };
            self.asked.lock().expect("ok").push(Asked {
                began,
                replica,
                failure,
            });
        }
    }
}

/// Lets clients stream, loses the node `lost` with `lose` while one of them is answered there, and looks at every answer.
fn lose_a_node(cluster: &Cluster, lost: &str, lose: impl FnOnce()) {
    let kubectl = &cluster.kubectl;
    for node in ["node-1", "node-2"] {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
        kubectl
            .run(&format!("wait --for=condition=Ready mac/{node} --timeout=120s"))
            .ok();
    }
    kubectl.apply(TWO).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/guide --timeout=120s")
        .ok();
    let replicas = kubectl.json("mrep").expect("a list")["items"].clone();
    let on_lost = |replica: &&serde_json::Value| replica["spec"]["nodeName"] == lost;
    let doomed: Vec<_> = replicas
        .as_array()
        .into_iter()
        .flatten()
        .filter(on_lost)
        .collect();
    assert_eq!(doomed.len(), 1, "one on each node: {replicas:#}");
    let doomed = format!(
        "default/{}",
        doomed[0]["metadata"]["name"].as_str().expect("a name")
    );

    let load = Load::default();
    let lost_at = std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (load, gateway) = (&load, cluster.gateway.another());
            scope.spawn(move || load.run(client, &gateway));
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("streams on both nodes", || {
                let open = load.open.lock().expect("ok").clone();
                let is_doomed = |name: &&String| **name == doomed;
                let there = open.values().filter(is_doomed).count();
                if there > 0 && there < open.len() {
                    Ok(())
                } else {
                    Err(format!("{open:?}"))
                }
            });
            lose();
            let lost_at = Instant::now();
            eventually("answers after the loss", || {
                let asked = load.asked.lock().expect("ok");
                let after = asked.iter().filter(|one| one.began > lost_at).count();
                if after >= ANSWERS_AFTER {
                    Ok(())
                } else {
                    Err(format!("{after} answers"))
                }
            });
            lost_at
        }));
        // Also after a panic: the clients would go on for ever.
        load.stop.store(true, Ordering::SeqCst);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let asked = load.asked.into_inner().expect("ok");
    let failed: Vec<_> = asked.iter().filter(|one| one.failure.is_some()).collect();
    let excused = |one: &&&Asked| one.began <= lost_at && one.replica.as_ref() == Some(&doomed);
    let others: Vec<_> = failed.iter().filter(|one| !excused(one)).collect();
    assert!(
        others.is_empty(),
        "{} of {} failed without a reason: {others:#?}",
        others.len(),
        asked.len()
    );
    assert!(
        !failed.is_empty(),
        "the streams that ran there cannot have come to their end"
    );
    assert!(
        failed.len() <= CLIENTS,
        "no more than the streams that were open: {failed:#?}"
    );
}

#[test]
fn a_killed_node_takes_only_its_own_open_streams_along() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let _stays = cluster.agent("node-1", &[]);
    let agent = cluster.agent("node-2", &[]);
    lose_a_node(&cluster, "node-2", || {
        // The agent first: it would start its worker again.
        kill_9(agent.pid());
        for worker in cluster.workers("node-2") {
            kill_9(worker);
        }
    });
}

#[test]
fn a_cut_cable_takes_only_the_streams_behind_it_along() {
    let netns = match Netns::new() {
        Ok(netns) => netns,
        Err(why) => return not_run(&format!("Linux and the right to make a network namespace: {why}")),
    };
    let started = Cluster::with(&[], |args, log| {
        let listens = |arg: &String| match arg.strip_prefix("--listen=127.0.0.1:") {
            Some(port) => format!("--listen={}:{port}", netns.here()),
            None => arg.clone(),
        };
        let args: Vec<_> = args.iter().map(listens).collect();
        Process::start(&args, log)
    });
    let Some(cluster) = started else { return };
    let _stays = cluster.agent("node-1", &[]);
    let listen = [format!("--listen={}:0", netns.there())];
    let _cut_off = cluster.agent_with("node-2", &listen, |args, log| netns.start(args, log));
    lose_a_node(&cluster, "node-2", || netns.cut());
}
