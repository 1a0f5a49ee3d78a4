//! Functions of texts. Positions count characters.

use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, ResolveResult, Value as Cel,
    extractors::{Arguments, This},
};

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function("charAt", char_at);
    context.add_function("indexOf", index_of);
    context.add_function("lastIndexOf", last_index_of);
    context.add_function("split", split);
    context.add_function("substring", substring);
}

fn out_of_range(index: i64) -> ExecutionError {
    ExecutionError::function_error("index", format!("index out of range: {index}"))
}

/// Returns a position of at most `max`.
fn position(index: i64, max: usize) -> Result<usize, ExecutionError> {
    let position = usize::try_from(index).ok().filter(|position| *position <= max);
    position.ok_or_else(|| out_of_range(index))
}

fn int(position: usize) -> ResolveResult {
    Ok(Cel::Int(i64::try_from(position).unwrap_or(i64::MAX)))
}

fn new_text(characters: &[char]) -> ResolveResult {
    Ok(Cel::String(Arc::new(characters.iter().collect())))
}

fn char_at(This(text): This<Arc<String>>, index: i64) -> ResolveResult {
    let characters = characters(&text);
    let start = position(index, characters.len())?;
    let end = characters.len().min(start + 1);
    new_text(&characters[start..end])
}

fn substring(This(text): This<Arc<String>>, Arguments(args): Arguments) -> ResolveResult {
    let characters = characters(&text);
    let (start, end) = match &args[..] {
        [Cel::Int(start)] => (*start, None),
        [Cel::Int(start), Cel::Int(end)] => (*start, Some(*end)),
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        let text = format!("invalid substring range. start: {start}, end: {end}");
        return Err(ExecutionError::function_error("substring", text));
    }
    let start = position(start, characters.len())?;
    let end = end.map_or(Ok(characters.len()), |end| position(end, characters.len()))?;
    new_text(&characters[start..end])
}

fn index_of(This(whole): This<Cel>, Arguments(args): Arguments) -> ResolveResult {
    if let (Cel::List(items), [item]) = (&whole, &args[..]) {
        return found(items.iter().position(|other| other == item));
    }
    let (Cel::String(text), [Cel::String(part), rest @ ..]) = (&whole, &args[..]) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let start = match rest {
        [] => 0,
        [Cel::Int(start)] => *start,
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    let (text, part) = (characters(text), characters(part));
    if part.is_empty() {
        return Ok(Cel::Int(start));
    }
    let start = usize::try_from(start).map_err(|_| out_of_range(start))?;
    // A start after the end is no error.
    let tail = text.get(start..).unwrap_or_default();
    let offset = tail.windows(part.len()).position(|window| window == part);
    found(offset.map(|offset| start + offset))
}

fn last_index_of(This(whole): This<Cel>, Arguments(args): Arguments) -> ResolveResult {
    if let (Cel::List(items), [item]) = (&whole, &args[..]) {
        return found(items.iter().rposition(|other| other == item));
    }
    let (Cel::String(text), [Cel::String(part), rest @ ..]) = (&whole, &args[..]) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let (text, part) = (characters(text), characters(part));
    let last = match rest {
        [] if part.is_empty() => return int(text.len()),
        [] => text.len().saturating_sub(1),
        [Cel::Int(last)] if part.is_empty() => return Ok(Cel::Int(*last)),
        [Cel::Int(last)] => usize::try_from(*last).map_err(|_| out_of_range(*last))?,
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    // A position after the end is no error.
    if last >= text.len() {
        return Ok(Cel::Int(-1));
    }
    let end = text.len().min(last.saturating_add(part.len()));
    found(text[..end].windows(part.len()).rposition(|window| window == part))
}

fn characters(text: &str) -> Vec<char> {
    text.chars().collect()
}

fn found(position: Option<usize>) -> ResolveResult {
    position.map_or(Ok(Cel::Int(-1)), int)
}

/// Splits a text into at most `limit` parts. A negative limit means no limit, as in Go.
fn split(This(text): This<Arc<String>>, Arguments(args): Arguments) -> ResolveResult {
    let (separator, limit) = match &args[..] {
        [Cel::String(separator)] => (separator, usize::MAX),
        [Cel::String(separator), Cel::Int(limit)] => {
            (separator, usize::try_from(*limit).unwrap_or(usize::MAX))
        }
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    let parts: Vec<&str> = if limit == 0 {
        Vec::new()
    } else if separator.is_empty() {
        let mut starts: Vec<usize> = text.char_indices().map(|(start, _)| start).take(limit).collect();
        starts.push(text.len());
        starts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
    } else {
        text.splitn(limit, separator.as_str()).collect()
    };
    let parts = parts
        .into_iter()
        .map(|part| Cel::String(Arc::new(part.to_owned())));
    Ok(Cel::List(Arc::new(parts.collect())))
}
