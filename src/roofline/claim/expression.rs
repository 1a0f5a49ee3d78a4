//! Arithmetic as claims write it, with units and with the rounding of its numbers: read, and evaluated.

use super::unit::{self, Dimension, Unit};

/// How deep parentheses may nest.
const MAX_DEPTH: usize = 32;
/// Numbers one text may hold.
const MAX_NUMBERS: usize = 256;

/// A number in the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Literal {
    /// As written, without its unit; the lower end of a range.
    pub(super) number: f64,
    /// The upper end of a range; else the number again.
    pub(super) high: f64,
    /// Half of the last digit's place: how far rounding may have moved the number.
    pub(super) half_place: f64,
    /// Places after the decimal point.
    pub(super) decimals: usize,
    /// What the unit may mean, the likeliest first. Never empty.
    pub(super) meanings: Vec<Unit>,
    /// The unit as written; empty where there is none.
    pub(super) unit: String,
    /// A `+` stands before it.
    pub(super) signed: bool,
}

impl Literal {
    pub(super) fn is_percent(&self) -> bool {
        self.unit.starts_with('%')
    }

    pub(super) fn has_dimension(&self) -> bool {
        self.meanings[0].dimension != Dimension::NONE
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
}

/// A parsed calculation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Number(Literal),
    Negative(Box<Self>),
    Binary(Operator, Box<Self>, Box<Self>),
}

/// A value in base units, and how far the rounding of what it came from may have moved it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Amount {
    pub(super) value: f64,
    pub(super) slack: f64,
    pub(super) dimension: Dimension,
}

impl Amount {
    pub(super) fn scaled(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            slack: self.slack * factor.abs(),
            ..self
        }
    }
}

/// How two sides are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    /// `->`: the result of a calculation, or what a number became.
    Becomes,
    About,
    Below,
    Above,
}

/// Why a text cannot be calculated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpressionError {
    #[error("`{0}` is neither a number nor a unit that is known")]
    UnknownWord(String),
    #[error("unexpected `{0}`")]
    Unexpected(String),
    #[error("it ends where a number is expected")]
    Ended,
    #[error("a parenthesis is not closed")]
    Unclosed,
    #[error("it is too long or too deeply nested")]
    TooLarge,
    #[error("it adds different kinds of quantity: {0} and {1}")]
    Dimensions(String, String),
    #[error("it divides by zero, or its result is too large")]
    NotFinite,
    #[error("a power must be a whole number without a unit")]
    Power,
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(Literal),
    Operator(Operator),
    Open,
    Close,
    Relation(Relation),
    /// `~` or `about` before a number.
    Roughly,
}

/// One side of a statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Side {
    /// How it relates to the side before it. The first side's says nothing.
    pub(super) relation: Relation,
    pub(super) expression: Expression,
}

/// Reads `expression (= expression)*`.
pub(super) fn parse(text: &str) -> Result<Vec<Side>, ExpressionError> {
    let tokens = Lexer::new(text).tokens()?;
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
        depth: 0,
    };
    let mut sides = Vec::new();
    let mut relation = Relation::Equal;
    loop {
        if parser.take(&Token::Roughly) {
            relation = Relation::About;
        }
        let expression = parser.sum()?;
        sides.push(Side { relation, expression });
        match parser.next() {
            None => return Ok(sides),
            Some(Token::Relation(next)) => relation = *next,
            Some(other) => return Err(ExpressionError::Unexpected(other.shown())),
        }
    }
}

impl Token {
    fn shown(&self) -> String {
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
            Self::Roughly => "~".to_owned(),
        }
    }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    tokens: Vec<Token>,
    numbers: usize,
    /// The text relates sides to one another, and is not a number alone.
    relates: bool,
}

impl Lexer {
    fn new(text: &str) -> Self {
        Self {
            relates: text.contains(['=', '<', '>', '≤', '≥', '≈', '→']) || text.contains(" is "),
            chars: text.chars().collect(),
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

    fn tokens(mut self) -> Result<Vec<Token>, ExpressionError> {
        loop {
            self.blanks();
            let Some(c) = self.peek(0) else {
                return Ok(self.tokens);
            };
            if c.is_ascii_digit() || (c == '.' && self.peek(1).is_some_and(|c| c.is_ascii_digit())) {
                let literal = self.literal()?;
                self.tokens.push(Token::Number(literal));
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
                // `a ≈ b` compares, `a = ≈ b` and `~5` qualify a number.
                ('≈' | '~', _) if matches!(self.tokens.last(), Some(Token::Number(_) | Token::Close)) => {
                    (Token::Relation(Relation::About), 1)
                }
                ('≈' | '~', _) => (Token::Roughly, 1),
                (other, _) => return Err(ExpressionError::Unexpected(other.to_string())),
            };
            self.at += length;
            self.tokens.push(token);
        }
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

    /// A word that is no unit of the number before it.
    fn free_word(&mut self, word: &str) -> Result<(), ExpressionError> {
        let token = match word {
            "x" | "of" | "times" => Token::Operator(Operator::Multiply),
            "is" | "equals" => Token::Relation(Relation::Equal),
            "about" | "approx" | "roughly" | "around" => Token::Roughly,
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
                    Token::Relation(_) | Token::Roughly
                ));
        let (number, decimals, half_place) = self.digits()?;
        // `25-30` behind `=`, and `25–30` anywhere, are ranges; elsewhere a hyphen subtracts.
        let result = match self.tokens.last() {
            None => !self.relates,
            Some(Token::Relation(_) | Token::Roughly) => true,
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
        self.unit(&mut literal);
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

    /// A unit behind the number: `GB`, `GB/s`, `ms per token`, `B params`.
    fn unit(&mut self, literal: &mut Literal) {
        while let Some((name, divides, meanings)) = self.unit_factor(literal.unit.is_empty()) {
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
    }

    /// The next factor of a unit, and whether it divides; takes nothing where there is none.
    fn unit_factor(&mut self, first: bool) -> Option<(String, bool, Vec<Unit>)> {
        let before = self.at;
        self.blanks();
        let attached = first && self.at == before;
        let mut divides = !first && self.peek(0) == Some('/');
        if divides {
            self.at += 1;
            self.blanks();
        }
        let mut word = self.word();
        if !first && !divides && word == "per" {
            divides = true;
            self.blanks();
            word = self.word();
        }
        // `4.3 ms x 50` multiplies; `29.5x` is a factor.
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

fn is_word(c: char) -> bool {
    c.is_alphabetic() || matches!(c, '%' | '×' | 'µ' | 'μ')
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a Token> {
        let token = self.tokens.get(self.at);
        self.at += usize::from(token.is_some());
        token
    }

    fn take(&mut self, token: &Token) -> bool {
        let found = self.tokens.get(self.at) == Some(token);
        self.at += usize::from(found);
        found
    }

    fn operator(&mut self, allowed: &[Operator]) -> Option<Operator> {
        match self.tokens.get(self.at) {
            Some(Token::Operator(operator)) if allowed.contains(operator) => {
                self.at += 1;
                Some(*operator)
            }
            _ => None,
        }
    }

    fn sum(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.product()?;
        while let Some(operator) = self.operator(&[Operator::Add, Operator::Subtract]) {
            left = Expression::Binary(operator, Box::new(left), Box::new(self.product()?));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.factor()?;
        while let Some(operator) = self.operator(&[Operator::Multiply, Operator::Divide]) {
            left = Expression::Binary(operator, Box::new(left), Box::new(self.factor()?));
        }
        Ok(left)
    }

    fn factor(&mut self) -> Result<Expression, ExpressionError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ExpressionError::TooLarge);
        }
        let factor = if self.operator(&[Operator::Subtract]).is_some() {
            Expression::Negative(Box::new(self.factor()?))
        } else if self.operator(&[Operator::Add]).is_some() || self.take(&Token::Roughly) {
            self.factor()?
        } else {
            let base = self.primary()?;
            match self.operator(&[Operator::Power]) {
                Some(operator) => Expression::Binary(operator, Box::new(base), Box::new(self.factor()?)),
                None => base,
            }
        };
        self.depth -= 1;
        Ok(factor)
    }

    fn primary(&mut self) -> Result<Expression, ExpressionError> {
        match self.next() {
            Some(Token::Number(literal)) => {
                let mut whole = Expression::Number(literal.clone());
                // `5 min 30 s` is one time.
                let is_time = |literal: &Literal| literal.meanings[0].dimension == Dimension::SECONDS;
                while let Some(Token::Number(next)) = self.tokens.get(self.at)
                    && is_time(literal)
                    && is_time(next)
                {
                    self.at += 1;
                    let next = Box::new(Expression::Number(next.clone()));
                    whole = Expression::Binary(Operator::Add, Box::new(whole), next);
                }
                Ok(whole)
            }
            Some(Token::Open) => {
                let inner = self.sum()?;
                if self.take(&Token::Close) {
                    Ok(inner)
                } else {
                    Err(ExpressionError::Unclosed)
                }
            }
            Some(other) => Err(ExpressionError::Unexpected(other.shown())),
            None => Err(ExpressionError::Ended),
        }
    }
}

impl Expression {
    /// Its only number, where it is no more than that.
    pub(super) fn literal(&self) -> Option<&Literal> {
        match self {
            Self::Number(literal) => Some(literal),
            Self::Negative(inner) => inner.literal(),
            Self::Binary(..) => None,
        }
    }

    pub(super) fn literals<'a>(&'a self, into: &mut Vec<&'a Literal>) {
        match self {
            Self::Number(literal) => into.push(literal),
            Self::Negative(inner) => inner.literals(into),
            Self::Binary(_, left, right) => {
                left.literals(into);
                right.literals(into);
            }
        }
    }

    /// Its value, with `choose` picking the meaning of each number's unit.
    pub(super) fn evaluate(&self, choose: &dyn Fn(&Literal) -> Unit) -> Result<Amount, ExpressionError> {
        let amount = match self {
            Self::Number(literal) => {
                let unit = choose(literal);
                // A bare whole number counts something and is exact.
                let exact =
                    literal.decimals == 0 && unit.dimension == Dimension::NONE && literal.unit.is_empty();
                let middle = f64::midpoint(literal.number, literal.high);
                let half =
                    (literal.high - literal.number) / 2.0 + if exact { 0.0 } else { literal.half_place };
                Amount {
                    value: middle * unit.scale,
                    slack: half * unit.scale,
                    dimension: unit.dimension,
                }
            }
            Self::Negative(inner) => {
                let inner = inner.evaluate(choose)?;
                Amount {
                    value: -inner.value,
                    ..inner
                }
            }
            Self::Binary(operator, left, right) => {
                combine(*operator, left.evaluate(choose)?, right.evaluate(choose)?)?
            }
        };
        if amount.value.is_finite() && amount.slack.is_finite() {
            Ok(amount)
        } else {
            Err(ExpressionError::NotFinite)
        }
    }
}

fn combine(operator: Operator, left: Amount, right: Amount) -> Result<Amount, ExpressionError> {
    Ok(match operator {
        Operator::Add | Operator::Subtract => {
            // `5 GB + 3` means three of the same; `1.5 - 10 %` does not, and its value tells.
            if left.dimension != right.dimension
                && left.dimension != Dimension::NONE
                && right.dimension != Dimension::NONE
            {
                return Err(ExpressionError::Dimensions(
                    left.dimension.to_string(),
                    right.dimension.to_string(),
                ));
            }
            let sign = if operator == Operator::Add { 1.0 } else { -1.0 };
            Amount {
                value: left.value + sign * right.value,
                slack: left.slack + right.slack,
                dimension: if left.dimension == Dimension::NONE {
                    right.dimension
                } else {
                    left.dimension
                },
            }
        }
        Operator::Multiply => Amount {
            value: left.value * right.value,
            slack: left.value.abs() * right.slack + right.value.abs() * left.slack,
            dimension: left.dimension * right.dimension,
        },
        Operator::Divide => {
            if right.value == 0.0 {
                return Err(ExpressionError::NotFinite);
            }
            let value = left.value / right.value;
            Amount {
                value,
                slack: (left.slack + value.abs() * right.slack) / right.value.abs(),
                dimension: left.dimension / right.dimension,
            }
        }
        Operator::Power => {
            let n = right.value;
            if right.dimension != Dimension::NONE || n.fract() != 0.0 || n.abs() > 64.0 {
                return Err(ExpressionError::Power);
            }
            let n = n as i32;
            let value = left.value.powi(n);
            let slope = f64::from(n) * left.value.powi(n.saturating_sub(1));
            Amount {
                value,
                slack: slope.abs() * left.slack,
                dimension: left.dimension.power(n),
            }
        }
    })
}
