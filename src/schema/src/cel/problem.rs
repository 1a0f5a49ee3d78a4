//! Errors of expressions, in the form of kube-apiserver: the position, the source line and a caret.

use std::sync::Arc;

use kube_cel::cel::{ParseErrors, common::ast::SourceInfo, parser::Parser};

use super::macros::{QUOTED_NAME, origin};
use super::spelling;

/// Maximum number of problems in an error.
const PROBLEMS_MAX: usize = 100;
/// Character that no expression may contain.
const ILLEGAL: &str = "\n$";
/// Characters that are wider than a dot and a caret.
const WIDE_DOT: char = '\u{ff0e}';
/// Second error of a name that is no identifier.
const UNSUPPORTED_FIELD: &str = "unsupported ident kind";
const WIDE_CARET: char = '\u{ff3e}';

/// Error in an expression, with its line (from 1; 0 without a place) and column (from 0).
#[derive(Debug)]
struct Problem {
    line: usize,
    column: usize,
    text: String,
}

impl Problem {
    /// Creates the problem at an offset in bytes.
    fn new(source: &str, offset: usize, text: String) -> Self {
        let before = source.get(..offset).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count(),
            text,
        }
    }
}

/// Finds the places of the parts of a [`plain`](spelling::plain) expression that the parser accepts. It returns
/// places only with errors, so this parses the expression with an illegal character at its end.
fn places(source: &str) -> Option<Arc<SourceInfo>> {
    let parser = Parser::default().enable_optional_syntax(true);
    let source = spelling::without_double_negations(source);
    let rejected = parser.parse(&format!("{source}{ILLEGAL}")).err()?;
    rejected.errors.into_iter().next()?.source_info
}

pub(super) fn syntax_error(source: &str, errors: &ParseErrors) -> CompilationError {
    let problems = errors.errors.iter().flat_map(|err| {
        let line = usize::try_from(err.pos.0).unwrap_or(1).max(1);
        let column = usize::try_from(err.pos.1).unwrap_or(1).saturating_sub(1);
        let text = in_words_of_cel_go(&err.msg).unwrap_or_else(|| err.msg.clone());
        let column = match text.as_str() {
            // The sign belongs to the literal.
            "invalid int literal" => column.saturating_sub(usize::from(is_sign(source, line, column))),
            _ => column,
        };
        let more = is_wrong_field(&text).then(|| UNSUPPORTED_FIELD.to_owned());
        let texts = std::iter::once(text).chain(more);
        texts.map(move |text| Problem { line, column, text })
    });
    CompilationError {
        expression: source.to_owned(),
        problems: problems.collect(),
    }
}

/// Returns true if the character before a place is a minus sign.
fn is_sign(source: &str, line: usize, column: usize) -> bool {
    let line = source.lines().nth(line - 1).unwrap_or_default();
    column > 0 && line.chars().nth(column - 1) == Some('-')
}

/// Returns true for the error of a name after `.?` that is no identifier. `cel-go` reports it twice.
fn is_wrong_field(text: &str) -> bool {
    text.starts_with("Syntax error: mismatched input")
        && text.ends_with("expecting {IDENTIFIER, ESC_IDENTIFIER}")
}

/// Returns the error of `cel-go` for a faulty character, or for the selection of a field with the name of a literal, as in `a.true`. Its
/// grammar differs from that of the crate.
fn in_words_of_cel_go(message: &str) -> Option<String> {
    if message.starts_with("invalid string literal: InvalidUnicode") {
        return Some("invalid unicode code point".to_owned());
    }
    let input = message.strip_prefix("Syntax error: no viable alternative at input '.")?;
    let name = input.strip_suffix('\'')?;
    let is_literal = ["true", "false", "null"].contains(&name);
    is_literal.then(|| format!("Syntax error: mismatched input '{name}' expecting IDENTIFIER"))
}

/// Rejected expression. The text contains the position, the source line and a caret for each
/// problem.
#[derive(Debug, thiserror::Error)]
#[error("compilation failed: {}", shown(expression, problems))]
pub struct CompilationError {
    expression: String,
    problems: Vec<Problem>,
}

impl CompilationError {
    /// Returns the problems, without the words that precede them in an error.
    pub fn problems(&self) -> String {
        shown(&self.expression, &self.problems)
    }

    /// Creates the error of an expression with more than `limit` code points. As in `cel-go`, the error has no place.
    pub(super) fn too_long(code_points: usize, limit: usize) -> Self {
        let text = format!("expression code point size exceeds limit: size: {code_points}, limit {limit}");
        Self {
            expression: String::new(),
            problems: vec![Problem {
                line: 0,
                column: 0,
                text,
            }],
        }
    }

    /// Creates the error from the problems of parts of the expression, by their identifiers.
    pub(super) fn new(source: &str, problems: Vec<(u64, String)>) -> Self {
        let source = &*spelling::plain(source);
        let places = places(source);
        let offset = |part: u64| {
            let places = places.as_ref();
            let place = places.and_then(|places| places.offset_for(origin(part)));
            place.map_or(0, |(start, _)| start as usize)
        };
        let problems = problems.into_iter().map(|(part, text)| {
            let mut offset = offset(part);
            if text == QUOTED_NAME {
                let rest = source.get(offset..).unwrap_or_default();
                let place = match rest.strip_prefix('{') {
                    Some(fields) => rest.find(fields.trim_start()),
                    None => rest.find('`'),
                };
                offset += place.unwrap_or_default();
            }
            Problem::new(source, offset, text)
        });
        let mut problems: Vec<Problem> = problems.collect();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        Self {
            expression: source.to_owned(),
            problems,
        }
    }
}

fn shown(source: &str, problems: &[Problem]) -> String {
    let mut lines: Vec<String> = problems
        .iter()
        .take(PROBLEMS_MAX)
        .map(|problem| {
            let Problem { line, column, text } = problem;
            if *line == 0 {
                return format!("ERROR: <input>:-1:0: {text}");
            }
            let snippet = source
                .lines()
                .nth(line - 1)
                .unwrap_or_default()
                .replace('\t', " ");
            let mut characters = snippet.chars();
            let before = characters.by_ref().take(*column);
            let mut pointer: String = before
                .map(|c| if c.is_ascii() { '.' } else { WIDE_DOT })
                .collect();
            let is_wide = characters.next().is_some_and(|c| !c.is_ascii());
            pointer.push(if is_wide { WIDE_CARET } else { '^' });
            let column = column + 1;
            format!("ERROR: <input>:{line}:{column}: {text}\n | {snippet}\n | {pointer}")
        })
        .collect();
    if let Some(more) = problems.len().checked_sub(PROBLEMS_MAX).filter(|more| *more > 0) {
        lines.push(format!("{more} more errors were truncated"));
    }
    lines.join("\n")
}
