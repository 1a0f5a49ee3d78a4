//! Behaviour of apply and update on whole objects. The facts are those of the tests of
//! sigs.k8s.io/structured-merge-diff.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Object under test, with its managers.
struct Subject {
    schema: TypeSchema,
    ignored: FieldSet,
    live: Value,
    managers: Managers,
}

fn manager(name: &str, operation: Operation) -> Manager {
    Manager {
        name: name.to_owned(),
        operation,
        api_version: "example.com/v1".to_owned(),
        subresource: String::new(),
    }
}

/// A spec with each kind of merge.
fn schema() -> TypeSchema {
    let text = json!({"type": "string"});
    let env = json!({"type": "object", "required": ["name"],
        "properties": {"name": text, "value": text, "port": {"type": "integer", "default": 80}}});
    TypeSchema::of_custom_resource(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "number": {"type": "integer"},
        "text": text,
        "flag": {"type": "boolean"},
        "either": {"x-kubernetes-int-or-string": true},
        "labels": {"type": "object", "additionalProperties": text},
        "atom": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text, "b": text}},
        "list": {"type": "array", "items": text},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
        "env": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": env},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"],
            "items": env},
        "nested": {"type": "object", "properties": {"inner": {"type": "object", "properties": {"a": text, "b": text}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
        "status": {"type": "object", "properties": {"phase": text}}}}),
    )
}

impl Subject {
    fn new() -> Self {
        Self {
            schema: schema(),
            ignored: FieldSet::default(),
            live: json!({}),
            managers: Managers::default(),
        }
    }

    /// Applies a spec. Returns the message of an error.
    fn apply(&mut self, by: &str, spec: Value, forces: bool) -> Result<bool, String> {
        let applied =
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec});
        let outcome = self.managers.apply(Configuration {
            schema: &self.schema,
            live: &self.live,
            applied: &applied,
            manager: &manager(by, Operation::Apply),
            forces,
            ignored: &self.ignored,
            now: "2026-01-01T00:00:00Z",
        });
        match outcome.map_err(|err| err.to_string())? {
            Some(mut object) => {
                object["metadata"]["uid"] = json!("u");
                self.live = object;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn update(&mut self, by: &str, spec: Value) {
        let mut new = self.live.clone();
        new["spec"] = spec;
        self.managers.track(Tracked {
            schema: &self.schema,
            old: &self.live,
            new: &new,
            manager: &manager(by, Operation::Update),
            ignored: &self.ignored,
            now: "2026-01-01T00:00:00Z",
        });
        self.live = new;
    }

    fn spec(&self) -> &Value {
        &self.live["spec"]
    }

    /// Returns the fields of a manager below `spec`, or an empty text.
    fn owned(&self, by: &str) -> String {
        let entry = self
            .managers
            .entries
            .iter()
            .find(|entry| entry.manager.name == by);
        let Some(entry) = entry else {
            return String::new();
        };
        let paths = entry.fields.paths();
        let texts: Vec<String> = paths.iter().map(|path| field_set::path_text(path)).collect();
        texts.join(" ").replace(".spec", "")
    }

    #[track_caller]
    fn check_owned(&self, by: &str, expect: &str) {
        assert_eq!(self.owned(by), expect, "fields of {by}");
    }
}

#[test]
fn applied_fields_belong_to_the_applier() {
    let mut subject = Subject::new();
    let spec = json!({"number": 1, "labels": {"a": "1"}, "atom": {"a": "x"}, "list": ["x"], "set": ["b", "a"],
        "env": [{"name": "A", "value": "1"}], "nested": {"inner": {"a": "x"}}, "free": {"deep": {"a": [1]}}});
    assert_eq!(subject.apply("one", spec.clone(), false), Ok(true));
    assert_eq!(subject.spec(), &spec);
    subject.check_owned(
        "one",
        r#".atom .list .number .env[name="A"] .env[name="A"].name .env[name="A"].value .free.deep .free.deep.a .labels.a .nested.inner.a .set[="a"] .set[="b"]"#,
    );
}

#[test]
fn second_apply_changes_nothing() {
    let mut subject = Subject::new();
    let spec = json!({"number": 1, "set": ["b", "a"], "env": [{"name": "A"}], "free": {"a": null, "b": {}}});
    assert_eq!(subject.apply("one", spec.clone(), false), Ok(true));
    let before = subject.managers.encode();
    assert_eq!(subject.apply("one", spec, false), Ok(false));
    assert_eq!(subject.managers.encode(), before);
}

#[test]
fn fields_that_an_applier_omits_are_removed_unless_another_manager_owns_them() {
    let mut subject = Subject::new();
    let both =
        json!({"number": 1, "text": "x", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]});
    subject.apply("one", both, false).expect("applied");
    let shared = json!({"number": 1, "env": [{"name": "A"}]});
    assert_eq!(subject.apply("two", shared, false), Ok(false), "same values");
    subject
        .apply("one", json!({"flag": true}), false)
        .expect("applied");
    assert_eq!(
        subject.spec(),
        &json!({"number": 1, "flag": true, "env": [{"name": "A"}]}),
        "text, B and the value of A are removed"
    );
    subject.check_owned("one", ".flag");
    subject.check_owned("two", r#".number .env[name="A"] .env[name="A"].name"#);
}

#[test]
fn fields_of_an_update_stay_when_an_applier_stops_applying_them() {
    let mut subject = Subject::new();
    subject
        .apply("one", json!({"number": 1, "text": "x"}), false)
        .expect("applied");
    subject.update("editor", json!({"number": 2, "text": "x", "labels": {"a": "1"}}));
    subject.check_owned("one", ".text");
    subject.check_owned("editor", ".labels .number .labels.a");
    subject.apply("one", json!({}), false).expect("applied");
    assert_eq!(subject.spec(), &json!({"number": 2, "labels": {"a": "1"}}));
    subject.check_owned("one", "");
}

#[test]
fn different_values_conflict_and_force_takes_them() {
    let mut subject = Subject::new();
    let spec = json!({"number": 1, "atom": {"a": "x"}, "env": [{"name": "A", "value": "1"}]});
    subject.apply("alice", spec, false).expect("applied");
    let other = json!({"number": 2, "atom": {"b": "y"}, "env": [{"name": "A", "value": "2"}]});
    let before = subject.managers.encode();
    assert_eq!(
        subject.apply("bob", other.clone(), false),
        Err(
            "Apply failed with 3 conflicts: conflicts with \"alice\":\n- .spec.atom\n- .spec.number\n- \
             .spec.env[name=\"A\"].value"
                .to_owned()
        )
    );
    assert_eq!(subject.managers.encode(), before, "a conflict changes no manager");
    assert_eq!(subject.apply("bob", other, true), Ok(true));
    subject.check_owned("alice", r#".env[name="A"] .env[name="A"].name"#);
    subject.check_owned(
        "bob",
        r#".atom .number .env[name="A"] .env[name="A"].name .env[name="A"].value"#,
    );
}

#[test]
fn conflicts_name_version_and_subresource_of_updates() {
    let mut subject = Subject::new();
    subject
        .apply("one", json!({"number": 1, "text": "x"}), false)
        .expect("applied");
    subject.update("editor", json!({"number": 2, "text": "x"}));
    assert_eq!(
        subject.apply("one", json!({"number": 3, "text": "x"}), false),
        Err(
            "Apply failed with 1 conflict: conflict with \"editor\" using example.com/v1: .spec.number"
                .to_owned()
        )
    );
    let scaler = Manager {
        subresource: "scale".to_owned(),
        ..manager("hpa", Operation::Update)
    };
    assert_eq!(
        scaler.to_string(),
        "\"hpa\" with subresource \"scale\" using example.com/v1"
    );
    assert_eq!(manager("a", Operation::Apply).to_string(), "\"a\"");
}

#[test]
fn lists_keep_the_applied_order_and_the_place_of_other_items() {
    let check = |live: &[&str], applied: &[&str], expect: &[&str]| {
        let mut subject = Subject::new();
        subject.update("editor", json!({"set": live}));
        subject
            .apply("one", json!({"set": applied}), false)
            .expect("applied");
        assert_eq!(subject.spec()["set"], json!(expect), "{live:?} and {applied:?}");
    };
    check(&["a", "b"], &["c"], &["a", "b", "c"]);
    check(&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]);
    check(&["a", "b", "c"], &["a", "c"], &["a", "b", "c"]);
    check(&["b"], &["a", "b", "c"], &["a", "b", "c"]);
    check(&["x", "b", "y"], &["a", "b", "c"], &["x", "a", "b", "y", "c"]);
}

#[test]
fn default_of_a_key_identifies_an_item() {
    let mut subject = Subject::new();
    subject
        .apply("one", json!({"ports": [{"name": "a", "value": "1"}]}), false)
        .expect("applied");
    assert_eq!(
        subject.apply(
            "two",
            json!({"ports": [{"name": "a", "port": 80, "value": "2"}]}),
            false
        ),
        Err(
            "Apply failed with 1 conflict: conflict with \"one\": .spec.ports[name=\"a\",port=80].value"
                .to_owned()
        )
    );
    subject
        .apply(
            "two",
            json!({"ports": [{"name": "a", "port": 81, "value": "2"}]}),
            false,
        )
        .expect("another item");
    assert_eq!(subject.spec()["ports"].as_array().map(Vec::len), Some(2));
}

#[test]
fn configuration_must_conform_to_the_schema() {
    let check = |spec: Value, expect: &str| {
        assert_eq!(
            Subject::new().apply("one", spec.clone(), false),
            Err(expect.to_owned()),
            "{spec}"
        );
    };
    check(json!({"bogus": 1}), ".spec.bogus: field not declared in schema");
    check(
        json!({"number": "1"}),
        ".spec.number: expected numeric (int or float), got string",
    );
    check(
        json!({"text": 1}),
        ".spec.text: expected string, got &value.valueUnstructured{Value:1}",
    );
    check(
        json!({"text": {"a": ["b", null]}}),
        ".spec.text: expected string, got &value.valueUnstructured{Value:map[string]interface {}{\"a\":[]interface \
         {}{\"b\", interface {}(nil)}}}",
    );
    check(
        json!({"list": {"a": 1}}),
        ".spec.list: expected list, got &{map[a:1]}",
    );
    check(json!({"labels": ["a"]}), ".spec.labels: expected map, got &{[a]}");
    check(
        json!({"env": [{"name": "A"}, {"name": "A"}]}),
        ".spec.env: duplicate entries for key [name=\"A\"]",
    );
    check(
        json!({"env": [{"value": "A"}]}),
        ".spec.env: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and \
         doesn't have default values for any key fields)",
    );
    check(
        json!({"set": ["a", "a"], "flag": 1}),
        "errors:\n  .spec.flag: expected boolean, got &{1}\n  .spec.set: duplicate entries for key [=\"a\"]",
    );
}

#[test]
fn either_form_of_a_value_is_accepted() {
    let mut subject = Subject::new();
    subject
        .apply("one", json!({"either": 1}), false)
        .expect("applied");
    subject
        .apply("one", json!({"either": "50%"}), false)
        .expect("applied");
    assert_eq!(subject.spec(), &json!({"either": "50%"}));
    subject.check_owned("one", ".either");
    subject.update("editor", json!({"free": {"a": 1}}));
    subject.update("editor", json!({"free": {"a": {"b": 1}}}));
    subject.check_owned("editor", ".free .free.a .free.a.b");
}

#[test]
fn status_does_not_belong_to_managers_of_the_object() {
    let mut subject = Subject::new();
    subject.ignored = FieldSet::of_fields(&[&["status"]]);
    subject.live = json!({"spec": {"number": 1}});
    let mut new = subject.live.clone();
    new["status"] = json!({"phase": "x"});
    subject.managers.track(Tracked {
        schema: &subject.schema,
        old: &subject.live,
        new: &new,
        manager: &manager("editor", Operation::Update),
        ignored: &subject.ignored,
        now: "2026-01-01T00:00:00Z",
    });
    assert!(subject.managers.is_empty());
}

#[test]
fn first_apply_gives_existing_fields_to_before_first_apply() {
    let mut subject = Subject::new();
    subject.live = json!({"metadata": {"name": "x", "uid": "u", "labels": {"a": "1"}}, "spec": {"number": 1, "text": "x"}});
    subject
        .apply("one", json!({"number": 1}), false)
        .expect("applied");
    subject.check_owned(
        "before-first-apply",
        " .metadata.labels .metadata.labels.a .number .text",
    );
    assert_eq!(
        subject.apply("one", json!({"text": "y"}), false),
        Err(
            "Apply failed with 1 conflict: conflict with \"before-first-apply\" using example.com/v1: .spec.text"
                .to_owned()
        )
    );
}

#[test]
fn kubectl_takes_over_its_client_side_configuration() {
    let applied = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"},
        "spec": {"number": 1, "text": "x"}});
    let mut subject = Subject::new();
    subject.live = json!({"metadata": {"name": "x", "uid": "u",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied.to_string()}},
        "spec": {"number": 1, "text": "changed"}});
    let other = subject.apply("other", json!({"number": 2}), false);
    assert!(other.is_err(), "only kubectl migrates");
    subject
        .apply("kubectl", json!({"number": 2}), false)
        .expect("applied");
    let annotation =
        &subject.live["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert_eq!(
        annotation,
        "{\"apiVersion\":\"example.com/v1\",\"kind\":\"Thing\",\"metadata\":{\"name\":\"x\"},\"spec\":{\"number\":2}}\n"
    );
    assert_eq!(
        subject.apply("kubectl", json!({"number": 2, "text": "y"}), false),
        Err(
            "Apply failed with 1 conflict: conflict with \"before-first-apply\" using example.com/v1: .spec.text"
                .to_owned()
        ),
        "text was changed after the client-side apply"
    );
}

#[test]
fn oldest_updates_merge_when_there_are_too_many() {
    let mut subject = Subject::new();
    for index in 0..14 {
        let mut labels = subject.spec()["labels"].as_object().cloned().unwrap_or_default();
        labels.insert(format!("l{index}"), json!("x"));
        subject.update(&format!("m{index:02}"), json!({"labels": labels}));
    }
    assert_eq!(subject.managers.entries.len(), 10);
    subject.check_owned(
        "ancient-changes",
        " .labels .labels.l0 .labels.l1 .labels.l2 .labels.l3 .labels.l4",
    );
    subject.check_owned("m13", ".labels.l13");
}

#[test]
fn list_of_managers_is_sorted_and_keeps_its_form() {
    let text = r#"[{"manager":"b","operation":"Apply","apiVersion":"v1","time":"2026-01-02T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:a":{}}}},{"manager":"a","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:b":{}}},"subresource":"status"}]"#;
    assert_eq!(
        Managers::decode(text).expect("managers").encode().as_deref(),
        Some(text)
    );
    let later = text.replace("2026-01-01", "2026-01-03");
    assert!(Managers::differ_only_in_time(text, &later));
    assert!(!Managers::differ_only_in_time(text, &text.replace("f:b", "f:c")));
    for bad in [
        r#"[{"manager":"a","operation":"Delete","apiVersion":"v1","fieldsType":"FieldsV1"}]"#,
        r#"[{"manager":"a","operation":"Apply","fieldsType":"FieldsV1"}]"#,
        r#"[{"manager":"a","operation":"Apply","apiVersion":"v1"}]"#,
        "{}",
    ] {
        assert!(Managers::decode(bad).is_err(), "{bad}");
    }
}

#[test]
fn scale_writes_move_the_replicas() {
    let path = ["spec".to_owned(), "number".to_owned()];
    let mut subject = Subject::new();
    subject
        .apply("one", json!({"number": 1, "text": "x"}), false)
        .expect("applied");
    let mut scale = subject.managers.of_scale(&path);
    let schema = TypeSchema::of_definition("io.k8s.api.autoscaling.v1.Scale");
    let scaler = Manager {
        subresource: "scale".to_owned(),
        api_version: "autoscaling/v1".to_owned(),
        ..manager("hpa", Operation::Update)
    };
    scale.track(Tracked {
        schema: &schema,
        old: &json!({"spec": {"replicas": 1}}),
        new: &json!({"spec": {"replicas": 2}}),
        manager: &scaler,
        ignored: &FieldSet::default(),
        now: "2026-01-01T00:00:00Z",
    });
    subject
        .managers
        .set_owners_of_scale(&scale, &path, "example.com/v1");
    subject.check_owned("one", ".text");
    subject.check_owned("hpa", ".number");
    let entry = subject
        .managers
        .entries
        .iter()
        .find(|entry| entry.manager.name == "hpa");
    assert_eq!(entry.and_then(|entry| entry.time.clone()), None);
}

#[test]
fn fields_below_a_new_atomic_field_become_the_field() {
    let mut subject = Subject::new();
    let text = r#"[{"manager":"a","operation":"Apply","apiVersion":"example.com/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:atom":{"f:a":{}},"f:list":{"v:\"x\"":{}}}}}]"#;
    subject.managers = Managers::decode(text).expect("managers");
    subject.managers.reconcile(&subject.schema);
    subject.check_owned("a", ".atom .list");
}

#[test]
fn recursive_definitions_of_built_in_kinds_have_a_schema() {
    let schema = TypeSchema::of_definition(
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    );
    let crd = json!({"metadata": {"ownerReferences": [{"uid": "u", "name": "n"}], "finalizers": ["a/b"]},
        "spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": {"a": {"properties": {"b": {"default": 1}}}}}}}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]}});
    assert_eq!(schema.validate(&crd), Ok(()));
    let fields = schema.members(&crd).expect("conforms");
    let paths: Vec<String> = fields
        .paths()
        .iter()
        .map(|path| field_set::path_text(path))
        .collect();
    assert_eq!(
        paths,
        [
            r#".metadata.finalizers[="a/b"]"#,
            r#".metadata.ownerReferences[uid="u"]"#,
            ".spec.versions",
            r#".status.conditions[type="Established"]"#,
            r#".status.conditions[type="Established"].status"#,
            r#".status.conditions[type="Established"].type"#,
        ]
    );
    assert!(
        schema
            .validate(&json!({"spec": {"versions": [{"bogus": 1}]}}))
            .is_err()
    );
}

fn any_spec() -> impl Strategy<Value = Value> {
    let names = || prop::collection::btree_set("[a-d]", 0..4);
    (
        prop::option::of(0..3_i64),
        prop::option::of("[xy]"),
        names(),
        prop::option::of(prop::collection::vec("[ab]", 0..3)),
        prop::collection::btree_map("[a-c]", "[xy]", 0..4),
        names(),
        prop::option::of("[xy]"),
    )
        .prop_map(|(number, text, set, list, env, labels, inner)| {
            let mut spec = json!({});
            let env: Vec<Value> = env
                .into_iter()
                .map(|(name, value)| json!({"name": name, "value": value}))
                .collect();
            let labels: serde_json::Map<String, Value> =
                labels.into_iter().map(|name| (name, json!("x"))).collect();
            let fields = [
                ("number", number.map(Value::from)),
                ("text", text.map(Value::from)),
                ("set", Some(json!(set)).filter(|set| *set != json!([]))),
                ("list", list.map(|list| json!(list))),
                ("env", Some(json!(env)).filter(|env| *env != json!([]))),
                (
                    "labels",
                    Some(Value::Object(labels)).filter(|labels| *labels != json!({})),
                ),
                ("nested", inner.map(|a| json!({"inner": {"a": a}}))),
            ];
            for (name, value) in fields {
                if let Some(value) = value {
                    spec[name] = value;
                }
            }
            spec
        })
}

proptest! {
    /// Any sequence of writes keeps these rules.
    #[test]
    fn apply_keeps_its_rules(steps in prop::collection::vec((0..3_usize, any_spec(), any::<bool>()), 1..6)) {
        let mut subject = Subject::new();
        for (by, spec, updates) in steps {
            let name = ["one", "two", "three"][by];
            if updates {
                subject.update(name, spec);
                continue;
            }
            subject.apply(name, spec.clone(), true).expect("forced");
            // The applied values are set.
            let applied = json!({"spec": spec});
            let changes = subject.schema.compare(&json!({"spec": subject.spec()}), &applied).expect("conforms");
            prop_assert!(changes.written().is_empty(), "{:?}", changes);
            // Applying again changes nothing and causes no conflict.
            let before = (subject.live.clone(), subject.managers.encode());
            prop_assert_eq!(subject.apply(name, spec, false), Ok(false));
            prop_assert_eq!(&before, &(subject.live.clone(), subject.managers.encode()));
            // The encoding loses nothing.
            let text = subject.managers.encode().unwrap_or_else(|| "[]".to_owned());
            prop_assert_eq!(
                Managers::decode(&text).expect("managers").encode().unwrap_or_else(|| "[]".to_owned()),
                text
            );
        }
    }

    /// An applier's own fields, applied by another manager with the same values, cause no conflict.
    #[test]
    fn same_values_are_shared(spec in any_spec()) {
        let mut subject = Subject::new();
        subject.apply("one", spec.clone(), false).expect("applied");
        let before = subject.live.clone();
        prop_assert_eq!(subject.apply("two", spec.clone(), false), Ok(false));
        prop_assert_eq!(subject.owned("two"), subject.owned("one"));
        // Giving up shared fields removes nothing.
        subject.apply("one", json!({}), false).expect("applied");
        prop_assert_eq!(&subject.live["spec"], &before["spec"]);
        // Fields without an owner disappear with their last applier, and only they.
        subject.apply("two", json!({}), false).expect("applied");
        let left = subject.schema.members(&json!({"spec": subject.spec()})).expect("conforms");
        let spec_set = subject.schema.members(&json!({"spec": spec})).expect("conforms");
        let below = spec_set.difference(&FieldSet::of_fields(&[&["spec"]]));
        prop_assert!(left.intersection(&below).is_empty(), "{:?}", left);
    }

    /// The comparison of two objects and the merge agree.
    #[test]
    fn comparison_is_empty_only_for_equal_objects(a in any_spec(), b in any_spec()) {
        let schema = schema();
        let (a, b) = (json!({"spec": a}), json!({"spec": b}));
        let changes = schema.compare(&a, &b).expect("conforms");
        let back = schema.compare(&b, &a).expect("conforms");
        prop_assert_eq!(&changes.added, &back.removed);
        prop_assert_eq!(&changes.removed, &back.added);
        prop_assert_eq!(&changes.modified, &back.modified);
        let merged = schema.merge(&a, &b).expect("conforms");
        let changes = schema.compare(&b, &merged).expect("conforms");
        prop_assert!(changes.modified.is_empty() && changes.removed.is_empty());
        prop_assert_eq!(schema.merge(&merged, &b).expect("conforms"), merged);
    }
}
