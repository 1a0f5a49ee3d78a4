//! Admission by bandwidth, with the measurements and predictions of this machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Fleet, Http, Kubectl, eventually};

/// Number of requests after which the measured speed is compared with the prediction.
const ENOUGH_REQUESTS: usize = 10;

/// Returns a second deployment of the guide with the same serving parameters and an objective.
fn fast(serving: &Value, tokens_per_second: f64) -> String {
    let mut serving = serving.clone();
    serving["name"] = "fast".into();
    format!(
        "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {{name: fast}}
spec:
  model: {{source: local://guide}}
  serving: {serving}
  objectives: {{decodeTokensPerSecond: {tokens_per_second}}}
"
    )
}

fn tenths(rate: f64) -> f64 {
    (rate * 10.0).round() / 10.0
}

fn replica(kubectl: &Kubectl, deployment: &str) -> Result<Value, String> {
    let list = kubectl.json(&format!("mrep -l rooflet.dev/deployment={deployment}"))?;
    list["items"]
        .get(0)
        .cloned()
        .ok_or_else(|| format!("no replica of {deployment}"))
}

fn has_event(kubectl: &Kubectl, reason: &str) -> Result<(), String> {
    let events = kubectl
        .run(&format!("get events --field-selector reason={reason} -o name"))
        .ok();
    if events.is_empty() {
        Err(format!("no event {reason}"))
    } else {
        Ok(())
    }
}

#[test]
fn second_model_is_rejected_for_bandwidth_although_memory_is_free() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };

    // The status of the replica has the result of the admission with its figures.
    let admission = replica(&kubectl, "guide").expect("a replica")["status"]["admission"].clone();
    assert_eq!(admission["speed"]["basis"], "Measured", "{admission:#}");
    let alone = admission["speed"]["tokensPerSecond"]["p10"]
        .as_f64()
        .expect("a figure");
    let serving = kubectl.json("mdep guide").expect("the deployment")["spec"]["serving"].clone();
    assert!(alone > 0.0);

    // An objective that is added later applies without a restart.
    let worker = fleet.processes("worker");
    let objective = format!(
        r#"patch mdep guide --type=merge -p {{"spec":{{"objectives":{{"decodeTokensPerSecond":{}}}}}}}"#,
        tenths(alone * 0.7)
    );
    kubectl.run(&objective).ok();
    eventually("the objective at the replica", || {
        let share = replica(&kubectl, "guide")?["status"]["admission"]["chipTimePercent"].clone();
        match share.as_f64() {
            Some(share) if (share - 70.0).abs() < 1.0 => Ok(()),
            _ => Err(share.to_string()),
        }
    });
    assert_eq!(fleet.processes("worker"), worker);

    // Another model requires half of the chip's time: memory is free, bandwidth is not.
    assert!(kubectl.apply(&fast(&serving, tenths(alone * 0.5))).success);
    let message = kubectl.wait_for_reason("mdep fast", "Scheduled", "InsufficientBandwidth");
    assert!(
        message.contains("of the chip's time for its objectives") && message.contains("default/guide-"),
        "{message}"
    );
    let node = kubectl.json("mac node-1").expect("the node");
    let memory = &replica(&kubectl, "guide").expect("a replica")["status"]["admission"]["memory"];
    assert!(
        memory["freeBytes"].as_f64().expect("a number")
            > memory["limitBytes"].as_f64().expect("a number") / 2.0,
        "{memory:#}\n{node:#}"
    );
    let described = kubectl.run("describe mdep fast").ok();
    for word in ["InsufficientBandwidth", "spec.objectives.decodeTokensPerSecond: "] {
        assert!(described.contains(word), "{word} is missing in\n{described}");
    }

    // The suggested value is admitted.
    let suggested = message
        .split("spec.objectives.decodeTokensPerSecond: ")
        .nth(1)
        .and_then(|text| text.split(|c: char| c != '.' && !c.is_ascii_digit()).next())
        .and_then(|text| text.trim_end_matches('.').parse::<f64>().ok())
        .expect("a suggestion");
    assert!(kubectl.apply(&fast(&serving, suggested)).success);
    fleet.wait_for_ready(&kubectl, "fast");
    kubectl.run("delete mdep fast").ok();
    eventually("one worker", || match fleet.processes("worker").len() {
        1 => Ok(()),
        n => Err(format!("{n} workers")),
    });

    // The annotation overrides admission, which the status reports.
    let overridden = fast(&serving, tenths(alone * 0.5)).replace(
        "{name: fast}",
        "{name: fast, annotations: {rooflet.dev/admission: warn}}",
    );
    assert!(kubectl.apply(&overridden).success);
    fleet.wait_for_ready(&kubectl, "fast");
    kubectl.wait_for_reason("mdep fast", "Admitted", "AdmissionOverridden");
    eventually("the event", || has_event(&kubectl, "AdmissionOverridden"));
    // The override breaks the guide's objective, which the status of its replica reports.
    eventually("the guide's overcommitted status", || {
        let status = replica(&kubectl, "guide")?["status"].to_string();
        if status.contains("Overcommitted") {
            Ok(())
        } else {
            Err(status)
        }
    });
}

#[test]
fn requested_disk_is_reserved() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let limit = eventually("the allocatable disk of the node", || {
        let node = kubectl.json("mac node-1")?;
        let limit = node["status"]["allocatable"]["disk"].as_str().map(str::to_owned);
        limit.ok_or_else(|| node["status"].to_string())
    });
    let storing = |size: &str| {
        let serving = format!("{{name: storing, contextTokens: 512, kvCache: {{diskSize: {size}}}}}");
        format!(
            "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {{name: storing}}
spec:
  model: {{source: local://guide}}
  serving: {serving}
"
        )
    };
    assert!(kubectl.apply(&storing("1000Ti")).success);
    let message = kubectl.wait_for_reason("mdep storing", "Scheduled", "InsufficientDisk");
    assert!(
        message.contains("insufficient disk") && message.contains("spec.serving.kvCache.diskSize: "),
        "{limit}: {message}"
    );
    let described = kubectl.run("describe mdep storing").ok();
    assert!(described.contains("InsufficientDisk"), "{described}");

    assert!(kubectl.apply(&storing("10Mi")).success);
    fleet.wait_for_ready(&kubectl, "storing");
    let admission = replica(&kubectl, "storing").expect("a replica")["status"]["admission"].clone();
    assert_eq!(admission["disk"]["requiredBytes"], 10 << 20, "{admission:#}");
    assert!(
        admission["disk"]["freeBytes"].as_u64() >= Some(10 << 20),
        "{admission:#}"
    );
}

/// Returns the tokens per second of an answer, as its client measures them.
#[expect(clippy::disallowed_methods, reason = "a test measures real time")]
fn tokens_per_second(http: &Http, model: &str) -> f64 {
    let prompt: Vec<u32> = (300..320).collect();
    let body = json!({"model": model, "prompt": prompt, "max_tokens": 200, "ignore_eos": true});
    let begin = Instant::now();
    let answer = http.post("/v1/completions", &body).expect("a response");
    assert_eq!(answer.status, 200, "{}", answer.text);
    let tokens = answer.json()["usage"]["completion_tokens"].as_f64();
    tokens.expect("a number") / begin.elapsed().as_secs_f64()
}

#[test]
fn best_effort_replicas_yield_chip_time_to_objectives() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let admission = replica(&kubectl, "guide").expect("a replica")["status"]["admission"].clone();
    let alone = admission["speed"]["tokensPerSecond"]["p10"].as_f64();
    let serving = kubectl.json("mdep guide").expect("the deployment")["spec"]["serving"].clone();
    let objective = tenths(alone.expect("a figure") * 0.8);
    kubectl
        .run(&format!(
            r#"patch mdep guide --type=merge -p {{"spec":{{"objectives":{{"decodeTokensPerSecond":{objective}}}}}}}"#
        ))
        .ok();
    let best_effort = fast(&serving, 1.0).replace("objectives: {decodeTokensPerSecond: 1}", "priority: 0");
    assert!(!best_effort.contains("objectives"), "{best_effort}");
    assert!(kubectl.apply(&best_effort).success);
    fleet.wait_for_ready(&kubectl, "fast");
    eventually("the objective at the replica", || {
        let share = replica(&kubectl, "guide")?["status"]["admission"]["chipTimePercent"].clone();
        match share.as_f64() {
            Some(share) if share > 70.0 => Ok(()),
            _ => Err(share.to_string()),
        }
    });

    // While the guide is idle, the best-effort replica uses the whole chip.
    let before = (0..3).map(|_| tokens_per_second(&fleet.gateway, "fast"));
    let before = before.fold(0.0, f64::max);
    let done = AtomicBool::new(false);
    let (beside, with_objective) = std::thread::scope(|scope| {
        let http = fleet.gateway.duplicate();
        let done = &done;
        let busy = scope.spawn(move || {
            let mut rates = Vec::new();
            while !done.load(Ordering::Relaxed) {
                rates.push(tokens_per_second(&http, "guide"));
            }
            rates
        });
        // The first answer may start before the guide's.
        let rates = (0..3).map(|_| tokens_per_second(&fleet.gateway, "fast"));
        let beside = rates.skip(1).fold(0.0, f64::max);
        done.store(true, Ordering::Relaxed);
        (beside, busy.join().expect("answers"))
    });
    let figures = format!(
        "best effort: {before:.1} alone, {beside:.1} beside the guide; guide: objective {objective}, \
         measured {with_objective:.1?}"
    );
    println!("tokens/s: {figures}");
    // About a fifth of the chip's time is left.
    assert!(beside < before / 2.0, "{figures}");
    eventually("the whole chip for the best-effort replica", || {
        let after = tokens_per_second(&fleet.gateway, "fast");
        if after > beside * 1.5 {
            Ok(())
        } else {
            Err(format!("{after:.1}; {figures}"))
        }
    });
}

#[test]
fn measured_speed_is_compared_with_the_prediction() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    for _ in 0..ENOUGH_REQUESTS {
        fleet.gateway.chat("guide", "What is rooflet?");
    }
    // The status of the condition is not checked, because this machine is shared.
    let condition = eventually("the condition PredictionAccurate", || {
        let found = kubectl.json("mdep guide")?;
        let conditions = found["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let judged = conditions
            .into_iter()
            .find(|one| one["type"] == "PredictionAccurate");
        judged
            .filter(|one| one["status"] != "Unknown")
            .ok_or_else(|| found["status"].to_string())
    });
    let message = condition["message"].as_str().expect("a message");
    // The message is about decode, or about first tokens if only they deviate.
    let decode = message.contains(" tokens/s measured, ") && message.contains(" predicted (");
    let first_token =
        message.contains("first tokens measured after ") && message.contains("predicted after ");
    assert!(decode || first_token, "{message}");
    let measured = replica(&kubectl, "guide").expect("a replica")["status"]["measured"].clone();
    assert_eq!(measured["predicted"]["basis"], "Measured", "{measured:#}");
    assert!(
        measured["requests"].as_u64() >= Some(ENOUGH_REQUESTS as u64),
        "{measured:#}"
    );
}
