//! Correlation of new and old list items. Only items of list maps correlate, by their keys.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    gotext,
    node::{ListType, Node},
};

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
            let default = || self.node.items.as_deref()?.properties.get(key)?.default.as_ref();
            match item.get(key).or_else(default) {
                Some(value) => identity.push_str(&gotext::json(value)),
                None => identity.push('-'),
            }
            identity.push(',');
        }
        identity
    }
}
