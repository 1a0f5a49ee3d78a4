//! Regular expressions as rules of a grammar: of a whole text, or of what a JSON string says. `\d`,
//! `\w` and `\s` are those of ECMA-262, as JSON Schema has it.

use regex_syntax::hir::{Capture, Class, Hir, HirKind, Look};

use super::product::{TooManyStates, Wanted, combined};
use super::{Builder, NodeId, RETURN, TooLarge};

/// Longer ones would take more time to read than an answer is worth.
const MAX_PATTERN_BYTES: usize = 10_000;
/// Of one part.
const MAX_REPETITIONS: u32 = 100_000;

/// An expression that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegexError {
    #[error("it cannot be read: {0}")]
    Invalid(String),
    #[error("it uses {0}, which is not supported")]
    Unsupported(&'static str),
    #[error("no text fits it")]
    Empty,
    #[error(transparent)]
    TooManyStates(#[from] TooManyStates),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// How groups are named that say what follows, and what does not: the parser knows no look-ahead.
const AHEAD: &str = "rooflet_ahead_";
const NOT_AHEAD: &str = "rooflet_not_ahead_";

/// How characters are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    Plain,
    /// Inside a JSON string.
    Json,
}

/// Each way of what is returned fits some text, what it says of the text ahead aside.
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

/// To ask whether a text fits.
pub(super) fn compiled(pattern: &str) -> Result<regex::Regex, RegexError> {
    if looks_ahead(&parsed(pattern)?) {
        return Err(RegexError::Unsupported("a look-ahead among names"));
    }
    regex::Regex::new(&as_rust(pattern)).map_err(|err| RegexError::Invalid(err.to_string()))
}

/// An expression of ECMA-262 as the parser knows it. Classes inside classes are fine, so that each
/// is replaced wherever it stands.
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

/// Writes what is behind a backslash, and returns what is behind that.
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
            let (name, behind) = rest.split_at(rest.find('}').map_or(1, |end| end + 1));
            out.extend(["\\", name]);
            return behind;
        }
        other => out.extend(['\\', other]),
    }
    &rest[escaped.len_utf8()..]
}

/// Writes what is behind a class's bracket, and returns what is behind the class. The parser knows
/// classes inside classes, and operators on them; here `^` and the `-` of a range are all there is.
fn class<'p>(rest: &'p str, out: &mut String) -> &'p str {
    let others = rest.strip_prefix('^');
    out.push_str(if others.is_some() { "[^" } else { "[" });
    let mut rest = others.unwrap_or(rest);
    if rest.starts_with(']') {
        // Nothing is both.
        out.push_str("a&&b");
    }
    let is_set = |rest: &str| {
        let escaped = rest.strip_prefix('\\');
        escaped.is_some_and(|escaped| escaped.starts_with(['d', 'D', 'w', 'W', 's', 'S', 'p', 'P']))
    };
    // Whether a range may begin with what was before, and whether it has.
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

/// An expression without the ways that no text fits; `None`: there are no others.
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
            None => (ahead(capture) == Some(Wanted::OnlyTheFirst)).then(Hir::empty),
        },
        HirKind::Concat(parts) => Some(Hir::concat(parts.iter().map(possible).collect::<Option<_>>()?)),
        HirKind::Alternation(ways) => {
            let ways: Vec<Hir> = ways.iter().filter_map(possible).collect();
            (!ways.is_empty()).then(|| Hir::alternation(ways))
        }
    }
}

/// Whether some of an expression is about what follows it.
fn looks_ahead(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Capture(capture) => ahead(capture).is_some() || looks_ahead(&capture.sub),
        HirKind::Repetition(repetition) => looks_ahead(&repetition.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(looks_ahead),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

/// What a group wants of the text that follows.
fn ahead(capture: &Capture) -> Option<Wanted> {
    let name = capture.name.as_deref()?;
    match (name.starts_with(AHEAD), name.starts_with(NOT_AHEAD)) {
        (true, _) => Some(Wanted::Both),
        (_, true) => Some(Wanted::OnlyTheFirst),
        (false, false) => None,
    }
}

/// Whether all texts of an expression have so many characters, whatever is read of them.
pub(super) fn is_as_long(hir: &Hir, min: u32, max: Option<u32>) -> bool {
    // Of bytes; a character has four at most.
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

/// Builds the rules of one expression.
pub(super) struct RegexRules<'a> {
    pub(super) builder: &'a mut Builder,
    pub(super) writing: Writing,
}

impl RegexRules<'_> {
    /// From the text's beginning to its end, whether or not the expression says so.
    pub(super) fn whole(&mut self, hir: &Hir) -> Result<NodeId, RegexError> {
        let mut ways = Vec::new();
        for (part, _, _) in anchored(hir) {
            ways.push(self.rule(&part, RETURN)?);
        }
        let all = self.builder.any_of(ways);
        self.without_dead_ends(hir, all)
    }

    /// Anywhere in a text of such characters, unless the expression says otherwise.
    pub(super) fn somewhere(&mut self, hir: &Hir, character: NodeId) -> Result<NodeId, RegexError> {
        // Other spellings of a character would not be known where something is not to follow.
        let character = match looks_ahead(hir) {
            true => self.any_character(),
            false => character,
        };
        let all = self.beginning(hir, character, true)?;
        self.without_dead_ends(hir, all)
    }

    fn any_character(&mut self) -> NodeId {
        self.characters(&[('\0', char::MAX)], RETURN)
    }

    /// What looks ahead may rule out all that follows.
    fn without_dead_ends(&mut self, hir: &Hir, all: NodeId) -> Result<NodeId, RegexError> {
        if !looks_ahead(hir) {
            return Ok(all);
        }
        combined(self.builder, (all, all), Wanted::Both)?.ok_or(RegexError::Empty)
    }

    /// A text of such characters that begins as the expression says, or has it `anywhere`.
    fn beginning(&mut self, hir: &Hir, character: NodeId, anywhere: bool) -> Result<NodeId, RegexError> {
        let mut ways = Vec::new();
        for (hir, from_start, to_end) in anchored(hir) {
            let from_start = from_start || !anywhere;
            let behind = match to_end {
                true => RETURN,
                false => self.builder.repeat(character, 0, None, RETURN),
            };
            let way = self.rule(&hir, behind)?;
            ways.push(match from_start {
                true => way,
                false => self.builder.repeat(character, 0, None, way),
            });
        }
        Ok(self.builder.any_of(ways))
    }

    fn rule(&mut self, hir: &Hir, next: NodeId) -> Result<NodeId, RegexError> {
        self.builder.check_size()?;
        match hir.kind() {
            HirKind::Empty => Ok(next),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0)
                    .map_err(|_| RegexError::Unsupported("bytes that are no text"))?;
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
            HirKind::Look(_) => Err(RegexError::Unsupported("a condition inside the text")),
            HirKind::Repetition(repetition) => {
                let (min, max) = (repetition.min, repetition.max);
                if (min, max) == (0, Some(1)) {
                    let way = self.rule(&repetition.sub, next)?;
                    return Ok(self.builder.optional(way, next));
                }
                if looks_ahead(&repetition.sub) {
                    return Err(RegexError::Unsupported("a look-ahead that is repeated"));
                }
                if max.unwrap_or(min) > MAX_REPETITIONS {
                    return Err(RegexError::Unsupported("too many repetitions"));
                }
                let rule = self.rule(&repetition.sub, RETURN)?;
                if rule == RETURN {
                    return Ok(next);
                }
                // What may be empty is repeated often enough at once.
                let min = if nullable(&repetition.sub) { 0 } else { min };
                Ok(self.builder.repeat(rule, min, max, next))
            }
            HirKind::Capture(capture) => match ahead(capture) {
                None => self.rule(&capture.sub, next),
                Some(wanted) => {
                    let character = self.any_character();
                    let ahead = self.beginning(&capture.sub, character, false)?;
                    let rule = combined(self.builder, (next, ahead), wanted)?;
                    Ok(rule.unwrap_or_else(|| self.builder.any_of(Vec::new())))
                }
            },
            HirKind::Concat(parts) => parts
                .iter()
                .rev()
                .try_fold(next, |next, part| self.rule(part, next)),
            HirKind::Alternation(ways) => {
                let ways = ways
                    .iter()
                    .map(|way| self.rule(way, next))
                    .collect::<Result<_, _>>()?;
                Ok(self.builder.any_of(ways))
            }
        }
    }

    fn characters(&mut self, ranges: &[(char, char)], next: NodeId) -> NodeId {
        if self.writing == Writing::Plain {
            return self.builder.characters(ranges, next);
        }
        let mut ways = Vec::new();
        let mut plain = Vec::new();
        for (first, last) in ranges {
            for c in ('\0'..'\u{20}').chain(['"', '\\']) {
                if (*first..=*last).contains(&c) {
                    ways.push(self.builder.literal(&escaped(c), next));
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
            ways.push(self.builder.characters(&plain, next));
        }
        self.builder.any_of(ways)
    }
}

fn nullable(hir: &Hir) -> bool {
    hir.properties().minimum_len() == Some(0)
}

/// As JSON writes a character that cannot stand for itself.
fn escaped(c: char) -> Vec<u8> {
    let text = serde_json::to_string(&c).expect("a character is JSON");
    text.as_bytes()[1..text.len() - 1].to_vec()
}

/// The ways of an expression without the anchors around them, and whether there were any at the
/// start and the end.
fn anchored(hir: &Hir) -> Vec<(Hir, bool, bool)> {
    match hir.kind() {
        HirKind::Alternation(ways) => ways.iter().flat_map(anchored).collect(),
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
            // Ways that begin alike may have been made one, and each have an end of its own.
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
