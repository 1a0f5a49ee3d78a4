//! CapacityPlans for the current fleet: the controller and `rooflet plan` return the same verdict.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Fleet, Kubectl, rooflet};

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

    // The other two plans caused reconciliations of the first one, which wrote nothing.
    let again = kubectl.json("cplan little").expect("the plan");
    assert_eq!(
        again["metadata"]["resourceVersion"],
        little["metadata"]["resourceVersion"]
    );

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
