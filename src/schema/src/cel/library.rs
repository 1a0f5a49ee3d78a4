//! Functions for rules: those of the crates, with replacements where Kubernetes behaves
//! differently.

mod collections;
mod conversions;
mod formats;
mod template;
mod texts;

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use kube_cel::{
    KubeCelExt as _,
    cel::{
        Context, ExecutionError, ResolveResult, Value as Cel,
        extractors::{Arguments, This},
    },
};
use regex::Regex;

use super::names::NEGATE;
use super::{authorizer, budget, dynamic, logic, message, pairs, shape, time_zone};
use crate::pattern;

#[cfg(test)]
pub(super) use conversions::type_name;

/// Maximum number of cached patterns.
const PATTERNS_MAX: usize = 64;

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

pub(super) fn context() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("size", size);
    context.add_function("matches", matches);
    context.add_function("dyn", dynamic);
    context.add_function(NEGATE, negate);
    context.add_function("replace", replace);
    context.add_function("join", join);
    collections::register(&mut context);
    conversions::register(&mut context);
    formats::register(&mut context);
    template::register(&mut context);
    texts::register(&mut context);
    logic::register(&mut context);
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
