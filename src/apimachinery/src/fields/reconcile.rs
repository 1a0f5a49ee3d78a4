//! Adjustment of field sets after a change of the schema.

use super::field_set::{FieldSet, Node};
use super::path_element::PathElement;
use super::schema::{DEDUCED, ListMerge, TypeId, TypeSchema};

impl TypeSchema {
    /// Replaces fields below a list or object that is atomic now by the list or object itself.
    /// Returns `None` if the set is up to date.
    pub(super) fn reconcile(&self, fields: &FieldSet) -> Option<FieldSet> {
        let reconciled = self.reconcile_below(self.root, fields);
        (reconciled != *fields).then_some(reconciled)
    }

    fn reconcile_below(&self, id: TypeId, fields: &FieldSet) -> FieldSet {
        let declared = self.get(id);
        let nodes = fields.nodes().iter().map(|(element, node)| {
            let below = match element {
                PathElement::Field(name) => declared.map.as_ref().and_then(|map| map.field(name)),
                PathElement::Key(_) | PathElement::Item(_) | PathElement::Index(_) => {
                    declared.list.as_ref().map(|list| list.items)
                }
            };
            let node = match below {
                Some(below) => self.reconcile_node(below, node),
                None => node.clone(),
            };
            (element.clone(), node)
        });
        FieldSet::of_nodes(nodes.collect())
    }

    fn reconcile_node(&self, id: TypeId, node: &Node) -> Node {
        if node.children.is_empty() {
            return node.clone();
        }
        let declared = self.get(id);
        let is_atomic = match (&declared.map, &declared.scalar, &declared.list) {
            // Objects of unknown fields have no declared relationship that could change.
            (Some(map), _, _) if map.fields.is_empty() && map.rest == Some(DEDUCED) => return node.clone(),
            (Some(map), _, _) => map.is_atomic,
            (None, Some(_), _) => return node.clone(),
            (None, None, Some(list)) => list.merge == ListMerge::Atomic,
            (None, None, None) => return node.clone(),
        };
        if is_atomic {
            return Node::leaf();
        }
        Node {
            is_member: node.is_member,
            children: self.reconcile_below(id, &node.children),
        }
    }
}
