//! Parser of GBNF.

use std::collections::HashMap;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::{
    EbnfError, Expression, MAX_DEPTH, MAX_GRAMMAR_BYTES, MAX_REPETITIONS, MAX_RULES, Rule, any_character,
};

const ROOT: &str = "root";
const DEFINES: &str = "::=";
/// Maximum number of repetition operators after one part. They are nested expressions.
const MAX_OPERATORS: usize = 4;

/// Parses a grammar into its rules and the index of the rule `root`.
pub(super) fn parse(text: &str) -> Result<(Vec<Rule>, usize), EbnfError> {
    if text.len() > MAX_GRAMMAR_BYTES {
        return Err(EbnfError::TooLong);
    }
    let mut parser = Parser {
        text,
        rest: text,
        depth: 0,
        names: HashMap::new(),
        bodies: Vec::new(),
    };
    parser.skip_space();
    while !parser.rest.is_empty() {
        parser.rule()?;
    }
    parser.finish()
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    /// Number of open groups.
    depth: usize,
    /// Index of each rule that was named so far.
    names: HashMap<&'a str, usize>,
    /// Name and body of each rule, the latter once it was defined.
    bodies: Vec<(&'a str, Option<Expression>)>,
}

impl<'a> Parser<'a> {
    fn finish(self) -> Result<(Vec<Rule>, usize), EbnfError> {
        let root = self.names.get(ROOT).copied();
        let defined = |(name, body): (&str, Option<Expression>)| -> Result<Rule, EbnfError> {
            let body = body.ok_or_else(|| EbnfError::Undefined(name.to_owned()))?;
            let name = name.to_owned();
            Ok(Rule { name, body })
        };
        let rules = self.bodies.into_iter().map(defined).collect::<Result<_, _>>()?;
        let root = root.ok_or_else(|| EbnfError::Undefined(ROOT.to_owned()))?;
        Ok((rules, root))
    }

    fn error(&self, problem: impl Into<String>) -> EbnfError {
        EbnfError::Syntax {
            line: self.line(),
            problem: problem.into(),
        }
    }

    fn unsupported(&self, what: &'static str) -> EbnfError {
        EbnfError::Unsupported {
            line: self.line(),
            what,
        }
    }

    /// Returns the number of the current line, from 1.
    fn line(&self) -> usize {
        let read = &self.text[..self.text.len() - self.rest.len()];
        read.matches('\n').count() + 1
    }

    /// Skips white space and comments.
    fn skip_space(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            let Some(comment) = self.rest.strip_prefix('#') else {
                return;
            };
            self.rest = &comment[comment.find('\n').unwrap_or(comment.len())..];
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let after = self.rest.strip_prefix(text);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn next_char(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    /// Returns the name at the current position, if there is one.
    fn peek_name(&self) -> Option<&'a str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let begins = self.rest.starts_with(is_word);
        let end = self.rest.find(|c| !is_word(c) && c != '.');
        begins.then(|| &self.rest[..end.unwrap_or(self.rest.len())])
    }

    /// Returns true if a definition of a rule begins at the current position.
    fn is_at_definition(&self) -> bool {
        self.peek_name()
            .is_some_and(|name| self.rest[name.len()..].trim_start().starts_with(DEFINES))
    }

    fn index_of(&mut self, name: &'a str) -> Result<usize, EbnfError> {
        if let Some(index) = self.names.get(name) {
            return Ok(*index);
        }
        let index = self.bodies.len();
        if index == MAX_RULES {
            return Err(EbnfError::TooManyRules);
        }
        self.names.insert(name, index);
        self.bodies.push((name, None));
        Ok(index)
    }

    fn rule(&mut self) -> Result<(), EbnfError> {
        if !self.is_at_definition() {
            let found: String = self.rest.chars().take(20).collect();
            return Err(self.error(format!(
                "expected a rule 'name ::= …', found '{}'",
                found.escape_debug()
            )));
        }
        let name = self.peek_name().unwrap_or_default();
        let index = self.index_of(name)?;
        self.rest = &self.rest[name.len()..];
        self.skip_space();
        self.take(DEFINES);
        let body = self.choice()?;
        match self.bodies[index].1.replace(body) {
            None => Ok(()),
            Some(_) => Err(EbnfError::Duplicate(name.to_owned())),
        }
    }

    fn choice(&mut self) -> Result<Expression, EbnfError> {
        let mut branches = vec![self.sequence()?];
        while self.take("|") {
            branches.push(self.sequence()?);
        }
        Ok(match branches.len() {
            1 => branches.remove(0),
            _ => Expression::Choice(branches),
        })
    }

    fn sequence(&mut self) -> Result<Expression, EbnfError> {
        let mut parts = Vec::new();
        loop {
            self.skip_space();
            if self.rest.is_empty() || self.rest.starts_with(['|', ')']) || self.is_at_definition() {
                break;
            }
            let part = self.item()?;
            parts.push(self.repeated(part)?);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Expression::Sequence(parts),
        })
    }

    fn item(&mut self) -> Result<Expression, EbnfError> {
        if self.rest.starts_with("(=") {
            return Err(self.unsupported("a lookahead assertion"));
        }
        if self.take("(") {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return Err(self.error(format!("groups are nested more than {MAX_DEPTH} levels deep")));
            }
            let group = self.choice()?;
            if !self.take(")") {
                return Err(self.error("a group has no ')'"));
            }
            self.depth -= 1;
            return Ok(group);
        }
        if self.take("\"") {
            return self.text().map(Expression::Text);
        }
        if self.take("[") {
            return self.class().map(Expression::Class);
        }
        if self.take(".") {
            return Ok(Expression::Class(any_character()));
        }
        if let Some(name) = self.peek_name() {
            let index = self.index_of(name)?;
            self.rest = &self.rest[name.len()..];
            return Ok(Expression::Rule(index));
        }
        match self.rest.chars().next() {
            Some('<') => Err(self.unsupported("a token such as <[1]>")),
            Some(c) => Err(self.error(format!("unexpected '{}'", c.escape_debug()))),
            None => Err(self.error("unexpected end")),
        }
    }

    /// Parses repetition operators after a part.
    fn repeated(&mut self, mut part: Expression) -> Result<Expression, EbnfError> {
        for _ in 0..MAX_OPERATORS {
            let (min, max) = match self.rest.chars().next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.next_char();
                    let (min, max) = self.bounds()?;
                    part = Expression::Repeat(Box::new(part), min, max);
                    continue;
                }
                _ => return Ok(part),
            };
            self.next_char();
            part = Expression::Repeat(Box::new(part), min, max);
        }
        Err(self.error("too many repetition operators after one part"))
    }

    /// Parses `n}`, `n,}`, `,m}` or `n,m}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), EbnfError> {
        let end = self.rest.find('}');
        let (bounds, after) = self
            .rest
            .split_at(end.ok_or_else(|| self.error("a repetition has no '}'"))?);
        let number = |text: &str| {
            let number = text.trim().parse::<u32>().ok();
            number.filter(|number| *number <= MAX_REPETITIONS).ok_or_else(|| {
                self.error(format!(
                    "a number of repetitions must be an integer from 0 to {MAX_REPETITIONS}"
                ))
            })
        };
        let bounds = match bounds.split_once(',') {
            None => {
                let count = number(bounds)?;
                (count, Some(count))
            }
            Some((min, max)) => {
                let min = if min.trim().is_empty() { 0 } else { number(min)? };
                let max = if max.trim().is_empty() {
                    None
                } else {
                    Some(number(max)?)
                };
                (min, max)
            }
        };
        if bounds.1.is_some_and(|max| max < bounds.0) {
            return Err(self.error("the maximum number of repetitions is less than the minimum"));
        }
        self.rest = &after[1..];
        Ok(bounds)
    }

    /// Parses a text after its opening quotation mark.
    fn text(&mut self) -> Result<String, EbnfError> {
        let mut text = String::new();
        loop {
            match self.next_char() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escaped()?),
                Some('\n') | None => return Err(self.error("a text has no closing '\"'")),
                Some(c) => text.push(c),
            }
        }
    }

    /// Parses a character class after its opening bracket.
    fn class(&mut self) -> Result<ClassUnicode, EbnfError> {
        let is_negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            let first = match self.next_char() {
                Some(']') => break,
                Some('\\') => self.escaped()?,
                Some('\n') | None => return Err(self.error("a character class has no ']'")),
                Some(c) => c,
            };
            let is_range = self.rest.starts_with('-') && !self.rest[1..].starts_with(']');
            let last = if is_range {
                self.next_char();
                match self.next_char() {
                    Some('\\') => self.escaped()?,
                    Some(c) => c,
                    None => return Err(self.error("a character class has no ']'")),
                }
            } else {
                first
            };
            if last < first {
                return Err(self.error("a range of characters ends before it begins"));
            }
            ranges.push(ClassUnicodeRange::new(first, last));
        }
        let mut class = ClassUnicode::new(ranges);
        if is_negated {
            class.negate();
        }
        Ok(class)
    }

    /// Parses an escaped character after its backslash.
    fn escaped(&mut self) -> Result<char, EbnfError> {
        let digits = match self.next_char() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('b') => return Ok('\u{8}'),
            Some('f') => return Ok('\u{c}'),
            Some('v') => return Ok('\u{b}'),
            Some('0') => return Ok('\0'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if c.is_ascii_punctuation() => return Ok(c),
            Some(c) => return Err(self.error(format!("unknown escape '\\{}'", c.escape_debug()))),
            None => return Err(self.error("unexpected end after a backslash")),
        };
        let code = self
            .rest
            .get(..digits)
            .filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let c = code
            .and_then(|code| u32::from_str_radix(code, 16).ok())
            .and_then(char::from_u32);
        let c = c.ok_or_else(|| {
            self.error(format!(
                "an escape needs {digits} hexadecimal digits of a character"
            ))
        })?;
        self.rest = &self.rest[digits..];
        Ok(c)
    }
}
