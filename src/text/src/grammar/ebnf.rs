//! Context-free grammars in EBNF, in the notation of llama.cpp and xgrammar (GBNF): rules
//! `name ::= …` with texts, character classes, groups and repetitions. The answer matches the rule
//! `root`.
//!
//! A left-recursive rule would call itself without end. A rule that refers to itself at the
//! beginning of its own alternatives becomes a repetition. Other left recursion is rejected.

mod analysis;
mod parser;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::{Builder, NodeId, RETURN, TooLarge};

/// Maximum length of a grammar in bytes.
const MAX_GRAMMAR_BYTES: usize = 100_000;
/// Maximum number of rules.
const MAX_RULES: usize = 2_000;
/// Maximum nesting depth of groups.
const MAX_DEPTH: usize = 50;
/// Maximum number of repetitions of one part.
const MAX_REPETITIONS: u32 = 10_000;

/// Error in a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EbnfError {
    #[error("line {line}: {problem}")]
    Syntax { line: usize, problem: String },
    #[error("line {line}: {what} is not supported")]
    Unsupported { line: usize, what: &'static str },
    #[error("the rule '{0}' is not defined")]
    Undefined(String),
    #[error("the rule '{0}' is defined twice")]
    Duplicate(String),
    #[error(
        "the rule '{0}' is left-recursive: it can refer to itself before any text; rewrite it as a repetition, such as \
         'list ::= item (\",\" item)*'"
    )]
    LeftRecursive(String),
    #[error("no text matches the rule 'root'")]
    Empty,
    #[error("the grammar has more than {MAX_GRAMMAR_BYTES} bytes, which is the maximum")]
    TooLong,
    #[error("the grammar has more than {MAX_RULES} rules, which is the maximum")]
    TooManyRules,
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Part of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Expression {
    Text(String),
    Class(ClassUnicode),
    /// Index of a rule.
    Rule(usize),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    Repeat(Box<Expression>, u32, Option<u32>),
}

impl Expression {
    fn empty() -> Self {
        Self::Sequence(Vec::new())
    }
}

/// Rule with its name.
#[derive(Debug, Clone, PartialEq)]
struct Rule {
    name: String,
    body: Expression,
}

/// Builds a rule for the texts that match a grammar.
pub(super) fn ebnf_rule(builder: &mut Builder, text: &str) -> Result<NodeId, EbnfError> {
    let (rules, root) = parser::parse(text)?;
    let rules = analysis::without_left_recursion(analysis::without_dead_ends(rules, root)?)?;
    let reserved: Vec<NodeId> = rules.iter().map(|_| builder.reserve()).collect();
    let nullable = analysis::nullable_rules(&rules);
    let mut writer = Writer {
        builder,
        reserved: &reserved,
        nullable: &nullable,
    };
    for (rule, node) in rules.iter().zip(&reserved) {
        let body = writer.expression(&rule.body, RETURN)?;
        writer.builder.define(*node, body);
    }
    Ok(reserved[root])
}

struct Writer<'a> {
    builder: &'a mut Builder,
    /// Node of each rule.
    reserved: &'a [NodeId],
    nullable: &'a [bool],
}

impl Writer<'_> {
    fn expression(&mut self, expression: &Expression, next: NodeId) -> Result<NodeId, EbnfError> {
        self.builder.check_size()?;
        Ok(match expression {
            Expression::Text(text) => self.builder.literal(text.as_bytes(), next),
            Expression::Class(class) => {
                let ranges: Vec<(char, char)> =
                    class.iter().map(|range| (range.start(), range.end())).collect();
                self.builder.characters(&ranges, next)
            }
            Expression::Rule(rule) => self.builder.call(self.reserved[*rule], next),
            Expression::Sequence(parts) => parts
                .iter()
                .rev()
                .try_fold(next, |next, part| self.expression(part, next))?,
            Expression::Choice(branches) => {
                let branches = branches.iter().map(|branch| self.expression(branch, next));
                let branches = branches.collect::<Result<_, _>>()?;
                self.builder.any_of(branches)
            }
            Expression::Repeat(part, 0, Some(1)) => {
                let branch = self.expression(part, next)?;
                self.builder.optional(branch, next)
            }
            Expression::Repeat(part, min, max) => {
                let rule = self.expression(part, RETURN)?;
                if rule == RETURN {
                    return Ok(next);
                }
                // The minimum is irrelevant if the repeated part may be empty.
                let min = match analysis::is_nullable(part, self.nullable) {
                    true => 0,
                    false => *min,
                };
                self.builder.repeat(rule, min, *max, next)
            }
        })
    }
}

/// Returns the class of all characters.
fn any_character() -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new('\0', char::MAX)])
}

#[cfg(test)]
mod tests;
