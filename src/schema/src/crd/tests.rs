//! Validation and defaults of CRDs.

use super::*;
use crate::StructuralSchema;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, ModelRevision};

fn gizmos() -> Value {
    let mut crd = json!({
        "metadata": {"name": "gizmos.shop.example.com"},
        "spec": {
            "group": "shop.example.com", "scope": "Namespaced",
            "names": {"plural": "gizmos", "kind": "Gizmo", "shortNames": ["gz"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"color": {"type": "string"}, "n": {"type": "integer"}}}}}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}]}]
        }
    });
    apply_defaults(&mut crd);
    crd
}

fn rejections(pointer: &str, value: Value) -> Vec<String> {
    let mut crd = gizmos();
    *crd.pointer_mut(pointer).unwrap() = value;
    validate(&crd, None).iter().map(FieldError::summary).collect()
}

#[test]
fn accepts_valid_crd_and_applies_defaults() {
    let crd = gizmos();
    assert_eq!(validate(&crd, None), []);
    assert_eq!(validate(&crd, Some(&crd)), []);
    assert_eq!(crd["spec"]["names"]["listKind"], json!("GizmoList"));
    assert_eq!(crd["spec"]["names"]["singular"], json!("gizmo"));
    assert_eq!(crd["spec"]["conversion"], json!({"strategy": "None"}));
}

#[test]
fn rejects_invalid_crds() {
    let check = |pointer: &str, value: Value, expect: &str| {
        assert_eq!(rejections(pointer, value), [expect], "{pointer}");
    };
    check(
        "/metadata/name",
        json!("wrong.example.com"),
        r#"metadata.name: Invalid value: "wrong.example.com": must be spec.names.plural+"."+spec.group"#,
    );
    check(
        "/spec/scope",
        json!("World"),
        r#"spec.scope: Unsupported value: "World": supported values: "Cluster", "Namespaced""#,
    );
    check(
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/n",
        json!({}),
        "spec.validation.openAPIV3Schema.properties[spec].properties[n].type: Required value: must not be empty for specified object fields",
    );
    check(
        "/spec/versions/0/selectableFields/0/jsonPath",
        json!(".spec.bogus"),
        r#"spec.selectableFields[0].jsonPath: Invalid value: ".spec.bogus": is an invalid path: does not refer to a valid field"#,
    );
    check(
        "/spec/versions/0/additionalPrinterColumns/0/type",
        json!("text"),
        r#"spec.additionalPrinterColumns[0].type: Invalid value: "text": must be one of boolean,date,integer,number,string"#,
    );
    check(
        "/spec/versions/0/subresources/scale/specReplicasPath",
        json!(".status.n"),
        r#"spec.subresources.scale.specReplicasPath: Invalid value: ".status.n": should be a json path under .spec"#,
    );
    check(
        "/spec/conversion",
        json!({"strategy": "Webhook"}),
        r#"spec.conversion.strategy: Unsupported value: "Webhook": supported values: "None""#,
    );
    let storage = rejections("/spec/versions/0/storage", json!(false));
    assert!(
        storage[0].ends_with("must have exactly one version marked as storage version"),
        "{storage:?}"
    );
}

#[test]
fn errors_of_different_versions_name_the_version_index() {
    let mut crd = gizmos();
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    second["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({});
    crd["spec"]["versions"].as_array_mut().unwrap().push(second);
    assert_eq!(
        validate(&crd, None)[0].field,
        "spec.versions[1].schema.openAPIV3Schema.properties[spec].type"
    );
}

#[test]
fn kind_of_established_crd_is_immutable() {
    let mut old = gizmos();
    old["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
    let mut new = old.clone();
    new["spec"]["names"]["kind"] = json!("Gadget");
    let errors: Vec<String> = validate(&new, Some(&old))
        .iter()
        .map(FieldError::summary)
        .collect();
    assert_eq!(
        errors,
        [r#"spec.names.kind: Invalid value: "Gadget": field is immutable"#]
    );
}

#[test]
fn warns_about_unknown_formats() {
    let mut crd = gizmos();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"]["format"] =
        json!("colour");
    assert_eq!(format_warnings(&crd), [r#"unrecognized format "colour""#]);
}

#[test]
fn accepts_crds_of_rooflet() {
    for crd in rooflet_api::crd::all() {
        let mut crd = serde_json::to_value(crd).unwrap();
        apply_defaults(&mut crd);
        let errors: Vec<String> = validate(&crd, None).iter().map(FieldError::summary).collect();
        assert_eq!(errors, [""; 0], "{}", crd["metadata"]["name"]);
    }
}

#[test]
fn invalid_stored_fields_stay_valid_until_changed() {
    let schema = StructuralSchema::of_kind::<ModelDeployment>();
    let causes = |new: &Value, old: Option<&Value>| -> Vec<String> {
        let errors = schema.validate(new, old);
        errors.iter().map(FieldError::summary).collect()
    };
    let mut old = json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "guide"},
        "spec": {
            "model": {"source": "local://guide"}, "serving": {"contextTokens": 512},
            "objectives": {"timeToFirstToken": {"max": "0s", "atPromptTokens": 513}},
            "placement": {"tolerations": [{"value": "x"}, {"key": "k", "operator": "Exists", "value": "v"}]},
            "routing": {"fallbacks": ["my guide"]},
            "strategy": {
                "rollingUpdate": {"minThroughput": "500%"},
                "maintenanceWindows": [{"start": "02:00", "duration": "1h", "timeZone": "Mars/Base"}],
            },
            "autoscaling": {
                "maxReplicas": 3,
                "schedules": [{"from": "08:00", "to": "09:00", "minReplicas": 1, "timeZone": "Europe/Berlyn"}],
            },
        },
    });
    old["spec"]["serving"]["name"] = json!("my guide");
    schema.apply_defaults(&mut old);
    let rejected = causes(&old, None);
    assert_eq!(rejected.len(), 9, "{rejected:#?}");
    for (field, problem) in [
        ("spec.serving.name: ", "must consist of letters, digits"),
        ("spec.routing.fallbacks: ", "must not contain the served name"),
        ("spec.strategy.rollingUpdate.minThroughput: ", "at most 100%"),
        (
            "spec.strategy: ",
            "unknown time zone Mars/Base evaluating rule: timeZone must be",
        ),
        (
            "spec.autoscaling: ",
            "unknown time zone Europe/Berlyn evaluating rule: timeZone must be",
        ),
    ] {
        let is_reported = |cause: &String| cause.starts_with(field) && cause.contains(problem);
        assert!(
            rejected.iter().any(is_reported),
            "{field} {problem}: {rejected:#?}"
        );
    }
    let mut scaled = old.clone();
    scaled["spec"]["replicas"] = json!(3);
    scaled["spec"]["placement"]["strategy"] = json!("BinPack");
    scaled["spec"]["autoscaling"]["maxReplicas"] = json!(4);
    scaled["spec"]["strategy"]["rollbackOnFailure"] = json!(true);
    assert_eq!(causes(&scaled, Some(&old)), [""; 0]);
    // A change of these fields must satisfy the rules.
    let mut changed = old.clone();
    changed["spec"]["serving"]["contextTokens"] = json!(500);
    changed["spec"]["placement"]["tolerations"] = json!([{"operator": "Equal", "value": "y"}]);
    assert_eq!(causes(&changed, Some(&old)).len(), 2);

    let replica = json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelReplica", "metadata": {"name": "guide-1"},
        "spec": {
            "model": old["spec"]["model"], "serving": old["spec"]["serving"], "objectives": old["spec"]["objectives"],
            "placement": old["spec"]["placement"],
        },
    });
    let rejected = StructuralSchema::of_kind::<ModelReplica>().validate(&replica, None);
    assert!(rejected.is_empty(), "{rejected:?}");
    let revision = json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelRevision", "metadata": {"name": "guide-1"},
        "spec": {"revision": 1, "model": old["spec"]["model"], "serving": old["spec"]["serving"]},
    });
    let rejected = StructuralSchema::of_kind::<ModelRevision>().validate(&revision, None);
    assert!(rejected.is_empty(), "{rejected:?}");
}

#[test]
fn rejects_too_many_layers_but_ratchets_stored_ones() {
    let schema = StructuralSchema::of_kind::<ModelReplica>();
    let causes = |new: &Value, old: Option<&Value>| -> Vec<String> {
        let errors = schema.validate(new, old);
        errors.iter().map(FieldError::summary).collect()
    };
    let replica = |count: u32| {
        let model = json!({"name": "m", "cost": {"layers": [{"count": 2}, {"count": count}]}});
        let mut replica = json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelReplica",
            "metadata": {"name": "guide-1", "finalizers": ["rooflet.dev/worker"]},
            "spec": {
                "model": {"source": "local://guide"}, "serving": {"name": "guide"},
                "artifact": {"downloadBytes": 1, "model": model},
            },
        });
        schema.apply_defaults(&mut replica);
        replica
    };
    assert_eq!(causes(&replica(10_000), None), [""; 0]);
    let rejected = causes(&replica(400_000_000), None);
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert!(
        rejected[0].starts_with("spec.artifact.model.cost.layers[1].count: ")
            && rejected[0].contains("10000"),
        "{rejected:?}"
    );

    let stored = replica(400_000_000);
    let mut freed = stored.clone();
    freed["metadata"]["finalizers"] = json!([]);
    freed["spec"]["nodeName"] = json!("mini-1");
    assert_eq!(causes(&freed, Some(&stored)), [""; 0]);
}

/// Returns the errors of a definition with this `spec` schema, without the field of the schema.
fn schema_rejections(spec: &Value, old: Option<&Value>) -> Vec<String> {
    let with_spec = |spec: &Value| {
        let mut crd = gizmos();
        crd["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        crd["spec"]["versions"][0]["selectableFields"] = json!([]);
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec.clone();
        crd
    };
    let errors = validate(&with_spec(spec), old.map(with_spec).as_ref());
    let summaries = errors.iter().map(FieldError::summary);
    summaries
        .map(|text| text.replace("spec.validation.openAPIV3Schema.properties[spec].", ""))
        .collect()
}

/// Returns a list of texts. Each rule of an item costs 11.
fn texts(max_items: u64, rules: usize) -> Value {
    let rules: Vec<Value> = ('a'..)
        .take(rules)
        .map(|first| json!({"rule": format!("self.matches('^[{first}-z]+$')")}))
        .collect();
    json!({"type": "object", "properties": {"names": {"type": "array", "maxItems": max_items,
        "items": {"type": "string", "maxLength": 10, "x-kubernetes-validations": rules}}}})
}

const ADVICE: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";

#[test]
fn rejects_rules_above_the_cost_limit() {
    assert_eq!(schema_rejections(&texts(909_090, 1), None), [""; 0]);
    for (items, factor) in [
        (909_091, "1.000000x"),
        (1_400_000, "1.5x"),
        (90_000_000, "99.0x"),
        (91_000_000, "more than 100x"),
    ] {
        let rejected = schema_rejections(&texts(items, 1), None);
        let field = "properties[names].items.x-kubernetes-validations[0].rule";
        assert_eq!(
            rejected.first().map(String::as_str),
            Some(&*format!(
                "{field}: Forbidden: estimated rule cost exceeds budget by factor of {factor} {ADVICE}"
            )),
        );
    }
    let mut message = texts(3_000_000, 0);
    message["x-kubernetes-validations"] = json!([{"rule": "true", "messageExpression":
        "self.names.exists(n, n == 'aaaaaaaaaaa') ? 'a' : 'b'"}]);
    assert_eq!(
        schema_rejections(&message, None),
        [format!(
            "x-kubernetes-validations[0].messageExpression: Forbidden: estimated messageExpression cost exceeds budget by factor of 2.1x {ADVICE}"
        )]
    );
}

#[test]
fn rejects_schemas_above_the_cost_limit() {
    assert_eq!(schema_rejections(&texts(909_090, 10), None), [""; 0]);
    let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
    let mut expect: Vec<String> = (0..4)
        .map(|index| {
            format!("properties[names].items.x-kubernetes-validations[{index}].rule: Forbidden: {detail}")
        })
        .collect();
    expect.push(format!(
        "spec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 1.099999x {ADVICE}"
    ));
    assert_eq!(schema_rejections(&texts(909_090, 11), None), expect);
}

#[test]
fn accepts_expensive_rules_of_unchanged_schemas() {
    let stored = texts(90_000_000, 1);
    assert_eq!(schema_rejections(&stored, Some(&stored)), [""; 0]);
    assert_eq!(schema_rejections(&texts(80_000_000, 1), Some(&stored)).len(), 3);
    assert_eq!(schema_rejections(&texts(5, 1), Some(&stored)), [""; 0]);
}

#[test]
fn rejects_expensive_form_of_the_rule_for_canary_steps() {
    let definitions = rooflet_api::crd::all().into_iter();
    let mut definitions = definitions.map(|crd| serde_json::to_value(crd).expect("JSON"));
    let mut crd = definitions
        .find(|crd| crd["spec"]["names"]["kind"] == "ModelDeployment")
        .expect("the definition");
    apply_defaults(&mut crd);
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/strategy/x-kubernetes-validations/3/rule";
    let rule = crd.pointer_mut(pointer).expect("the rule");
    assert!(
        rule.as_str().is_some_and(|rule| rule.contains("lastIndexOf")),
        "{rule}"
    );
    *rule = json!(
        "!has(self.canary) || !self.canary.steps.map(s, has(s.analysis) ? 'a' : !has(s.setWeight) ? 'p' : s.setWeight < 100 ? 'w' : 'f').join('').matches('(^|f)p*a')"
    );
    let rejected: Vec<String> = validate(&crd, None).iter().map(FieldError::summary).collect();
    assert_eq!(rejected.len(), 3, "{rejected:?}");
    assert!(
        rejected[0].contains("estimated rule cost exceeds budget by factor of more than 100x"),
        "{rejected:?}"
    );
}
