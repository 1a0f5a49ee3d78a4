//! Functions of lists.

use std::cmp::Ordering;
use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, ResolveResult, Value as Cel,
    extractors::{Arguments, This},
    objects::OptionalValue,
};

use crate::cel::budget;
use crate::cel::macros::SORT_BY_KEYS;

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function("flatten", flatten);
    context.add_function("isSorted", is_sorted);
    context.add_function("lists.range", range);
    context.add_function("max", max);
    context.add_function("min", min);
    context.add_function("optional.unwrap", unwrapped);
    context.add_function("slice", slice);
    context.add_function("sort", sort);
    context.add_function("sum", sum);
    context.add_function("unwrapOpt", unwrap_method);
    context.add_function(SORT_BY_KEYS, sort_by_keys);
}

fn failed<T>(function: &str, text: impl Into<String>) -> Result<T, ExecutionError> {
    Err(ExecutionError::function_error(function, text.into()))
}

fn list(items: Vec<Cel>) -> ResolveResult {
    Ok(Cel::List(Arc::new(items)))
}

fn range(count: i64) -> ResolveResult {
    let count = u64::try_from(count).unwrap_or_default();
    budget::charge(count.saturating_mul(32))?;
    let items = (0..).map(Cel::Int);
    list(items.take(usize::try_from(count).unwrap_or_default()).collect())
}

fn slice(This(items): This<Arc<Vec<Cel>>>, start: i64, end: i64) -> ResolveResult {
    let call = format!("cannot slice({start}, {end})");
    let (Ok(first), Ok(last)) = (usize::try_from(start), usize::try_from(end)) else {
        return failed("slice", format!("{call}, negative indexes not supported"));
    };
    if first > last {
        let text = format!("{call}, start index must be less than or equal to end index");
        return failed("slice", text);
    }
    match items.get(first..last) {
        Some(part) => list(part.to_vec()),
        None => failed("slice", format!("{call}, list is length {}", items.len())),
    }
}

fn flatten(This(items): This<Arc<Vec<Cel>>>, Arguments(args): Arguments) -> ResolveResult {
    let depth = match &args[..] {
        [] => 1,
        [Cel::Int(depth)] => *depth,
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    if depth < 0 {
        return failed("flatten", "level must be non-negative");
    }
    let mut flat = Vec::new();
    flatten_into(&items, depth, &mut flat);
    list(flat)
}

fn flatten_into(items: &[Cel], depth: i64, flat: &mut Vec<Cel>) {
    for item in items {
        if let Cel::List(inner) = item
            && depth > 0
        {
            flatten_into(inner, depth - 1, flat);
        } else {
            flat.push(item.clone());
        }
    }
}

/// Returns the contents of optional values.
fn unwrapped(items: Arc<Vec<Cel>>) -> ResolveResult {
    let mut contents = Vec::new();
    for item in items.iter() {
        let item = <&OptionalValue>::try_from(item)?;
        contents.extend(item.value().cloned());
    }
    list(contents)
}

fn unwrap_method(This(items): This<Arc<Vec<Cel>>>) -> ResolveResult {
    unwrapped(items)
}

fn is_sorted(This(items): This<Arc<Vec<Cel>>>) -> ResolveResult {
    let is_descent = |pair: &[Cel]| pair[0].partial_cmp(&pair[1]) == Some(Ordering::Greater);
    Ok(Cel::Bool(!items.windows(2).any(is_descent)))
}

/// Adds the items. The compiler adds the sum of an empty list as an argument, unless it is an `int`.
fn sum(This(items): This<Arc<Vec<Cel>>>, Arguments(args): Arguments) -> ResolveResult {
    let Some((first, rest)) = items.split_first() else {
        return Ok(args.first().cloned().unwrap_or(Cel::Int(0)));
    };
    if !matches!(
        first,
        Cel::Int(_) | Cel::UInt(_) | Cel::Float(_) | Cel::Duration(_)
    ) {
        return Err(ExecutionError::NoSuchOverload);
    }
    rest.iter()
        .try_fold(first.clone(), |sum, item| sum + item.clone())
}

fn min(This(items): This<Arc<Vec<Cel>>>) -> ResolveResult {
    extreme(&items, "min", Ordering::Less)
}

fn max(This(items): This<Arc<Vec<Cel>>>) -> ResolveResult {
    extreme(&items, "max", Ordering::Greater)
}

/// Returns the first item that no other item precedes in this order.
fn extreme(items: &[Cel], name: &str, order: Ordering) -> ResolveResult {
    let Some((first, rest)) = items.split_first() else {
        return failed(name, format!("{name} called on empty list"));
    };
    if compared(first, first).is_none() {
        return Err(ExecutionError::NoSuchOverload);
    }
    let better = |best: &Cel, item: &Cel| item.partial_cmp(best) == Some(order);
    let found = rest
        .iter()
        .fold(first, |best, item| if better(best, item) { item } else { best });
    Ok(found.clone())
}

fn sort(This(items): This<Arc<Vec<Cel>>>) -> ResolveResult {
    sorted(&items, &items)
}

/// Sorts a list by the list of the keys of its items, which must have one type.
fn sort_by_keys(This(items): This<Arc<Vec<Cel>>>, keys: Arc<Vec<Cel>>) -> ResolveResult {
    sorted(&items, &keys)
}

fn sorted(items: &[Cel], keys: &Arc<Vec<Cel>>) -> ResolveResult {
    if keys.first().is_some_and(|first| compared(first, first).is_none()) {
        return failed("sort", "list elements must be comparable");
    }
    if keys.windows(2).any(|pair| compared(&pair[0], &pair[1]).is_none()) {
        return failed("sort", "list elements must have the same type");
    }
    let rounds = 1 + u64::from(keys.len().checked_ilog2().unwrap_or(0));
    budget::charge(budget::size(&Cel::List(Arc::clone(keys))).saturating_mul(rounds))?;
    let mut pairs: Vec<(&Cel, &Cel)> = keys.iter().zip(items).collect();
    pairs.sort_by(|(one, _), (other, _)| compared(one, other).unwrap_or(Ordering::Equal));
    list(pairs.into_iter().map(|(_, item)| item.clone()).collect())
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
