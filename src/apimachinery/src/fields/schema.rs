//! Types of a kind's values, as far as the merge depends on them.

use std::collections::BTreeMap;

use serde_json::Value;

/// Types of the fields of a kind.
#[derive(Debug)]
pub struct TypeSchema {
    /// Types by [`TypeId`]. The first two are [`UNTYPED`] and [`DEDUCED`].
    pub(super) types: Vec<Type>,
    pub(super) root: TypeId,
}

/// Index of a type in its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TypeId(pub(super) usize);

/// Any value. Lists and objects merge as a whole.
pub(super) const UNTYPED: TypeId = TypeId(0);
/// Any value. Lists merge as a whole, objects by field.
pub(super) const DEDUCED: TypeId = TypeId(1);

/// Permitted forms of a value. Several are set if the type permits several.
#[derive(Debug, Clone, Default)]
pub(super) struct Type {
    pub(super) scalar: Option<Scalar>,
    pub(super) list: Option<ListType>,
    pub(super) map: Option<MapType>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Number,
    Text,
    Boolean,
    Any,
}

#[derive(Debug, Clone)]
pub(super) struct ListType {
    pub(super) items: TypeId,
    pub(super) merge: ListMerge,
}

/// Identity of the items of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListMerge {
    /// The list is one field.
    Atomic,
    /// The value of an item is its identity.
    Set,
    /// The values of these fields are the identity of an item.
    Keyed(Vec<String>),
}

/// Objects: structures and maps.
#[derive(Debug, Clone)]
pub(super) struct MapType {
    pub(super) fields: BTreeMap<String, Field>,
    /// Type of the values of other fields. `None` if the type declares all fields.
    pub(super) rest: Option<TypeId>,
    /// True if the object is one field.
    pub(super) is_atomic: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) type_id: TypeId,
    pub(super) default: Option<Value>,
}

impl MapType {
    /// Returns the type of a field, or `None` if the type does not declare it.
    pub(super) fn field(&self, name: &str) -> Option<TypeId> {
        self.fields.get(name).map(|field| field.type_id).or(self.rest)
    }
}

/// Form of a value, after the choice between the forms that its type permits.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    Scalar(Scalar),
    List(&'a ListType),
    Map(&'a MapType),
    /// The type permits no value.
    Invalid,
}

impl Form<'_> {
    /// Compares the kinds of two forms of the same type.
    pub(super) fn is_like(self, other: Form<'_>) -> bool {
        matches!(
            (self, other),
            (Form::Scalar(_), Form::Scalar(_))
                | (Form::List(_), Form::List(_))
                | (Form::Map(_), Form::Map(_))
                | (Form::Invalid, Form::Invalid)
        )
    }
}

impl TypeSchema {
    pub(super) fn common_types() -> Vec<Type> {
        let any = |fields: TypeId, is_atomic: bool| Type {
            scalar: Some(Scalar::Any),
            list: Some(ListType {
                items: UNTYPED,
                merge: ListMerge::Atomic,
            }),
            map: Some(MapType {
                fields: BTreeMap::new(),
                rest: Some(fields),
                is_atomic,
            }),
        };
        vec![any(UNTYPED, true), any(DEDUCED, false)]
    }

    pub(super) fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0]
    }

    /// Returns the form of a value. If the type does not permit the value, or the value is null,
    /// returns the first form of the type.
    pub(super) fn form(&self, id: TypeId, value: Option<&Value>) -> Form<'_> {
        let declared = self.get(id);
        let chosen = match value {
            Some(Value::Number(_) | Value::String(_) | Value::Bool(_)) => declared.scalar.map(Form::Scalar),
            Some(Value::Array(_)) => declared.list.as_ref().map(Form::List),
            Some(Value::Object(_)) => declared.map.as_ref().map(Form::Map),
            Some(Value::Null) | None => None,
        };
        chosen
            .or_else(|| declared.map.as_ref().map(Form::Map))
            .or_else(|| declared.scalar.map(Form::Scalar))
            .or_else(|| declared.list.as_ref().map(Form::List))
            .unwrap_or(Form::Invalid)
    }
}
