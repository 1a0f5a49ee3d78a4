//! The validation rule for the order of canary steps, evaluated as the API server does.

use rooflet_api::v1alpha1::ModelDeployment;
use rooflet_schema::StructuralSchema;
use serde_json::{Value, json};

const RULE: &str = "it must follow a setWeight below 100 and precede setWeight: 100";

fn deployment(steps: &Value) -> Value {
    json!({
        "apiVersion": "rooflet.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": { "name": "guide", "namespace": "default" },
        "spec": {
            "replicas": 1,
            "model": { "source": "local://guide" },
            "serving": { "maxConcurrency": 4 },
            "priority": 0,
            "strategy": { "type": "Canary", "canary": { "steps": steps } },
            "progressDeadlineSeconds": 600,
            "paused": false,
            "revisionHistoryLimit": 10,
        },
    })
}

fn steps(words: &str) -> Value {
    let step = |word: &str| match word {
        "analysis" => json!({ "analysis": { "minRequests": 20, "minTokensPerSecondPercent": 90,
            "maxTimeToFirstTokenPercent": 120, "inconclusiveAfter": "30m", "ifInconclusive": "Pause" } }),
        "pause" => json!({ "pause": {} }),
        weight => json!({ "setWeight": weight.parse::<u8>().expect("a weight") }),
    };
    words.split_whitespace().map(step).collect()
}

fn errors(new: &Value, old: Option<&Value>) -> Vec<String> {
    let schema = StructuralSchema::of_kind::<ModelDeployment>();
    let errors = schema.validate_after(Vec::new(), new, old);
    let texts = errors
        .into_iter()
        .map(|error| format!("{}: {}", error.field, error.message));
    texts.collect()
}

#[test]
fn analysis_must_follow_a_partial_weight_and_precede_the_full_one() {
    for accepted in [
        "50",
        "100",
        "pause",
        "10 analysis",
        "10 pause analysis 50 analysis 100",
        "10 analysis analysis 100 50",
    ] {
        let found = errors(&deployment(&steps(accepted)), None);
        assert!(found.is_empty(), "{accepted}: {found:?}");
    }
    for rejected in [
        "analysis",
        "pause analysis",
        "100 analysis",
        "50 100 analysis",
        "50 100 pause analysis",
        "100 50 analysis",
        "analysis 50",
    ] {
        let found = errors(&deployment(&steps(rejected)), None);
        assert!(
            found.len() == 1 && found[0].contains(RULE),
            "{rejected}: {found:?}"
        );
    }
}

/// Version 0.1.0 development builds accepted an analysis after `setWeight: 100, setWeight: 50`.
#[test]
fn stored_steps_that_break_the_rule_can_be_kept_but_not_changed() {
    let stored = deployment(&steps("100 50 analysis"));
    let mut scaled = stored.clone();
    scaled["spec"]["replicas"] = json!(3);
    assert_eq!(errors(&scaled, Some(&stored)), Vec::<String>::new());
    let mut changed = scaled;
    changed["spec"]["strategy"]["canary"]["steps"] = steps("100 60 analysis");
    let found = errors(&changed, Some(&stored));
    assert!(found.len() == 1 && found[0].contains(RULE), "{found:?}");
}
