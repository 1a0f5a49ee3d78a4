//! Regular expressions as rules of a grammar: of a whole text, or of what a JSON string says. `\d`, `\w` and `\s` are
//! those of ECMA-262, as JSON Schema has it.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::{Builder, NodeId, RETURN, TooLarge};

/// Longer ones would take more time to read than an answer is worth.
const MAX_PATTERN_BYTES: usize = 10_000;
/// Of one part.
const MAX_REPETITIONS: u32 = 100_000;

/// An expression that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegexError {
    #[error("it cannot be read: {0}")]
    Invalid(String),
    #[error("it uses {0}, which is not supported")]
    Unsupported(&'static str),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// How characters are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    Plain,
    /// Inside a JSON string.
    Json,
}

pub(super) fn parsed(pattern: &str) -> Result<Hir, RegexError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(RegexError::Unsupported("too many characters"));
    }
    regex_syntax::parse(&with_ascii_classes(pattern)).map_err(|err| {
        let text = err.to_string();
        let reason = text.lines().last().unwrap_or_default();
        RegexError::Invalid(reason.trim_start_matches("error: ").to_owned())
    })
}

/// To ask whether a text fits.
pub(super) fn compiled(pattern: &str) -> Result<regex::Regex, RegexError> {
    parsed(pattern)?;
    regex::Regex::new(&with_ascii_classes(pattern)).map_err(|err| RegexError::Invalid(err.to_string()))
}

/// Classes inside classes are fine, so that each is replaced wherever it stands.
fn with_ascii_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            Some('s') => out.push_str("[\\t\\n\\x0b\\f\\r\\u{20}\\u{a0}\\u{feff}\\p{Zs}\\u{2028}\\u{2029}]"),
            Some('S') => out.push_str("[^\\t\\n\\x0b\\f\\r\\u{20}\\u{a0}\\u{feff}\\p{Zs}\\u{2028}\\u{2029}]"),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

/// Builds the rules of one expression.
pub(super) struct RegexRules<'a> {
    pub(super) builder: &'a mut Builder,
    pub(super) writing: Writing,
}

impl RegexRules<'_> {
    /// From the text's beginning to its end, whether or not the expression says so.
    pub(super) fn whole(&mut self, hir: &Hir, next: NodeId) -> Result<NodeId, RegexError> {
        let mut ways = Vec::new();
        for (hir, _, _) in anchored(hir) {
            ways.push(self.rule(&hir, next)?);
        }
        Ok(self.builder.any_of(ways))
    }

    /// Anywhere in a text of such characters, unless the expression says otherwise.
    pub(super) fn somewhere(
        &mut self,
        hir: &Hir,
        character: NodeId,
        next: NodeId,
    ) -> Result<NodeId, RegexError> {
        let mut ways = Vec::new();
        for (hir, from_start, to_end) in anchored(hir) {
            let behind = match to_end {
                true => next,
                false => self.builder.repeat(character, 0, None, next),
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
            HirKind::Capture(capture) => self.rule(&capture.sub, next),
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
    hir.properties().minimum_len().is_none_or(|least| least == 0)
}

/// As JSON writes a character that cannot stand for itself.
fn escaped(c: char) -> Vec<u8> {
    let text = serde_json::to_string(&c).expect("a character is JSON");
    text.as_bytes()[1..text.len() - 1].to_vec()
}

/// The ways of an expression without the anchors around them, and whether there were any at the start and the end.
fn anchored(hir: &Hir) -> Vec<(Hir, bool, bool)> {
    match hir.kind() {
        HirKind::Alternation(ways) => ways.iter().flat_map(anchored).collect(),
        HirKind::Capture(capture) => anchored(&capture.sub),
        HirKind::Look(Look::Start) => vec![(Hir::empty(), true, false)],
        HirKind::Look(Look::End) => vec![(Hir::empty(), false, true)],
        HirKind::Concat(parts) => {
            let is =
                |part: Option<&Hir>, look: Look| part.is_some_and(|part| *part.kind() == HirKind::Look(look));
            let (from_start, to_end) = (is(parts.first(), Look::Start), is(parts.last(), Look::End));
            let inner = &parts[usize::from(from_start)..parts.len() - usize::from(to_end)];
            vec![(Hir::concat(inner.to_vec()), from_start, to_end)]
        }
        HirKind::Empty
        | HirKind::Literal(_)
        | HirKind::Class(_)
        | HirKind::Look(_)
        | HirKind::Repetition(_) => {
            vec![(hir.clone(), false, false)]
        }
    }
}
