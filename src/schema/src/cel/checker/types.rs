//! Types of expressions, and their unification.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::decl::{Decl, Kind};

/// Type of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Type<'d> {
    /// Type of an expression with a type error, which fits everywhere.
    Error,
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Timestamp,
    Duration,
    /// Type as a value. `None` is the type of types.
    Meta(Option<Arc<Type<'d>>>),
    /// Object of the library without fields.
    Library(&'static str),
    /// Object of a schema.
    Object(Object<'d>),
    Record(&'d Record),
    /// Object literal without declared fields, by the name of its type.
    Literal(Arc<str>),
    List(Arc<Type<'d>>),
    Map(Arc<(Type<'d>, Type<'d>)>),
    /// Type with a name and at most one parameter, such as `optional`.
    Opaque(&'static str, Option<Arc<Type<'d>>>),
    /// Type parameter: a letter of a signature, or a variable that unification binds.
    Parameter(usize),
}

/// Object of the schema. Two objects have the same type if they are at the same node.
#[derive(Clone, Copy, Debug)]
pub struct Object<'d>(pub(in crate::cel) &'d Decl);

/// Object type with a name. Two types with the same name are equal.
#[derive(Clone, Debug)]
pub struct Record {
    pub(in crate::cel) name: &'static str,
    fields: BTreeMap<String, Type<'static>>,
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Record {
    pub fn new(name: &'static str, fields: &[(&str, Type<'static>)]) -> Self {
        let fields = fields.iter();
        Self {
            name,
            fields: fields
                .map(|(name, field)| ((*name).to_owned(), field.clone()))
                .collect(),
        }
    }

    /// Declares a field.
    pub fn declare(&mut self, name: &str, of: Type<'static>) {
        self.fields.insert(name.to_owned(), of);
    }

    pub(in crate::cel) fn field(&self, name: &str) -> Option<&Type<'static>> {
        self.fields.get(name)
    }
}

impl PartialEq for Object<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

pub(in crate::cel) const OPTIONAL: &str = "optional";

impl<'d> Type<'d> {
    pub(in crate::cel) fn of(decl: &'d Decl) -> Self {
        match &decl.kind {
            Kind::Dyn => Self::Dyn,
            Kind::Bool => Self::Bool,
            Kind::Int => Self::Int,
            Kind::Double => Self::Double,
            Kind::Text => Self::Text,
            Kind::Bytes => Self::Bytes,
            Kind::Duration => Self::Duration,
            Kind::Timestamp => Self::Timestamp,
            Kind::List(items) => Self::list(Self::of(items)),
            Kind::Map(values) => Self::map(Self::Text, Self::of(values)),
            Kind::Object(_) => Self::Object(Object(decl)),
        }
    }

    pub fn list(item: Self) -> Self {
        Self::List(Arc::new(item))
    }

    pub fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// Returns the type of a type as a value.
    pub(in crate::cel) fn meta(of: Self) -> Self {
        Self::Meta(Some(Arc::new(of)))
    }

    pub(in crate::cel) fn optional(content: Self) -> Self {
        Self::Opaque(OPTIONAL, Some(Arc::new(content)))
    }

    /// Returns the type of a variable for a value of this type. As in kube-apiserver, objects, optionals
    /// and types are `dyn`.
    pub fn stored(&self) -> Type<'static> {
        match self {
            Self::Null => Type::Null,
            Self::Bool => Type::Bool,
            Self::Int => Type::Int,
            Self::Uint => Type::Uint,
            Self::Double => Type::Double,
            Self::Text => Type::Text,
            Self::Bytes => Type::Bytes,
            Self::Timestamp => Type::Timestamp,
            Self::Duration => Type::Duration,
            Self::List(item) => Type::list(item.stored()),
            Self::Map(entry) => Type::map(entry.0.stored(), entry.1.stored()),
            Self::Error
            | Self::Dyn
            | Self::Meta(_)
            | Self::Library(_)
            | Self::Object(_)
            | Self::Record(_)
            | Self::Literal(_)
            | Self::Opaque(..)
            | Self::Parameter(_) => Type::Dyn,
        }
    }

    /// Returns the content of an optional, and whether the type is one.
    pub(in crate::cel) fn unwrapped(self) -> (Self, bool) {
        if let Self::Opaque(OPTIONAL, Some(content)) = &self {
            ((**content).clone(), true)
        } else {
            (self, false)
        }
    }

    /// Returns true if the type has at most this number of parts, and subtracts them.
    pub(in crate::cel) fn is_within(&self, parts: &mut usize) -> bool {
        let Some(left) = parts.checked_sub(1) else {
            return false;
        };
        *parts = left;
        self.parts().all(|part| part.is_within(parts))
    }

    /// Returns the types that this type consists of, such as key and value of a map.
    fn parts(&self) -> impl Iterator<Item = &Self> {
        let (first, second) = match self {
            Self::List(item) => (Some(&**item), None),
            Self::Map(entry) => (Some(&entry.0), Some(&entry.1)),
            Self::Opaque(_, parameter) | Self::Meta(parameter) => (parameter.as_deref(), None),
            Self::Error
            | Self::Dyn
            | Self::Null
            | Self::Bool
            | Self::Int
            | Self::Uint
            | Self::Double
            | Self::Text
            | Self::Bytes
            | Self::Timestamp
            | Self::Duration
            | Self::Library(_)
            | Self::Object(_)
            | Self::Record(_)
            | Self::Literal(_)
            | Self::Parameter(_) => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Returns the object type with this name that is this type or a part of it.
    pub(in crate::cel) fn record(&self, name: &str) -> Option<&'d Record> {
        if let Self::Record(record) = self {
            let mut fields = record.fields.values();
            return match record.name == name {
                true => Some(*record),
                false => fields.find_map(|field| field.record(name)),
            };
        }
        self.parts().find_map(|part| part.record(name))
    }

    /// Returns the first parameter.
    pub(in crate::cel) fn parameter(&self) -> Option<&Self> {
        self.parts().next()
    }

    /// Returns true if all values have the same size.
    pub(in crate::cel) fn is_scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Int | Self::Uint | Self::Double | Self::Timestamp | Self::Duration => true,
            Self::Opaque(OPTIONAL, Some(content)) => content.is_scalar(),
            Self::Error
            | Self::Dyn
            | Self::Null
            | Self::Text
            | Self::Bytes
            | Self::Meta(_)
            | Self::Library(_)
            | Self::Object(_)
            | Self::Record(_)
            | Self::Literal(_)
            | Self::List(_)
            | Self::Map(_)
            | Self::Opaque(..)
            | Self::Parameter(_) => false,
        }
    }

    /// Returns true if null is a value of the type.
    fn is_nullable(&self) -> bool {
        matches!(
            self,
            Self::Null
                | Self::Dyn
                | Self::Opaque(..)
                | Self::Library(_)
                | Self::Object(_)
                | Self::Record(_)
                | Self::Literal(_)
                | Self::Timestamp
                | Self::Duration
        )
    }

    /// Returns true if the type is equal to the other or more general.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Parameter(_), _) => true,
            (_, Self::Dyn | Self::Parameter(_)) => false,
            (Self::Meta(_), Self::Meta(_)) => true,
            (Self::List(one), Self::List(other)) => one.covers(other),
            (Self::Map(one), Self::Map(other)) => one.0.covers(&other.0) && one.1.covers(&other.1),
            (Self::Opaque(one, Some(first)), Self::Opaque(other, Some(second))) => {
                one == other && first.covers(second)
            }
            (one, other) => one == other,
        }
    }
}

/// Bindings of type parameters.
#[derive(Debug, Default)]
pub(in crate::cel) struct Bindings<'d> {
    bound: Vec<Option<Type<'d>>>,
    /// Earlier bindings, to undo a failed unification.
    undo: Vec<(usize, Option<Type<'d>>)>,
}

impl<'d> Bindings<'d> {
    pub(in crate::cel) fn fresh(&mut self) -> Type<'d> {
        self.bound.push(None);
        Type::Parameter(self.bound.len() - 1)
    }

    /// Unifies types pairwise. Returns false and changes nothing if that is impossible.
    pub(in crate::cel) fn assign_all(&mut self, ones: &[Type<'d>], others: &[Type<'d>]) -> bool {
        self.undo.clear();
        let fits =
            ones.len() == others.len() && ones.iter().zip(others).all(|(one, other)| self.fits(one, other));
        if !fits {
            for (parameter, earlier) in std::mem::take(&mut self.undo).into_iter().rev() {
                self.bound[parameter] = earlier;
            }
        }
        fits
    }

    pub(in crate::cel) fn assign(&mut self, one: &Type<'d>, other: &Type<'d>) -> bool {
        self.assign_all(std::slice::from_ref(one), std::slice::from_ref(other))
    }

    /// Returns the common type of two items of a literal, or `None` if they have none.
    pub(in crate::cel) fn join(&mut self, earlier: Type<'d>, next: Type<'d>) -> Option<Type<'d>> {
        self.assign(&earlier, &next).then(|| most_general(earlier, next))
    }

    fn fits(&mut self, one: &Type<'d>, other: &Type<'d>) -> bool {
        if let Type::Parameter(parameter) = other {
            match self.substitutes(one, *parameter) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Parameter(parameter) = one {
            return self.substitutes(other, *parameter).0;
        }
        match (one, other) {
            (Type::Dyn | Type::Error, _) | (_, Type::Dyn | Type::Error) => true,
            (Type::Null, other) => other.is_nullable(),
            (one, Type::Null) => one.is_nullable(),
            (Type::Meta(_), Type::Meta(_)) => true,
            (Type::List(one), Type::List(other)) => self.fits(one, other),
            (Type::Map(one), Type::Map(other)) => self.fits(&one.0, &other.0) && self.fits(&one.1, &other.1),
            (Type::Opaque(one, first), Type::Opaque(other, second)) => {
                one == other
                    && match (first, second) {
                        (Some(first), Some(second)) => self.fits(first, second),
                        (None, None) => true,
                        (_, _) => false,
                    }
            }
            (one, other) => one == other,
        }
    }

    /// Binds a parameter to a type. Returns whether that is possible, and whether the parameter was
    /// bound before.
    fn substitutes(&mut self, one: &Type<'d>, parameter: usize) -> (bool, bool) {
        if *one == Type::Parameter(parameter) {
            return (true, true);
        }
        let Some(bound) = self.bound[parameter].clone() else {
            let free = self.is_free_of(parameter, one);
            if free {
                self.bind(parameter, one.clone());
            }
            return (free, false);
        };
        if *one == bound {
            return (true, true);
        }
        if !self.fits(one, &bound) {
            return (false, true);
        }
        let general = most_general(one.clone(), bound);
        if self.is_free_of(parameter, &general) {
            self.bind(parameter, general);
        }
        (true, true)
    }

    fn bind(&mut self, parameter: usize, to: Type<'d>) {
        let earlier = self.bound[parameter].replace(to);
        self.undo.push((parameter, earlier));
    }

    /// Returns true if the parameter does not occur in a type, which would make it infinite.
    fn is_free_of(&self, parameter: usize, within: &Type<'d>) -> bool {
        let Type::Parameter(other) = within else {
            return within.parts().all(|part| self.is_free_of(parameter, part));
        };
        *other != parameter
            && self.bound[*other]
                .as_ref()
                .is_none_or(|bound| self.is_free_of(parameter, bound))
    }

    /// Replaces bound parameters by their types.
    pub(in crate::cel) fn resolve(&self, of: &Type<'d>) -> Type<'d> {
        self.replace(of, &|free| Type::Parameter(free))
    }

    /// Replaces parameters by their types, and unbound ones by `dyn`.
    pub(in crate::cel) fn resolve_wholly(&self, of: &Type<'d>) -> Type<'d> {
        self.replace(of, &|_| Type::Dyn)
    }

    fn replace(&self, of: &Type<'d>, free: &impl Fn(usize) -> Type<'d>) -> Type<'d> {
        let Type::Parameter(parameter) = of else {
            return of.with_parts(&mut |part| self.replace(part, free));
        };
        match &self.bound[*parameter] {
            Some(bound) => self.replace(bound, free),
            None => free(*parameter),
        }
    }
}

impl<'d> Type<'d> {
    /// Returns the type with replaced parts.
    pub(in crate::cel) fn with_parts(&self, replace: &mut impl FnMut(&Self) -> Self) -> Self {
        match self {
            Self::List(item) => Self::list(replace(item)),
            Self::Map(entry) => Self::map(replace(&entry.0), replace(&entry.1)),
            Self::Opaque(name, Some(content)) => Self::Opaque(name, Some(Arc::new(replace(content)))),
            Self::Meta(Some(of)) => Self::meta(replace(of)),
            Self::Opaque(_, None)
            | Self::Meta(None)
            | Self::Error
            | Self::Dyn
            | Self::Null
            | Self::Bool
            | Self::Int
            | Self::Uint
            | Self::Double
            | Self::Text
            | Self::Bytes
            | Self::Timestamp
            | Self::Duration
            | Self::Library(_)
            | Self::Object(_)
            | Self::Record(_)
            | Self::Literal(_)
            | Self::Parameter(_) => self.clone(),
        }
    }
}

fn most_general<'d>(one: Type<'d>, other: Type<'d>) -> Type<'d> {
    if one.covers(&other) { one } else { other }
}
