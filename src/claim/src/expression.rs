//! Arithmetic as claims write it, with units and with the rounding of its numbers: read, and
//! evaluated.

use super::lexer::{Hyphen, Lexer, Token};
use super::unit::{self, Dimension, Unit};

/// How deep parentheses may nest.
const MAX_DEPTH: usize = 32;
/// Numbers one text may hold.
pub(super) const MAX_NUMBERS: usize = 256;
/// Factors of one unit. Each may have two meanings, and their combinations are all kept.
pub(super) const MAX_UNIT_FACTORS: usize = 6;

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

    pub(super) fn is_factor(&self) -> bool {
        matches!(self.unit.as_str(), "x" | "×")
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
    #[error(
        "`{0}` names a model, whose exact size is not in its name: write its parameters times its bits, such as 3.09B * 4.5 bits / 8"
    )]
    SizeByName(String),
    #[error("unexpected `{0}`")]
    Unexpected(String),
    #[error("it ends where a number is expected")]
    Ended,
    #[error("a parenthesis is not closed")]
    Unclosed,
    #[error("it is too long or too deeply nested")]
    TooLarge,
    #[error("the unit `{0} …` has more than {MAX_UNIT_FACTORS} factors; write a shorter one, such as GB/s")]
    LongUnit(String),
    #[error("it adds different kinds of quantity: {0} and {1}")]
    Dimensions(String, String),
    #[error("it divides by zero, or its result is too large")]
    NotFinite,
    #[error("a power must be a whole number without a unit")]
    Power,
}

/// One side of a statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Side {
    /// How it relates to the side before it. The first side's says nothing.
    pub(super) relation: Relation,
    pub(super) expression: Expression,
}

/// Reads `expression (= expression)*`.
pub(super) fn parse(text: &str, hyphen: Hyphen) -> Result<Vec<Side>, ExpressionError> {
    let tokens = Lexer::new(text, hyphen).tokens()?;
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
            let mut right = self.factor()?;
            if operator == Operator::Divide {
                right.convert_bits_of(&left);
                left.convert_milliseconds_of(&right);
            }
            left = Expression::Binary(operator, Box::new(left), Box::new(right));
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

    /// The 8 of `4.5 bits / 8` may turn bits into bytes, which their unit has done already.
    fn convert_bits_of(&mut self, dividend: &Self) {
        let mut literals = Vec::new();
        dividend.literals(&mut literals);
        if let Self::Number(literal) = self
            && literal.number == 8.0
            && literal.unit.is_empty()
            && literals.iter().any(|literal| unit::counts_bits(&literal.unit))
        {
            let eighth = Unit {
                scale: 0.125,
                ..Unit::ONE
            };
            literal.meanings.insert(0, eighth);
        }
    }

    /// The 1000 of `1000 / 8.5 ms = 117.65 tok/s` may turn milliseconds into seconds, which their
    /// unit has done already.
    fn convert_milliseconds_of(&mut self, divisor: &Self) {
        let mut literals = Vec::new();
        divisor.literals(&mut literals);
        if literals.iter().any(|literal| literal.unit.starts_with("ms")) {
            self.mean_thousandths();
        }
    }

    fn mean_thousandths(&mut self) {
        match self {
            Self::Number(literal) if literal.number == 1000.0 && literal.unit.is_empty() => {
                let converted = Unit {
                    scale: 1e-3,
                    ..Unit::ONE
                };
                literal.meanings.truncate(1);
                literal.meanings.push(converted);
            }
            Self::Binary(Operator::Multiply, left, right) => {
                left.mean_thousandths();
                right.mean_thousandths();
            }
            Self::Number(_) | Self::Negative(_) | Self::Binary(..) => {}
        }
    }

    /// Its numbers, where it does no more than multiply and divide them.
    pub(super) fn factors<'a>(&'a self, into: &mut Vec<&'a Literal>) -> bool {
        match self {
            Self::Number(literal) => {
                into.push(literal);
                true
            }
            Self::Binary(Operator::Multiply | Operator::Divide, left, right) => {
                left.factors(into) && right.factors(into)
            }
            Self::Negative(_) | Self::Binary(Operator::Add | Operator::Subtract | Operator::Power, ..) => {
                false
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
