//! Comparison of two objects: the fields that the second one changes.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::field_set::{FieldSet, Node};
use super::item::elements_of;
use super::path_element::PathElement;
use super::schema::{Form, ListMerge, ListType, MapType, TypeId, TypeSchema};
use super::type_fault::TypeFaults;
use super::validate::check_scalar;
use super::value::{self, fields_of, items_of};

/// Fields that differ between an old and a new object. No field is in two of the sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) removed: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) added: FieldSet,
}

impl Comparison {
    /// Removes fields, and all fields below them.
    pub(super) fn without(&self, fields: &FieldSet) -> Self {
        Self {
            removed: self.removed.without(fields),
            modified: self.modified.without(fields),
            added: self.added.without(fields),
        }
    }

    /// Returns the fields whose value the new object sets.
    pub(super) fn written(&self) -> FieldSet {
        self.modified.union(&self.added)
    }
}

/// Differences at and below a value.
#[derive(Default)]
struct Difference {
    removed: Node,
    modified: Node,
    added: Node,
}

impl Difference {
    fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }
}

/// Differences of the fields or items of a value.
#[derive(Default)]
struct Parts {
    removed: Vec<(PathElement, Node)>,
    modified: Vec<(PathElement, Node)>,
    added: Vec<(PathElement, Node)>,
}

impl Parts {
    fn add(&mut self, element: &PathElement, part: Difference) {
        for (nodes, node) in [
            (&mut self.removed, part.removed),
            (&mut self.modified, part.modified),
            (&mut self.added, part.added),
        ] {
            if !node.is_empty() {
                nodes.push((element.clone(), node));
            }
        }
    }

    fn into_difference(self) -> Difference {
        let node = |nodes| Node {
            is_member: false,
            children: FieldSet::of_nodes(nodes),
        };
        Difference {
            removed: node(self.removed),
            modified: node(self.modified),
            added: node(self.added),
        }
    }
}

impl TypeSchema {
    pub(super) fn compare(&self, old: &Value, new: &Value) -> Result<Comparison, TypeFaults> {
        let difference = self.difference(self.root, Some(old), Some(new))?;
        Ok(Comparison {
            removed: difference.removed.children,
            modified: difference.modified.children,
            added: difference.added.children,
        })
    }

    /// Compares two values of a type. At most one of them is missing.
    fn difference(
        &self,
        id: TypeId,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<Difference, TypeFaults> {
        if old == new {
            return Ok(Difference::default());
        }
        let (old_form, new_form) = (self.form(id, old), self.form(id, new));
        if new.is_none() {
            return self.difference_as(old_form, old, new);
        }
        if old.is_none() || old_form.is_like(new_form) {
            return self.difference_as(new_form, old, new);
        }
        // The value changed its form, for example from a number to an object.
        let (first, second) = (
            self.difference_as(old_form, old, new)?,
            self.difference_as(new_form, old, new)?,
        );
        let union = |a: &Node, b: &Node| Node {
            is_member: a.is_member || b.is_member,
            children: a.children.union(&b.children),
        };
        Ok(Difference {
            removed: union(&first.removed, &second.removed),
            modified: union(&first.modified, &second.modified),
            added: union(&first.added, &second.added),
        })
    }

    fn difference_as(
        &self,
        form: Form<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<Difference, TypeFaults> {
        match form {
            Form::Scalar(scalar) => {
                let errors = (
                    check_scalar(scalar, old, "lhs: "),
                    check_scalar(scalar, new, "rhs: "),
                );
                if let (Err(mut first), Err(second)) = errors {
                    first.0.extend(second.0);
                    return Err(first);
                }
                Ok(leaf(old, new))
            }
            Form::List(list) => {
                let (old_items, new_items) = (items_of(old), items_of(new));
                if list.merge == ListMerge::Atomic || (old_items.is_empty() && new_items.is_empty()) {
                    return Ok(leaf(old, new));
                }
                let inner = self.items_difference(list, old_items, new_items)?;
                Ok(with_self(inner, old, new))
            }
            Form::Map(map) => {
                let (old_fields, new_fields) = (fields_of(old), fields_of(new));
                if map.is_atomic || (old_fields.is_none() && new_fields.is_none()) {
                    return Ok(leaf(old, new));
                }
                let inner = self.fields_difference(map, old_fields, new_fields)?;
                Ok(with_self(inner, old, new))
            }
            Form::Invalid => Err(TypeFaults::one("schema error: invalid atom: inlined")),
        }
    }

    fn fields_difference(
        &self,
        map: &MapType,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) -> Result<Difference, TypeFaults> {
        let mut parts = Parts::default();
        let mut add = |name: &str, old: Option<&Value>, new: Option<&Value>| {
            let Some(id) = map.field(name) else { return Ok(()) };
            let part = self
                .difference(id, old, new)
                .map_err(|err| err.below(&format_args!(".{name}")))?;
            if !part.is_empty() {
                parts.add(&PathElement::field(name), part);
            }
            Ok(())
        };
        for (name, value) in old.into_iter().flatten() {
            add(name, Some(value), new.and_then(|new| new.get(name)))?;
        }
        for (name, value) in new.into_iter().flatten() {
            if old.is_none_or(|old| !old.contains_key(name)) {
                add(name, None, Some(value))?;
            }
        }
        Ok(parts.into_difference())
    }

    fn items_difference(
        &self,
        list: &ListType,
        old: &[Value],
        new: &[Value],
    ) -> Result<Difference, TypeFaults> {
        let old_items = by_element(elements_of(self, list, old)?, old);
        let new_items = by_element(elements_of(self, list, new)?, new);
        let mut elements: Vec<&PathElement> = old_items.keys().chain(new_items.keys()).collect();
        elements.sort();
        elements.dedup();
        let mut parts = Parts::default();
        for element in elements {
            let old: &[&Value] = old_items.get(element).map(Vec::as_slice).unwrap_or_default();
            let new: &[&Value] = new_items.get(element).map(Vec::as_slice).unwrap_or_default();
            let item = |old: Option<&Value>, new: Option<&Value>| {
                self.difference(list.items, old, new)
                    .map_err(|err| err.below(element))
            };
            let leaf = Node::leaf;
            // Repeated items are one field without fields below it.
            let part = match (old, new) {
                ([] | [_], [] | [_]) => item(old.first().copied(), new.first().copied())?,
                ([_, _, ..], [_, _, ..]) => {
                    let is_same =
                        old.len() == new.len() && old.iter().zip(new).all(|(old, new)| value::same(old, new));
                    Difference {
                        modified: if is_same { Node::default() } else { leaf() },
                        ..Difference::default()
                    }
                }
                ([_, _, ..], rest) => {
                    let mut part = match rest.first() {
                        Some(new) => item(None, Some(new))?,
                        None => Difference::default(),
                    };
                    part.removed.is_member = true;
                    part
                }
                (rest, _) => {
                    let mut part = match rest.first() {
                        Some(old) => item(Some(old), None)?,
                        None => Difference::default(),
                    };
                    part.added.is_member = true;
                    part
                }
            };
            parts.add(element, part);
        }
        Ok(parts.into_difference())
    }
}

fn by_element(elements: Vec<PathElement>, items: &[Value]) -> BTreeMap<PathElement, Vec<&Value>> {
    let mut by_element: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
    for (element, item) in elements.into_iter().zip(items) {
        by_element.entry(element).or_default().push(item);
    }
    by_element
}

/// Returns the difference of two values that are one field.
fn leaf(old: Option<&Value>, new: Option<&Value>) -> Difference {
    let mut difference = Difference::default();
    match (old, new) {
        (None, _) => difference.added.is_member = true,
        (_, None) => difference.removed.is_member = true,
        (Some(old), Some(new)) => difference.modified.is_member = !value::same(old, new),
    }
    difference
}

/// Adds the value itself, if it was added or removed.
fn with_self(mut inner: Difference, old: Option<&Value>, new: Option<&Value>) -> Difference {
    inner.added.is_member |= old.is_none();
    inner.removed.is_member |= new.is_none();
    inner
}
