//! Rollouts while requests run: nothing fails that was not meant to, and what does not work is taken back.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use crate::harness::{Fleet, Http, Options, Scratch, copy_guide, eventually, rooflet};

/// Requests that run at the same time.
const STREAMS: usize = 3;

/// `rooflet rollout ARGS`: whether it succeeded, and what it said.
fn rollout(fleet: &Fleet, args: &[&str]) -> (bool, String) {
    let output = Command::new(rooflet())
        .arg("rollout")
        .args(args)
        .arg("--kubeconfig")
        .arg(fleet.kubeconfig())
        .output()
        .expect("rooflet starts");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[track_caller]
fn rollout_ok(fleet: &Fleet, args: &[&str]) -> String {
    let (success, said) = rollout(fleet, args);
    assert!(success, "rooflet rollout {args:?}: {said}");
    said
}

/// Streams answers of `guide` one after the other while `act` runs. Every one has to come to its end.
fn under_load(fleet: &Fleet, act: impl FnOnce()) {
    let done = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| {
                let gateway = Http::new(format!("http://127.0.0.1:{}", fleet.gateway_port));
                while !done.load(Ordering::SeqCst) {
                    let body = json!({
                        "model": "guide",
                        "messages": [{ "role": "user", "content": "What is rooflet?" }],
                        "stream": true,
                        "temperature": 0,
                        "max_tokens": 32
                    });
                    let answer = gateway.post("/v1/chat/completions", &body).expect("an answer");
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    assert_eq!(
                        answer.events().last().map(String::as_str),
                        Some("[DONE]"),
                        "{}",
                        answer.text
                    );
                    assert!(!answer.streamed_text().is_empty(), "{}", answer.text);
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Also when `act` panics: the threads would go on for ever.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        done.store(true, Ordering::SeqCst);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(
        answered.load(Ordering::SeqCst) > STREAMS,
        "too few answers to tell"
    );
}

const TWO: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide, annotations: {kubernetes.io/change-cause: first}}
spec:
  replicas: 2
  model: {source: 'local://guide'}
  serving: {contextTokens: 512}
  # A machine that builds and tests may be short of memory.
  placement: {tolerations: [{operator: Exists}]}
";

#[test]
fn a_rolling_update_and_its_undo_fail_no_request() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(TWO).ok();
    let said = rollout_ok(&fleet, &["status", "mdep/guide"]);
    assert!(
        said.ends_with("modeldeployment \"guide\" successfully rolled out\n"),
        "{said}"
    );
    let first = fleet.processes("worker");

    under_load(&fleet, || {
        kubectl
            .apply(&TWO.replace("512", "256").replace("first", "shorter"))
            .ok();
        let said = rollout_ok(&fleet, &["status", "guide", "--timeout=110s"]);
        assert!(
            said.contains("Waiting for modeldeployment \"guide\" rollout to finish: "),
            "{said}"
        );
        // The last old one may still finish what it was answering.
        eventually("other workers", || {
            let second = fleet.processes("worker");
            if second.iter().any(|pid| first.contains(pid)) {
                Err(format!("{first:?} {second:?}"))
            } else {
                Ok(())
            }
        });

        assert_eq!(
            rollout_ok(&fleet, &["undo", "mdep/guide"]),
            "modeldeployment.rooflet.dev/guide rolled back\n"
        );
        rollout_ok(&fleet, &["status", "guide", "--timeout=110s"]);
    });
    let found = kubectl.json("mdep guide").expect("there");
    assert_eq!(found["spec"]["serving"]["contextTokens"], 512);
    assert_eq!(found["status"]["ready"], "2/2");
    assert_eq!(
        rollout_ok(&fleet, &["history", "mdep/guide"]),
        "modeldeployment.rooflet.dev/guide\nREVISION  CHANGE-CAUSE\n2         shorter\n3         first\n"
    );

    // A template that is refused rolls nothing out, and its undo ends at what is served.
    kubectl.apply(&TWO.replace("512", "400000")).ok();
    fleet.wait_for_condition(&kubectl, "mdep guide", "Admitted", "False");
    rollout_ok(&fleet, &["undo", "mdep/guide"]);
    rollout_ok(&fleet, &["status", "guide", "--timeout=110s"]);
    let found = kubectl.json("mdep guide").expect("there");
    assert_eq!(found["spec"]["serving"]["contextTokens"], 512);

    // Pausing holds a change back, and what is so already is an error.
    rollout_ok(&fleet, &["pause", "mdep/guide"]);
    let (success, said) = rollout(&fleet, &["pause", "mdep/guide"]);
    assert!(!success && said.contains("is already paused"), "{said}");
    let before = fleet.processes("worker");
    kubectl.apply(&TWO.replace("512", "128")).ok();
    fleet.wait_for_condition(&kubectl, "mdep guide", "Progressing", "Unknown");
    assert_eq!(fleet.processes("worker"), before);
    let (success, said) = rollout(&fleet, &["promote", "mdep/guide"]);
    assert!(!success && said.contains("no rollout under way"), "{said}");
}

const CANARY: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 2
  model: {source: 'local://MODEL'}
  serving: {contextTokens: 512}
  # A machine that builds and tests may be short of memory.
  placement: {tolerations: [{operator: Exists}]}
  progressDeadlineSeconds: 10
  strategy:
    type: Canary
    canary: {steps: [{setWeight: 50}, {pause: {}}]}
";

#[test]
fn a_canary_that_does_not_work_is_rolled_back_and_one_that_does_is_promoted() {
    let models = Scratch::new();
    copy_guide(&models.join("guide"));
    copy_guide(&models.join("newer"));
    copy_guide(&models.join("broken"));
    // Whoever only looks at the headers cannot tell.
    std::fs::write(models.join("broken/tokenizer.json"), "{").expect("writable");
    let fleet = Fleet::with(Options {
        model_dir: Some(models.path().to_owned()),
        ..Options::default()
    });
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(&CANARY.replace("MODEL", "guide")).ok();
    rollout_ok(&fleet, &["status", "mdep/guide"]);

    under_load(&fleet, || {
        kubectl.apply(&CANARY.replace("MODEL", "broken")).ok();
        let (success, said) = rollout(&fleet, &["status", "mdep/guide", "--timeout=110s"]);
        assert!(!success && said.contains("back to revision 1"), "{said}");
        eventually("both replicas of the first revision", || {
            let found = kubectl.json("mdep guide")?;
            let sources: Vec<_> = kubectl.json("mrep")?["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|replica| replica["spec"]["model"]["source"].clone())
                .collect();
            if found["status"]["ready"] == "2/2" && sources == ["local://guide", "local://guide"] {
                Ok(())
            } else {
                Err(format!("{} {sources:?}", found["status"]))
            }
        });

        kubectl.apply(&CANARY.replace("MODEL", "newer")).ok();
        eventually("half of the requests for the canary", || {
            let status = kubectl.json("mdep guide")?["status"].clone();
            let weights: Vec<_> = status["traffic"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|share| share["weight"].clone())
                .collect();
            if weights == [50, 50] {
                Ok(())
            } else {
                Err(status.to_string())
            }
        });
        let (_, said) = rollout(&fleet, &["status", "guide", "--watch=false"]);
        assert!(said.contains("step 2 of 2 of the canary"), "{said}");
        rollout_ok(&fleet, &["promote", "mdep/guide"]);
        rollout_ok(&fleet, &["status", "mdep/guide", "--timeout=110s"]);
    });
    assert!(kubectl.json("mdep guide").expect("there")["status"]["traffic"].is_null());
}

const PATIENT: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  model: {source: 'local://guide'}
  serving: {contextTokens: 512}
  # A machine that builds and tests may be short of memory.
  placement: {tolerations: [{operator: Exists}]}
  strategy: {waitForIdle: {idleFor: 2s, atMost: 1h}}
";

#[test]
fn a_replica_in_use_is_replaced_when_it_is_idle() {
    let fleet = Fleet::start();
    let Some(kubectl) = fleet.kubectl() else { return };
    kubectl.apply(PATIENT).ok();
    rollout_ok(&fleet, &["status", "mdep/guide"]);
    let before = fleet.processes("worker");
    under_load(&fleet, || {
        // Its node tells every ten seconds at most that it is in use.
        eventually("the replica being known as used", || {
            let requests = kubectl.json("mrep")?["items"][0]["status"]["requests"].clone();
            if requests["idleSince"].is_null() && requests["running"].is_u64() {
                Ok(())
            } else {
                Err(requests.to_string())
            }
        });
        kubectl.apply(&PATIENT.replace("512", "256")).ok();
        fleet.wait_for_condition(&kubectl, "mdep guide", "Progressing", "Unknown");
        let (_, said) = rollout(&fleet, &["status", "guide", "--watch=false"]);
        assert!(
            said.contains("the next replica goes when it has had no request for 2 s"),
            "{said}"
        );
        assert_eq!(fleet.processes("worker"), before);
    });
    let said = rollout_ok(&fleet, &["status", "mdep/guide", "--timeout=110s"]);
    assert!(said.ends_with("successfully rolled out\n"), "{said}");
    assert_ne!(fleet.processes("worker"), before);
}
