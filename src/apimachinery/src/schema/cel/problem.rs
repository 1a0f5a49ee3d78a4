//! Errors of expressions, in the form of kube-apiserver: the position, the source line and a caret.

use std::sync::Arc;

use kube_cel::cel::{ParseErrors, common::ast::SourceInfo};

/// Maximum number of problems in an error.
const PROBLEMS_MAX: usize = 100;
/// Character that no expression may contain.
const ILLEGAL: &str = "\n$";
/// Characters that are wider than a dot and a caret.
const WIDE_DOT: char = '\u{ff0e}';
const WIDE_CARET: char = '\u{ff3e}';

/// Error in an expression, with its line (from 1) and column (from 0).
#[derive(Debug)]
pub struct Problem {
    line: usize,
    column: usize,
    text: String,
}

impl Problem {
    /// Returns a problem at the first whole-word occurrence of `needle` in the source.
    pub fn at(source: &str, needle: &str, text: String) -> Self {
        Self::at_offset(source, offset(source, needle), text)
    }

    /// Like [`Problem::at`], but behind the occurrence.
    pub fn after(source: &str, needle: &str, text: String) -> Self {
        let end = offset(source, needle) + needle.len();
        Self::at_offset(source, end.min(source.len()), text)
    }

    /// Returns a problem at a place in the source.
    pub fn at_offset(source: &str, offset: usize, text: String) -> Self {
        let before = source.get(..offset).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count(),
            text,
        }
    }
}

/// Places of the parts of an expression, by their identifiers.
pub(super) struct Places(Option<Arc<SourceInfo>>);

impl Places {
    /// Finds the places in an expression that the parser accepts. It returns places only with errors,
    /// so this parses the expression with an illegal character at its end.
    pub(super) fn of(source: &str) -> Self {
        let rejected = super::parse(&format!("{source}{ILLEGAL}")).err();
        let error = rejected.and_then(|errors| errors.errors.into_iter().next());
        Self(error.and_then(|error| error.source_info))
    }

    /// Returns the offset of a part in bytes.
    pub(super) fn offset(&self, part: u64) -> usize {
        let place = self.0.as_ref().and_then(|info| info.offset_for(part));
        place.map_or(0, |(start, _)| start as usize)
    }
}

/// Returns the place of the first whole-word occurrence, or zero.
fn offset(source: &str, needle: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    source
        .match_indices(needle)
        .find(|(start, found)| {
            let before = source[..*start].chars().next_back();
            let after = source[start + found.len()..].chars().next();
            !after.is_some_and(is_word)
                && (needle.starts_with('.') || !before.is_some_and(|c| is_word(c) || c == '.'))
        })
        .map_or(0, |(start, _)| start)
}

pub fn syntax_error(source: &str, errors: &ParseErrors) -> CompilationError {
    let problems = errors.errors.iter().map(|err| Problem {
        line: usize::try_from(err.pos.0).unwrap_or(1).max(1),
        column: usize::try_from(err.pos.1).unwrap_or(1).saturating_sub(1),
        text: err.msg.clone(),
    });
    CompilationError {
        expression: source.to_owned(),
        problems: problems.collect(),
    }
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
    pub fn new(expression: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.line, problem.column));
        Self {
            expression: expression.to_owned(),
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
