//! Tests of the required behaviour of [`json_patch::merge`]: JSON merge patch, RFC 7386.

use proptest::prelude::*;
use serde_json::{Value, json};

fn merged(mut document: Value, patch: &Value) -> Value {
    json_patch::merge(&mut document, patch);
    document
}

#[test]
fn matches_examples_of_rfc_7386() {
    let check = |document: Value, patch: Value, expect: Value| {
        assert_eq!(merged(document.clone(), &patch), expect, "{document} + {patch}");
    };
    check(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
    check(json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}));
    check(json!({"a": "b"}), json!({"a": null}), json!({}));
    check(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}));
    check(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}));
    check(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}));
    check(
        json!({"a": {"b": "c"}}),
        json!({"a": {"b": "d", "c": null}}),
        json!({"a": {"b": "d"}}),
    );
    check(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}));
    check(json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"]));
    check(json!({"a": "b"}), json!(["c"]), json!(["c"]));
    check(json!({"a": "foo"}), json!(null), json!(null));
    check(json!({"a": "foo"}), json!("bar"), json!("bar"));
    check(json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1}));
    check(json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"}));
    check(
        json!({}),
        json!({"a": {"bb": {"ccc": null}}}),
        json!({"a": {"bb": {}}}),
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::Null), (0..3i64).prop_map(Value::from)];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[ab]", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn merging_is_idempotent(document in any_json(), patch in any_json()) {
        let once = merged(document, &patch);
        prop_assert_eq!(merged(once.clone(), &patch), once);
    }

    #[test]
    fn empty_patch_leaves_objects_unchanged(document in any_json()) {
        prop_assume!(document.is_object());
        prop_assert_eq!(merged(document.clone(), &json!({})), document);
    }
}
