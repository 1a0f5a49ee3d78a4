//! Policies against the messages of kube-apiserver 1.36.2.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::*;
use rooflet_schema::FieldError;
use rooflet_schema::cel::authorizer::{Access, AccessTarget, Authorizer, Permission};

mod golden;

/// Authorizer that allows what alice gets. The reason has all attributes, as in
/// `e2e/fixtures/policies.go`.
#[derive(Debug)]
pub(crate) struct AliceGets;

impl Authorizer for AliceGets {
    fn decide(&self, access: &Access) -> Permission {
        let (user, groups) = match &access.account {
            None => ("alice".to_owned(), "team".to_owned()),
            Some(account) => (
                format!("system:serviceaccount:{}:{}", account.namespace, account.name),
                format!(
                    "system:serviceaccounts+system:serviceaccounts:{}",
                    account.namespace
                ),
            ),
        };
        let verb = access.verb.as_str();
        let mut reason = format!("{user}|{groups}|{verb}|");
        reason += &match &access.target {
            AccessTarget::Path(path) => format!("|||||{path}|"),
            AccessTarget::Resource(resource) => {
                let terms = resource.field_selector.replace("==", "=");
                let terms: Vec<&str> = terms.split(',').collect();
                let is_parsed = terms.iter().all(|term| term.is_empty() || term.contains('='));
                let (terms, ending) = if is_parsed {
                    (terms, "")
                } else {
                    (Vec::new(), "|unparsed")
                };
                format!(
                    "{}|{}|{}|{}|{}||{}{ending}",
                    resource.group,
                    resource.resource,
                    resource.subresource,
                    resource.namespace,
                    resource.name,
                    terms.join("+")
                )
            }
        };
        Permission {
            is_allowed: verb == "get" && user == "alice",
            reason,
            error: (verb == "fail").then(|| "failed".to_owned()),
        }
    }
}

/// ConfigMap `c` in the namespace `one`.
struct Objects {
    object: Value,
    old: Value,
}

impl Source for Objects {
    fn object(&self, _: &Place) -> Value {
        self.object.clone()
    }

    fn old_object(&self, _: &Place) -> Value {
        self.old.clone()
    }

    fn user(&self) -> Value {
        json!({"username": "alice", "groups": ["team"]})
    }

    fn authorizer(&self) -> Arc<dyn Authorizer> {
        Arc::new(AliceGets)
    }

    fn namespace(&self, name: &str) -> Option<Arc<Value>> {
        Some(Arc::new(
            json!({"metadata": {"name": name, "labels": {"team": "a"}}, "spec": {}, "status": {}}),
        ))
    }

    fn parameters(&self, query: &ParamQuery<'_>) -> Result<Vec<Value>, String> {
        let parameter = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"max": "3"}});
        Ok(if query.name == "limits" {
            vec![parameter]
        } else {
            Vec::new()
        })
    }

    fn has_kind(&self, api_version: &str, kind: &str) -> bool {
        (api_version, kind) == ("v1", "ConfigMap")
    }
}

fn policy(spec: &Value) -> Value {
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]});
    let mut policy =
        json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]}}});
    for (member, value) in spec.as_object().expect("an object") {
        policy["spec"][member] = value.clone();
    }
    Kind::ValidatingPolicy.default(&mut policy);
    policy
}

fn binding(spec: &Value) -> Value {
    let mut binding = json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}});
    for (member, value) in spec.as_object().expect("an object") {
        binding["spec"][member] = value.clone();
    }
    Kind::ValidatingBinding.default(&mut binding);
    binding
}

fn decide_with(spec: &Value, bound: &Value, operation: Operation) -> Outcome {
    let policy = policy(spec);
    let errors: Vec<String> = Kind::ValidatingPolicy
        .validate(&policy)
        .iter()
        .map(FieldError::summary)
        .collect();
    assert_eq!(errors, [""; 0], "{policy}");
    let mut policies = Policies::default();
    policies.set(Kind::ValidatingPolicy, "p", Some(&policy));
    policies.set(Kind::ValidatingBinding, "b", Some(&binding(bound)));
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "managedFields": []},
        "data": {"a": "b"}});
    let objects = match operation {
        Operation::Create => Objects {
            object,
            old: Value::Null,
        },
        Operation::Update => Objects {
            object: object.clone(),
            old: object,
        },
        Operation::Delete => Objects {
            object: Value::Null,
            old: object,
        },
    };
    let place = Place {
        group: String::new(),
        version: "v1".to_owned(),
        resource: "configmaps".to_owned(),
        kind: ["", "v1", "ConfigMap"].map(str::to_owned),
    };
    let request = Request {
        operation,
        places: &[place],
        subresource: "",
        is_namespaced: true,
        namespace: "one",
        name: "c",
        is_dry_run: true,
    };
    policies.decide(&request, &objects)
}

fn decide(spec: &Value) -> Outcome {
    decide_with(spec, &json!({}), Operation::Create)
}

/// Checks the message of a denied creation, without the names of policy and binding.
fn denies(spec: &Value, expect: &str) {
    let denial = decide(spec).denial.expect("denied");
    let message = denial
        .message
        .strip_prefix("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ");
    assert_eq!(message, Some(expect), "{spec}: {denial:?}");
}

fn allows(expression: &str) {
    let outcome = decide(&json!({"validations": [{"expression": expression}]}));
    assert_eq!(outcome, Outcome::default(), "{expression}");
}

fn denies_expression(expression: &str, expect: &str) {
    denies(&json!({"validations": [{"expression": expression}]}), expect);
}

fn rejects(spec: &Value, expect: &[&str]) {
    let errors: Vec<String> = Kind::ValidatingPolicy
        .validate(&policy(spec))
        .iter()
        .map(FieldError::summary)
        .collect();
    assert_eq!(errors, expect, "{spec}");
}

#[test]
fn error_of_an_expression_denies_the_request() {
    for (expression, reason) in [
        ("object.data.x == \"1\"", "no such key: x"),
        ("oldObject.data.x == \"1\"", "no such key: data"),
        ("object.metadata.name.foo == \"1\"", "no such key: foo"),
        ("object.metadata.name > 1", "no such overload"),
        (
            "object.metadata.managedFields.name == \"1\"",
            "unsupported index type 'string' in list",
        ),
        ("1/0 == 1", "division by zero"),
        ("object.metadata.labels[\"a\"] == \"\"", "no such key: labels"),
        ("-int(\"-9223372036854775808\") > 0", "integer overflow"),
    ] {
        let expect = format!("expression '{expression}' resulted in error: {reason}");
        denies_expression(expression, &expect);
    }
    denies_expression("has(oldObject.data)", "failed expression: has(oldObject.data)");
    let ignoring = json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.foo == 1"}]});
    assert_eq!(decide(&ignoring), Outcome::default());
}

#[test]
fn expressions_read_objects_request_and_namespace() {
    for expression in [
        "object.data.a == 'b' && object.kind == 'ConfigMap' && object.metadata.name == 'c'",
        "oldObject == null && object != null",
        "request.operation == 'CREATE' && request.name == 'c' && request.namespace == 'one'",
        "request.userInfo.username == 'alice' && 'team' in request.userInfo.groups",
        "request.dryRun && request.resource.resource == 'configmaps' && request.kind.kind == 'ConfigMap'",
        "namespaceObject.metadata.labels['team'] == 'a'",
        "!has(request.subResource) && object.?spec.?replicas.orValue(1) == 1",
        "object.data.all(key, object.data[key].size() == 1)",
        "[{'x': 1}].all(object, object.x == 1)",
        "-object.data.size() == -1",
    ] {
        allows(expression);
    }
    let deleted = json!({"validations": [{"expression": "object == null && oldObject.data.a == 'b'"}]});
    assert_eq!(
        decide_with(&deleted, &json!({}), Operation::Delete),
        Outcome::default()
    );
}

#[test]
fn variables_are_evaluated_when_an_expression_uses_them() {
    let x = json!({"name": "x", "expression": "object.foo.bar"});
    let y = json!({"name": "y", "expression": "variables.x + 1"});
    denies(
        &json!({"variables": [x, y], "validations": [{"expression": "variables.y == 1"}]}),
        "expression 'variables.y == 1' resulted in error: composited variable \"y\" fails to evaluate: composited \
         variable \"x\" fails to evaluate: no such key: foo",
    );
    let unused = json!({"variables": [x, {"name": "z", "expression": "object.data"}],
        "validations": [{"expression": "!has(object.foo) || variables.x == 1"}, {"expression": "variables.z.a == 'b'"}]});
    assert_eq!(decide(&unused), Outcome::default());
}

#[test]
fn message_expression_precedes_the_message() {
    let failed = |validation: Value, expect: &str| denies(&json!({"validations": [validation]}), expect);
    failed(json!({"expression": " false "}), "failed expression: false");
    failed(json!({"expression": "false", "message": " m "}), "m");
    failed(
        json!({"expression": "false", "message": "m", "messageExpression": "'x' + string(object.data.a)"}),
        "xb",
    );
    failed(
        json!({"expression": "false", "message": " m ", "messageExpression": "string(object.foo)"}),
        "m",
    );
}

#[test]
fn conditions_select_requests() {
    let spec =
        |conditions: Value| json!({"matchConditions": conditions, "validations": [{"expression": "false"}]});
    let outcome = decide(&spec(json!([{"name": "m", "expression": "object.foo == 1"},
        {"name": "n", "expression": "request.name == 'other'"}])));
    assert_eq!(outcome, Outcome::default());
    denies(
        &spec(
            json!([{"name": "m", "expression": "object.foo == 1"}, {"name": "n", "expression": "object.bar == 2"}]),
        ),
        "[expression 'object.foo == 1' resulted in error: no such key: foo, expression 'object.bar == 2' resulted in \
         error: no such key: bar]",
    );
}

#[test]
fn bindings_warn_audit_and_pass_parameters() {
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [{"expression":
        "params == null || object.data.size() > int(params.data.max)", "message": "m", "reason": "Forbidden"}]});
    let with = |bound: &Value| decide_with(&spec, bound, Operation::Create);
    assert_eq!(with(&json!({})), Outcome::default());
    let limits = json!({"name": "limits", "parameterNotFoundAction": "Deny"});
    let denial = with(&json!({"paramRef": limits})).denial.expect("denied");
    assert_eq!(denial.reason, "Forbidden");
    let missing = json!({"paramRef": {"name": "absent", "parameterNotFoundAction": "Deny"}});
    assert_eq!(
        with(&missing).denial.expect("denied").message,
        "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed to configure binding: no params found for \
         policy binding with `Deny` parameterNotFoundAction"
    );
    let outcome = with(&json!({"paramRef": limits, "validationActions": ["Warn", "Audit"]}));
    assert_eq!(outcome.denial, None);
    assert_eq!(
        outcome.warnings,
        ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': m"]
    );
    let annotation = &outcome.annotations["validation.policy.admission.k8s.io/validation_failure"];
    let annotation: Value = serde_json::from_str(annotation).expect("JSON");
    assert_eq!(
        annotation,
        json!([{"message": "m", "policy": "p", "binding": "b", "expressionIndex": 0,
            "validationActions": ["Warn", "Audit"]}])
    );
    let unknown =
        json!({"paramKind": {"apiVersion": "v1", "kind": "Foo"}, "validations": [{"expression": "true"}]});
    assert_eq!(
        decide(&unknown).denial.expect("denied").message,
        "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced by \
         paramKind: '/v1, Kind=Foo'"
    );
}

#[test]
fn rules_and_selectors_select_requests() {
    let denied = |constraints: Value| {
        let spec = json!({"matchConstraints": constraints, "validations": [{"expression": "false"}]});
        decide(&spec).denial.is_some()
    };
    let rule = |resources: &[&str], operation: &str| json!({"apiGroups": ["*"], "apiVersions": ["v1"], "resources": resources, "operations": [operation]});
    let all = || rule(&["*"], "*");
    assert!(denied(json!({"resourceRules": [all()]})));
    assert!(denied(
        json!({"resourceRules": [rule(&["configmaps/*"], "CREATE")]})
    ));
    assert!(!denied(
        json!({"resourceRules": [rule(&["configmaps/status"], "*")]})
    ));
    assert!(!denied(json!({"resourceRules": [rule(&["*"], "UPDATE")]})));
    assert!(!denied(
        json!({"resourceRules": [all()], "excludeResourceRules": [rule(&["configmaps"], "*")]})
    ));
    let mut named = all();
    named["resourceNames"] = json!(["other"]);
    assert!(!denied(json!({"resourceRules": [named]})));
    let mut cluster = all();
    cluster["scope"] = json!("Cluster");
    assert!(!denied(json!({"resourceRules": [cluster]})));
    let team = |team: &str| json!({"matchLabels": {"team": team}});
    assert!(denied(
        json!({"resourceRules": [all()], "namespaceSelector": team("a")})
    ));
    assert!(!denied(
        json!({"resourceRules": [all()], "namespaceSelector": team("b")})
    ));
    assert!(!denied(
        json!({"resourceRules": [all()], "objectSelector": team("a")})
    ));
}

#[test]
fn rejects_expressions_that_do_not_compile() {
    let check = |expression: &str, expect: &str| {
        let field = format!("spec.validations[0].expression: Invalid value: {expression:?}: {expect}");
        rejects(&json!({"validations": [{"expression": expression}]}), &[&field]);
    };
    check(
        "foo == 1",
        "compilation failed: ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo == 1\n | ^",
    );
    check(
        "request.foo == 1",
        "compilation failed: ERROR: <input>:1:8: undefined field 'foo'\n | request.foo == 1\n | .......^",
    );
    check(
        "object.x.foo(1)",
        "compilation failed: ERROR: <input>:1:13: undeclared reference to 'foo' (in container '')\n | object.x.foo(1)\n | \
         ............^",
    );
    for (expression, of) in [
        ("1", "int"),
        ("object", "dyn"),
        ("object.a ? 1 : 2", "int"),
        ("object.?a", "optional_type(dyn)"),
        ("request.userInfo.extra", "map(string, list(string))"),
        (
            "namespaceObject.metadata.creationTimestamp",
            "google.protobuf.Timestamp",
        ),
        ("request.kind", "kubernetes.GroupVersionKind"),
        ("object.a + 'x'", "string"),
    ] {
        check(expression, &format!("must evaluate to bool but got {of}"));
    }
    check(
        "request.dryRun && request.name",
        "compilation failed: ERROR: <input>:1:26: expected type 'bool' but found 'string'\n | request.dryRun && \
         request.name\n | .........................^",
    );
    let overload = |expression: &str, column: usize, applied: &str| {
        let text = format!("found no matching overload for {applied}");
        let shown = format!(
            "compilation failed: ERROR: <input>:1:{column}: {text}\n | {expression}\n | {}^",
            ".".repeat(column - 1)
        );
        check(expression, &shown);
    };
    overload("request.kind.kind == 1", 19, "'_==_' applied to '(string, int)'");
    overload(
        "request.userInfo.groups == 1",
        25,
        "'_==_' applied to '(list(string), int)'",
    );
    overload("!request.name", 1, "'!_' applied to '(string)'");
    overload(
        "request.dryRun.startsWith('a')",
        26,
        "'startsWith' applied to 'bool.(string)'",
    );
    overload(
        "1 in request.userInfo.groups",
        3,
        "'@in' applied to '(int, list(string))'",
    );
    overload(
        "object.a == 1 && 'a' == 1",
        22,
        "'_==_' applied to '(string, int)'",
    );
    for variable in ["variables", "params", "self"] {
        let text = format!("undeclared reference to '{variable}' (in container '')");
        let shown = format!("compilation failed: ERROR: <input>:1:1: {text}\n | {variable}.x\n | ^");
        check(&format!("{variable}.x"), &shown);
    }
}

#[test]
fn rejects_invalid_members() {
    let valid = json!([{"expression": "true"}]);
    let identifier = "spec.variables[0].name: Invalid value: \"x-\": must be a valid CEL identifier";
    rejects(
        &json!({"validations": valid, "variables": [{"name": "x-", "expression": "1"}, {"name": "", "expression": ""}]}),
        &[
            identifier,
            "spec.variables[1].name: Required value: name is not specified",
            "spec.variables[1].expression: Required value: expression is not specified",
        ],
    );
    rejects(
        &json!({"validations": [{"expression": " ", "message": " ", "messageExpression": " ", "reason": "X"}]}),
        &[
            "spec.validations[0].expression: Required value: expression is not specified",
            "spec.validations[0].messageExpression: Invalid value: \" \": must be non-empty if specified",
            "spec.validations[0].message: Invalid value: \" \": must be non-empty if specified",
            "spec.validations[0].reason: Unsupported value: \"X\": supported values: \"Forbidden\", \"Invalid\", \
             \"RequestEntityTooLarge\"",
        ],
    );
    rejects(
        &json!({"validations": valid, "failurePolicy": "X", "matchConstraints": {}}),
        &[
            "spec.failurePolicy: Unsupported value: \"X\": supported values: \"Fail\", \"Ignore\"",
            "spec.matchConstraints.resourceRules: Required value",
        ],
    );
    let errors =
        Kind::ValidatingBinding.validate(&binding(&json!({"paramRef": {}, "validationActions": []})));
    let errors: Vec<String> = errors.iter().map(FieldError::summary).collect();
    assert_eq!(
        errors,
        [
            "spec.paramRef: Required value: one of name or selector must be specified",
            "spec.paramRef.parameterNotFoundAction: Required value",
            "spec.validationActions: Required value: at least one validation action is required",
        ]
    );
}

#[test]
fn permissions_decide_validations_but_no_annotations() {
    let reads = "authorizer.requestResource.check('get').allowed()";
    allows(reads);
    allows(
        "authorizer.group('apps').resource('deployments').namespace('one').check('get').reason().startsWith('alice|team|get|apps')",
    );
    denies_expression(
        "authorizer.serviceAccount('one', 'robot').path('/healthz').check('get').allowed()",
        "failed expression: authorizer.serviceAccount('one', 'robot').path('/healthz').check('get').allowed()",
    );
    let conditions = json!([{"name": "m", "expression": format!("!{reads}")}]);
    let spec = json!({"matchConditions": conditions, "validations": [{"expression": "false"}]});
    assert_eq!(decide(&spec), Outcome::default());
    let annotation = "authorizer.requestResource.check('get').reason()";
    denies(
        &json!({"auditAnnotations": [{"key": "k", "valueExpression": annotation}]}),
        &format!(
            "expression '{annotation}' resulted in error: no such attribute(s): authorizer.requestResource"
        ),
    );
    // Each check costs more than a third of the budget of an expression.
    let check = "authorizer.requestResource.check('get').allowed()";
    denies_expression(
        &format!("{check} && {check} && {check}"),
        &format!(
            "expression '{check} && {check} && {check}' resulted in error: operation cancelled: actual cost limit exceeded"
        ),
    );
    let variables: Vec<Value> = (0..15)
        .map(|index| json!({"name": format!("v{index}"), "expression": format!("{check} && {check}")}))
        .collect();
    let all: Vec<String> = (0..15).map(|index| format!("variables.v{index}")).collect();
    denies(
        &json!({"variables": variables, "validations": [{"expression": all.join(" && ")}]}),
        "validation failed due to running out of cost budget, no further validation rules will be run",
    );
}
