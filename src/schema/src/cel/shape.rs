//! Comparison of values that are or contain lists of type `set` or `map`, in which the order of
//! items has no meaning.

use std::{collections::HashMap, sync::Arc};

use kube_cel::cel::{
    Context, ExecutionError, ResolveResult, Value as Cel,
    objects::{Key, Opaque, OptionalValue},
};

use super::names::{AMONG, SELECT};
use super::{budget, escape};
use crate::node::{Additional, ListType, Node};

/// Compares two values of this shape.
pub(super) const SAME: &str = "@same";
/// Merges two lists: items of the first, then items of the second that the first does not contain.
/// If the keys are equal, the second list's item replaces the first's in place. As in Kubernetes,
/// merged sets have no duplicates, but a map keeps duplicates of the second list.
pub(super) const MERGE: &str = "@merge";

/// Parts of a value that are not compared item by item. Values of the same schema have the same
/// shape.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shape {
    List {
        /// Keys that identify items of a map, or an empty list for a set, whose items identify
        /// themselves. `None` for an ordered list.
        keys: Option<Vec<Key>>,
        items: Option<Arc<Shape>>,
    },
    Object {
        fields: HashMap<Key, Arc<Shape>>,
        others: Option<Arc<Shape>>,
    },
}

impl Opaque for Shape {
    fn runtime_type_name(&self) -> &str {
        "@shape"
    }
}

impl Shape {
    /// Returns the shape of a node, or `None` if plain comparison is correct.
    pub(super) fn of(node: &Node) -> Option<Arc<Self>> {
        let inside = |child: &Node| child.contents.unique_lists.then(|| Self::of(child)).flatten();
        let items = node.items.as_deref().and_then(inside);
        let keys = match &node.list_type {
            ListType::Atomic => None,
            ListType::Set => Some(Vec::new()),
            ListType::Map(keys) => Some(keys.iter().map(|key| name(&escape(key))).collect()),
        };
        if keys.is_some() || items.is_some() {
            return Some(Arc::new(Self::List { keys, items }));
        }
        let is_map = matches!(node.additional, Additional::Schema(_) | Additional::Any);
        let field = |(field, child): (&String, &Node)| {
            let field = if is_map { name(field) } else { name(&escape(field)) };
            Some((field, inside(child)?))
        };
        let fields: HashMap<Key, Arc<Self>> = node.properties().filter_map(field).collect();
        let others = node.additional_schema().and_then(inside);
        (!fields.is_empty() || others.is_some()).then(|| Arc::new(Self::Object { fields, others }))
    }

    /// Returns the shape of values with plain comparison.
    pub(super) fn plain() -> Arc<Self> {
        Arc::new(Self::Object {
            fields: HashMap::new(),
            others: None,
        })
    }

    /// Returns the shape of an ordered list.
    pub(super) fn list_of(items: Arc<Self>) -> Arc<Self> {
        Arc::new(Self::List {
            keys: None,
            items: Some(items),
        })
    }

    /// Compares two values, both with the schema of the left one.
    fn are_equal(&self, left: &Cel, right: &Cel) -> Result<bool, ExecutionError> {
        match (self, left, right) {
            (_, Cel::Opaque(_), Cel::Opaque(_)) => {
                let (Ok(left_optional), Ok(right_optional)) = (optional(left), optional(right)) else {
                    return Ok(left == right);
                };
                match (left_optional.value(), right_optional.value()) {
                    (Some(left), Some(right)) => self.are_equal(left, right),
                    (left, right) => Ok(left.is_none() && right.is_none()),
                }
            }
            (Self::List { keys, items }, Cel::List(left), Cel::List(right)) => {
                if left.len() != right.len() {
                    return Ok(false);
                }
                let items = items.as_deref();
                match keys {
                    None => all(left.iter().zip(right.iter()), |(left, right)| {
                        are_equal_in(items, left, right)
                    }),
                    Some(keys) => {
                        let keys = Keys(keys);
                        keys.charge(left, right)?;
                        all(left.iter(), |item| match keys.place(item, right) {
                            Some(place) => are_equal_in(items, item, &right[place]),
                            None => Ok(false),
                        })
                    }
                }
            }
            (Self::Object { fields, others }, Cel::Map(left), Cel::Map(right)) => {
                if left.map.len() != right.map.len() {
                    return Ok(false);
                }
                all(left.map.iter(), |(key, value)| match right.map.get(key) {
                    Some(other) => {
                        are_equal_in(fields.get(key).or(others.as_ref()).map(Arc::as_ref), value, other)
                    }
                    None => Ok(false),
                })
            }
            (_, left, right) => Ok(left == right),
        }
    }
}

fn are_equal_in(shape: Option<&Shape>, left: &Cel, right: &Cel) -> Result<bool, ExecutionError> {
    match shape {
        Some(shape) => shape.are_equal(left, right),
        None => Ok(left == right),
    }
}

/// Returns true if `is_so` is true for every item. Stops at the first false result or error.
fn all<T>(
    mut each: impl Iterator<Item = T>,
    is_so: impl Fn(T) -> Result<bool, ExecutionError>,
) -> Result<bool, ExecutionError> {
    each.try_fold(true, |so_far, one| Ok(so_far && is_so(one)?))
}

fn name(text: &str) -> Key {
    Key::String(Arc::new(text.to_owned()))
}

fn optional(value: &Cel) -> Result<&OptionalValue, ExecutionError> {
    value.try_into()
}

/// Extracts the shape from a variable.
fn shape(value: &Cel) -> Result<&Shape, ExecutionError> {
    let Cel::Opaque(shape) = value else {
        return Err(ExecutionError::NoSuchOverload);
    };
    shape.downcast_ref().ok_or(ExecutionError::NoSuchOverload)
}

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function(SAME, same);
    context.add_function(AMONG, among);
    context.add_function(MERGE, merge);
    context.add_function(SELECT, select);
}

fn same(left: Cel, right: Cel, by: Cel) -> ResolveResult {
    budget::charge(budget::size(&left).saturating_add(budget::size(&right)))?;
    Ok(Cel::Bool(shape(&by)?.are_equal(&left, &right)?))
}

fn among(item: Cel, container: Cel, by: Cel) -> ResolveResult {
    let by = shape(&by)?;
    if let Cel::Map(map) = &container {
        return Ok(Cel::Bool(map.map.iter().any(|(key, _)| Cel::from(key) == item)));
    }
    let Cel::List(items) = &container else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let own = budget::size(&item);
    for other in items.iter() {
        budget::charge(own.saturating_add(budget::size(other)))?;
        if by.are_equal(other, &item)? {
            return Ok(Cel::Bool(true));
        }
    }
    Ok(Cel::Bool(false))
}

/// Selects a field. Unlike the crate's implementation, a missing field is not an error.
pub(super) fn select(object: Cel, field: Arc<String>) -> ResolveResult {
    let inner = if let Cel::Opaque(_) = &object {
        optional(&object)?.value()
    } else {
        Some(&object)
    };
    let found = match inner {
        None | Some(Cel::Null) => None,
        Some(Cel::Map(object)) => object.map.get(&Key::String(field)),
        Some(Cel::List(_)) => {
            let text = "unsupported index type 'string' in list";
            return Err(ExecutionError::function_error("select", text));
        }
        // Other values have no fields.
        Some(_) => None,
    };
    let found = found.cloned().map_or_else(OptionalValue::none, OptionalValue::of);
    Ok(Cel::Opaque(Arc::new(found)))
}

fn merge(left: Cel, right: Cel, by: Cel) -> ResolveResult {
    let (Cel::List(left), Cel::List(right)) = (&left, &right) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let Shape::List { keys: Some(keys), .. } = shape(&by)? else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let keys = Keys(keys);
    keys.charge(left, right)?;
    let is_set = keys.0.is_empty();
    if is_set {
        keys.charge(right, right)?;
    }
    let mut merged = left.to_vec();
    for item in right.iter() {
        match keys.place(item, if is_set { &merged } else { left }) {
            Some(place) => merged[place] = item.clone(),
            None => merged.push(item.clone()),
        }
    }
    Ok(Cel::List(Arc::new(merged)))
}

/// Keys that identify items.
struct Keys<'a>(&'a [Key]);

impl Keys<'_> {
    /// Charges for searching each item among all others, by keys or as a whole, and for copying
    /// all.
    fn charge(&self, left: &[Cel], right: &[Cel]) -> Result<(), ExecutionError> {
        let sizes = |items: &[Cel]| items.iter().map(budget::size).sum::<u64>();
        let pair = match self.0.len() as u64 {
            0 => sizes(right),
            keys => keys * right.len() as u64,
        };
        let pairs = (left.len() as u64).saturating_mul(pair);
        budget::charge(pairs.saturating_add(sizes(left)).saturating_add(sizes(right)))
    }

    fn place(&self, item: &Cel, items: &[Cel]) -> Option<usize> {
        items.iter().position(|other| self.are_equal(item, other))
    }

    fn are_equal(&self, one: &Cel, other: &Cel) -> bool {
        match (one, other) {
            (Cel::Map(one), Cel::Map(other)) if !self.0.is_empty() => {
                self.0.iter().all(|key| one.map.get(key) == other.map.get(key))
            }
            (one, other) => one == other,
        }
    }
}
