//! Literals of typed objects, such as `Object{spec: Object.spec{replicas: 1}}`.
//!
//! The `cel` crate cannot evaluate them. Therefore, the compiler replaces a literal by a call. The
//! call returns a map with the fields, and the name of the type at [`TYPE`].

use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, FunctionContext, IdedExpr, ResolveResult, Value as Cel,
    common::ast::{
        CallExpr, EntryExpr, Expr, IdedEntryExpr, LiteralValue, MapEntryExpr, MapExpr, StructExpr,
    },
    functions,
    objects::{Key, OptionalValue},
};

/// Key of the name of an object's type. No field can have this name.
pub const TYPE: &str = "@type";
/// Creates the object from the name of its type and its fields.
const MESSAGE: &str = "@message";

/// Returns the call that creates the object of a literal.
pub(super) fn call(id: u64, literal: StructExpr) -> CallExpr {
    let text = |text: &str| IdedExpr {
        id,
        expr: Expr::Literal(LiteralValue::String(text.into())),
    };
    let entry = |entry: IdedEntryExpr| IdedEntryExpr {
        id: entry.id,
        expr: match entry.expr {
            EntryExpr::StructField(field) => EntryExpr::MapEntry(MapEntryExpr {
                key: text(&field.field),
                value: field.value,
                optional: field.optional,
            }),
            other @ EntryExpr::MapEntry(_) => other,
        },
    };
    let fields = MapExpr {
        entries: literal.entries.into_iter().map(entry).collect(),
    };
    let fields = IdedExpr {
        id,
        expr: Expr::Map(fields),
    };
    CallExpr {
        func_name: MESSAGE.to_owned(),
        target: None,
        args: vec![text(&literal.type_name), fields],
    }
}

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function(MESSAGE, message);
    context.add_function("optional.ofNonZeroValue", of_non_zero_value);
}

fn message(name: Arc<String>, fields: Cel) -> ResolveResult {
    let Cel::Map(mut fields) = fields else {
        return Err(ExecutionError::NoSuchOverload);
    };
    // As in kube-apiserver, objects of other types do not exist, although the checker knows their fields.
    let root = name.split('.').next().unwrap_or_default();
    if !["Object", "JSONPatch"].contains(&root) {
        return Err(ExecutionError::function_error(
            "message",
            format!("unknown type '{name}'"),
        ));
    }
    let map = Arc::make_mut(&mut fields.map);
    map.insert(Key::from(TYPE.to_owned()), Cel::String(name));
    Ok(Cel::Map(fields))
}

/// Returns an empty optional for a zero value. An object without fields is one.
fn of_non_zero_value(ftx: &FunctionContext<'_, '_>, value: Cel) -> ResolveResult {
    let is_empty_object = if let Cel::Map(fields) = &value {
        fields.map.len() == 1 && fields.map.contains_key(&Key::from(TYPE.to_owned()))
    } else {
        false
    };
    if is_empty_object {
        return Ok(Cel::Opaque(Arc::new(OptionalValue::none())));
    }
    functions::optional_of_non_zero_value(ftx, value)
}
