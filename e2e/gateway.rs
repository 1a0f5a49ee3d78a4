//! What the gateway makes of waiting: for a busy replica, for one that is being replaced, and for one that has to be
//! started first.

use serde_json::json;

use crate::harness::{Answer, Cluster, Fleet, Http, Kubectl, eventually, kill_9};

/// The guide with one stream, so that a second request has to wait.
const ONE_STREAM: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: narrow}
spec:
  model: {source: local://guide}
  serving: {name: narrow, contextTokens: 512, maxConcurrency: 1}
  # A machine that builds and tests may be short of memory.
  placement: {strategy: Spread, tolerations: [{operator: Exists}]}
";

/// The guide, there when it is asked.
const FROM_ZERO: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: sometimes}
spec:
  model: {source: local://guide}
  serving: {name: sometimes, contextTokens: 512}
  # A machine that builds and tests may be short of memory.
  placement: {tolerations: [{operator: Exists}]}
  autoscaling:
    minReplicas: 0
    maxReplicas: 1
    scaleToZeroAfter: 2s
    behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
";

fn question(model: &str) -> serde_json::Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": "What is rooflet?"}],
        "temperature": 0,
        "max_tokens": 24,
    })
}

/// Asks `model` once; the answer has this status.
#[track_caller]
fn ask(http: &Http, model: &str, status: u16) -> Answer {
    let answer = http
        .post("/v1/chat/completions", &question(model))
        .expect("an answer");
    assert_eq!(answer.status, status, "{}", answer.text);
    answer
}

fn apply(fleet: &Fleet, kubectl: &Kubectl, manifest: &str, name: &str) {
    kubectl.apply(manifest).ok();
    fleet.wait_for_ready(kubectl, name);
}

#[test]
fn requests_wait_for_a_stream_and_for_a_new_replica() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    apply(&fleet, &kubectl, ONE_STREAM, "narrow");

    // Eight at once on one stream: all are answered, most of them after a wait.
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let http = fleet.gateway.another();
            std::thread::spawn(move || http.post("/v1/chat/completions", &question("narrow")))
        })
        .collect();
    let mut waited = 0;
    for client in clients {
        let answer = client.join().expect("no panic").expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text);
        waited += usize::from(answer.headers.contains_key("x-rooflet-queue-ms"));
    }
    assert!(waited >= 1, "nobody waited in the gateway");

    // The only replica is deleted, then its worker killed, while somebody asks without a pause.
    let asking = ask_all_the_time(fleet.gateway.another());
    let replica = |kubectl: &Kubectl| {
        let list = kubectl.json("mrep")?;
        let name = list["items"][0]["metadata"]["name"].as_str();
        name.map(str::to_owned).ok_or("no replica".to_owned())
    };
    let before = replica(&kubectl).expect("a replica");
    kubectl.run(&format!("delete mrep {before} --wait=false")).ok();
    eventually("a new replica", || match replica(&kubectl)? {
        name if name != before => Ok(()),
        name => Err(name),
    });
    fleet.wait_for_ready(&kubectl, "narrow");
    let (answered, failed) = asking.join();
    assert!(
        failed.is_empty() && answered > 0,
        "{answered} answered, {failed:?}"
    );

    // A killed worker takes its own requests along; those that come while it is restarted are held.
    for pid in fleet.processes("worker") {
        kill_9(pid);
    }
    ask(&fleet.gateway, "narrow", 200);
}

/// A client that asks again and again.
struct Asking {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<(usize, Vec<String>)>,
}

fn ask_all_the_time(http: Http) -> Asking {
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let (mut answered, mut failed) = (0, Vec::new());
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            match http.post("/v1/chat/completions", &question("narrow")) {
                Ok(answer) if answer.status == 200 => answered += 1,
                Ok(answer) => failed.push(answer.text),
                Err(err) => failed.push(err),
            }
        }
        (answered, failed)
    });
    Asking { stop, thread }
}

impl Asking {
    /// Answers, and what went wrong.
    fn join(self) -> (usize, Vec<String>) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

#[test]
fn a_model_that_nobody_asks_goes_and_comes_back_for_the_next_request() {
    let mut fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(FROM_ZERO).ok();
    let gone = || {
        let list = kubectl.json("mrep")?;
        let left = list["items"].as_array().map_or(0, Vec::len);
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} replicas"))
        }
    };
    let at_zero = || {
        eventually("the last replica going", || {
            let deployment = kubectl.json("mdep sometimes")?;
            match deployment["spec"]["replicas"].as_i64() {
                Some(0) => gone(),
                other => Err(format!("{other:?} replicas wanted")),
            }
        });
    };
    at_zero();
    let answer = ask(&fleet.gateway, "sometimes", 200);
    assert!(
        answer.headers.contains_key("x-rooflet-queue-ms"),
        "{:?}",
        answer.headers
    );
    let events = kubectl.run("get events").ok();
    for reason in ["ScaledDown", "ScaledUp"] {
        assert!(events.contains(reason), "{events}");
    }
    // The words of `kubectl describe hpa`.
    for (kind, status) in [("AbleToScale", "True"), ("ScalingActive", "True")] {
        kubectl.wait_for_condition("mdep sometimes", kind, status);
    }
    // Who will not wait is told when to come back, by a gateway that has seen no start itself.
    kubectl
        .run("patch mdep sometimes --type=merge -p {\"spec\":{\"routing\":{\"queueTimeout\":\"1ms\"}}}")
        .ok();
    at_zero();
    fleet.restart();
    let refused = ask(&fleet.gateway, "sometimes", 503);
    assert!(
        refused.text.contains("based on the duration of the last start"),
        "{}",
        refused.text
    );
    assert!(refused.headers.contains_key("retry-after"));
    kubectl
        .run("patch mdep sometimes --type=merge -p {\"spec\":{\"autoscaling\":null}}")
        .ok();
    eventually("no word of autoscaling", || {
        let conditions = kubectl.json("mdep sometimes")?["status"]["conditions"].to_string();
        if conditions.contains("Scal") {
            Err(conditions)
        } else {
            Ok(())
        }
    });
}

/// What no machine is allowed to serve.
const NOWHERE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: nowhere}
spec:
  model: {source: local://guide}
  placement: {nodeSelector: {zone: mars}}
";

#[test]
fn a_model_that_no_node_takes_is_refused_with_the_reason_and_without_a_wait() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(NOWHERE).ok();
    // The first one comes before the scheduler. How long each waits is held against a clock of their own in the gateway's
    // tests.
    for _ in 0..2 {
        let answer = ask(&fleet.gateway, "nowhere", 503);
        assert_eq!(
            answer.json()["error"]["code"],
            "model_unavailable",
            "{}",
            answer.text
        );
        assert!(answer.text.contains("0/1 nodes are available"), "{}", answer.text);
    }
}

#[test]
fn two_gateways_share_the_replicas_and_know_of_each_other() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let _agents = [cluster.agent("node-1", &[]), cluster.agent("node-2", &[])];
    let kubectl = &cluster.kubectl;
    for node in ["node-1", "node-2"] {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
    }
    let two = ONE_STREAM
        .replace(
            "spec:",
            "spec:\n  replicas: 2\n  placement: {strategy: Spread, tolerations: [{operator: Exists}]}",
        )
        .replace("maxConcurrency: 1", "maxConcurrency: 4");
    kubectl.apply(&two).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/narrow --timeout=120s")
        .ok();
    let (mut second, other) = cluster.another_gateway();
    let replica_of = |answer: &Answer| {
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(
            !answer.headers.contains_key("x-rooflet-running"),
            "that is between agent and gateway"
        );
        answer.headers["x-rooflet-replica"]
            .to_str()
            .expect("a name")
            .to_owned()
    };

    // The same beginning of a prompt finds the same home by either gateway.
    let mut long = question("narrow");
    long["messages"][0]["content"] = "What is rooflet? ".repeat(70).into();
    let home = |http: &Http| replica_of(&http.post("/v1/chat/completions", &long).expect("an answer"));
    assert_eq!(home(&cluster.gateway), home(&other));

    // Either finds the one replica that keeps a response. Once its worker has ended, the answer says how to go on.
    let respond = |http: &Http, previous: Option<&str>| {
        let body = json!({
            "model": "narrow", "input": "What is rooflet?", "max_output_tokens": 8, "previous_response_id": previous,
        });
        http.post("/v1/responses", &body).expect("an answer")
    };
    let first = respond(&cluster.gateway, None);
    let keeper = replica_of(&first);
    let id = first.json()["id"].as_str().expect("an id").to_owned();
    for gateway in [&cluster.gateway, &other, &cluster.gateway, &other] {
        assert_eq!(replica_of(&respond(gateway, Some(&id))), keeper);
    }
    for node in ["node-1", "node-2"] {
        cluster.workers(node).into_iter().for_each(kill_9);
    }
    for gateway in [&cluster.gateway, &other] {
        let told = eventually("the response being gone", || match respond(gateway, Some(&id)) {
            told if told.status == 400 => Ok(told),
            told => Err(format!("{} {}", told.status, told.text)),
        });
        let error = &told.json()["error"];
        assert_eq!(error["code"], "previous_response_not_found");
        let said = error["message"].as_str().expect("text");
        assert!(
            said.contains(&id) && said.contains("Please send the earlier items in 'input'"),
            "{said}"
        );
        let gone = gateway.get(&format!("/v1/responses/{id}")).expect("an answer");
        assert_eq!(
            (gone.status, gone.text.contains(&id)),
            (404, true),
            "{}",
            gone.text
        );
    }
    eventually("both workers again", || {
        let list = kubectl.json("mrep")?;
        let is_back = |replica: &serde_json::Value| {
            replica["status"]["restarts"] == 1 && replica["status"]["phase"] == "Ready"
        };
        let back = list["items"]
            .as_array()
            .map(|all| all.iter().filter(|one| is_back(one)).count());
        if back == Some(2) {
            Ok(())
        } else {
            Err(list.to_string())
        }
    });

    // Both at once; then one of them goes, and the other one serves on.
    let gateways = [&cluster.gateway, &other];
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let http = gateways[client % 2].another();
            std::thread::spawn(move || http.post("/v1/chat/completions", &question("narrow")))
        })
        .collect();
    let mut answered_by = std::collections::BTreeSet::new();
    for client in clients {
        answered_by.insert(replica_of(&client.join().expect("no panic").expect("an answer")));
    }
    assert_eq!(answered_by.len(), 2, "{answered_by:?}");
    assert!(second.terminate().success(), "{}", second.log());
    replica_of(&ask(&cluster.gateway, "narrow", 200));
}
