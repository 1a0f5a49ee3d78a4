//! Strategic merge patch for the built-in kinds: a merge patch that merges some lists by key.
//!
//! Directives: `$patch: replace | delete | merge`, `$retainKeys`, `$setElementOrder/LIST`,
//! `$deleteFromPrimitiveList/LIST`. [`LISTS`] contains the merged lists and their keys.

use serde_json::{Map, Value};

/// Invalid strategic merge patch. The status code is 400.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategicMergeError {
    #[error("Unknown type of patch directive: {0}")]
    UnknownDirective(String),
    #[error("map: {item} does not contain declared merge key: {key}")]
    NoMergeKey { item: String, key: &'static str },
    #[error("the patch must be a JSON object")]
    NotAnObject,
    #[error("the `{0}` directive must hold a list")]
    NotAList(String),
}

/// Merge strategy of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMerge {
    /// Items are objects with this field as key.
    ByKey(&'static str),
    /// Items are unique scalars.
    Set,
    /// The patch's list replaces the old list.
    Replace,
}

/// Lists of the built-in kinds that merge, by path. All other lists replace.
const LISTS: [(&[&str], ListMerge); 5] = [
    (&["metadata", "ownerReferences"], ListMerge::ByKey("uid")),
    (&["metadata", "finalizers"], ListMerge::Set),
    // Namespace.
    (&["status", "conditions"], ListMerge::ByKey("type")),
    // ServiceAccount.
    (&["secrets"], ListMerge::ByKey("name")),
    (&["imagePullSecrets"], ListMerge::ByKey("name")),
];

fn list_merge(path: &[&str]) -> ListMerge {
    LISTS
        .iter()
        .find(|(fields, _)| *fields == path)
        .map_or(ListMerge::Replace, |(_, merge)| *merge)
}

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";

/// Merges the patch into an object of a built-in kind. After an error the document may be partially
/// patched, so patch a copy.
pub fn apply(document: &mut Value, patch: &Value) -> Result<(), StrategicMergeError> {
    let patch = patch.as_object().ok_or(StrategicMergeError::NotAnObject)?;
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Value::Object(fields) = document else {
        return Err(StrategicMergeError::NotAnObject);
    };
    merge_object(fields, patch, &mut Vec::new())
}

fn directive(patch: &Map<String, Value>) -> Result<Option<&str>, StrategicMergeError> {
    match patch.get(PATCH) {
        None => Ok(None),
        Some(Value::String(text)) if ["replace", "delete", "merge"].contains(&text.as_str()) => {
            Ok(Some(text))
        }
        Some(other) => Err(StrategicMergeError::UnknownDirective(
            other.as_str().map_or_else(|| other.to_string(), str::to_owned),
        )),
    }
}

fn merge_object<'p>(
    fields: &mut Map<String, Value>,
    patch: &'p Map<String, Value>,
    path: &mut Vec<&'p str>,
) -> Result<(), StrategicMergeError> {
    match directive(patch)? {
        Some("replace") => {
            *fields = without_directives(patch);
            return Ok(());
        }
        Some("delete") => {
            fields.clear();
            return Ok(());
        }
        Some(_) | None => {}
    }
    if let Some(retain) = patch.get(RETAIN_KEYS) {
        let keys = retain
            .as_array()
            .ok_or_else(|| StrategicMergeError::NotAList(RETAIN_KEYS.to_owned()))?;
        fields.retain(|name, _| keys.iter().any(|key| key.as_str() == Some(name)));
    }
    for (name, change) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM_PRIMITIVE_LIST) {
            let deleted = change
                .as_array()
                .ok_or_else(|| StrategicMergeError::NotAList(name.clone()))?;
            if let Some(Value::Array(items)) = fields.get_mut(list) {
                items.retain(|item| !deleted.contains(item));
            }
        }
    }
    for (name, change) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        path.push(name);
        merge_field(fields, name, change, path)?;
        path.pop();
    }
    for (name, order) in patch {
        if let Some(list) = name.strip_prefix(SET_ELEMENT_ORDER) {
            let order = order
                .as_array()
                .ok_or_else(|| StrategicMergeError::NotAList(name.clone()))?;
            path.push(list);
            let merge = list_merge(path);
            path.pop();
            let patched = patch.get(list).and_then(Value::as_array);
            if let Some(Value::Array(items)) = fields.get_mut(list) {
                reorder(items, order, patched, merge);
            }
        }
    }
    Ok(())
}

fn merge_field<'p>(
    fields: &mut Map<String, Value>,
    name: &str,
    change: &'p Value,
    path: &mut Vec<&'p str>,
) -> Result<(), StrategicMergeError> {
    match change {
        Value::Null => {
            fields.remove(name);
        }
        Value::Object(change) => match fields.get_mut(name) {
            Some(Value::Object(field)) => {
                merge_object(field, change, path)?;
                if directive(change)? == Some("delete") {
                    fields.remove(name);
                }
            }
            // As in kube-apiserver, an object with a directive does not create a field.
            None if directive(change)?.is_some() => {}
            Some(_) | None => {
                if directive(change)? != Some("delete") {
                    let mut field = Map::new();
                    merge_object(&mut field, change, path)?;
                    fields.insert(name.to_owned(), Value::Object(field));
                }
            }
        },
        Value::Array(change) => {
            let old = match fields.get_mut(name) {
                Some(Value::Array(items)) => std::mem::take(items),
                Some(_) | None => Vec::new(),
            };
            fields.insert(name.to_owned(), Value::Array(merge_list(old, change, path)?));
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            fields.insert(name.to_owned(), change.clone());
        }
    }
    Ok(())
}

fn merge_list<'p>(
    mut items: Vec<Value>,
    change: &'p [Value],
    path: &mut Vec<&'p str>,
) -> Result<Vec<Value>, StrategicMergeError> {
    match list_merge(path) {
        ListMerge::Replace => Ok(change.to_vec()),
        ListMerge::Set => {
            for item in change {
                if !items.contains(item) {
                    items.push(item.clone());
                }
            }
            Ok(items)
        }
        ListMerge::ByKey(key) => {
            let replaces = change.iter().any(|item| {
                item.as_object()
                    .is_some_and(|item| item.len() == 1 && item.get(PATCH) == Some(&Value::from("replace")))
            });
            if replaces {
                items.clear();
            }
            for item in change {
                let Value::Object(item) = item else {
                    return Err(StrategicMergeError::NoMergeKey {
                        item: item.to_string(),
                        key,
                    });
                };
                let directive = directive(item)?;
                if directive == Some("replace") && item.len() == 1 {
                    continue;
                }
                // A list or an object does not identify an item.
                let identity = item.get(key);
                let Some(identity) = identity.filter(|value| !value.is_object() && !value.is_array()) else {
                    return Err(StrategicMergeError::NoMergeKey {
                        item: Value::Object(item.clone()).to_string(),
                        key,
                    });
                };
                let same = |old: &Value| old.get(key) == Some(identity);
                if directive == Some("delete") {
                    items.retain(|old| !same(old));
                    continue;
                }
                match items.iter_mut().find(|old| same(old)) {
                    Some(Value::Object(old)) => merge_object(old, item, path)?,
                    Some(_) | None => {
                        let mut fresh = Map::new();
                        merge_object(&mut fresh, item, path)?;
                        items.push(Value::Object(fresh));
                    }
                }
            }
            Ok(items)
        }
    }
}

/// Sorts listed items by `order`. Items that the client has not listed (added concurrently) keep
/// their position after their predecessor.
fn reorder(items: &mut Vec<Value>, order: &[Value], patched: Option<&Vec<Value>>, merge: ListMerge) {
    let identity = |item: &Value| -> Option<Value> {
        match merge {
            ListMerge::ByKey(key) => item.get(key).cloned(),
            ListMerge::Set | ListMerge::Replace => Some(item.clone()),
        }
    };
    let rank = |item: &Value| {
        let identity = identity(item)?;
        order
            .iter()
            .position(|wanted| self::same(wanted, &identity, merge))
    };
    let is_patched = |item: &Value| {
        patched.is_some_and(|patched| patched.iter().any(|change| identity(change) == identity(item)))
    };
    let mut ranked: Vec<(usize, Value)> = Vec::new();
    let mut others: Vec<(Option<Value>, Value)> = Vec::new();
    let mut previous: Option<Value> = None;
    for item in items.drain(..) {
        let key = identity(&item);
        match rank(&item) {
            Some(rank) => ranked.push((rank, item)),
            // An item that the patch adds without an order is last.
            None if is_patched(&item) => ranked.push((usize::MAX, item)),
            None => others.push((previous.clone(), item)),
        }
        previous = key;
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    let mut merged: Vec<Value> = ranked.into_iter().map(|(_, item)| item).collect();
    for (after, item) in others {
        let place = after
            .and_then(|after| {
                merged
                    .iter()
                    .position(|known| identity(known) == Some(after.clone()))
            })
            .map_or(0, |position| position + 1);
        merged.insert(place, item);
    }
    *items = merged;
}

/// Returns true if an entry of `$setElementOrder` refers to the item with this identity.
fn same(wanted: &Value, identity: &Value, merge: ListMerge) -> bool {
    match merge {
        ListMerge::ByKey(key) => wanted.get(key) == Some(identity),
        ListMerge::Set | ListMerge::Replace => wanted == identity,
    }
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    patch
        .iter()
        .filter(|(name, _)| !name.starts_with('$'))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn check(document: Value, patch: Value, expect: Value) {
        let mut patched = document;
        apply(&mut patched, &patch).unwrap();
        assert_eq!(patched, expect, "{patch}");
    }

    #[test]
    fn merges_plain_fields() {
        check(
            json!({"data": {"a": "1", "b": "2"}, "immutable": false}),
            json!({"data": {"a": null, "c": "3"}}),
            json!({"data": {"b": "2", "c": "3"}, "immutable": false}),
        );
        check(json!({"data": {"a": "1"}}), json!({"data": null}), json!({}));
    }

    #[test]
    fn list_or_object_is_no_merge_key() {
        for key in [json!({"a": null}), json!(["a"])] {
            let mut document = json!({});
            let rejected = apply(&mut document, &json!({"secrets": [{"name": key}]}));
            assert!(
                matches!(rejected, Err(StrategicMergeError::NoMergeKey { key: "name", .. })),
                "{rejected:?}"
            );
        }
    }

    #[test]
    fn owner_references_merge_by_uid() {
        let a = json!({"uid": "a", "name": "x"});
        let b = json!({"uid": "b", "name": "y"});
        check(
            json!({"metadata": {"ownerReferences": [a]}}),
            json!({"metadata": {"ownerReferences": [b, {"uid": "a", "controller": true}]}}),
            json!({"metadata": {"ownerReferences": [{"uid": "a", "name": "x", "controller": true}, b]}}),
        );
        check(
            json!({"metadata": {"ownerReferences": [a, b]}}),
            json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "a"}]}}),
            json!({"metadata": {"ownerReferences": [b]}}),
        );
        check(
            json!({"metadata": {"ownerReferences": [a]}}),
            json!({"metadata": {"ownerReferences": [{"$patch": "replace"}, b]}}),
            json!({"metadata": {"ownerReferences": [b]}}),
        );
    }

    #[test]
    fn merges_finalizers_as_a_set() {
        check(
            json!({"metadata": {"finalizers": ["a/x", "b/y"]}}),
            json!({"metadata": {"finalizers": ["c/z", "a/x"], "$deleteFromPrimitiveList/finalizers": ["b/y"],
                "$setElementOrder/finalizers": ["c/z", "a/x"]}}),
            json!({"metadata": {"finalizers": ["c/z", "a/x"]}}),
        );
    }

    #[test]
    fn applies_replace_delete_and_retain_directives() {
        check(
            json!({"data": {"a": "1"}}),
            json!({"data": {"$patch": "replace", "b": "2"}}),
            json!({"data": {"b": "2"}}),
        );
        check(
            json!({"data": {"a": "1"}}),
            json!({"data": {"$patch": "delete"}}),
            json!({}),
        );
        check(
            json!({"data": {"a": "1", "b": "2"}}),
            json!({"data": {"$retainKeys": ["b", "c"], "c": "3"}}),
            json!({"data": {"b": "2", "c": "3"}}),
        );
        let rejected = |patch: Value| apply(&mut json!({}), &patch).unwrap_err();
        assert_eq!(
            rejected(json!({"data": {"$patch": "explode"}})).to_string(),
            "Unknown type of patch directive: explode"
        );
        assert_eq!(
            rejected(json!({"metadata": {"ownerReferences": [{"name": "x"}]}})).to_string(),
            r#"map: {"name":"x"} does not contain declared merge key: uid"#
        );
        assert_eq!(rejected(json!([])), StrategicMergeError::NotAnObject);
    }

    #[test]
    fn set_element_order_keeps_unlisted_items() {
        check(
            json!({"metadata": {"finalizers": ["a", "server", "b"]}}),
            json!({"metadata": {"$setElementOrder/finalizers": ["b", "a"]}}),
            json!({"metadata": {"finalizers": ["b", "a", "server"]}}),
        );
    }

    proptest! {
        #[test]
        fn patching_is_idempotent(
            old in prop::collection::btree_set("[a-d]", 0..4),
            new in prop::collection::btree_set("[a-d]", 0..4),
            deleted in prop::collection::btree_set("[e-h]", 0..3),
        ) {
            let mut once = json!({"metadata": {"finalizers": old}});
            let patch = json!({"metadata": {"finalizers": new, "$deleteFromPrimitiveList/finalizers": deleted}});
            apply(&mut once, &patch).unwrap();
            let mut twice = once.clone();
            apply(&mut twice, &patch).unwrap();
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn equals_merge_patch_without_lists_and_directives(
            a in prop::collection::btree_map("[a-c]", prop::option::of(0..3u8), 0..4),
            b in prop::collection::btree_map("[a-c]", prop::option::of(0..3u8), 0..4),
        ) {
            let (document, patch) = (json!({"data": a}), json!({"data": b}));
            let (mut strategic, mut merge) = (document.clone(), document);
            apply(&mut strategic, &patch).unwrap();
            json_patch::merge(&mut merge, &patch);
            prop_assert_eq!(strategic, merge);
        }
    }
}
