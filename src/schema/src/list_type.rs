//! Uniqueness of items of `x-kubernetes-list-type: set` and of keys of `map`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    FieldError, gotext,
    node::{Additional, ListType, Node},
    path::Path,
};

pub(super) fn validate(node: &Node, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(node, value, &Path::Root, &mut errors);
    errors
}

fn walk(node: &Node, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !node.contents.unique_lists {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match (node.property(name), &node.additional) {
                    (Some(property), _) => walk(property, field, &path.child(name), errors),
                    (None, Additional::Schema(child)) => walk(child, field, &path.key(name), errors),
                    (None, Additional::Unset | Additional::Any | Additional::Forbidden) => {}
                }
            }
        }
        Value::Array(items) => {
            match &node.list_type {
                ListType::Atomic => {}
                ListType::Set => {
                    for index in repeats(items) {
                        errors.push(FieldError::duplicate(path.index(index).field(), &items[index]));
                    }
                }
                ListType::Map(keys) => check_map(items, keys, path, errors),
            }
            if let Some(child) = node.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    walk(child, item, &path.index(index), errors);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_map(items: &[Value], keys: &[String], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let stray = items.iter().position(|item| !item.is_object() && !item.is_null());
    if let Some(index) = stray {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(
            path.index(index).field(),
            &items[index],
            detail,
        ));
        return;
    }
    let identities: Vec<Value> = items
        .iter()
        .map(|item| {
            let present = keys
                .iter()
                .filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
            Value::Object(present.collect::<Map<_, _>>())
        })
        .collect();
    for index in repeats(&identities) {
        errors.push(FieldError::duplicate(
            path.index(index).field(),
            &identities[index],
        ));
    }
}

/// Returns the index of the second occurrence of every duplicate value.
fn repeats(items: &[Value]) -> Vec<usize> {
    if items.len() < 2 {
        return Vec::new();
    }
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(items.len());
    let mut repeats = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let times = seen.entry(gotext::json(item)).or_default();
        *times += 1;
        if *times == 2 {
            repeats.push(index);
        }
    }
    repeats
}
