//! Structural defaulting: sets absent fields and drops nulls that the schema does not allow.

use serde_json::Value;

use super::node::{Additional, Node};

/// Drops nulls of fields that are neither nullable nor have a default, then applies defaults. If a
/// field is not nullable but has a default, the default replaces null.
pub(super) fn apply(value: &mut Value, node: &Node) {
    drop_nulls(value, Some(node));
    fill(value, node);
}

fn drop_nulls(value: &mut Value, node: Option<&Node>) {
    let Some(node) = node else { return };
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| {
                let child = node.field(name);
                let drop =
                    field.is_null() && child.is_some_and(|child| !child.nullable && child.default.is_none());
                if !drop {
                    drop_nulls(field, child);
                }
                !drop
            });
        }
        Value::Array(items) => {
            for item in items {
                drop_nulls(item, node.items.as_deref());
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn fill(value: &mut Value, node: &Node) {
    if !node.contents.defaults {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, property) in node.properties() {
                let Some(default) = &property.default else {
                    continue;
                };
                match fields.get_mut(name) {
                    Some(field) if field.is_null() && !property.nullable => *field = default.clone(),
                    Some(_) => {}
                    None => {
                        fields.insert(name.clone(), default.clone());
                    }
                }
            }
            for (name, field) in fields.iter_mut() {
                match (node.property(name), &node.additional) {
                    (Some(property), _) => fill(field, property),
                    (None, Additional::Schema(child)) => fill_member(field, child),
                    (None, Additional::Unset | Additional::Any | Additional::Forbidden) => {}
                }
            }
        }
        Value::Array(items) => {
            let Some(child) = node.items.as_deref() else {
                return;
            };
            for item in items {
                fill_member(item, child);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn fill_member(member: &mut Value, node: &Node) {
    if member.is_null()
        && !node.nullable
        && let Some(default) = &node.default
    {
        *member = default.clone();
    }
    fill(member, node);
}
