//! Tests of complete schemas: causes of kube-apiserver, and properties of defaulting and pruning.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn gizmo() -> Value {
    json!({"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "required": ["image"], "properties": {
            "image": {"type": "string", "minLength": 1, "maxLength": 20, "pattern": "^[a-z:]+$"},
            "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 10, "default": 1},
            "tier": {"type": "string", "enum": ["gold", "silver"], "default": "silver"},
            "port": {"x-kubernetes-int-or-string": true},
            "note": {"type": "string", "nullable": true},
            "ratio": {"type": "number", "multipleOf": 0.5},
            "when": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "env": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string"}, "value": {"type": "string", "default": "x"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "one": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
        }, "x-kubernetes-validations": [
            {"rule": "self.replicas <= 5 || self.tier == 'gold'", "message": "replicas must not exceed 5 outside gold"},
            {"rule": "!has(oldSelf.note) || has(self.note)", "message": "note cannot be removed", "fieldPath": ".note",
                "reason": "FieldValueForbidden"}
        ]},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}}
    }})
}

fn schema() -> StructuralSchema {
    StructuralSchema::compile("spec.validation.openAPIV3Schema", &gizmo(), true).unwrap()
}

fn summaries(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(FieldError::summary).collect()
}

/// Returns the causes of an object with this spec and a valid image.
fn causes(spec: Value) -> Vec<String> {
    let mut object = json!({"spec": {"image": "a:b"}});
    if let (Some(fields), Value::Object(spec)) = (object["spec"].as_object_mut(), spec) {
        fields.extend(spec);
    }
    let schema = schema();
    schema.apply_defaults(&mut object);
    summaries(&schema.validate(&object, None))
}

const UNCHECKED: &str = "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

#[test]
fn causes_match_kube_apiserver_wording() {
    let check = |spec: Value, expect: &[&str]| assert_eq!(causes(spec), expect);
    check(
        json!({"replicas": "three"}),
        &[
            r#"spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string""#,
            UNCHECKED,
        ],
    );
    check(
        json!({"tier": "lead"}),
        &[
            r#"spec.tier: Unsupported value: "lead": supported values: "gold", "silver""#,
            UNCHECKED,
        ],
    );
    check(json!({"image": null}), &["spec.image: Required value", UNCHECKED]);
    check(
        json!({"image": "A"}),
        &[r#"spec.image: Invalid value: "A": spec.image in body should match '^[a-z:]+$'"#],
    );
    check(
        json!({"image": ""}),
        &[r#"spec.image: Invalid value: "": spec.image in body should be at least 1 chars long"#],
    );
    check(
        json!({"image": "abcdefghijklmnopqrstuvwxyz"}),
        &["spec.image: Too long: may not be more than 20 bytes", UNCHECKED],
    );
    check(
        json!({"replicas": -1}),
        &["spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0"],
    );
    check(
        json!({"tags": ["a", "b", "c", "d", "e", "f"]}),
        &["spec.tags: Too many: 6: must have at most 5 items", UNCHECKED],
    );
    check(
        json!({"tags": ["a", "a"]}),
        &[r#"spec.tags[1]: Duplicate value: "a""#],
    );
    check(
        json!({"env": [{"name": "A"}, {"name": "A"}]}),
        &[r#"spec.env[1]: Duplicate value: {"name":"A"}"#],
    );
    check(
        json!({"ratio": 0.7}),
        &["spec.ratio: Invalid value: 0.7: spec.ratio in body should be a multiple of 0.5"],
    );
    check(
        json!({"when": "noon"}),
        &[
            r#"spec.when: Invalid value: "noon": spec.when in body must be of type date-time: "noon""#,
            UNCHECKED,
        ],
    );
    check(
        json!({"one": {}}),
        &[
            r#"<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). Found none valid"#,
            "spec.one.a: Required value",
            UNCHECKED,
        ],
    );
    check(
        json!({"port": true}),
        &[
            r#"spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean""#,
            UNCHECKED,
        ],
    );
    check(
        json!({"labels": {"k": 1}}),
        &[
            r#"spec.labels.k: Invalid value: "integer": spec.labels.k in body must be of type string: "integer""#,
            UNCHECKED,
        ],
    );
    check(json!({"port": 80, "note": null, "ratio": 2}), &[]);
}

#[test]
fn rules_run_only_on_structurally_valid_objects() {
    assert_eq!(
        causes(json!({"replicas": 6})),
        ["spec: Invalid value: replicas must not exceed 5 outside gold"]
    );
    assert_eq!(causes(json!({"replicas": 6, "tier": "gold"})), [""; 0]);
}

#[test]
fn transition_rules_run_only_with_an_old_value() {
    let schema = schema();
    let mut old = json!({"spec": {"image": "a", "note": "n"}});
    let mut new = json!({"spec": {"image": "a"}});
    schema.apply_defaults(&mut old);
    schema.apply_defaults(&mut new);
    assert_eq!(summaries(&schema.validate(&new, None)), [""; 0]);
    assert_eq!(
        summaries(&schema.validate(&new, Some(&old))),
        ["spec.note: Forbidden: note cannot be removed"]
    );
}

#[test]
fn update_ratchets_unchanged_invalid_values() {
    let schema = schema();
    let old = json!({"spec": {"image": "BAD", "replicas": 9, "tier": "silver"}});
    let mut new = old.clone();
    new["spec"]["labels"] = json!({"a": "b"});
    // The field that violates the pattern is unchanged, but the node of the rule, spec, changed.
    assert_eq!(
        summaries(&schema.validate(&new, Some(&old))),
        ["spec: Invalid value: replicas must not exceed 5 outside gold"]
    );
    assert_eq!(summaries(&schema.validate(&old, Some(&old))), [""; 0]);
    new["spec"]["image"] = json!("WORSE");
    assert_eq!(schema.validate(&new, Some(&old)).len(), 2);
}

/// kube-apiserver correlates the items of list maps by their keys when it compares the lists.
#[test]
fn update_ratchets_reordered_items_of_list_maps() {
    let mut schema = json!({"type": "object", "properties": {"list": {
        "type": "array", "maxItems": 1, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "x-kubernetes-validations": [{"rule": "self.size() < 2", "message": "one item only"}],
        "items": {"type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}}}}});
    let count = |schema: &Value, new: Value| {
        let old = json!({"list": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]});
        let schema = StructuralSchema::compile("spec.validation.openAPIV3Schema", schema, true).unwrap();
        schema.validate(&new, Some(&old)).len()
    };
    let reordered = json!({"list": [{"name": "b", "port": 2}, {"name": "a", "port": 1}]});
    assert_eq!(count(&schema, reordered.clone()), 0);
    let changed = json!({"list": [{"name": "b", "port": 2}, {"name": "a", "port": 3}]});
    assert_ne!(count(&schema, changed), 0);
    let list = schema["properties"]["list"].as_object_mut().unwrap();
    list.remove("x-kubernetes-list-map-keys");
    list.remove("x-kubernetes-list-type");
    assert_ne!(count(&schema, reordered), 0);
}

/// kube-apiserver 1.36.2 accepts the update of an object whose `free` is empty, and rejects the other one.
#[test]
fn update_does_not_ratchet_objects_with_fields_without_schema() {
    let schema = schema();
    let count = |free: Value| {
        let object = json!({"spec": {"image": "a", "replicas": 9, "tier": "silver", "free": free}});
        schema.validate(&object, Some(&object)).len()
    };
    assert_eq!(count(json!({})), 0);
    assert_eq!(count(json!({"x": 1})), 1);
}

#[test]
fn status_update_validates_only_status_types() {
    let schema = schema();
    let old = json!({"spec": {"image": "a", "replicas": 1, "tier": "gold"}});
    let mut new = old.clone();
    new["status"] = json!({"phase": 3});
    assert_eq!(
        summaries(&schema.validate_status(Vec::new(), &new, &old))[0],
        r#"status.phase: Invalid value: "integer": phase in body must be of type string: "integer""#
    );
}

#[test]
fn defaults_replace_absent_and_null_fields() {
    let check = |mut object: Value, expect: Value| {
        schema().apply_defaults(&mut object);
        assert_eq!(object, expect);
    };
    let spec = |rest: Value| {
        let mut spec = json!({"replicas": 1, "tier": "silver"});
        spec.as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        json!({"spec": spec})
    };
    check(json!({}), json!({}));
    check(json!({"spec": {"tier": null}}), spec(json!({})));
    check(
        json!({"spec": {"note": null, "image": null}}),
        spec(json!({"note": null})),
    );
    check(
        json!({"spec": {"env": [{"name": "A"}]}}),
        spec(json!({"env": [{"name": "A", "value": "x"}]})),
    );
    check(
        json!({"spec": {"free": {"x": null}}}),
        spec(json!({"free": {"x": null}})),
    );
}

#[test]
fn pruning_reports_dropped_paths() {
    let mut object = json!({"apiVersion": "g/v1", "kind": "Gizmo", "bogus": 1,
        "metadata": {"name": "a", "colour": "red", "labels": {"any": "x"}, "ownerReferences": [{"name": "o", "zip": 1}]},
        "spec": {"image": "a", "extra": {"deep": 1}, "labels": {"k": "v"}, "free": {"k": {"l": 1}},
            "env": [{"name": "A", "oops": 1}]}});
    assert_eq!(
        schema().prune(&mut object),
        [
            "bogus",
            "metadata.colour",
            "metadata.ownerReferences[0].zip",
            "spec.env[0].oops",
            "spec.extra"
        ]
    );
    assert_eq!(
        object["spec"],
        json!({"image": "a", "labels": {"k": "v"}, "free": {"k": {"l": 1}}, "env": [{"name": "A"}]})
    );
}

#[test]
fn pruning_keeps_metadata_of_embedded_resources() {
    let schema = StructuralSchema::trusted(&json!({"type": "object", "properties": {"t": {"type": "object",
        "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}));
    let mut object = json!({"t": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "zip": 1, "labels": null}, "spec": {"a": 1}, "b": 2}});
    assert_eq!(schema.prune(&mut object), ["t.b", "t.metadata.zip", "t.spec.a"]);
    assert_eq!(
        object,
        json!({"t": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "spec": {}}})
    );
}

fn rejections(schema: Value) -> Vec<String> {
    let wrapped = json!({"type": "object", "properties": {"spec": schema}});
    match StructuralSchema::compile("s", &wrapped, false) {
        Ok(_) => Vec::new(),
        Err(errors) => summaries(&errors),
    }
}

#[test]
fn rejects_non_structural_schemas() {
    let check = |schema: Value, expect: &[&str]| assert_eq!(rejections(schema), expect);
    check(
        json!({"properties": {"a": {"type": "string"}}}),
        &["s.properties[spec].type: Required value: must not be empty for specified object fields"],
    );
    check(
        json!({"type": "array"}),
        &["s.properties[spec].items: Required value: must be specified"],
    );
    check(
        json!({"type": "object", "properties": {"a": {"type": "int"}}}),
        &[
            r#"s.properties[spec].properties[a].type: Unsupported value: "int": supported values: "array", "boolean", "integer", "number", "object", "string""#,
        ],
    );
    check(
        json!({"type": "object", "oneOf": [{"properties": {"a": {"type": "string"}}}]}),
        &["s.properties[spec].oneOf[0].properties[a].type: Forbidden: must be empty to be structural"],
    );
    check(
        json!({"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"]}),
        &[
            "s.properties[spec].items.properties[n].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ],
    );
    check(
        json!({"type": "integer", "default": "x"}),
        &[
            r#"s.properties[spec].default: Invalid value: "string":  in body must be of type integer: "string""#,
        ],
    );
    check(
        json!({"type": "string", "$ref": "#/x"}),
        &["s.properties[spec].$ref: Forbidden: $ref is not supported"],
    );
}

#[test]
fn junctor_fields_must_be_defined_outside() {
    let schema = json!({"type": "object", "oneOf": [{"properties": {"spec": {"minProperties": 1}}}]});
    assert_eq!(
        summaries(&StructuralSchema::compile("s", &schema, false).unwrap_err()),
        ["s.properties[spec]: Required value: because it is defined in s.oneOf[0].properties[spec]"]
    );
}

#[test]
fn rejects_rules_that_do_not_compile() {
    let check = |rule: &str, expect: &str| {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "l": {"type": "array",
            "items": {"type": "object", "properties": {"a": {"type": "string"}}}}},
            "x-kubernetes-validations": [{"rule": rule}]});
        let found = rejections(schema);
        match expect {
            "" => assert_eq!(found, [""; 0], "{rule}"),
            expect => assert!(found.len() == 1 && found[0].contains(expect), "{rule}: {found:?}"),
        }
    };
    check("self.n > 0", "");
    check("has(self.l) && self.l.all(x, x.a != '')", "");
    check("self.l.exists(x, x.a.startsWith('b')) ? self.n == 1 : true", "");
    check("self.l.map(x, x.a).size() > 0", "");
    check("oldSelf.n == self.n", "");
    check(
        "self.bogus > 1",
        "compilation failed: ERROR: <input>:1:5: undefined field 'bogus'\n | self.bogus > 1\n | ....^",
    );
    check("self.l.all(x, x.zip != '')", "undefined field 'zip'");
    check(
        "nope > 1",
        "ERROR: <input>:1:1: undeclared reference to 'nope' (in container '')",
    );
    check("self.n", "cel expression must evaluate to a bool");
    check("self.n >", "compilation failed: ERROR: <input>:1:");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-5i64..5).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    let name = prop::sample::select(vec![
        "spec", "image", "replicas", "tier", "port", "note", "tags", "env", "labels", "free", "one", "a",
        "name", "zip", "metadata", "status",
    ]);
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..6).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    })
}

proptest! {
    #[test]
    fn defaulting_is_idempotent(object in any_json()) {
        let schema = schema();
        let mut once = object;
        schema.apply_defaults(&mut once);
        let mut twice = once.clone();
        schema.apply_defaults(&mut twice);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn pruning_is_idempotent(object in any_json()) {
        let schema = schema();
        let mut once = object;
        schema.prune(&mut once);
        let mut twice = once.clone();
        prop_assert!(schema.prune(&mut twice).is_empty());
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn pruning_and_defaulting_commute(object in any_json()) {
        let schema = schema();
        let (mut a, mut b) = (object.clone(), object);
        schema.prune(&mut a);
        schema.apply_defaults(&mut a);
        schema.apply_defaults(&mut b);
        schema.prune(&mut b);
        prop_assert_eq!(a, b);
    }

    #[test]
    fn update_without_changes_reports_no_additional_type_errors(object in any_json()) {
        let schema = schema();
        let reported = schema.validate(&object, None);
        let errors = schema.validate(&object, Some(&object));
        // Only errors that junctors report without a path, and transition rules, may be added.
        let mut types = errors.iter().filter(|error| error.reason == CauseReason::TypeInvalid);
        prop_assert!(types.all(|error| reported.contains(error)), "{:?}", errors);
    }

    #[test]
    fn validation_never_panics(object in any_json(), old in any_json()) {
        let schema = schema();
        schema.validate(&object, Some(&old));
    }
}

#[test]
fn number_of_reported_errors_is_limited() {
    let schema =
        json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}}}});
    let schema = StructuralSchema::compile("s", &schema, false).expect("sound");
    let errors = schema.validate(&json!({"l": vec!["a"; 250]}), None);
    assert_eq!(errors.len(), 101);
    let last = errors[100].summary();
    assert!(last.ends_with("and 150 more"), "{last}");
}
