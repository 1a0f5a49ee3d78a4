//! Comparison with the checks and evaluations of Kubernetes. `e2e/fixtures/policies.go` writes them.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Objects;
use crate::condition::{Composed, Expression, Scope};
use crate::request::Inputs;
use crate::{
    GroupVersionKind, Kind, Operation, Place, Request, Schemas, expression_warnings, items, literal, text,
};
use rooflet_apimachinery::openapi::{ResourceInfo, SchemaSource, declaration};
use rooflet_schema::FieldError;
use rooflet_schema::cel::checker::Decl;
use rooflet_schema::cel::dynamic::{self, Phase};

fn fixture() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../e2e/fixtures/policies.json");
    serde_json::from_str(&fs::read_to_string(file).expect("the fixture")).expect("JSON")
}

fn report(wrong: &[String], of: usize) {
    assert!(wrong.is_empty(), "{} of {of}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn errors_of_policies_equal_those_of_kubernetes() {
    let fixture = fixture();
    let cases = items(&fixture, "errors");
    let mut wrong = Vec::new();
    for case in cases {
        let mut policy = case["policy"].clone();
        let kind = match text(&policy, "kind") {
            "MutatingAdmissionPolicy" => Kind::MutatingPolicy,
            _ => Kind::ValidatingPolicy,
        };
        kind.default(&mut policy);
        let own: Vec<String> = kind.validate(&policy).iter().map(FieldError::summary).collect();
        if json!(own) != case["errors"] {
            let spec = &case["policy"]["spec"];
            let parts = [
                "matchConditions",
                "variables",
                "validations",
                "auditAnnotations",
                "mutations",
            ];
            let parts = parts.map(|part| spec[part].to_string());
            let theirs = case["errors"].as_array().into_iter().flatten();
            let theirs: Vec<&str> = theirs.filter_map(Value::as_str).collect();
            wrong.push(format!(
                "{}\n{}\nKubernetes:\n{}",
                parts.join(" "),
                own.join("\n"),
                theirs.join("\n")
            ));
        }
    }
    report(&wrong, cases.len());
}

/// Kinds of the group `example.com`.
struct Widgets(Value);

impl Schemas for Widgets {
    fn kinds(&self, group: &str, version: &str, resource: &str) -> Vec<GroupVersionKind> {
        let known = [
            ("widgets", "Widget"),
            ("limits", "Limits"),
            ("secretives", "Secretive"),
        ];
        let is_served = ["", "example.com"].contains(&group) && version == "v1";
        let found = known
            .into_iter()
            .filter(|(plural, _)| is_served && *plural == resource);
        found
            .map(|(_, kind)| GroupVersionKind {
                group: "example.com".to_owned(),
                version: "v1".to_owned(),
                kind: kind.to_owned(),
            })
            .collect()
    }

    fn declaration(&self, kind: &GroupVersionKind) -> Option<Arc<Decl>> {
        let info = ResourceInfo {
            kind: &kind.kind,
            list_kind: "List",
            plural: "things",
            namespaced: true,
            verbs: &[],
            has_status: false,
            has_scale: false,
            selectable_fields: &[],
            schema: SchemaSource::Custom(self.0.get(&kind.kind)?),
        };
        declaration(&kind.group, &kind.version, &info).map(Arc::new)
    }
}

#[test]
fn warnings_equal_those_of_kubernetes() {
    let fixture = fixture();
    let schemas = Widgets(fixture["schemas"].clone());
    let cases = items(&fixture, "warnings");
    let mut wrong = Vec::new();
    for case in cases {
        let own = expression_warnings(&case["policy"], &schemas);
        if json!(own) != case["warnings"] {
            wrong.push(format!(
                "{}\n{}\nKubernetes:\n{}",
                case["policy"]["spec"],
                json!(own),
                case["warnings"]
            ));
        }
    }
    report(&wrong, cases.len());
}

#[test]
fn results_equal_those_of_kubernetes() {
    let objects = Objects {
        object: json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "one"},
            "spec": {"size": 3, "name": "n", "a-b": "dash", "package": "p", "limits": {"cpu": 2},
                "parts": [{"name": "a", "weight": 0}, {"name": "b", "weight": 1}]}}),
        old: Value::Null,
    };
    let place = Place {
        group: "example.com".to_owned(),
        version: "v1".to_owned(),
        resource: "widgets".to_owned(),
        kind: ["example.com", "v1", "Widget"].map(str::to_owned),
    };
    let request = Request {
        operation: Operation::Create,
        places: std::slice::from_ref(&place),
        subresource: "",
        is_namespaced: true,
        namespace: "one",
        name: "w",
        is_dry_run: false,
    };
    let inputs = Inputs {
        request: &request,
        place: &place,
        parameter: &Value::Null,
        source: &objects,
    };
    let variables = [("double", "object.spec.size * 2"), ("broken", "object.bogus")]
        .map(|(name, source)| (name.to_owned(), Expression::compile(source)));
    let fixture = fixture();
    let cases = items(&fixture, "results");
    let mut wrong = Vec::new();
    for case in cases {
        let expression = Expression::compile(text(case, "expression"));
        let composed = Composed::new(&variables);
        let expressions = variables.iter().map(|(_, variable)| variable);
        let scope = Scope::with_authorizer(expressions.chain([&expression]), &inputs).with(&composed);
        dynamic::start(Phase::Expressions);
        let own = match scope.evaluate(&expression) {
            Ok(value) => json!({"value": literal::to_json(&value).expect("JSON")}),
            Err(error) => json!({"error": error}),
        };
        let theirs = match case.get("error") {
            Some(error) => json!({"error": error}),
            None => json!({"value": case["value"]}),
        };
        if own != theirs {
            wrong.push(format!("{}\n{own}\nKubernetes:\n{theirs}", expression.source));
        }
    }
    report(&wrong, cases.len());
}
