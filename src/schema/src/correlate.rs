//! Correlation of new and old values. Only items of list maps correlate, by their keys.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    gotext,
    node::{Additional, ListType, Node},
};

/// Returns whether a value equals its old value, apart from the order of items in list maps. As in
/// kube-apiserver, an object with a field that has no schema never equals its old value. The root of a
/// resource has such fields if its schema does not list the metadata.
pub(super) fn is_unchanged(node: &Node, new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Array(items), Value::Array(old_items)) if matches!(node.list_type, ListType::Map(_)) => {
            let child = node.items.as_deref();
            let correlation = Items::new(node, Some(old));
            let is_item_unchanged = |item: &Value| match (child, correlation.find(item)) {
                (Some(child), Some(old)) => is_unchanged(child, item, old),
                (None, _) | (_, None) => false,
            };
            items.len() == old_items.len() && items.iter().all(is_item_unchanged)
        }
        (Value::Object(fields), Value::Object(old_fields)) => {
            let is_field_unchanged = |(name, field): (&String, &Value)| {
                let Some(old) = old_fields.get(name) else {
                    return false;
                };
                match (node.property(name), &node.additional) {
                    (Some(child), _) => is_unchanged(child, field, old),
                    (None, Additional::Schema(child)) => is_unchanged(child, field, old),
                    (None, Additional::Unset | Additional::Any | Additional::Forbidden) => false,
                }
            };
            fields.len() == old_fields.len() && fields.iter().all(is_field_unchanged)
        }
        _ => new == old,
    }
}

/// Index of the old items of a list map by their keys.
pub(super) struct Items<'a> {
    node: &'a Node,
    keys: &'a [String],
    old: HashMap<String, &'a Value>,
}

impl<'a> Items<'a> {
    pub(super) fn new(node: &'a Node, old: Option<&'a Value>) -> Self {
        let mut items = Self {
            node,
            keys: &[],
            old: HashMap::new(),
        };
        if let (ListType::Map(keys), Some(Value::Array(old))) = (&node.list_type, old) {
            items.keys = keys;
            for item in old {
                let identity = items.identity(item);
                items.old.entry(identity).or_insert(item);
            }
        }
        items
    }

    pub(super) fn find(&self, item: &Value) -> Option<&'a Value> {
        if self.old.is_empty() {
            return None;
        }
        self.old.get(&self.identity(item)).copied()
    }

    /// Returns the key fields as one text. Absent fields have their default.
    fn identity(&self, item: &Value) -> String {
        let mut identity = String::new();
        for key in self.keys {
            let default = || self.node.items.as_deref()?.property(key)?.default.as_ref();
            match item.get(key).or_else(default) {
                Some(value) => identity.push_str(&gotext::json(value)),
                None => identity.push('-'),
            }
            identity.push(',');
        }
        identity
    }
}
