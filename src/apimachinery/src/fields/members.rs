//! The set of fields that an object mentions.

use serde_json::Value;

use super::field_set::{FieldSet, Node};
use super::item::elements_of;
use super::path_element::PathElement;
use super::schema::{Form, ListMerge, ListType, MapType, TypeId, TypeSchema};
use super::type_fault::TypeFaults;

impl TypeSchema {
    /// Returns the fields of an object: scalars, atomic lists and objects, items of other lists,
    /// keys of maps, and empty objects.
    pub(super) fn members(&self, object: &Value) -> Result<FieldSet, TypeFaults> {
        self.members_of(self.root, object).map(|node| node.children)
    }

    fn members_of(&self, id: TypeId, value: &Value) -> Result<Node, TypeFaults> {
        match self.form(id, Some(value)) {
            Form::Scalar(_) => Ok(Node::leaf()),
            Form::List(list) => self.list_members(list, value),
            Form::Map(map) => self.map_members(map, value),
            Form::Invalid => Err(TypeFaults::one("schema error: invalid atom: inlined")),
        }
    }

    fn list_members(&self, list: &ListType, value: &Value) -> Result<Node, TypeFaults> {
        if list.merge == ListMerge::Atomic {
            return Ok(Node::leaf());
        }
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let elements = elements_of(self, list, items)?;
        let mut nodes = Vec::with_capacity(items.len());
        for (element, item) in elements.iter().zip(items) {
            let is_repeated = elements.iter().filter(|other| *other == element).count() > 1;
            let node = if is_repeated {
                Node::leaf()
            } else {
                let below = self.members_of(list.items, item);
                Node {
                    is_member: true,
                    ..below.map_err(|err| err.below(element))?
                }
            };
            nodes.push((element.clone(), node));
        }
        Ok(Node {
            is_member: false,
            children: FieldSet::of_nodes(nodes),
        })
    }

    fn map_members(&self, map: &MapType, value: &Value) -> Result<Node, TypeFaults> {
        if map.is_atomic {
            return Ok(Node::leaf());
        }
        let mut nodes = Vec::new();
        for (name, field) in value.as_object().into_iter().flatten() {
            let Some(id) = map.field(name) else { continue };
            let element = PathElement::field(name);
            let mut node = self.members_of(id, field).map_err(|err| err.below(&element))?;
            let is_empty = field.as_object().is_some_and(serde_json::Map::is_empty);
            node.is_member |= field.is_null() || is_empty || !map.fields.contains_key(name);
            nodes.push((element, node));
        }
        Ok(Node {
            is_member: false,
            children: FieldSet::of_nodes(nodes),
        })
    }
}
