//! CapacityPlans for the current fleet: the controller and `rooflet plan` return the same verdict.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Fleet, Kubectl, Scratch, eventually, rooflet};

fn plan(name: &str, model: &str, requests_per_second: f64) -> String {
    format!(
        "
apiVersion: rooflet.dev/v1alpha1
kind: CapacityPlan
metadata: {{name: {name}}}
spec:
  demand:
    - {{name: guide, model: {model}, requestsPerSecond: {requests_per_second}, promptTokens: 40, answerTokens: 20}}
"
    )
}

fn condition(plan: &Value, kind: &str) -> (String, String, String) {
    let all = plan["status"]["conditions"].as_array().expect("conditions");
    let found = all.iter().find(|one| one["type"] == kind).expect("the condition");
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

fn answered(kubectl: &Kubectl, name: &str, ready: &str) -> Value {
    kubectl
        .run(&format!(
            "wait --for=condition=Ready={ready} cplan/{name} --timeout=60s"
        ))
        .ok();
    kubectl.json(&format!("cplan {name}")).expect("the plan")
}

#[test]
fn plan_is_answered_once_for_the_current_fleet() {
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    // The probe's measurements change the verdict, so they must be there before the plan.
    kubectl
        .run("wait --for=condition=ProbeFresh mac --all --timeout=120s")
        .ok();

    kubectl.apply(&plan("little", "local://guide", 0.01)).ok();
    let little = answered(&kubectl, "little", "True");
    let verdict = &little["status"]["verdict"];
    assert_eq!(verdict["nodes"], 1, "{verdict:#}");
    assert_eq!(verdict["placements"][0]["replicas"][0]["model"], "guide");
    let (status, reason, message) = condition(&little, "Feasible");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "DemandCarried"));
    assert_eq!(verdict["summary"], message.as_str());
    assert_eq!(verdict["survivesNodeLoss"], false);
    let table = kubectl.run("get cplan little").ok();
    assert!(table.contains("FEASIBLE") && table.contains("1/1"), "{table}");

    kubectl.apply(&plan("much", "local://guide", 100_000.0)).ok();
    let much = answered(&kubectl, "much", "True");
    let (status, reason, message) = condition(&much, "Feasible");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "DemandNotCarried"));
    assert!(message.starts_with("The demand does not fit"), "{message}");

    kubectl.apply(&plan("wrong", "local://nobody", 1.0)).ok();
    let wrong = answered(&kubectl, "wrong", "False");
    let (_, reason, message) = condition(&wrong, "Ready");
    assert_eq!(reason, "InvalidPlan");
    assert!(
        message.starts_with("spec.demand[0].model: no FleetNode has"),
        "{message}"
    );

    // Another plan causes reconciliations of the first one, which write nothing unless a new probe changes
    // the verdict.
    let mut others = 0;
    let little = eventually("a reconciliation that writes nothing", || {
        let before = kubectl.json("cplan little")?;
        others += 1;
        let other = format!("wrong-{others}");
        kubectl.apply(&plan(&other, "local://nobody", 1.0)).ok();
        answered(&kubectl, &other, "False");
        let after = kubectl.json("cplan little")?;
        match after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"] {
            true => Ok(after),
            false => Err(format!("{before:#} became {after:#}")),
        }
    });
    let verdict = &little["status"]["verdict"];

    // `rooflet plan` reads the same fleet and returns the same verdict.
    let file = fleet
        .scratch
        .write("plan.yaml", &plan("little", "local://guide", 0.01));
    let output = Command::new(rooflet())
        .args(["plan", "--current", "-o", "json", "-f"])
        .arg(&file)
        .arg("--kubeconfig")
        .arg(fleet.kubeconfig())
        .output()
        .expect("the binary starts");
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{reported}");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(printed["summary"], verdict["summary"]);
    let placement = |of: &Value| of["placements"][0]["replicas"][0]["memoryBytes"].as_u64();
    assert_eq!(placement(&printed), placement(verdict));
}

/// Runs `rooflet plan` on a manifest. Returns the exit code and the standard output.
fn planned(scratch: &Scratch, manifest: &str, output: &str) -> (Option<i32>, String, String) {
    let file = scratch.write("plan.yaml", manifest);
    let result = Command::new(rooflet())
        .args(["plan", "--recommend", "-o", output, "-f"])
        .arg(&file)
        .output()
        .expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (result.status.code(), text(&result.stdout), text(&result.stderr))
}

const AGENTS: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: CapacityPlan
metadata: {name: agents}
spec:
  demand:
    - name: code
      model: qwen3-30b-a3b
      quantization: mlx4
      requestsPerSecond: 0.5
      promptTokens: 20000
      cachedPromptTokens: 18000
      answerTokens: 400
      contextTokens: 32768
      decodeContext: Average
      speculativeSpeedup: 1.5
      maxConcurrency: STREAMS
      objectives: {decodeTokensPerSecond: 30}
  fleet: {macs: [{name: owned, chip: M4, memory: 16Gi}]}
  catalogue:
    - {name: small, chip: M4, memory: 24Gi, price: 799}
    - {name: studio, chip: M4 Max, gpuCores: 40, memory: 64Gi, price: 2999}
    - {name: ultra, chip: M3 Ultra, gpuCores: 80, memory: 96Gi, price: 99999}
";

/// The answer names the assumptions and every rejected offer, as text and as JSON, and more streams
/// never cost more.
#[test]
fn purchase_names_assumptions_and_rejected_offers() {
    let scratch = Scratch::new();
    let with = |streams: u32| AGENTS.replace("STREAMS", &streams.to_string());
    let (code, text, err) = planned(&scratch, &with(8), "table");
    assert_eq!(code, Some(0), "{text}{err}");
    for part in [
        "code: the prefix cache contains 18000 of 20000 prompt tokens (90 %)",
        "code: streams decode at the average context of 20200 tokens, not at the full 32768",
        "code: speculative decoding decodes 1.5 times as fast",
        "rejected: small for code: ",
        " of memory for models, ",
        "rejected: ultra: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let mut last = f64::INFINITY;
    for streams in [1, 2, 3, 5, 8, 16] {
        let (_, json, err) = planned(&scratch, &with(streams), "json");
        let verdict: Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{json}{err}"));
        assert_eq!(verdict["assumptions"].as_array().map(Vec::len), Some(3), "{json}");
        let rejected = &verdict["purchase"]["rejectedOffers"][0];
        assert_eq!(rejected["name"], "small", "{json}");
        assert_eq!(rejected["reason"], "ExceedsNodeMemory");
        assert!(
            rejected["required"].as_f64() > rejected["available"].as_f64(),
            "{rejected}"
        );
        let price = verdict["purchase"]["best"]["price"]
            .as_f64()
            .unwrap_or(f64::INFINITY);
        assert!(price <= last, "{price} with {streams} streams, {last} with fewer");
        last = price;
    }
    assert!(last.is_finite());

    let invalid = with(8).replace("cachedPromptTokens: 18000", "cachedPromptTokens: 20000");
    let (code, _, err) = planned(&scratch, &invalid, "table");
    assert_eq!(code, Some(78), "{err}");
    assert!(
        err.contains("spec.demand[0].cachedPromptTokens: 20000 must be less than promptTokens = 20000"),
        "{err}"
    );
}

/// The controller writes the same assumptions and rejected offers to the status.
#[test]
fn status_of_a_plan_has_assumptions_and_rejected_offers() {
    let Some((_fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    kubectl.apply(&AGENTS.replace("STREAMS", "8")).ok();
    let plan = answered(&kubectl, "agents", "True");
    let verdict = &plan["status"]["verdict"];
    assert_eq!(
        verdict["assumptions"].as_array().map(Vec::len),
        Some(3),
        "{verdict:#}"
    );
    let message = verdict["purchase"]["rejectedOffers"][0]["message"].as_str();
    assert!(
        message.is_some_and(|message| message.contains(" of memory for models, ")),
        "{verdict:#}"
    );
}
