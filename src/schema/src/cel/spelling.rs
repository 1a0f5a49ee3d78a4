//! Spellings that the parser of the `cel` crate does not read as `cel-go` does.

use std::borrow::Cow;

use kube_cel::cel::{
    IdedExpr,
    common::ast::{Expr, operators},
};

use super::macros::origin;
use super::parts::parts_mut;
use super::problem;

/// Returns an equal expression without texts in triple quotes, and without escaped quotes and backslashes in byte
/// strings. Places after such a text differ from those of the source.
pub(super) fn plain(source: &str) -> Cow<'_, str> {
    let is_special = ["'''", "\"\"\"", "\\"];
    if !is_special.iter().any(|spelling| source.contains(spelling)) {
        return Cow::Borrowed(source);
    }
    let mut written = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            written.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let follows_name = written.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        match Text::at_start_of(rest).filter(|text| !follows_name || text.prefix.is_empty()) {
            Some(text) => {
                text.write(&mut written);
                rest = &rest[text.length..];
            }
            None => {
                written.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    Cow::Owned(written)
}

/// Text or byte string in the source.
struct Text<'a> {
    prefix: &'a str,
    quotes: &'a str,
    content: &'a str,
    /// Length of all, in bytes.
    length: usize,
}

impl<'a> Text<'a> {
    fn at_start_of(source: &'a str) -> Option<Self> {
        let letters = source
            .find(|c| !matches!(c, 'b' | 'B' | 'r' | 'R'))
            .filter(|count| *count <= 2)?;
        let (prefix, rest) = source.split_at(letters);
        let quotes = ["'''", "\"\"\"", "'", "\""]
            .into_iter()
            .find(|quotes| rest.starts_with(quotes))?;
        let (quotes, inside) = rest.split_at(quotes.len());
        let end = end(inside, quotes, is_raw(prefix))?;
        Some(Self {
            prefix,
            quotes,
            content: &inside[..end],
            length: letters + quotes.len() + end + quotes.len(),
        })
    }

    fn write(&self, written: &mut String) {
        let is_raw = is_raw(self.prefix);
        let is_bytes = self.prefix.contains(['b', 'B']);
        if self.quotes.len() == 1 && !(is_bytes && self.content.contains('\\')) {
            for part in [self.prefix, self.quotes, self.content, self.quotes] {
                written.push_str(part);
            }
            return;
        }
        // In bytes, the crate reads no escaped backslash and no escaped quote.
        let (backslash, quote) = match is_bytes {
            true => ("\\x5c", "\\x22"),
            false => ("\\\\", "\\\""),
        };
        written.push_str(if is_bytes { "b\"" } else { "\"" });
        let mut characters = self.content.chars();
        while let Some(character) = characters.next() {
            match character {
                '"' => written.push_str(quote),
                '\n' => written.push_str("\\n"),
                '\r' => written.push_str("\\r"),
                '\\' if is_raw => written.push_str(backslash),
                '\\' => match characters.next() {
                    Some('\\') => written.push_str(backslash),
                    Some('"') => written.push_str(quote),
                    Some('\'') => written.push('\''),
                    escaped => {
                        written.push('\\');
                        written.extend(escaped);
                    }
                },
                other => written.push(other),
            }
        }
        written.push('"');
    }
}

fn is_raw(prefix: &str) -> bool {
    prefix.contains(['r', 'R'])
}

/// Returns the length of the content before the quotes that end it.
fn end(inside: &str, quotes: &str, is_raw: bool) -> Option<usize> {
    let mut is_escaped = false;
    for (place, character) in inside.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if inside[place..].starts_with(quotes) {
            return Some(place);
        } else if character == '\n' && quotes.len() == 1 {
            return None;
        } else {
            is_escaped = character == '\\' && !is_raw;
        }
    }
    None
}

/// Removes repeated negations in pairs: `!!a` is `a`. The crate reads them as one.
pub(super) fn join_operators(source: &str, expr: &mut IdedExpr) {
    let mut signs = source.chars().filter(|c| !c.is_whitespace());
    let mut last = signs.next();
    let repeats = signs.any(|sign| last.replace(sign) == Some(sign) && matches!(sign, '!' | '-'));
    if !repeats {
        return;
    }
    let Some(places) = problem::places(source) else {
        return;
    };
    let starts = |part: u64| {
        let place = places.offset_for(origin(part));
        place.map_or(0, |(start, _)| start as usize)
    };
    join(source, &starts, expr);
}

fn join(source: &str, starts: &impl Fn(u64) -> usize, expr: &mut IdedExpr) {
    for part in parts_mut(&mut expr.expr) {
        join(source, starts, part);
    }
    let Expr::Call(call) = &mut expr.expr else { return };
    let sign = match call.func_name.as_str() {
        operators::LOGICAL_NOT => '!',
        operators::NEGATE => '-',
        _ => return,
    };
    let signs = source.get(starts(expr.id)..).unwrap_or_default().chars();
    let signs = signs
        .filter(|c| !c.is_whitespace())
        .take_while(|c| *c == sign)
        .count();
    if signs > 0
        && signs % 2 == 0
        && let Some(operand) = call.args.pop()
    {
        *expr = operand;
    }
}
