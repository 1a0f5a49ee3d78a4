//! Regular expressions as rules of a grammar, for a complete text or the content of a JSON string.
//! `\d`, `\w` and `\s` are those of ECMA-262, as JSON Schema requires.

use regex_syntax::hir::{Capture, Class, Hir, HirKind, Look};

use super::product::{SetOperation, TooManyStates, combined};
use super::{Builder, NodeId, RETURN, TooLarge};

/// Maximum length of an expression. Longer ones take too long to parse.
const MAX_PATTERN_BYTES: usize = 10_000;
/// Maximum number of repetitions of one part.
const MAX_REPETITIONS: u32 = 100_000;

/// Error in an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegexError {
    #[error("the expression is invalid: {0}")]
    Invalid(String),
    #[error("the expression uses {0}, which is not supported")]
    Unsupported(&'static str),
    #[error("no text matches the expression")]
    Empty,
    #[error(transparent)]
    TooManyStates(#[from] TooManyStates),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Names of groups that stand for look-aheads, which the regex parser does not support.
const AHEAD: &str = "rooflet_ahead_";
const NOT_AHEAD: &str = "rooflet_not_ahead_";

/// Encoding of characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Plain,
    /// Inside a JSON string.
    Json,
}

/// Parses an expression and drops its unsatisfiable branches, regardless of look-aheads.
pub(super) fn parsed(pattern: &str) -> Result<Hir, RegexError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(RegexError::Unsupported("too many characters"));
    }
    let all = regex_syntax::parse(&as_rust(pattern)).map_err(|err| {
        let text = err.to_string();
        let reason = text.lines().last().unwrap_or_default();
        RegexError::Invalid(reason.trim_start_matches("error: ").to_owned())
    })?;
    possible(&all).ok_or(RegexError::Empty)
}

/// Compiles an expression to match property names.
pub(super) fn compiled(pattern: &str) -> Result<regex::Regex, RegexError> {
    if looks_ahead(&parsed(pattern)?) {
        return Err(RegexError::Unsupported("a look-ahead for property names"));
    }
    regex::Regex::new(&as_rust(pattern)).map_err(|err| RegexError::Invalid(err.to_string()))
}

/// Returns true if a text matches; `None` if the expression is not supported.
pub(super) fn matches(pattern: &str, text: &str) -> Option<bool> {
    Some(compiled(pattern).ok()?.is_match(text))
}

/// Translates an expression of ECMA-262 to the syntax of the regex parser. Escapes become classes,
/// also inside classes, because the parser supports nested classes.
fn as_rust(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let place = pattern.len() - rest.len();
        let ahead = [("(?=", AHEAD), ("(?!", NOT_AHEAD)];
        if let Some((mark, name)) = ahead.into_iter().find(|(mark, _)| rest.starts_with(mark)) {
            out.push_str(&format!("(?P<{name}{place}>"));
            rest = &rest[mark.len()..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '[' => rest = class(rest, &mut out),
            '\\' => rest = escape(rest, &mut out),
            '.' => out.push_str("[^\\n\\r\\u{2028}\\u{2029}]"),
            c => out.push(c),
        }
    }
    out
}

/// Writes the escape after a backslash, and returns the rest of the expression.
fn escape<'p>(rest: &'p str, out: &mut String) -> &'p str {
    let Some(escaped) = rest.chars().next() else {
        out.push('\\');
        return rest;
    };
    match escaped {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        's' => out.push_str("[\\t\\n\\x0b\\f\\r\\u{20}\\u{a0}\\u{feff}\\p{Zs}\\u{2028}\\u{2029}]"),
        'S' => out.push_str("[^\\t\\n\\x0b\\f\\r\\u{20}\\u{a0}\\u{feff}\\p{Zs}\\u{2028}\\u{2029}]"),
        'p' | 'P' => {
            let (name, after) = rest.split_at(rest.find('}').map_or(1, |end| end + 1));
            out.extend(["\\", name]);
            return after;
        }
        other => out.extend(['\\', other]),
    }
    &rest[escaped.len_utf8()..]
}

/// Writes a class after its opening bracket, and returns the rest of the expression. The parser
/// supports nested classes and set operators. In ECMA-262, only `^` and `-` are operators.
fn class<'p>(rest: &'p str, out: &mut String) -> &'p str {
    let others = rest.strip_prefix('^');
    out.push_str(if others.is_some() { "[^" } else { "[" });
    let mut rest = others.unwrap_or(rest);
    if rest.starts_with(']') {
        // Empty class: an intersection without members.
        out.push_str("a&&b");
    }
    let is_set = |rest: &str| {
        let escaped = rest.strip_prefix('\\');
        escaped.is_some_and(|escaped| escaped.starts_with(['d', 'D', 'w', 'W', 's', 'S', 'p', 'P']))
    };
    // A range may start with the last item; the last item was a `-` inside a range.
    let (mut may_begin, mut has_begun) = (false, false);
    while let Some(c) = rest.chars().next() {
        if is_set(rest) {
            rest = escape(&rest[1..], out);
            (may_begin, has_begun) = (false, false);
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            ']' => {
                out.push(']');
                break;
            }
            '-' if may_begin && !rest.starts_with(']') && !is_set(rest) => {
                out.push('-');
                (may_begin, has_begun) = (false, true);
                continue;
            }
            '\\' => rest = escape(rest, out),
            '-' | '&' | '~' | '[' => out.extend(['\\', c]),
            c => out.push(c),
        }
        (may_begin, has_begun) = (!has_begun, false);
    }
    rest
}

/// Removes unsatisfiable branches; `None` if there are no others.
fn possible(hir: &Hir) -> Option<Hir> {
    match hir.kind() {
        HirKind::Empty | HirKind::Literal(_) | HirKind::Look(_) => Some(hir.clone()),
        HirKind::Class(class) => (!class.is_empty()).then(|| hir.clone()),
        HirKind::Repetition(repetition) => match possible(&repetition.sub) {
            Some(sub) => Some(Hir::repetition(repetition.with(sub))),
            None => (repetition.min == 0).then(Hir::empty),
        },
        HirKind::Capture(capture) => match possible(&capture.sub) {
            Some(sub) => Some(Hir::capture(Capture {
                sub: Box::new(sub),
                ..capture.clone()
            })),
            None => (ahead(capture) == Some(SetOperation::Difference)).then(Hir::empty),
        },
        HirKind::Concat(parts) => Some(Hir::concat(parts.iter().map(possible).collect::<Option<_>>()?)),
        HirKind::Alternation(branches) => {
            let branches: Vec<Hir> = branches.iter().filter_map(possible).collect();
            (!branches.is_empty()).then(|| Hir::alternation(branches))
        }
    }
}

/// Returns true if the expression contains a look-ahead.
fn looks_ahead(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Capture(capture) => ahead(capture).is_some() || looks_ahead(&capture.sub),
        HirKind::Repetition(repetition) => looks_ahead(&repetition.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(looks_ahead),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

/// Returns the operation of a look-ahead group.
fn ahead(capture: &Capture) -> Option<SetOperation> {
    let name = capture.name.as_deref()?;
    match (name.starts_with(AHEAD), name.starts_with(NOT_AHEAD)) {
        (true, _) => Some(SetOperation::Intersection),
        (_, true) => Some(SetOperation::Difference),
        (false, false) => None,
    }
}

/// Returns true if it is certain that all texts of an expression have a length in this range.
pub(super) fn implies_length(hir: &Hir, min: u32, max: Option<u32>) -> bool {
    // Lengths are in bytes; a character has at most four.
    let shortest = hir.properties().minimum_len().unwrap_or(0).div_ceil(4);
    let longest = hir.properties().maximum_len();
    let is_whole = anchored(hir)
        .iter()
        .all(|(_, from_start, to_end)| *from_start && *to_end);
    let is_long_enough = min == 0 || (shortest >= min as usize && !looks_ahead(hir));
    let is_short_enough =
        max.is_none_or(|max| is_whole && longest.is_some_and(|longest| longest <= max as usize));
    is_long_enough && is_short_enough
}

/// Builder for the rules of one expression.
pub(super) struct RegexRules<'a> {
    pub(super) builder: &'a mut Builder,
    pub(super) encoding: Encoding,
}

impl RegexRules<'_> {
    /// Builds a rule for the complete text, with or without anchors in the expression.
    pub(super) fn whole(&mut self, hir: &Hir) -> Result<NodeId, RegexError> {
        let mut branches = Vec::new();
        for (part, _, _) in anchored(hir) {
            branches.push(self.rule(&part, RETURN)?);
        }
        let all = self.builder.any_of(branches);
        self.without_dead_ends(hir, all)
    }

    /// Builds a rule for a text that contains a match, unless the expression has anchors.
    pub(super) fn somewhere(&mut self, hir: &Hir, character: NodeId) -> Result<NodeId, RegexError> {
        // A negative look-ahead would not match escaped variants of a character.
        let character = match looks_ahead(hir) {
            true => self.any_character(),
            false => character,
        };
        let all = self.beginning(hir, character, true)?;
        self.without_dead_ends(hir, all)
    }

    /// Builds any character in its only spelling.
    pub(super) fn any_character(&mut self) -> NodeId {
        self.characters(&[('\0', char::MAX)], RETURN)
    }

    /// Removes branches that a look-ahead makes unsatisfiable.
    fn without_dead_ends(&mut self, hir: &Hir, all: NodeId) -> Result<NodeId, RegexError> {
        if !looks_ahead(hir) {
            return Ok(all);
        }
        combined(self.builder, (all, all), SetOperation::Intersection)?.ok_or(RegexError::Empty)
    }

    /// Builds a text that starts with a match, or contains one if `anywhere`.
    fn beginning(&mut self, hir: &Hir, character: NodeId, anywhere: bool) -> Result<NodeId, RegexError> {
        let mut branches = Vec::new();
        for (hir, from_start, to_end) in anchored(hir) {
            let from_start = from_start || !anywhere;
            let after = match to_end {
                true => RETURN,
                false => self.builder.repeat(character, 0, None, RETURN),
            };
            let branch = self.rule(&hir, after)?;
            branches.push(match from_start {
                true => branch,
                false => self.builder.repeat(character, 0, None, branch),
            });
        }
        Ok(self.builder.any_of(branches))
    }

    fn rule(&mut self, hir: &Hir, next: NodeId) -> Result<NodeId, RegexError> {
        self.builder.check_size()?;
        match hir.kind() {
            HirKind::Empty => Ok(next),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0)
                    .map_err(|_| RegexError::Unsupported("bytes that are not UTF-8"))?;
                Ok(text
                    .chars()
                    .rev()
                    .fold(next, |next, c| self.characters(&[(c, c)], next)))
            }
            HirKind::Class(Class::Unicode(class)) => {
                let ranges: Vec<(char, char)> =
                    class.iter().map(|range| (range.start(), range.end())).collect();
                Ok(self.characters(&ranges, next))
            }
            HirKind::Class(Class::Bytes(class)) => {
                let ranges: Vec<(char, char)> = class
                    .iter()
                    .map(|range| (char::from(range.start()), char::from(range.end())))
                    .collect();
                Ok(self.characters(&ranges, next))
            }
            HirKind::Look(_) => Err(RegexError::Unsupported("an inner anchor or a word boundary")),
            HirKind::Repetition(repetition) => {
                let (min, max) = (repetition.min, repetition.max);
                if (min, max) == (0, Some(1)) {
                    let branch = self.rule(&repetition.sub, next)?;
                    return Ok(self.builder.optional(branch, next));
                }
                if looks_ahead(&repetition.sub) {
                    return Err(RegexError::Unsupported("a repeated look-ahead"));
                }
                if max.unwrap_or(min) > MAX_REPETITIONS {
                    return Err(RegexError::Unsupported("too many repetitions"));
                }
                let rule = self.rule(&repetition.sub, RETURN)?;
                if rule == RETURN {
                    return Ok(next);
                }
                // The minimum is irrelevant if the repeated part may be empty.
                let min = if nullable(&repetition.sub) { 0 } else { min };
                Ok(self.builder.repeat(rule, min, max, next))
            }
            HirKind::Capture(capture) => match ahead(capture) {
                None => self.rule(&capture.sub, next),
                Some(operation) => {
                    let character = self.any_character();
                    let ahead = self.beginning(&capture.sub, character, false)?;
                    let rule = combined(self.builder, (next, ahead), operation)?;
                    Ok(rule.unwrap_or_else(|| self.builder.any_of(Vec::new())))
                }
            },
            HirKind::Concat(parts) => parts
                .iter()
                .rev()
                .try_fold(next, |next, part| self.rule(part, next)),
            HirKind::Alternation(branches) => {
                let branches = branches
                    .iter()
                    .map(|branch| self.rule(branch, next))
                    .collect::<Result<_, _>>()?;
                Ok(self.builder.any_of(branches))
            }
        }
    }

    fn characters(&mut self, ranges: &[(char, char)], next: NodeId) -> NodeId {
        if self.encoding == Encoding::Plain {
            return self.builder.characters(ranges, next);
        }
        let mut branches = Vec::new();
        let mut plain = Vec::new();
        for (first, last) in ranges {
            for c in ('\0'..'\u{20}').chain(['"', '\\']) {
                if (*first..=*last).contains(&c) {
                    branches.push(self.builder.literal(&escaped(c), next));
                }
            }
            for (from, to) in [(' ', '!'), ('#', '['), (']', char::MAX)] {
                let (from, to) = (from.max(*first), to.min(*last));
                if from <= to {
                    plain.push((from, to));
                }
            }
        }
        if !plain.is_empty() {
            branches.push(self.builder.characters(&plain, next));
        }
        self.builder.any_of(branches)
    }
}

fn nullable(hir: &Hir) -> bool {
    hir.properties().minimum_len() == Some(0)
}

/// Returns the JSON escape of a character.
fn escaped(c: char) -> Vec<u8> {
    let text = serde_json::to_string(&c).expect("a character is JSON");
    text.as_bytes()[1..text.len() - 1].to_vec()
}

/// Returns the branches of an expression without their anchors. The flags are set for an anchor at
/// the start and at the end.
fn anchored(hir: &Hir) -> Vec<(Hir, bool, bool)> {
    match hir.kind() {
        HirKind::Alternation(branches) => branches.iter().flat_map(anchored).collect(),
        HirKind::Capture(capture) if ahead(capture).is_none() => anchored(&capture.sub),
        HirKind::Look(Look::Start) => vec![(Hir::empty(), true, false)],
        HirKind::Look(Look::End) => vec![(Hir::empty(), false, true)],
        HirKind::Concat(parts) => {
            let is =
                |part: Option<&Hir>, look: Look| part.is_some_and(|part| *part.kind() == HirKind::Look(look));
            let (from_start, to_end) = (is(parts.first(), Look::Start), is(parts.last(), Look::End));
            let inner = &parts[usize::from(from_start)..parts.len() - usize::from(to_end)];
            let inner = Hir::concat(inner.to_vec());
            if !from_start && !to_end {
                return vec![(inner, false, false)];
            }
            // The parser may merge branches with a common prefix, each with a separate end anchor.
            let outer = |(hir, start, end): (Hir, bool, bool)| (hir, start || from_start, end || to_end);
            anchored(&inner).into_iter().map(outer).collect()
        }
        HirKind::Empty
        | HirKind::Literal(_)
        | HirKind::Class(_)
        | HirKind::Look(_)
        | HirKind::Capture(_)
        | HirKind::Repetition(_) => {
            vec![(hir.clone(), false, false)]
        }
    }
}
