//! Functions for rules: those of the crates, with replacements where Kubernetes behaves
//! differently.

use std::{cell::RefCell, cmp::Ordering, collections::HashMap};

use std::sync::Arc;

use kube_cel::{
    KubeCelExt as _,
    cel::{
        Context, ExecutionError, FunctionContext, IdedExpr, ResolveResult, Value as Cel,
        common::ast::{CallExpr, Expr},
        extractors::{Arguments, This},
        functions,
        objects::{Opaque, OptionalValue},
    },
};
use regex::Regex;

use super::macros::SORT_BY_KEYS;
use super::names::NEGATE;
use super::{authorizer, budget, dynamic, message, pairs, shape, time_zone};
use crate::pattern;

/// Maximum number of cached patterns.
const PATTERNS_MAX: usize = 64;

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

pub(super) fn context() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("size", size);
    context.add_function("string", string);
    context.add_function("int", int);
    context.add_function("uint", uint);
    context.add_function("double", double);
    context.add_function("duration", duration);
    context.add_function("timestamp", timestamp);
    context.add_function("matches", matches);
    context.add_function("dyn", dynamic);
    context.add_function("type", type_of);
    for name in TYPES {
        context.add_variable_from_value(name, Cel::Opaque(Arc::new(TypeName(name))));
    }
    context.add_function(NEGATE, negate);
    context.add_function("lists.range", range);
    context.add_function(SORT_BY_KEYS, sort_by_keys);
    context.add_function("replace", replace);
    context.add_function("join", join);
    context.add_function("format.named", named_format);
    time_zone::register(&mut context);
    budget::register(&mut context);
    shape::register(&mut context);
    dynamic::register(&mut context);
    message::register(&mut context);
    pairs::register(&mut context);
    authorizer::register(&mut context);
    context
}

/// Returns the size of a value. The size of a text is its number of characters.
fn size(This(value): This<Cel>) -> Result<i64, ExecutionError> {
    let size = match &value {
        Cel::List(items) => items.len(),
        Cel::Map(map) => map.map.len(),
        Cel::String(text) => text.chars().count(),
        Cel::Bytes(bytes) => bytes.len(),
        Cel::Bool(_)
        | Cel::Int(_)
        | Cel::UInt(_)
        | Cel::Float(_)
        | Cel::Duration(_)
        | Cel::Timestamp(_)
        | Cel::Function(..)
        | Cel::Opaque(_)
        | Cel::Null => return Err(ExecutionError::NoSuchOverload),
    };
    Ok(i64::try_from(size).unwrap_or(i64::MAX))
}

/// Function of the crate that converts a value.
type Conversion = fn(&FunctionContext<'_, '_>, This<Cel>) -> ResolveResult;

/// Converts a value with a function of the crate. Its errors contain the value, which may be secret.
fn convert(
    conversion: Conversion,
    (ftx, This(value)): (&FunctionContext<'_, '_>, This<Cel>),
    to: &str,
) -> ResolveResult {
    if !is_scalar(&value) {
        return Err(ExecutionError::NoSuchOverload);
    }
    let is_text = matches!(value, Cel::String(_));
    conversion(ftx, This(value)).map_err(|err| if is_text { conversion_error(to) } else { err })
}

/// Returns true for values that conversions between simple types accept.
fn is_scalar(value: &Cel) -> bool {
    matches!(value, Cel::String(_) | Cel::Int(_) | Cel::UInt(_) | Cel::Float(_))
}

fn conversion_error(to: &str) -> ExecutionError {
    ExecutionError::function_error(to, format!("type conversion error from 'string' to '{to}'"))
}

fn int(ftx: &FunctionContext<'_, '_>, this: This<Cel>) -> ResolveResult {
    convert(functions::int, (ftx, this), "int")
}

fn uint(ftx: &FunctionContext<'_, '_>, this: This<Cel>) -> ResolveResult {
    convert(functions::uint, (ftx, this), "uint")
}

fn double(ftx: &FunctionContext<'_, '_>, this: This<Cel>) -> ResolveResult {
    convert(functions::double, (ftx, this), "double")
}

fn duration(text: Arc<String>) -> ResolveResult {
    functions::duration(text).map_err(|_| conversion_error("google.protobuf.Duration"))
}

fn timestamp(text: Arc<String>) -> ResolveResult {
    functions::timestamp(text).map_err(|_| conversion_error("google.protobuf.Timestamp"))
}

/// Converts a value to a text. The crate does not convert truth values.
fn string(ftx: &FunctionContext<'_, '_>, This(value): This<Cel>) -> ResolveResult {
    if let Cel::Bool(flag) = value {
        return Ok(Cel::String(Arc::new(flag.to_string())));
    }
    if is_scalar(&value) || matches!(value, Cel::Timestamp(_) | Cel::Duration(_) | Cel::Bytes(_)) {
        functions::string(ftx, This(value))
    } else {
        Err(ExecutionError::NoSuchOverload)
    }
}

/// Matches a regular expression in the syntax of Go's RE2, like `pattern` of a schema.
fn matches(This(text): This<Arc<String>>, regex: Arc<String>) -> Result<bool, ExecutionError> {
    PATTERNS.with_borrow_mut(|patterns| {
        if let Some(known) = patterns.get(regex.as_str()) {
            return Ok(known.is_match(&text));
        }
        budget::charge(budget::REGEX)?;
        let compiled = pattern::compile(&regex).map_err(|err| {
            ExecutionError::function_error("matches", format!("'{regex}' not a valid regex:\n{err}"))
        })?;
        let is_match = compiled.is_match(&text);
        if patterns.len() == PATTERNS_MAX {
            patterns.clear();
        }
        patterns.insert(regex.as_str().to_owned(), compiled);
        Ok(is_match)
    })
}

/// Names of types for comparisons with `type(x)`.
const TYPES: [&str; 11] = [
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
    "optional_type",
];

/// Type as a value.
#[derive(Debug, PartialEq, Eq)]
struct TypeName(&'static str);

impl Opaque for TypeName {
    fn runtime_type_name(&self) -> &str {
        "type"
    }
}

fn type_of(This(value): This<Cel>) -> ResolveResult {
    let name = match &value {
        Cel::Bool(_) => "bool",
        Cel::Bytes(_) => "bytes",
        Cel::Float(_) => "double",
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Null => "null_type",
        Cel::String(_) => "string",
        Cel::Opaque(opaque) => {
            let own = opaque.runtime_type_name();
            let known = TYPES.iter().find(|name| **name == own);
            known.ok_or(ExecutionError::NoSuchOverload)?
        }
        Cel::Function(..) | Cel::Duration(_) | Cel::Timestamp(_) => {
            return Err(ExecutionError::NoSuchOverload);
        }
    };
    Ok(Cel::Opaque(Arc::new(TypeName(name))))
}

/// Negates a number. The smallest integer has no negative.
fn negate(value: Cel) -> ResolveResult {
    if let Cel::Int(number) = value {
        let overflow = || ExecutionError::function_error("negate", "integer overflow");
        number.checked_neg().map(Cel::Int).ok_or_else(overflow)
    } else if let Cel::Float(number) = value {
        Ok(Cel::Float(-number))
    } else {
        Err(ExecutionError::NoSuchOverload)
    }
}

/// Returns the value unchanged: types are dynamic.
fn dynamic(This(value): This<Cel>) -> ResolveResult {
    Ok(value)
}

/// Replaces text. Charges in advance, because the result may be much longer than the arguments.
fn replace(This(text): This<Arc<String>>, Arguments(args): Arguments) -> ResolveResult {
    let (from, to, most) = match &args[..] {
        [Cel::String(from), Cel::String(to)] => (from, to, usize::MAX),
        [Cel::String(from), Cel::String(to), Cel::Int(most)] => {
            // A negative limit means no limit, as in Go.
            (from, to, usize::try_from(*most).unwrap_or(usize::MAX))
        }
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    let found = text.matches(from.as_str()).take(most).count();
    budget::charge_text(text.len().saturating_add(found.saturating_mul(to.len())))?;
    let replaced = text.replacen(from.as_str(), to, most);
    Ok(Cel::String(Arc::new(replaced)))
}

/// Joins texts. Charges in advance, like [`replace`].
fn join(This(items): This<Arc<Vec<Cel>>>, Arguments(args): Arguments) -> ResolveResult {
    let separator = match &args[..] {
        [] => "",
        [Cel::String(separator)] => separator.as_str(),
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    let text = |item: &'_ Cel| -> Result<Arc<String>, ExecutionError> {
        let Cel::String(text) = item else {
            return Err(ExecutionError::NoSuchOverload);
        };
        Ok(Arc::clone(text))
    };
    let texts = items.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let texts: Vec<&str> = texts.iter().map(|text| text.as_str()).collect();
    let separators = separator.len().saturating_mul(texts.len().saturating_sub(1));
    let bytes = texts.iter().map(|text| text.len()).sum::<usize>();
    budget::charge_text(bytes.saturating_add(separators))?;
    Ok(Cel::String(Arc::new(texts.join(separator))))
}

/// Names of formats.
const FORMATS: [&str; 13] = [
    "byte",
    "date",
    "datetime",
    "dns1035Label",
    "dns1035LabelPrefix",
    "dns1123Label",
    "dns1123LabelPrefix",
    "dns1123Subdomain",
    "dns1123SubdomainPrefix",
    "labelValue",
    "qualifiedName",
    "uri",
    "uuid",
];

/// Returns the format with a name, as an optional. The crate's function returns null for an unknown name.
fn named_format(ftx: &FunctionContext<'_, '_>, name: Arc<String>) -> ResolveResult {
    let found = match FORMATS.contains(&name.as_str()) {
        true => {
            let call = CallExpr {
                func_name: format!("format.{name}"),
                target: None,
                args: Vec::new(),
            };
            let call = IdedExpr {
                id: 0,
                expr: Expr::Call(call),
            };
            OptionalValue::of(Cel::resolve(&call, ftx.ptx)?)
        }
        false => OptionalValue::none(),
    };
    Ok(Cel::Opaque(Arc::new(found)))
}

fn range(count: i64) -> ResolveResult {
    let count = u64::try_from(count)
        .map_err(|_| ExecutionError::function_error("lists.range", "range argument must be non-negative"))?;
    budget::charge(count.saturating_mul(32))?;
    let items = (0..)
        .map(Cel::Int)
        .take(usize::try_from(count).unwrap_or_default());
    Ok(Cel::List(Arc::new(items.collect())))
}

/// Sorts a list by the list of the keys of its items, which must have one type.
fn sort_by_keys(This(items): This<Arc<Vec<Cel>>>, keys: Arc<Vec<Cel>>) -> ResolveResult {
    let failed = |text: &str| Err(ExecutionError::function_error("sortBy", text));
    if keys.first().is_some_and(|first| compared(first, first).is_none()) {
        return failed("list elements must be comparable");
    }
    if keys.windows(2).any(|pair| compared(&pair[0], &pair[1]).is_none()) {
        return failed("list elements must have the same type");
    }
    let rounds = 1 + u64::from(keys.len().checked_ilog2().unwrap_or(0));
    budget::charge(budget::size(&Cel::List(Arc::clone(&keys))).saturating_mul(rounds))?;
    let mut sorted: Vec<(&Cel, &Cel)> = keys.iter().zip(items.iter()).collect();
    sorted.sort_by(|(one, _), (other, _)| compared(one, other).unwrap_or(Ordering::Equal));
    let sorted = sorted.into_iter().map(|(_, item)| item.clone());
    Ok(Cel::List(Arc::new(sorted.collect())))
}

/// Compares two keys. Returns `None` if they have no order.
fn compared(one: &Cel, other: &Cel) -> Option<Ordering> {
    match (one, other) {
        (Cel::Bool(one), Cel::Bool(other)) => Some(one.cmp(other)),
        (Cel::Int(one), Cel::Int(other)) => Some(one.cmp(other)),
        (Cel::UInt(one), Cel::UInt(other)) => Some(one.cmp(other)),
        // NaN is not comparable, but the order must be total.
        (Cel::Float(one), Cel::Float(other)) => {
            Some(one.partial_cmp(other).unwrap_or_else(|| one.total_cmp(other)))
        }
        (Cel::String(one), Cel::String(other)) => Some(one.cmp(other)),
        (Cel::Bytes(one), Cel::Bytes(other)) => Some(one.cmp(other)),
        (Cel::Duration(one), Cel::Duration(other)) => Some(one.cmp(other)),
        (Cel::Timestamp(one), Cel::Timestamp(other)) => Some(one.cmp(other)),
        (_, _) => None,
    }
}
