//! Types in error messages, as `cel-go` and kube-apiserver write them.

use std::fmt;

use super::decl::{Decl, Kind};
use super::types::{OPTIONAL, Object, Type};

/// Declaration with the name of its type.
pub(super) type Root<'d> = (String, &'d Decl);

/// Returns the text of a type in an error.
pub(super) fn shown(of: &Type<'_>, roots: &[Root<'_>]) -> String {
    let parameters = |name: &str, parameters: &[&Type<'_>]| {
        let parameters: Vec<String> = parameters.iter().map(|part| shown(part, roots)).collect();
        format!("{name}({})", parameters.join(", "))
    };
    let name = match of {
        Type::Error => "!error!",
        Type::Dyn => "dyn",
        Type::Null => "null",
        Type::Bool => "bool",
        Type::Int => "int",
        Type::Uint => "uint",
        Type::Double => "double",
        Type::Text => "string",
        Type::Bytes => "bytes",
        Type::Timestamp => "timestamp",
        Type::Duration => "duration",
        Type::Meta(None) => "type",
        Type::Meta(Some(of)) => return parameters("type", &[of]),
        Type::Library("Format") => "kubernetes.NamedFormat",
        Type::Library(name) => return format!("kubernetes.{name}"),
        Type::Object(object) => return name_of(*object, roots),
        Type::Record(record) => record.name,
        Type::Literal(name) => &**name,
        Type::List(item) => return parameters("list", &[item]),
        Type::Map(entry) => return parameters("map", &[&entry.0, &entry.1]),
        Type::Opaque(OPTIONAL, Some(content)) => return parameters("optional_type", &[content]),
        Type::Opaque(name, _) => return format!("net.{name}"),
        Type::Parameter(parameter) => return format!("_var{parameter}"),
    };
    name.to_owned()
}

/// Returns the argument types of a call, as in `string.(int, int)` for a method of a text.
pub(super) fn signature(arguments: &[Type<'_>], is_method: bool, roots: &[Root<'_>]) -> String {
    let mut texts = arguments.iter().map(|argument| shown(argument, roots));
    let target = if is_method { texts.next() } else { None };
    let target = target.map_or_else(String::new, |target| format!("{target}."));
    let arguments: Vec<String> = texts.collect();
    format!("{target}({})", arguments.join(", "))
}

/// Returns the name of an object's type: its place below a root.
fn name_of(object: Object<'_>, roots: &[Root<'_>]) -> String {
    let mut names = roots.iter().filter_map(|(name, root)| {
        let mut name = name.clone();
        extend(&mut name, object, root).then_some(name)
    });
    names.next().unwrap_or_else(|| "object".to_owned())
}

impl fmt::Display for Type<'_> {
    /// Formats the type as kube-apiserver does for the result of an expression.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null_type"),
            Self::Timestamp => f.write_str("google.protobuf.Timestamp"),
            Self::Duration => f.write_str("google.protobuf.Duration"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Self::Opaque(OPTIONAL, Some(content)) => write!(f, "optional_type({content})"),
            Self::Meta(Some(of)) => write!(f, "type({of})"),
            Self::Error
            | Self::Dyn
            | Self::Bool
            | Self::Int
            | Self::Uint
            | Self::Double
            | Self::Text
            | Self::Bytes
            | Self::Meta(None)
            | Self::Library(_)
            | Self::Object(_)
            | Self::Record(_)
            | Self::Literal(_)
            | Self::Opaque(..)
            | Self::Parameter(_) => f.write_str(&shown(self, &[])),
        }
    }
}

/// Extends the name of `at` to the name of the object. Returns false and changes nothing if the object
/// is not at or below `at`.
fn extend(name: &mut String, object: Object<'_>, at: &Decl) -> bool {
    if Object(at) == object {
        return true;
    }
    let length = name.len();
    let mut is_below = |member: &str, decl: &Decl| {
        name.push('.');
        name.push_str(member);
        let found = extend(name, object, decl);
        if !found {
            name.truncate(length);
        }
        found
    };
    match &at.kind {
        Kind::List(items) => is_below("@idx", items),
        Kind::Map(values) => is_below("@elem", values),
        Kind::Object(fields) => fields.iter().any(|(field, decl)| is_below(field, decl)),
        Kind::Dyn
        | Kind::Bool
        | Kind::Int
        | Kind::Double
        | Kind::Text
        | Kind::Bytes
        | Kind::Duration
        | Kind::Timestamp => false,
    }
}
