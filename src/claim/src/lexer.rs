//! Tokens of a statement: numbers with units, operators, relations.

use super::expression::{ExpressionError, Literal, MAX_NUMBERS, MAX_UNIT_FACTORS, Operator, Relation};
use super::unit::{self, Unit};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Number(Literal),
    Operator(Operator),
    Open,
    Close,
    Relation(Relation),
    /// `~` or `about` before a number.
    Approximately,
}

impl Token {
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Number(literal) => format!("{}{}", literal.number, literal.unit),
            Self::Operator(Operator::Add) => "+".to_owned(),
            Self::Operator(Operator::Subtract) => "-".to_owned(),
            Self::Operator(Operator::Multiply) => "*".to_owned(),
            Self::Operator(Operator::Divide) => "/".to_owned(),
            Self::Operator(Operator::Power) => "^".to_owned(),
            Self::Open => "(".to_owned(),
            Self::Close => ")".to_owned(),
            Self::Relation(_) => "=".to_owned(),
            Self::Approximately => "~".to_owned(),
        }
    }
}

/// Meaning of an ambiguous hyphen between two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hyphen {
    /// Subtraction before the first relation, range after it.
    Usual,
    /// Range before the first relation, subtraction after it, for a result that comes first.
    ResultFirst,
}

/// Splits a statement into tokens.
pub(super) struct Lexer {
    chars: Vec<char>,
    at: usize,
    tokens: Vec<Token>,
    numbers: usize,
    /// True if the text contains a relation, and is not only a number.
    has_relation: bool,
    hyphen: Hyphen,
}

impl Lexer {
    pub(super) fn new(text: &str, hyphen: Hyphen) -> Self {
        Self {
            hyphen,
            has_relation: text.contains(['=', '<', '>', '≤', '≥', '≈', '→']) || text.contains(" is "),
            // Ignore quotes around a result.
            chars: text.chars().map(|c| if is_quote(c) { ' ' } else { c }).collect(),
            at: 0,
            tokens: Vec::new(),
            numbers: 0,
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn blanks(&mut self) {
        while self.peek(0).is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    pub(super) fn tokens(mut self) -> Result<Vec<Token>, ExpressionError> {
        loop {
            self.blanks();
            let Some(c) = self.peek(0) else {
                return Ok(self.tokens);
            };
            if c.is_ascii_digit() || (c == '.' && self.peek(1).is_some_and(|c| c.is_ascii_digit())) {
                let start = self.at;
                let literal = self.literal()?;
                self.reject_size_by_name(start, &literal)?;
                self.tokens.push(Token::Number(literal));
                continue;
            }
            if c == '(' && self.skip_remark() {
                continue;
            }
            if is_word(c) && c != '×' && c != '%' {
                let word = self.word();
                self.free_word(&word)?;
                continue;
            }
            let (token, length) = match (c, self.peek(1)) {
                ('*', Some('*')) => (Token::Operator(Operator::Power), 2),
                ('=', Some('=')) => (Token::Relation(Relation::Equal), 2),
                ('-', Some('>')) => (Token::Relation(Relation::Becomes), 2),
                ('~', Some('=')) | ('=', Some('~')) => (Token::Relation(Relation::About), 2),
                ('<', Some('=')) => (Token::Relation(Relation::Below), 2),
                ('>', Some('=')) => (Token::Relation(Relation::Above), 2),
                ('+', _) => (Token::Operator(Operator::Add), 1),
                ('-' | '−' | '–', _) => (Token::Operator(Operator::Subtract), 1),
                ('*' | '·' | '×' | '⋅', _) => (Token::Operator(Operator::Multiply), 1),
                ('/' | '÷', _) => (Token::Operator(Operator::Divide), 1),
                ('^', _) => (Token::Operator(Operator::Power), 1),
                ('(' | '[', _) => (Token::Open, 1),
                (')' | ']', _) => (Token::Close, 1),
                ('=', _) => (Token::Relation(Relation::Equal), 1),
                ('→', _) => (Token::Relation(Relation::Becomes), 1),
                ('<' | '≤', _) => (Token::Relation(Relation::Below), 1),
                ('>' | '≥', _) => (Token::Relation(Relation::Above), 1),
                // `a ≈ b` is a relation; `a = ≈ b` and `~5` qualify a number.
                ('≈' | '~', _) if matches!(self.tokens.last(), Some(Token::Number(_) | Token::Close)) => {
                    (Token::Relation(Relation::About), 1)
                }
                ('≈' | '~', _) => (Token::Approximately, 1),
                (other, _) => return Err(ExpressionError::Unexpected(other.to_string())),
            };
            self.at += length;
            self.tokens.push(token);
        }
    }

    /// Skips a remark in parentheses after a number: `215 ms (about 4.5 %)`. A calculation such as
    /// `2 (3 + 4)` is not a remark.
    fn skip_remark(&mut self) -> bool {
        if !matches!(self.tokens.last(), Some(Token::Number(_) | Token::Close)) {
            return false;
        }
        let inside = self.chars[self.at + 1..].iter().copied();
        let text: String = inside.take_while(|c| *c != ')').collect();
        let length = text.chars().count();
        let is_closed = self.peek(length + 1) == Some(')');
        let has_words = text.chars().any(|c| is_word(c) || matches!(c, '~' | '≈'));
        // The slash of `(tok/s)` and the hyphen of `(read-only)` are parts of words, not operators.
        let mut before = [' '; 2];
        let calculates = text.chars().any(|c| {
            let behind_word = before.into_iter().all(char::is_alphabetic);
            before = [before[1], c];
            matches!(c, '(' | '+' | '*' | '×' | '·' | '÷' | '^' | '−')
                || matches!(c, '-' | '/') && !behind_word
        });
        let is_remark = is_closed && has_words && !calculates;
        if is_remark {
            self.at += length + 2;
        }
        is_remark
    }

    /// Rejects `3B-4bit`, which names a model and is not a subtraction. The name does not define
    /// the exact size: a 7B model has 7.6 billion parameters.
    fn reject_size_by_name(&self, start: usize, literal: &Literal) -> Result<(), ExpressionError> {
        if !matches!(literal.unit.as_str(), "B" | "b" | "M") || self.peek(0) != Some('-') {
            return Ok(());
        }
        let rest = &self.chars[self.at + 1..];
        let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
        let dash = usize::from(rest.get(digits) == Some(&'-'));
        if digits == 0 || !rest[digits + dash..].starts_with(&['b', 'i', 't']) {
            return Ok(());
        }
        let end = self.at + 1 + digits + dash + 3;
        Err(ExpressionError::SizeByName(
            self.chars[start..end].iter().collect(),
        ))
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(c) = self.peek(0).filter(|c| is_word(*c)) {
            word.push(c);
            self.at += 1;
            if c == '%' {
                break;
            }
        }
        word
    }

    /// Adds the token for a word that is not a unit.
    fn free_word(&mut self, word: &str) -> Result<(), ExpressionError> {
        let token = match word {
            "x" | "of" | "times" => Token::Operator(Operator::Multiply),
            "is" | "equals" => Token::Relation(Relation::Equal),
            "about" | "approx" | "roughly" | "around" => Token::Approximately,
            "plus" => Token::Operator(Operator::Add),
            "minus" => Token::Operator(Operator::Subtract),
            _ if unit::is_remark(word) || unit::meanings(word, false).is_some() => return Ok(()),
            _ => return Err(ExpressionError::UnknownWord(word.to_owned())),
        };
        self.tokens.push(token);
        Ok(())
    }

    fn literal(&mut self) -> Result<Literal, ExpressionError> {
        self.numbers += 1;
        if self.numbers > MAX_NUMBERS {
            return Err(ExpressionError::TooLarge);
        }
        let signed = self.tokens.last() == Some(&Token::Operator(Operator::Add))
            && (self.tokens.len() < 2
                || matches!(
                    self.tokens[self.tokens.len() - 2],
                    Token::Relation(_) | Token::Approximately
                ));
        let (number, decimals, half_place) = self.digits()?;
        // `25-30` after `=` and `25–30` anywhere are ranges. Elsewhere a hyphen is a subtraction.
        let result = match self.tokens.last() {
            None => !self.has_relation || self.hyphen == Hyphen::ResultFirst,
            Some(Token::Relation(_)) => self.hyphen == Hyphen::Usual,
            Some(Token::Approximately) => true,
            Some(Token::Number(_) | Token::Operator(_) | Token::Open | Token::Close) => signed,
        };
        let dash = match self.peek(0) {
            Some('–') => true,
            Some('-') => result,
            _ => false,
        };
        let mut literal = Literal {
            number,
            high: number,
            half_place,
            decimals,
            meanings: vec![Unit::ONE],
            unit: String::new(),
            signed,
        };
        if dash && self.peek(1).is_some_and(|c| c.is_ascii_digit() || c == '.') {
            let before = self.at;
            self.at += 1;
            let (high, high_decimals, high_half) = self.digits()?;
            if high > number {
                literal.high = high;
                literal.decimals = decimals.max(high_decimals);
                literal.half_place = half_place.min(high_half);
            } else {
                self.at = before;
            }
        }
        self.unit(&mut literal)?;
        Ok(literal)
    }

    fn digits(&mut self) -> Result<(f64, usize, f64), ExpressionError> {
        let mut text = String::new();
        let mut decimals = 0usize;
        let mut point = false;
        while let Some(c) = self.peek(0) {
            let thousands = |lexer: &Self| {
                let digit = |n| lexer.peek(n).is_some_and(|c: char| c.is_ascii_digit());
                !point && digit(1) && digit(2) && digit(3) && !digit(4)
            };
            match c {
                '0'..='9' => {
                    text.push(c);
                    decimals += usize::from(point);
                }
                '.' if !point && self.peek(1) != Some('.') => {
                    point = true;
                    text.push(c);
                }
                ',' | '_' if thousands(self) => {}
                _ => break,
            }
            self.at += 1;
        }
        let mut exponent = 0i32;
        if matches!(self.peek(0), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
            if self.peek(1 + sign).is_some_and(|c| c.is_ascii_digit()) {
                let mut power = String::new();
                if self.peek(1) == Some('-') {
                    power.push('-');
                }
                self.at += 1 + sign;
                while let Some(c) = self.peek(0).filter(char::is_ascii_digit) {
                    power.push(c);
                    self.at += 1;
                }
                exponent = power.parse().map_err(|_| ExpressionError::NotFinite)?;
            }
        }
        let number: f64 = format!("{text}e{exponent}")
            .parse()
            .map_err(|_| ExpressionError::Unexpected(text.clone()))?;
        if !number.is_finite() {
            return Err(ExpressionError::NotFinite);
        }
        let places = exponent.saturating_sub(i32::try_from(decimals).unwrap_or(i32::MAX));
        Ok((number, decimals, 0.5 * 10f64.powi(places)))
    }

    /// Parses the unit after a number: `GB`, `GB/s`, `ms per token`, `B params`.
    fn unit(&mut self, literal: &mut Literal) -> Result<(), ExpressionError> {
        let mut factors = 0;
        while let Some((name, divides, meanings)) = self.unit_factor(literal.unit.is_empty()) {
            factors += 1;
            if factors > MAX_UNIT_FACTORS {
                return Err(ExpressionError::LongUnit(literal.unit.clone()));
            }
            let name = if divides { format!("/{name}") } else { name };
            if !literal.unit.is_empty() && !divides {
                literal.unit.push(' ');
            }
            literal.unit.push_str(&name);
            let combined = literal.meanings.iter().flat_map(|left| {
                meanings.iter().map(|right| {
                    let (scale, dimension) = if divides {
                        (left.scale / right.scale, left.dimension / right.dimension)
                    } else {
                        (left.scale * right.scale, left.dimension * right.dimension)
                    };
                    Unit { scale, dimension }
                })
            });
            literal.meanings = combined.collect();
        }
        Ok(())
    }

    /// Returns the next factor of a unit, and whether it divides. Consumes nothing without a
    /// factor.
    fn unit_factor(&mut self, first: bool) -> Option<(String, bool, Vec<Unit>)> {
        let before = self.at;
        self.blanks();
        let attached = first && self.at == before;
        let mut divides = !first && self.peek(0) == Some('/');
        if divides {
            self.at += 1;
            self.blanks();
        }
        // `512-bit` is a unit, not a subtraction.
        if attached && self.peek(0) == Some('-') && self.peek(1) == Some('b') {
            self.at += 1;
        }
        let mut word = self.word();
        if !first && !divides && word == "per" {
            divides = true;
            self.blanks();
            word = self.word();
        }
        // `4.3 ms x 50` is a multiplication; `29.5x` is a factor.
        let multiplies = matches!(word.as_str(), "x" | "×") && (!first || self.operand_follows());
        let meanings = unit::meanings(&word, attached).filter(|_| !multiplies);
        if meanings.is_none() {
            self.at = before;
        }
        meanings.map(|meanings| (word, divides, meanings))
    }

    fn operand_follows(&self) -> bool {
        let next = self.chars[self.at..].iter().find(|c| !c.is_whitespace());
        next.is_some_and(|c| c.is_ascii_digit() || matches!(c, '(' | '.' | '['))
    }
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | '“' | '”' | '„' | '‘' | '’' | '«' | '»')
}

fn is_word(c: char) -> bool {
    c.is_alphabetic() || matches!(c, '%' | '×' | 'µ' | 'μ')
}
