//! Request queue of the gateway: busy replicas, replicas that are being replaced, and scale from
//! zero.

use std::net::TcpStream;

use serde_json::json;

use crate::harness::{Cluster, Fleet, Http, HttpResponse, Kubectl, eventually, kill_9, pause, resume};

/// Deployment of the guide with one stream, so that a second request must wait.
const ONE_STREAM: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: narrow}
spec:
  model: {source: local://guide}
  serving: {name: narrow, contextTokens: 512, maxConcurrency: 1}
  # The machine of the test may be short of memory.
  placement: {strategy: Spread, tolerations: [{operator: Exists}]}
";

/// Deployment of the guide that scales from zero.
const FROM_ZERO: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: sometimes}
spec:
  model: {source: local://guide}
  serving: {name: sometimes, contextTokens: 512}
  # The machine of the test may be short of memory.
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

/// Sends a question to `model` and asserts the status of the response.
#[track_caller]
fn ask(http: &Http, model: &str, status: u16) -> HttpResponse {
    let answer = http
        .post("/v1/chat/completions", &question(model))
        .expect("a response");
    assert_eq!(answer.status, status, "{}", answer.text);
    answer
}

fn apply(fleet: &Fleet, kubectl: &Kubectl, manifest: &str, name: &str) {
    kubectl.apply(manifest).ok();
    fleet.wait_for_ready(kubectl, name);
}

#[test]
fn requests_queue_for_a_stream_and_for_a_new_replica() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    apply(&fleet, &kubectl, ONE_STREAM, "narrow");

    // Eight concurrent requests for one stream: all are answered, most of them after a wait.
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let http = fleet.gateway.duplicate();
            std::thread::spawn(move || http.post("/v1/chat/completions", &question("narrow")))
        })
        .collect();
    let mut waited = 0;
    for client in clients {
        let answer = client.join().expect("no panic").expect("a response");
        assert_eq!(answer.status, 200, "{}", answer.text);
        waited += usize::from(answer.headers.contains_key("x-rooflet-queue-ms"));
    }
    assert!(waited >= 1, "no request was queued");

    // The only replica is deleted while a client sends requests continuously.
    let client = start_looping_client(fleet.gateway.duplicate());
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
    let (answered, failed) = client.join();
    assert!(
        failed.is_empty() && answered > 0,
        "{answered} answered, {failed:?}"
    );

    // Requests that arrive during the restart of a killed worker are queued.
    for pid in fleet.processes("worker") {
        kill_9(pid);
    }
    ask(&fleet.gateway, "narrow", 200);
}

/// Client that sends requests continuously.
struct LoopingClient {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<(usize, Vec<String>)>,
}

fn start_looping_client(http: Http) -> LoopingClient {
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
    LoopingClient { stop, thread }
}

impl LoopingClient {
    /// Stops the client. Returns the number of answers, and the errors.
    fn join(self) -> (usize, Vec<String>) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

#[test]
fn idle_model_scales_to_zero_and_back_for_the_next_request() {
    let mut fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(FROM_ZERO).ok();
    let no_replicas = || {
        let list = kubectl.json("mrep")?;
        let left = list["items"].as_array().map_or(0, Vec::len);
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} replicas"))
        }
    };
    let wait_for_zero = || {
        eventually("zero replicas", || {
            let deployment = kubectl.json("mdep sometimes")?;
            match deployment["spec"]["replicas"].as_i64() {
                Some(0) => no_replicas(),
                other => Err(format!("{other:?} replicas wanted")),
            }
        });
    };
    wait_for_zero();
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
    // Condition types of a HorizontalPodAutoscaler.
    for (kind, status) in [("AbleToScale", "True"), ("ScalingActive", "True")] {
        kubectl.wait_for_condition("mdep sometimes", kind, status);
    }
    // With a short queue timeout, the response has a Retry-After header, even from a restarted
    // gateway that has not observed a start.
    kubectl
        .run("patch mdep sometimes --type=merge -p {\"spec\":{\"routing\":{\"queueTimeout\":\"1ms\"}}}")
        .ok();
    wait_for_zero();
    fleet.restart();
    let rejected = ask(&fleet.gateway, "sometimes", 503);
    assert!(
        rejected.text.contains("based on the duration of the last start"),
        "{}",
        rejected.text
    );
    assert!(rejected.headers.contains_key("retry-after"));
    kubectl
        .run("patch mdep sometimes --type=merge -p {\"spec\":{\"autoscaling\":null}}")
        .ok();
    eventually("no condition of autoscaling", || {
        let conditions = kubectl.json("mdep sometimes")?["status"]["conditions"].to_string();
        if conditions.contains("Scal") {
            Err(conditions)
        } else {
            Ok(())
        }
    });
}

/// Deployment whose node selector matches no node.
const UNSCHEDULABLE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: nowhere}
spec:
  model: {source: local://guide}
  placement: {nodeSelector: {zone: mars}}
";

#[test]
fn request_for_an_unschedulable_model_is_rejected_immediately_with_the_reason() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(UNSCHEDULABLE).ok();
    eventually("the gateway to read the deployment", || {
        let path = "/v1/chat/completions";
        let answer = fleet
            .gateway
            .post(path, &question("nowhere"))
            .expect("a response");
        if answer.status == 404 {
            Err(answer.text)
        } else {
            Ok(())
        }
    });
    // The first request may arrive before the scheduling decision. The gateway's unit tests check
    // the waiting time with a simulated clock.
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
fn two_gateways_share_replicas_and_stored_responses() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let _agents = [cluster.agent("node-1", &[]), cluster.agent("node-2", &[])];
    let kubectl = &cluster.kubectl;
    for node in ["node-1", "node-2"] {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
    }
    let manifest = ONE_STREAM
        .replace(
            "spec:",
            "spec:\n  replicas: 2\n  placement: {strategy: Spread, tolerations: [{operator: Exists}]}",
        )
        .replace("maxConcurrency: 1", "maxConcurrency: 4");
    kubectl.apply(&manifest).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/narrow --timeout=120s")
        .ok();
    let (mut second, other) = cluster.start_second_gateway(&[]);
    let replica_of = |answer: &HttpResponse| {
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(
            !answer.headers.contains_key("x-rooflet-running"),
            "the header is internal"
        );
        answer.headers["x-rooflet-replica"]
            .to_str()
            .expect("a name")
            .to_owned()
    };

    // Both gateways choose the same replica for prompts with the same prefix.
    let mut long = question("narrow");
    long["messages"][0]["content"] = "What is rooflet? ".repeat(70).into();
    let chosen_replica =
        |http: &Http| replica_of(&http.post("/v1/chat/completions", &long).expect("a response"));
    assert_eq!(chosen_replica(&cluster.gateway), chosen_replica(&other));

    // Both gateways find the replica that stores a response. After the exit of its worker, the
    // error contains the remedy.
    let respond = |http: &Http, previous: Option<&str>| {
        let body = json!({
            "model": "narrow", "input": "What is rooflet?", "max_output_tokens": 8, "previous_response_id": previous,
        });
        http.post("/v1/responses", &body).expect("a response")
    };
    let first = respond(&cluster.gateway, None);
    let storing_replica = replica_of(&first);
    let id = first.json()["id"].as_str().expect("an id").to_owned();
    for gateway in [&cluster.gateway, &other, &cluster.gateway, &other] {
        assert_eq!(replica_of(&respond(gateway, Some(&id))), storing_replica);
    }
    for node in ["node-1", "node-2"] {
        cluster.workers(node).into_iter().for_each(kill_9);
    }
    for gateway in [&cluster.gateway, &other] {
        let reported = eventually("the loss of the response", || match respond(gateway, Some(&id)) {
            reported if reported.status == 400 => Ok(reported),
            reported => Err(format!("{} {}", reported.status, reported.text)),
        });
        let error = &reported.json()["error"];
        assert_eq!(error["code"], "previous_response_not_found");
        let printed = error["message"].as_str().expect("text");
        assert!(
            printed.contains(&id) && printed.contains("Please send the earlier items in 'input'"),
            "{printed}"
        );
        let lookup = gateway.get(&format!("/v1/responses/{id}")).expect("a response");
        assert_eq!(
            (lookup.status, lookup.text.contains(&id)),
            (404, true),
            "{}",
            lookup.text
        );
    }
    eventually("both restarted workers", || {
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

    // Both gateways serve at the same time. After one is terminated, the other one continues.
    let gateways = [&cluster.gateway, &other];
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let http = gateways[client % 2].duplicate();
            std::thread::spawn(move || http.post("/v1/chat/completions", &question("narrow")))
        })
        .collect();
    let mut answered_by = std::collections::BTreeSet::new();
    for client in clients {
        answered_by.insert(replica_of(&client.join().expect("no panic").expect("a response")));
    }
    assert_eq!(answered_by.len(), 2, "{answered_by:?}");
    assert!(second.terminate().success(), "{}", second.log());
    replica_of(&ask(&cluster.gateway, "narrow", 200));
}

#[test]
fn stopped_gateway_lets_answers_finish_within_its_grace() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let _agent = cluster.agent("node-1", &[]);
    // The answer must not end before the worker is paused.
    let long = ONE_STREAM.replace("contextTokens: 512", "contextTokens: 4096");
    cluster.kubectl.apply(&long).ok();
    let available = "wait --for=condition=Available mdep/narrow --timeout=180s";
    cluster.kubectl.run(available).ok();
    let body = json!({"model": "narrow", "messages": [{"role": "user", "content": "What is rooflet?"}],
                      "stream": true, "max_tokens": 3000, "ignore_eos": true});
    let workers = cluster.workers("node-1");
    for (grace, is_complete) in [("--stop-grace=10m", true), ("--stop-grace=100ms", false)] {
        let (mut gateway, http) = cluster.start_second_gateway(&[grace]);
        let address = http.base().trim_start_matches("http://").to_owned();
        let answer = http.post_with_head("/v1/chat/completions", &body, |status, _| {
            assert_eq!(status, 200);
            workers.iter().for_each(|pid| pause(*pid));
            gateway.begin_termination();
            eventually("the end of the listener", || {
                TcpStream::connect(&address).map_or(Ok(()), |_| Err("connected".to_owned()))
            });
            if !is_complete {
                let status = gateway.wait();
                assert_eq!(status.code(), Some(1), "{}", gateway.log());
            }
            workers.iter().for_each(|pid| resume(*pid));
        });
        let ended = answer.is_ok_and(|answer| answer.text.ends_with("data: [DONE]\n\n"));
        assert_eq!(ended, is_complete, "{grace}");
        if is_complete {
            assert!(gateway.wait().success(), "{}", gateway.log());
        }
    }
}
