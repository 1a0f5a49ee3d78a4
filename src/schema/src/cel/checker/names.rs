//! Names of types, and names with a prefix.

use kube_cel::cel::{IdedExpr, common::ast::Expr};

use super::types::Type;

/// Returns the type that a variable for a type stands for.
pub(super) fn type_of_name<'d>(name: &str) -> Option<Type<'d>> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "int" => Type::Int,
        "list" => Type::list(Type::Dyn),
        "net.CIDR" => Type::Opaque("CIDR", None),
        "net.IP" => Type::Opaque("IP", None),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        // The type of all optional values has no parameter.
        "optional_type" => Type::Literal(name.into()),
        "string" => Type::Text,
        "type" => Type::Meta(None),
        "uint" => Type::Uint,
        _ => return None,
    })
}

/// Returns the name of a type with a prefix, such as `google.protobuf.Duration`.
pub(in crate::cel) fn type_name(expr: &IdedExpr) -> Option<String> {
    qualified(expr).filter(|name| name.contains('.') && type_of_name(name).is_some())
}

/// Returns the text of a name such as `a.b`.
pub(super) fn qualified(expr: &IdedExpr) -> Option<String> {
    if let Expr::Ident(name) = &expr.expr {
        return Some(name.clone());
    }
    let Expr::Select(select) = &expr.expr else {
        return None;
    };
    let prefix = qualified(&select.operand).filter(|_| !select.test)?;
    Some(format!("{prefix}.{}", select.field))
}
