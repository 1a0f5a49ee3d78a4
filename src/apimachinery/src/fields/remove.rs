//! Removal of fields from an object.

use serde_json::{Map, Value};

use super::field_set::FieldSet;
use super::item::element_of;
use super::path_element::PathElement;
use super::schema::{Form, ListMerge, ListType, MapType, TypeId, TypeSchema};

impl TypeSchema {
    /// Removes fields and items. Objects and lists that become empty stay.
    pub(super) fn remove(&self, object: &Value, fields: &FieldSet) -> Value {
        self.remove_from(self.root, object, fields)
    }

    fn remove_from(&self, id: TypeId, value: &Value, fields: &FieldSet) -> Value {
        match (self.form(id, Some(value)), value) {
            (Form::List(list), Value::Array(items)) => Value::Array(self.remove_items(list, items, fields)),
            (Form::Map(map), Value::Object(entries)) => {
                Value::Object(self.remove_fields(map, entries, fields))
            }
            _ => value.clone(),
        }
    }

    fn remove_items(&self, list: &ListType, items: &[Value], fields: &FieldSet) -> Vec<Value> {
        if list.merge == ListMerge::Atomic {
            return Vec::new();
        }
        items
            .iter()
            .filter_map(|item| {
                let node = element_of(self, list, item)
                    .ok()
                    .and_then(|element| fields.get(&element));
                match node {
                    None => Some(item.clone()),
                    Some(node) if node.is_member => None,
                    Some(node) => Some(self.remove_from(list.items, item, &node.children)),
                }
            })
            .collect()
    }

    fn remove_fields(
        &self,
        map: &MapType,
        entries: &Map<String, Value>,
        fields: &FieldSet,
    ) -> Map<String, Value> {
        if map.is_atomic {
            return Map::new();
        }
        entries
            .iter()
            .filter_map(|(name, value)| {
                let value = match (fields.get(&PathElement::field(name)), map.field(name)) {
                    (None, _) => value.clone(),
                    (Some(node), _) if node.is_member => return None,
                    (Some(_), None) => value.clone(),
                    (Some(node), Some(id)) => self.remove_from(id, value, &node.children),
                };
                Some((name.clone(), value))
            })
            .collect()
    }

    /// Adds every declared field that has fields of the set below it.
    pub(super) fn with_parents(&self, fields: &FieldSet) -> FieldSet {
        self.with_parents_of(Some(self.root), fields)
    }

    fn with_parents_of(&self, id: Option<TypeId>, fields: &FieldSet) -> FieldSet {
        let declared = id.map(|id| self.get(id));
        let map = declared.and_then(|declared| declared.map.as_ref());
        let list = declared.and_then(|declared| declared.list.as_ref());
        let nodes = fields.nodes().iter().map(|(element, node)| {
            let (is_declared, below) = match element {
                PathElement::Field(name) => (
                    map.is_some_and(|map| map.fields.contains_key(name)),
                    map.and_then(|map| map.field(name)),
                ),
                PathElement::Key(_) => (false, list.map(|list| list.items)),
                PathElement::Item(_) | PathElement::Index(_) => (false, None),
            };
            let mut node = node.clone();
            node.is_member |= is_declared && !node.children.is_empty();
            node.children = self.with_parents_of(below, &node.children);
            (element.clone(), node)
        });
        FieldSet::of_nodes(nodes.collect())
    }
}
