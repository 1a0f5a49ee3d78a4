//! Comparison with the costs that kube-apiserver estimates. `e2e/fixtures/cel_costs.go` writes them.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use super::estimate;
use crate::cel::checker::{Checked, Decl};

fn fixture() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../e2e/fixtures/cel_costs.json");
    serde_json::from_str(&fs::read_to_string(file).expect("the fixture")).expect("JSON")
}

/// Returns the declaration of a schema in the fixture.
fn decl(fixture: &Value, name: &Value) -> Decl {
    let entry = &fixture["schemas"][name.as_str().expect("a name")];
    let schema = entry["schema"].as_object().expect("an object");
    Decl::of(schema, entry["root"] == true).expect("a declaration")
}

fn check(fixture: &Value, cases: &str) {
    let mut wrong = Vec::new();
    let cases = fixture[cases].as_array().expect("a list");
    for case in cases {
        let decl = decl(fixture, &case["schema"]);
        let expression = case["expression"].as_str().expect("a text");
        let checked = Checked::new(expression, &decl, case["optionalOldSelf"] == true);
        let checked = checked.unwrap_or_else(|err| panic!("{expression}: {err}"));
        let own = estimate(&checked.program, &decl, &checked.typing);
        if Some(own) != case["cost"].as_u64() {
            let schema = &case["schema"];
            wrong.push(format!("{schema} {expression}: {own}, not {}", case["cost"]));
        }
        if let Some(values) = case["values"].as_u64() {
            assert_eq!(decl.max_per_request(), values, "values of {}", case["schema"]);
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

#[test]
fn costs_of_rules_equal_those_of_kubernetes() {
    check(&fixture(), "rules");
}

#[test]
fn costs_of_messages_equal_those_of_kubernetes() {
    check(&fixture(), "messages");
}

#[test]
fn errors_of_expressions_equal_those_of_kubernetes() {
    let fixture = fixture();
    let mut wrong = Vec::new();
    for case in fixture["errors"].as_array().expect("a list") {
        let decl = decl(&fixture, &case["schema"]);
        let expression = case["expression"].as_str().expect("a text");
        let own = match Checked::new(expression, &decl, case["optionalOldSelf"] == true) {
            Err(err) => err.to_string(),
            Ok(checked) if checked.is_bool() => "accepted".to_owned(),
            Ok(_) => "cel expression must evaluate to a bool".to_owned(),
        };
        if case["error"] != own {
            let schema = &case["schema"];
            let theirs = case["error"].as_str().unwrap_or_default();
            wrong.push(format!("{schema} {expression}:\n{own}\nKubernetes:\n{theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn functions_have_the_overloads_of_kubernetes() {
    let fixture = fixture();
    let theirs = fixture["functions"].as_array().expect("a list").iter();
    let theirs: BTreeSet<&str> = theirs.filter_map(Value::as_str).collect();
    let ours = include_str!("../checker/functions.txt").lines();
    let ours: BTreeSet<&str> = ours.filter(|line| !line.starts_with('#')).collect();
    let unknown: Vec<_> = ours.difference(&theirs).collect();
    assert!(unknown.is_empty(), "not in Kubernetes: {unknown:#?}");
    // Old names of operators.
    let old = ["in ", "_in_ ", "__not_strictly_false__ "];
    let is_needed = |line: &&&str| !line.starts_with("_?._ ") && !old.iter().any(|old| line.starts_with(old));
    let missing: Vec<_> = theirs.difference(&ours).filter(is_needed).collect();
    assert!(missing.is_empty(), "missing: {missing:#?}");
}

/// The type of each map contains the type of the previous map twice.
#[test]
fn growth_of_types_is_limited() {
    let expression = format!("[{{1: 1}}]{}.size() > 0", ".map(a, {a: a})".repeat(40));
    let schema = json!({"type": "string"});
    let decl = Decl::of(schema.as_object().expect("an object"), false).expect("a declaration");
    let checked = Checked::new(&expression, &decl, false).expect("an expression");
    assert!(estimate(&checked.program, &decl, &checked.typing) > 40 * 30);
}
