//! Mutating policies against the results and messages of kube-apiserver 1.36.2.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::tests::AliceGets;
use crate::*;
use rooflet_apimachinery::fields::TypeSchema;
use rooflet_schema::FieldError;
use rooflet_schema::cel::authorizer::Authorizer;

/// ConfigMap `c` in the namespace `one`.
struct ConfigMap(Value);

impl Source for ConfigMap {
    fn object(&self, _: &Place) -> Value {
        self.0.clone()
    }

    fn old_object(&self, _: &Place) -> Value {
        Value::Null
    }

    fn user(&self) -> Value {
        json!({"username": "alice"})
    }

    fn authorizer(&self) -> Arc<dyn Authorizer> {
        Arc::new(AliceGets)
    }

    fn namespace(&self, name: &str) -> Option<Arc<Value>> {
        Some(Arc::new(
            json!({"metadata": {"name": name, "labels": {"team": "a"}}}),
        ))
    }

    fn parameters(&self, query: &ParamQuery<'_>) -> Result<Vec<Value>, String> {
        let parameter = |name: &str| json!({"metadata": {"name": name}, "data": {"max": name}});
        Ok(match query.name {
            "" => vec![parameter("one"), parameter("two")],
            "absent" => Vec::new(),
            name => vec![parameter(name)],
        })
    }

    fn has_kind(&self, _: &str, kind: &str) -> bool {
        kind == "ConfigMap"
    }
}

impl Subject for ConfigMap {
    fn merged(&self, _: &Place, object: &Value, configuration: &Value) -> Result<Value, String> {
        let schema = TypeSchema::of_definition("io.k8s.api.core.v1.ConfigMap");
        schema
            .mutate(object, configuration)
            .map_err(|err| err.to_string())
    }

    fn replace(&mut self, _: &Place, object: Value) -> Result<(), String> {
        if object.get("bogus").is_some() {
            return Err("strict decoding error: unknown field \"bogus\"".to_owned());
        }
        self.0 = object;
        Ok(())
    }
}

fn policy(spec: &Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]});
    let mut policy =
        json!({"spec": {"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never"}});
    for (member, value) in spec.as_object().expect("an object") {
        policy["spec"][member] = value.clone();
    }
    Kind::MutatingPolicy.default(&mut policy);
    policy
}

fn configuration(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

/// Applies policies with these specifications and bindings.
fn mutate(specs: &[(Value, Value)]) -> Result<Value, MutateError> {
    let mut policies = Policies::default();
    for (index, (spec, bound)) in specs.iter().enumerate() {
        let name = format!("p{index}");
        let policy = policy(spec);
        let errors = Kind::MutatingPolicy.validate(&policy);
        let errors: Vec<String> = errors.iter().map(FieldError::summary).collect();
        assert_eq!(errors, [""; 0], "{policy}");
        policies.set(Kind::MutatingPolicy, &name, Some(&policy));
        let mut binding = json!({"spec": bound});
        binding["spec"]["policyName"] = json!(name);
        Kind::MutatingBinding.default(&mut binding);
        policies.set(Kind::MutatingBinding, &name, Some(&binding));
    }
    let mut object = ConfigMap(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "labels": {"a": "1"}}, "data": {"a": "b"}}));
    let places = [Place {
        group: String::new(),
        version: "v1".to_owned(),
        resource: "configmaps".to_owned(),
        kind: ["", "v1", "ConfigMap"].map(str::to_owned),
    }];
    let request = Request {
        operation: Operation::Create,
        places: &places,
        subresource: "",
        is_namespaced: true,
        namespace: "one",
        name: "c",
        is_dry_run: false,
    };
    policies.mutate(&request, &mut object).map(|_| object.0)
}

fn mutated(mutation: Value) -> Value {
    mutate(&[(json!({"mutations": [mutation]}), json!({}))]).expect("admitted")
}

/// Checks the message of a denied creation, without the names of policy and binding.
fn denies(mutation: Value, expect: &str) {
    let spec = json!({"mutations": [mutation]});
    let Err(MutateError::Denied { messages, is_invalid }) = mutate(&[(spec.clone(), json!({}))]) else {
        panic!("not denied: {spec}");
    };
    let expect = format!("policy 'p0' with binding 'p0' denied request: {expect}");
    assert_eq!((messages, is_invalid), (vec![expect], true), "{spec}");
}

#[test]
fn configuration_is_merged_into_the_object() {
    let object = mutated(configuration(
        "Object{metadata: Object.metadata{labels: {'b': request.operation}}, data: {'x': object.data.a + '!'}}",
    ));
    assert_eq!(object["metadata"]["labels"], json!({"a": "1", "b": "CREATE"}));
    assert_eq!(object["data"], json!({"a": "b", "x": "b!"}));
    let object = mutated(configuration(
        "Object{?immutable: optional.none(), ?metadata: optional.ofNonZeroValue(Object.metadata{?name: Object{}.?name})}",
    ));
    assert_eq!(object["data"], json!({"a": "b"}));
}

#[test]
fn json_patch_changes_the_object() {
    let object = mutated(patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('c.d/e'), value: '2'}, \
         JSONPatch{op: 'move', from: '/data/a', path: '/data/b'}]",
    ));
    assert_eq!(object["metadata"]["labels"], json!({"a": "1", "c.d/e": "2"}));
    assert_eq!(object["data"], json!({"b": "b"}));
    let object = mutated(patch(
        "[JSONPatch{op: 'add', path: '/data', value: Object.data{x: 'y'}}]",
    ));
    assert_eq!(object["data"], json!({"x": "y"}));
    let object = mutated(patch(
        "[JSONPatch{op: 'add', path: '/data/x', value: '1'}, JSONPatch{op: 'test', path: '/data/a', value: 'x'}]",
    ));
    assert_eq!(
        object["data"],
        json!({"a": "b"}),
        "a failed test leaves the object unchanged"
    );
}

#[test]
fn faulty_patches_deny_the_request() {
    denies(
        configuration("Object{bogus: '1'}"),
        "error applying patch: failed to convert patch object to typed object: .bogus: field not declared in schema",
    );
    denies(
        configuration("Object{metadata: Object.spec{labels: {'a': 'b'}}}"),
        "type mismatch: unexpected type name \"Object.spec\", expected \"Object.metadata\", which matches field name path \
         from root Object type",
    );
    denies(
        configuration("Object{data: {'x': object.data.absent}}"),
        "expression 'Object{data: {'x': object.data.absent}}' resulted in error: no such key: absent",
    );
    denies(
        configuration(
            "Object{metadata: Object.metadata{ownerReferences: [Object.metadata.ownerReferences{uid: 'u'}]}}",
        ),
        "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: \
         .metadata.ownerReferences[0]",
    );
    denies(
        patch("[JSONPatch{op: 'remove', path: '/data/absent'}]"),
        "JSON Patch: error in remove for path: '/data/absent': Unable to remove nonexistent key: absent: missing value",
    );
    denies(
        patch("[JSONPatch{op: 'add', path: '/absent/x', value: '1'}]"),
        "JSON Patch: add operation does not apply: doc is missing path: \"/absent/x\": missing value",
    );
    denies(
        patch("[JSONPatch{op: 'bad', path: '/data/x'}]"),
        "JSON Patch: Unexpected kind: bad",
    );
    denies(
        patch("[JSONPatch{op: 'add', value: '1'}]"),
        "JSON Patch: missing field `path`",
    );
    let spec = json!({"mutations": [patch("[JSONPatch{op: 'add', path: '/bogus', value: '1'}]")]});
    assert!(matches!(
        mutate(&[(spec, json!({}))]),
        Err(MutateError::Internal(_))
    ));
}

#[test]
fn failure_policy_ignores_errors_of_a_mutation() {
    let faulty = configuration("Object{data: {'x': object.data.absent}}");
    let second = configuration("Object{data: {'y': '1'}}");
    let spec = json!({"failurePolicy": "Ignore", "mutations": [faulty, second]});
    let object = mutate(&[(spec, json!({}))]).expect("admitted");
    assert_eq!(object["data"], json!({"a": "b", "y": "1"}));
}

#[test]
fn conditions_and_variables_apply_to_mutations() {
    let condition = |expression: &str| json!([{"name": "m", "expression": expression}]);
    let mutations = json!([configuration("Object{data: {'x': variables.team}}")]);
    let variables = json!([{"name": "team", "expression": "namespaceObject.metadata.labels['team']"}]);
    let spec = |expression: &str| json!({"mutations": mutations, "variables": variables, "matchConditions": condition(expression)});
    let with = |expression: &str| mutate(&[(spec(expression), json!({}))]);
    assert_eq!(with("request.name == 'c'").expect("admitted")["data"]["x"], "a");
    assert_eq!(with("false").expect("admitted")["data"], json!({"a": "b"}));
    assert!(matches!(
        with("object.absent == 1"),
        Err(MutateError::Denied { .. })
    ));
}

#[test]
fn each_parameter_of_a_binding_invokes_the_policy() {
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "mutations": [configuration("Object{data: {params.data.max: string(size(object.data))}}")]});
    let bound = |reference: Value| json!({"paramRef": reference});
    let selected = bound(json!({"selector": {}, "parameterNotFoundAction": "Deny"}));
    let object = mutate(&[(spec.clone(), selected)]).expect("admitted");
    assert_eq!(object["data"], json!({"a": "b", "one": "1", "two": "2"}));
    let absent = bound(json!({"name": "absent", "parameterNotFoundAction": "Deny"}));
    let expect = "policy 'p0' with binding 'p0' denied request: failed to configure binding: no params found for policy \
                  binding with `Deny` parameterNotFoundAction";
    assert_eq!(
        mutate(&[(spec, absent)]),
        Err(MutateError::Denied {
            messages: vec![expect.to_owned()],
            is_invalid: false
        })
    );
}

#[test]
fn reinvocation_policy_applies_a_policy_again_after_a_later_one() {
    let seen = |reinvocation: &str| {
        let first = json!({"reinvocationPolicy": reinvocation,
            "mutations": [configuration("Object{data: {'seen': string(has(object.data.late))}}")]});
        let second = json!({"mutations": [configuration("Object{data: {'late': '1'}}")]});
        mutate(&[(first, json!({})), (second, json!({}))]).expect("admitted")["data"]["seen"].clone()
    };
    assert_eq!(seen("Never"), "false");
    assert_eq!(seen("IfNeeded"), "true");
}

#[test]
fn rejects_expressions_of_a_wrong_type() {
    let check = |mutation: Value, expect: &str| {
        let errors = Kind::MutatingPolicy.validate(&policy(&json!({"mutations": [mutation]})));
        let errors: Vec<String> = errors.iter().map(FieldError::summary).collect();
        assert!(
            errors.len() == 1 && errors[0].contains(expect),
            "{expect}: {errors:?}"
        );
    };
    check(configuration("object"), "must evaluate to Object but got dyn");
    check(
        configuration("Object.spec{}"),
        "must evaluate to Object but got Object.spec",
    );
    check(patch("[]"), "must evaluate to list(JSONPatch) but got list(dyn)");
    check(
        patch("[JSONPatch{op: 1, path: '/a'}]"),
        "expected type of field 'op' is 'string' but provided type is 'int'",
    );
    check(
        configuration("Foo{}"),
        "undeclared reference to 'Foo' (in container '')",
    );
    let object = policy(
        &json!({"mutations": [configuration("Object{}")], "reinvocationPolicy": "X",
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
            "operations": ["DELETE"]}]}}),
    );
    let errors = Kind::MutatingPolicy.validate(&object);
    assert_eq!(
        errors.iter().map(FieldError::summary).collect::<Vec<_>>(),
        [
            "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \
             \"CONNECT\", \"CREATE\", \"UPDATE\"",
            "spec.reinvocationPolicy: Unsupported value: \"X\": supported values: \"IfNeeded\", \"Never\"",
        ]
    );
}
