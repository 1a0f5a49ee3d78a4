//! The functions that rules may call: those of the crates, and in place of some of them what Kubernetes means.

use std::{cell::RefCell, collections::HashMap};

use std::sync::Arc;

use kube_cel::{
    KubeCelExt as _,
    cel::{Context, ExecutionError, ResolveResult, Value as Cel, extractors::This, objects::Opaque},
};
use regex::Regex;

use super::{budget, lists};
use crate::schema::pattern;

/// Compiled patterns that are kept.
const PATTERNS_MAX: usize = 64;

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

pub(super) fn context() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("size", size);
    context.add_function("matches", matches);
    context.add_function("dyn", dynamic);
    context.add_function("type", type_of);
    for name in TYPES {
        context.add_variable_from_value(name, Cel::Opaque(Arc::new(TypeName(name))));
    }
    context.add_function("lists.range", range);
    budget::register(&mut context);
    lists::register(&mut context);
    context
}

/// Texts are measured in characters.
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

/// RE2 as Go has it, which is what `pattern` of a schema is, too.
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

/// What `type(x)` is compared with.
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

/// A type as a value.
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

/// Types are not checked before, so that nothing is to do.
fn dynamic(This(value): This<Cel>) -> ResolveResult {
    Ok(value)
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
