//! Lifecycle of deployments with kubectl: apply, serve, scale, roll out, logs and delete.

use crate::harness::{Fleet, descendants, eventually, processes_with, repository};

/// Second deployment with the same model files and another served name.
const SECOND: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: second}
spec:
  model: {source: local://guide}
  serving: {name: other-name, contextTokens: 256, maxConcurrency: 2}
";

#[test]
fn deployment_is_applied_served_scaled_and_deleted() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };

    // The node reports its chip and a measured bandwidth.
    let node = kubectl.json("mac node-1").expect("the node");
    assert_eq!(node["status"]["speed"]["basis"], "Measured");
    assert!(
        node["status"]["speed"]["decodeBytesPerSecond"]
            .as_f64()
            .expect("a figure")
            > 0.0,
        "{node:#}"
    );
    assert!(
        !node["status"]["chip"]["name"]
            .as_str()
            .expect("a name")
            .is_empty()
    );

    let example = repository("examples/guide.yaml");
    let applied = kubectl.run(&format!("apply -f {}", example.display())).ok();
    assert_eq!(applied, "modeldeployment.rooflet.dev/guide created\n");
    fleet.wait_for_ready(&kubectl, "guide");
    let again = kubectl.run(&format!("apply -f {}", example.display())).ok();
    assert_eq!(again, "modeldeployment.rooflet.dev/guide unchanged\n");
    let table = kubectl.run("get mdep").ok();
    let header: Vec<&str> = table
        .lines()
        .next()
        .expect("a header")
        .split_whitespace()
        .collect();
    assert_eq!(
        header,
        [
            "NAME",
            "MODEL",
            "READY",
            "UP-TO-DATE",
            "AVAILABLE",
            "TOK/S(P/M)",
            "TTFT(P/M)",
            "REASON",
            "AGE"
        ]
    );
    let row: Vec<&str> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row[..5], ["guide", "local://guide", "1/1", "1", "1"]);
    assert_eq!(row[7], "AllReplicasReady");

    // kubectl can apply its own output: an object and a List. A status update in between causes a
    // conflict, so the apply is retried.
    for printed in ["get mdep guide -o yaml", "get mdep -o yaml"] {
        eventually(printed, || {
            let applied = kubectl.apply(&kubectl.run(printed).stdout);
            let done = applied.success && applied.stdout.starts_with("modeldeployment.rooflet.dev/guide ");
            if done { Ok(()) } else { Err(applied.stderr) }
        });
    }

    // `kubectl explain` describes nested fields.
    let explained = kubectl.run("explain mdep.spec.objectives").ok();
    assert!(
        explained.contains("decodeTokensPerSecond")
            && explained.contains("Minimum decode tokens/s of each stream"),
        "{explained}"
    );

    // The model answers readable text to trained and to other questions.
    let answer = fleet.gateway.chat("guide", "What is rooflet?");
    assert!(
        answer.to_lowercase().contains("rooflet") && answer.contains("Mac"),
        "{answer}"
    );
    for unseen in [
        "Who won the chess championship in 1972?",
        "Grüße! Wie spät ist es? 🕰",
        "x",
    ] {
        let answer = fleet.gateway.chat("guide", unseen);
        assert!(
            !answer.trim().is_empty() && !answer.contains('\u{fffd}'),
            "{unseen}: {answer}"
        );
    }

    // The status has the measured speed beside the predicted one.
    eventually("a measured speed in the status", || {
        let found = kubectl.json("mdep guide")?;
        let speed = found["status"]["tokensPerSecond"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let figures = speed.split_once('/').and_then(|(predicted, measured)| {
            let figures: (f64, f64) = (predicted.parse().ok()?, measured.parse().ok()?);
            Some(figures)
        });
        figures
            .filter(|(predicted, measured)| *predicted > 0.0 && *measured > 0.0)
            .ok_or(speed)
    });

    let described = kubectl.run("describe mdep guide").ok();
    for word in ["Admitted", "Scheduled", "Available", "Ready", "Events:"] {
        assert!(described.contains(word), "{word} is missing in\n{described}");
    }
    let replica = kubectl.run("get mrep -o name").ok();
    let described = kubectl.run(&format!("describe {}", replica.trim())).ok();
    for word in ["node-1", "Loaded", "Ready", "Normal"] {
        assert!(described.contains(word), "{word} is missing in\n{described}");
    }

    // Scaling restarts no worker.
    let first_worker = fleet.processes("worker");
    kubectl.run("scale mdep/guide --replicas=2").ok();
    eventually("two workers", || match fleet.processes("worker").len() {
        2 => Ok(()),
        n => Err(format!("{n} workers")),
    });
    fleet.wait_for_ready(&kubectl, "guide");
    eventually("2/2", || {
        let ready = kubectl.json("mdep guide")?["status"]["ready"].clone();
        if ready == "2/2" {
            Ok(())
        } else {
            Err(ready.to_string())
        }
    });
    assert!(
        fleet.processes("worker").contains(&first_worker[0]),
        "scaling up restarted the first worker"
    );
    kubectl.run("scale mdep/guide --replicas=1").ok();
    eventually("one worker", || match fleet.processes("worker").len() {
        1 => Ok(()),
        n => Err(format!("{n} workers")),
    });

    // The deletion removes all replicas, revisions and workers.
    kubectl.run("delete mdep guide --timeout=60s").ok();
    eventually("no objects and no workers", || {
        let left = kubectl.run("get mdep,mrep,mrev -o name").stdout;
        let workers = fleet.processes("worker");
        if left.is_empty() && workers.is_empty() {
            Ok(())
        } else {
            Err(format!("{left} {workers:?}"))
        }
    });
    let response = fleet
        .gateway
        .try_chat("guide", "Are you there?")
        .expect("a response");
    assert_eq!(
        (response.status, response.json()["error"]["code"].as_str()),
        (404, Some("model_not_found")),
        "{}",
        response.text
    );
}

#[test]
fn two_deployments_run_side_by_side() {
    let Some((mut fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    kubectl.apply(SECOND).ok();
    fleet.wait_for_ready(&kubectl, "second");
    let models = fleet.gateway.get("/v1/models").expect("a response").json();
    let names: Vec<&str> = models["data"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|model| model["id"].as_str())
        .collect();
    assert_eq!(names, ["guide", "other-name"]);
    assert_eq!(
        fleet.gateway.chat("guide", "What is rooflet?"),
        fleet.gateway.chat("other-name", "What is rooflet?")
    );

    // Each keeps its own context limit.
    let long = "word ".repeat(600);
    let rejected = fleet.gateway.try_chat("other-name", &long).expect("a response");
    assert_eq!(
        (rejected.status, rejected.json()["error"]["code"].as_str()),
        (400, Some("context_length_exceeded")),
        "{}",
        rejected.text
    );

    // Deleting one deployment does not affect the other one.
    let kept = kubectl
        .json("mrep -l rooflet.dev/deployment=second")
        .expect("a list")["items"][0]["metadata"]["uid"]
        .clone();
    kubectl.run("delete mdep guide --timeout=60s").ok();
    assert!(!fleet.gateway.chat("other-name", "What is rooflet?").is_empty());
    assert_eq!(
        kubectl
            .json("mrep -l rooflet.dev/deployment=second")
            .expect("a list")["items"][0]["metadata"]["uid"],
        kept
    );

    // Ctrl-C stops every process, and the next start restores the state.
    let pids = descendants(fleet.up.pid());
    assert!(pids.len() >= 3, "server, agent and worker: {pids:?}");
    fleet.restart();
    eventually("the old processes to be gone", || {
        let running = processes_with(&[]);
        let left: Vec<&u32> = pids.iter().filter(|pid| running.contains(pid)).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    fleet.wait_for_ready(&kubectl, "second");
    assert!(!fleet.gateway.chat("other-name", "What is rooflet?").is_empty());
}

#[test]
fn changed_template_is_rolled_out() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(SECOND).ok();
    fleet.wait_for_ready(&kubectl, "second");
    let first = kubectl.json("mdep second").expect("the deployment")["status"]["currentRevision"].clone();

    kubectl.apply(&SECOND.replace("256", "128")).ok();
    eventually("the new revision to serve", || {
        let found = kubectl.json("mdep second")?;
        let status = &found["status"];
        let done = status["currentRevision"] != first
            && status["updatedReplicas"] == 1
            && status["ready"] == "1/1"
            && status["replicas"] == 1;
        if done { Ok(()) } else { Err(status.to_string()) }
    });
    // The old replica's object remains until its worker has exited.
    let replica = eventually("the old replica to be gone", || {
        let listed = kubectl.json("mrep -l rooflet.dev/deployment=second")?;
        match listed["items"].as_array().map(Vec::as_slice) {
            Some([replica]) => Ok(replica.clone()),
            Some(_) | None => Err(listed.to_string()),
        }
    });
    assert_eq!(replica["spec"]["serving"]["contextTokens"], 128);
    assert_eq!(
        kubectl.json("mrev").expect("a list")["items"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );

    // A change of objectives restarts no worker.
    let worker = eventually("the old worker to be gone", || match fleet.processes("worker") {
        workers if workers.len() == 1 => Ok(workers),
        workers => Err(format!("{workers:?}")),
    });
    kubectl
        .run_with(
            &[
                "patch",
                "mdep",
                "second",
                "--type=merge",
                "-p",
                r#"{"spec":{"objectives":{"decodeTokensPerSecond":0.5}}}"#,
            ],
            "",
        )
        .ok();
    fleet.gateway.chat("other-name", "What is rooflet?");
    kubectl.wait_for_condition("mdep second", "ObjectivesMet", "True");
    assert_eq!(fleet.processes("worker"), worker);
}

#[test]
fn logs_prints_the_log_of_the_worker() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(SECOND).ok();
    fleet.wait_for_ready(&kubectl, "second");
    let replica = kubectl.run("get mrep -o name").ok();
    let name = replica.trim().rsplit('/').next().expect("a name").to_owned();
    let output = std::process::Command::new(crate::harness::rooflet())
        .args(["logs", &format!("mrep/{name}")])
        .env("KUBECONFIG", fleet.kubeconfig())
        .output()
        .expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !text.trim().is_empty(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!text.contains("What is rooflet"), "prompts are never logged");
}
