//! How values are compared that are, or hold, lists that are sets or maps by their schema: in those
//! the order of items says nothing, however deep they are.

use std::{collections::HashMap, sync::Arc};

use kube_cel::cel::{
    Context, ExecutionError, ResolveResult, Value as Cel,
    objects::{Key, Opaque, OptionalValue},
};

use super::{budget, escape};
use crate::schema::node::{Additional, ListType, Node};

/// Whether two values are equal in this shape.
pub(super) const SAME: &str = "@same";
/// Whether a value is equal to one of a list's items, which have this shape.
pub(super) const AMONG: &str = "@among";
/// The items of the first list, and of the second what the first has not. Of two with the same keys
/// it is the second's, in the place of the first's. As in Kubernetes, a set has nothing twice then,
/// and a map what the second list has twice.
pub(super) const MERGE: &str = "@merge";
/// The field of an object, or of an optional one, where it has it; null has none.
pub(super) const SELECT: &str = "@select";

/// What of a value is compared in another way than item by item. Values of the same schema have the
/// same.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shape {
    List {
        /// By what items are told apart, where their order says nothing: none of a set, whose items
        /// are.
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
    /// `None`: values are compared as they are.
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
        let fields: HashMap<Key, Arc<Self>> = node.properties.iter().filter_map(field).collect();
        let others = node.additional_schema().and_then(inside);
        (!fields.is_empty() || others.is_some()).then(|| Arc::new(Self::Object { fields, others }))
    }

    /// Of values that are compared as they are.
    pub(super) fn plain() -> Arc<Self> {
        Arc::new(Self::Object {
            fields: HashMap::new(),
            others: None,
        })
    }

    /// Of a list in order.
    pub(super) fn list_of(items: Arc<Self>) -> Arc<Self> {
        Arc::new(Self::List {
            keys: None,
            items: Some(items),
        })
    }

    /// The left one's schema says what both are.
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

/// Whether `is_so` holds for each, as far as it can be told.
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

/// What a rule's expression hands on as a variable.
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
        let key: Key = item.try_into().map_err(|_| ExecutionError::NoSuchOverload)?;
        return Ok(Cel::Bool(map.map.contains_key(&key)));
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

/// The crate's own fails where the field is missing.
fn select(object: Cel, field: Arc<String>) -> ResolveResult {
    let inner = if let Cel::Opaque(_) = &object {
        optional(&object)?.value()
    } else {
        Some(&object)
    };
    let found = match inner {
        None | Some(Cel::Null) => None,
        Some(Cel::Map(object)) => object.map.get(&Key::String(field)),
        Some(_) => return Err(ExecutionError::NoSuchOverload),
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

/// What tells items apart.
struct Keys<'a>(&'a [Key]);

impl Keys<'_> {
    /// Each item is looked for among all others, by its keys or as a whole, and all may be copied.
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
