//! Label and field selectors of lists and watches.
//!
//! Grammar, edge cases (`a in ()`, `a=`) and error texts are those of apimachinery. Parsing
//! validates a selector; matching cannot fail.

mod label_text;

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;

use label_text::Label;
use rooflet_schema::{FieldError, aggregate, names};

/// Selector syntax error. Its text is the status message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSelectorError {
    #[error("found '{found}', expected: {expected}")]
    Unexpected { found: String, expected: &'static str },
    #[error("found '{found}' expected: '('")]
    NoValues { found: String },
    #[error("unable to parse requirement: {0}")]
    Requirement(Box<Self>),
    /// The key is not a qualified name.
    #[error("{0}")]
    Key(String),
    /// Key, operator and values do not match.
    #[error("{0}")]
    Values(String),
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    FieldTerm { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: \\{sequence}")]
    Escape { sequence: String },
    #[error("invalid field selector: unescaped character in value: {character}")]
    Unescaped { character: char },
}

fn unexpected(found: &Token, expected: &'static str) -> ParseSelectorError {
    ParseSelectorError::Unexpected {
        found: found.text(),
        expected,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Equals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

/// Conjunction of label requirements. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<Self, ParseSelectorError> {
        let mut parser = Parser {
            tokens: tokens(text),
            position: 0,
        };
        parser.selector().map(|requirements| Self { requirements })
    }

    /// Converts a `LabelSelector` object with `matchLabels` and `matchExpressions`.
    pub fn of_object(selector: &Value) -> Result<Self, ParseSelectorError> {
        let labels = selector.get("matchLabels").and_then(Value::as_object);
        let equal = labels.into_iter().flatten().map(|(key, value)| {
            let value = value.as_str().unwrap_or_default().to_owned();
            Requirement::checked(key.clone(), Operator::In, BTreeSet::from([value]))
        });
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        let expressions = expressions.into_iter().flatten().map(|expression| {
            let text = |key: &str| expression.get(key).and_then(Value::as_str).unwrap_or_default();
            let operator = match text("operator") {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(ParseSelectorError::Values(format!(
                        "{other:?} is not a valid label selector operator"
                    )));
                }
            };
            let values = expression.get("values").and_then(Value::as_array);
            let values = values.into_iter().flatten().filter_map(Value::as_str);
            Requirement::checked(
                text("key").to_owned(),
                operator,
                values.map(str::to_owned).collect(),
            )
        });
        let requirements = equal.chain(expressions).collect::<Result<_, _>>()?;
        Ok(Self { requirements })
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Matches `metadata.labels` of an object.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = object.get("metadata").and_then(|metadata| metadata.get("labels"));
        self.requirements.iter().all(|requirement| {
            requirement.matches(
                labels
                    .and_then(|labels| labels.get(&requirement.key))
                    .and_then(Value::as_str),
            )
        })
    }

    /// Like [`LabelSelector::matches`], for the JSON of the labels, or an empty text if there are none.
    /// Returns `None` if the text must be parsed.
    pub fn matches_text(&self, labels: &[u8]) -> Option<bool> {
        for requirement in &self.requirements {
            let label = match label_text::label(labels, &requirement.key) {
                Label::Absent => None,
                Label::Text(text) => Some(text),
                Label::Complex => return None,
            };
            if !requirement.matches(label) {
                return Some(false);
            }
        }
        Some(true)
    }
}

/// Returns the place of `metadata.labels` in the JSON of an object, for [`LabelSelector::matches_text`].
pub fn locate_labels(json: &[u8]) -> Option<Range<usize>> {
    label_text::locate(json)
}

impl Requirement {
    fn matches(&self, label: Option<&str>) -> bool {
        let ordered = |test: fn(&i64, &i64) -> bool| {
            let label: Option<i64> = label.and_then(|label| label.parse().ok());
            let bound: Option<i64> = self.values.first().and_then(|value| value.parse().ok());
            label
                .zip(bound)
                .is_some_and(|(label, bound)| test(&label, &bound))
        };
        match self.operator {
            Operator::In | Operator::Equals => label.is_some_and(|label| self.values.contains(label)),
            // An absent label differs from every value.
            Operator::NotIn | Operator::NotEquals => !label.is_some_and(|label| self.values.contains(label)),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => ordered(i64::gt),
            Operator::LessThan => ordered(i64::lt),
        }
    }

    fn checked(
        key: String,
        operator: Operator,
        values: BTreeSet<String>,
    ) -> Result<Self, ParseSelectorError> {
        let mut errors = Vec::new();
        let all = || Value::from(values.iter().cloned().collect::<Vec<_>>());
        let key_errors = names::qualified_name(&key);
        if !key_errors.is_empty() {
            errors.push(FieldError::invalid_text("key", &key, &key_errors.join("; ")));
        }
        if matches!(operator, Operator::In | Operator::NotIn) && values.is_empty() {
            let detail = "for 'in', 'notin' operators, values set can't be empty";
            errors.push(FieldError::invalid("values", &all(), detail));
        }
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            for (index, value) in values.iter().enumerate() {
                if value.parse::<i64>().is_err() {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.push(FieldError::invalid_text(
                        format!("values[{index}]"),
                        value,
                        detail,
                    ));
                }
            }
        }
        for (index, value) in values.iter().enumerate() {
            let value_errors = names::label_value(value);
            if !value_errors.is_empty() {
                let field = format!("values[{index}][{key}]");
                errors.push(FieldError::invalid_text(field, value, &value_errors.join("; ")));
            }
        }
        if errors.is_empty() {
            Ok(Self {
                key,
                operator,
                values,
            })
        } else {
            Err(ParseSelectorError::Values(aggregate(&errors)))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Open,
    Close,
    Comma,
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    GreaterThan,
    LessThan,
    In,
    NotIn,
    /// Characters that are not part of a token.
    Stray(String),
    End,
}

impl Token {
    fn text(&self) -> String {
        match self {
            Token::Word(word) => word.clone(),
            Token::Open => "(".to_owned(),
            Token::Close => ")".to_owned(),
            Token::Comma => ",".to_owned(),
            Token::Not => "!".to_owned(),
            Token::Equals => "=".to_owned(),
            Token::DoubleEquals => "==".to_owned(),
            Token::NotEquals => "!=".to_owned(),
            Token::GreaterThan => ">".to_owned(),
            Token::LessThan => "<".to_owned(),
            Token::In => "in".to_owned(),
            Token::NotIn => "notin".to_owned(),
            Token::Stray(text) => format!("error expected: keyword found '{text}'"),
            Token::End => String::new(),
        }
    }

    /// Converts keywords to words, because keys and values may equal keywords.
    fn into_value(self) -> Token {
        if matches!(self, Token::In | Token::NotIn) {
            Token::Word(self.text())
        } else {
            self
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let is_symbol = |c: char| "=!(),><".contains(c);
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t', '\r', '\n']);
    while let Some(first) = rest.chars().next() {
        let length;
        if is_symbol(first) {
            let two = rest.get(..2).unwrap_or_default();
            let (token, len) = match (two, first) {
                ("==", _) => (Token::DoubleEquals, 2),
                ("!=", _) => (Token::NotEquals, 2),
                (_, '=') => (Token::Equals, 1),
                (_, '!') => (Token::Not, 1),
                (_, '(') => (Token::Open, 1),
                (_, ')') => (Token::Close, 1),
                (_, ',') => (Token::Comma, 1),
                (_, '>') => (Token::GreaterThan, 1),
                (_, '<') => (Token::LessThan, 1),
                (_, other) => (Token::Stray(other.to_string()), other.len_utf8()),
            };
            tokens.push(token);
            length = len;
        } else {
            length = rest
                .find(|c: char| is_symbol(c) || " \t\r\n".contains(c))
                .unwrap_or(rest.len());
            tokens.push(match &rest[..length] {
                "in" => Token::In,
                "notin" => Token::NotIn,
                word => Token::Word(word.to_owned()),
            });
        }
        rest = rest[length..].trim_start_matches([' ', '\t', '\r', '\n']);
    }
    tokens.push(Token::End);
    tokens
}

struct Parser {
    tokens: Vec<Token>,
    position: usize,
}

impl Parser {
    fn peek(&self) -> Token {
        self.tokens
            .get(self.position)
            .cloned()
            .unwrap_or(Token::End)
            .into_value()
    }

    fn take(&mut self) -> Token {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, ParseSelectorError> {
        let mut requirements = Vec::new();
        loop {
            let next = self.peek();
            if next == Token::End {
                return Ok(requirements);
            }
            if !matches!(next, Token::Word(_) | Token::Not) {
                return Err(unexpected(&next, "!, identifier, or 'end of string'"));
            }
            let requirement = self
                .requirement()
                .map_err(|err| ParseSelectorError::Requirement(Box::new(err)))?;
            requirements.push(requirement);
            let separator = self.take();
            if separator == Token::End {
                return Ok(requirements);
            }
            if separator != Token::Comma {
                return Err(unexpected(&separator, "',' or 'end of string'"));
            }
            let next = self.peek();
            if !matches!(next, Token::Word(_) | Token::Not) {
                return Err(unexpected(&next, "identifier after ','"));
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, ParseSelectorError> {
        let mut token = self.take();
        let absent = token == Token::Not;
        if absent {
            token = self.take();
        }
        let Token::Word(key) = token else {
            return Err(unexpected(&token, "identifier"));
        };
        let errors = names::qualified_name(&key);
        if !errors.is_empty() {
            let err = FieldError::invalid_text("<nil>", &key, &errors.join("; "));
            return Err(ParseSelectorError::Key(err.summary()));
        }
        if absent {
            return Requirement::checked(key, Operator::DoesNotExist, BTreeSet::new());
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Requirement::checked(key, Operator::Exists, BTreeSet::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            Operator::Equals
            | Operator::NotEquals
            | Operator::GreaterThan
            | Operator::LessThan
            | Operator::Exists
            | Operator::DoesNotExist => self.exact_value()?,
        };
        Requirement::checked(key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, ParseSelectorError> {
        let token = self.tokens.get(self.position).cloned().unwrap_or(Token::End);
        self.position += 1;
        match token {
            Token::In => Ok(Operator::In),
            Token::NotIn => Ok(Operator::NotIn),
            Token::Equals | Token::DoubleEquals => Ok(Operator::Equals),
            Token::NotEquals => Ok(Operator::NotEquals),
            Token::GreaterThan => Ok(Operator::GreaterThan),
            Token::LessThan => Ok(Operator::LessThan),
            Token::Word(_)
            | Token::Open
            | Token::Close
            | Token::Comma
            | Token::Not
            | Token::Stray(_)
            | Token::End => Err(unexpected(&token, "in, notin, =, ==, !=, gt, lt")),
        }
    }

    fn values(&mut self) -> Result<BTreeSet<String>, ParseSelectorError> {
        let open = self.take();
        if open != Token::Open {
            return Err(ParseSelectorError::NoValues { found: open.text() });
        }
        let first = self.peek();
        if first == Token::Close {
            self.take();
            return Ok(BTreeSet::from([String::new()]));
        }
        if !matches!(first, Token::Word(_) | Token::Comma) {
            return Err(unexpected(&first, "',', ')' or identifier"));
        }
        let values = self.identifiers()?;
        if self.take() == Token::Close {
            Ok(values)
        } else {
            Err(unexpected(&first, "')'"))
        }
    }

    fn identifiers(&mut self) -> Result<BTreeSet<String>, ParseSelectorError> {
        let mut values = BTreeSet::new();
        loop {
            let token = self.take();
            let next = self.peek();
            if let Token::Word(word) = token {
                values.insert(word);
                if next == Token::Close {
                    return Ok(values);
                }
                if next != Token::Comma {
                    return Err(unexpected(&next, "',' or ')'"));
                }
            } else if token == Token::Comma {
                // `(,a)`, `(a,)` and `(a,,b)` each contain an empty value.
                if values.is_empty() || matches!(next, Token::Close | Token::Comma) {
                    values.insert(String::new());
                }
                if next == Token::Close {
                    return Ok(values);
                }
            } else {
                return Err(unexpected(&token, "',', or identifier"));
            }
        }
    }

    fn exact_value(&mut self) -> Result<BTreeSet<String>, ParseSelectorError> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok(BTreeSet::from([String::new()]));
        }
        let token = self.take();
        if let Token::Word(word) = token {
            Ok(BTreeSet::from([word]))
        } else {
            Err(unexpected(&token, "identifier"))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    field: String,
    value: String,
    /// True for `!=`.
    differs: bool,
}

/// Conjunction of `field=value` and `field!=value`. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<Self, ParseSelectorError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let rejected = || ParseSelectorError::FieldTerm {
                selector: text.to_owned(),
                term: part.to_owned(),
            };
            let (at, operator) = part
                .char_indices()
                .find_map(|(at, _)| {
                    Some((
                        at,
                        ["!=", "==", "="]
                            .into_iter()
                            .find(|op| part[at..].starts_with(op))?,
                    ))
                })
                .ok_or_else(rejected)?;
            let value = unescape(&part[at + operator.len()..])?;
            terms.push(FieldTerm {
                field: part[..at].to_owned(),
                value,
                differs: operator == "!=",
            });
        }
        Ok(Self { terms })
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the fields of the selector. The caller checks that the kind supports them.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| term.field.as_str())
    }

    /// Returns the value that the selector requires of a field. Example: `metadata.name=x` selects
    /// one object.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|term| !term.differs && term.field == field)
            .map(|term| term.value.as_str())
    }

    /// Returns the fields for which the selector requires a value, with the value.
    pub fn exact_terms(&self) -> impl Iterator<Item = (&str, &str)> {
        let exact = self.terms.iter().filter(|term| !term.differs);
        exact.map(|term| (term.field.as_str(), term.value.as_str()))
    }

    /// Returns values that the JSON of a selected object contains, unless a value is a default or computed.
    pub fn required_texts(&self) -> impl Iterator<Item = &str> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let exact = self.terms.iter().filter(|term| !term.differs);
        exact
            .map(|term| term.value.as_str())
            .filter(move |value| value.chars().all(is_plain))
    }

    /// Matches with a lookup of fields by the caller, since some kinds rename fields. Absent fields
    /// are empty texts.
    pub fn matches_with(&self, field: impl Fn(&str) -> String) -> bool {
        self.terms
            .iter()
            .all(|term| (field(&term.field) == term.value) != term.differs)
    }
}

/// Splits at commas that are not escaped by a backslash.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn unescape(text: &str) -> Result<String, ParseSelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                Some(other) => {
                    return Err(ParseSelectorError::Escape {
                        sequence: other.to_string(),
                    });
                }
                None => {
                    return Err(ParseSelectorError::Escape {
                        sequence: String::new(),
                    });
                }
            },
            ',' | '=' => {
                return Err(ParseSelectorError::Unescaped { character: c });
            }
            _ => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
