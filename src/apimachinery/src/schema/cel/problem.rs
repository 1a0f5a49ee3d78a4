//! Errors of expressions, in the form of kube-apiserver: the position, the source line and a caret.

use kube_cel::cel::ParseErrors;

/// Error in an expression, with its line (from 1) and column (from 0).
#[derive(Debug)]
pub(crate) struct Problem {
    line: usize,
    column: usize,
    text: String,
}

impl Problem {
    /// Returns a problem at the first whole-word occurrence of `needle` in the source.
    pub(crate) fn at(source: &str, needle: &str, text: String) -> Self {
        Self::at_offset(source, offset(source, needle), text)
    }

    /// Like [`Problem::at`], but behind the occurrence.
    pub(crate) fn after(source: &str, needle: &str, text: String) -> Self {
        let end = offset(source, needle) + needle.len();
        Self::at_offset(source, end.min(source.len()), text)
    }

    fn at_offset(source: &str, offset: usize, text: String) -> Self {
        let before = source.get(..offset).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count(),
            text,
        }
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

pub(crate) fn syntax_error(source: &str, errors: &ParseErrors) -> CompilationError {
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
pub(crate) struct CompilationError {
    expression: String,
    problems: Vec<Problem>,
}

impl CompilationError {
    pub(crate) fn new(expression: &str, problems: Vec<Problem>) -> Self {
        Self {
            expression: expression.to_owned(),
            problems,
        }
    }
}

fn shown(source: &str, problems: &[Problem]) -> String {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| {
            let Problem { line, column, text } = problem;
            let snippet = source.lines().nth(line - 1).unwrap_or_default();
            let dots = ".".repeat(*column);
            format!(
                "ERROR: <input>:{line}:{}: {text}\n | {snippet}\n | {dots}^",
                column + 1
            )
        })
        .collect();
    lines.join("\n")
}
