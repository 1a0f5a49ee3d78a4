//! Parser and evaluator of arithmetic expressions with units and rounding.

use super::lexer::{Hyphen, Lexer, Token};
use super::unit::{self, Dimension, Unit};

/// Maximum nesting of parentheses.
const MAX_DEPTH: usize = 32;
/// Maximum numbers in a text.
pub(super) const MAX_NUMBERS: usize = 256;
/// Maximum factors of a unit. Each may have two meanings, and all combinations are kept.
pub(super) const MAX_UNIT_FACTORS: usize = 6;

/// Number in the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Literal {
    /// Number without its unit; the lower end of a range.
    pub(super) number: f64,
    /// Upper end of a range; otherwise equal to `number`.
    pub(super) high: f64,
    /// Half the place value of the last digit: the maximum rounding error.
    pub(super) half_place: f64,
    /// Digits after the decimal point.
    pub(super) decimals: usize,
    /// Possible meanings of the unit, most likely first. Never empty.
    pub(super) meanings: Vec<Unit>,
    /// Unit as written; empty without a unit.
    pub(super) unit: String,
    /// True if a `+` precedes the number.
    pub(super) signed: bool,
}

impl Literal {
    /// Returns the number 1.
    fn one() -> Self {
        Self {
            number: 1.0,
            high: 1.0,
            half_place: 0.5,
            decimals: 0,
            meanings: vec![Unit::ONE],
            unit: String::new(),
            signed: false,
        }
    }

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

/// Parsed calculation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Number(Literal),
    Negative(Box<Self>),
    Binary(Operator, Box<Self>, Box<Self>),
}

/// Value in base units, with the maximum error from the rounding of its inputs.
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

/// Relation between two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    /// `->`: result of a calculation, or new value of a number.
    Becomes,
    About,
    Below,
    Above,
}

/// Reason why a text cannot be calculated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpressionError {
    #[error("`{0}` is not a number or a known unit")]
    UnknownWord(String),
    #[error(
        "`{0}` is a model name without an exact size: write parameters times bits, such as 3.09B * 4.5 bits / 8"
    )]
    SizeByName(String),
    #[error("unexpected `{0}`")]
    Unexpected(String),
    #[error("unexpected end: expected a number")]
    Ended,
    #[error("unclosed parenthesis")]
    Unclosed,
    #[error("the text is too long or too deeply nested")]
    TooLarge,
    #[error("the unit `{0} …` has more than {MAX_UNIT_FACTORS} factors; write a shorter one, such as GB/s")]
    LongUnit(String),
    #[error("addition of different dimensions: {0} and {1}")]
    Dimensions(String, String),
    #[error("division by zero, or result too large")]
    NotFinite,
    #[error("an exponent must be an integer without a unit")]
    Power,
}

/// Side of a statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Side {
    /// Relation to the previous side; meaningless for the first side.
    pub(super) relation: Relation,
    pub(super) expression: Expression,
}

/// Parses `expression (= expression)*`.
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
        if parser.take(&Token::Approximately) {
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
        } else if self.operator(&[Operator::Add]).is_some() || self.take(&Token::Approximately) {
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
                // `5 min 30 s` is a single time.
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
    /// Returns the number of an expression without operators.
    pub(super) fn literal(&self) -> Option<&Literal> {
        match self {
            Self::Number(literal) => Some(literal),
            Self::Negative(inner) => inner.literal(),
            Self::Binary(..) => None,
        }
    }

    /// Returns the calculation with every percentage that is added or subtracted as a share of the
    /// number before it: `120 - 15 %` as `120 * (1 - 15 %)`. `1 - 15 %` has this value already.
    /// `None` if there is none.
    pub(super) fn with_relative_percentages(&self) -> Option<Self> {
        match self {
            Self::Number(_) => None,
            Self::Negative(inner) => Some(Self::Negative(Box::new(inner.with_relative_percentages()?))),
            Self::Binary(operator @ (Operator::Add | Operator::Subtract), left, right)
                if right.is_percentage() && !left.is_percentage() && !left.is_one() =>
            {
                let left = left.with_relative_percentages().map_or(left.clone(), Box::new);
                let one = Box::new(Self::Number(Literal::one()));
                let factor = Box::new(Self::Binary(*operator, one, right.clone()));
                Some(Self::Binary(Operator::Multiply, left, factor))
            }
            Self::Binary(operator, left, right) => {
                let (new_left, new_right) = (
                    left.with_relative_percentages(),
                    right.with_relative_percentages(),
                );
                (new_left.is_some() || new_right.is_some()).then(|| {
                    let left = new_left.map_or(left.clone(), Box::new);
                    let right = new_right.map_or(right.clone(), Box::new);
                    Self::Binary(*operator, left, right)
                })
            }
        }
    }

    /// Returns whether this is the number 1 without a unit.
    fn is_one(&self) -> bool {
        let is_plain = |literal: &Literal| literal.meanings.iter().all(|unit| *unit == Unit::ONE);
        matches!(self, Self::Number(literal) if literal.number == 1.0 && is_plain(literal))
    }

    /// Returns whether all numbers of a sum are percentages.
    fn is_percentage(&self) -> bool {
        match self {
            Self::Number(literal) => literal.is_percent(),
            Self::Negative(inner) => inner.is_percentage(),
            Self::Binary(Operator::Add | Operator::Subtract, left, right) => {
                left.is_percentage() && right.is_percentage()
            }
            Self::Binary(..) => false,
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

    /// Adds a meaning to the 8 of `4.5 bits / 8`: the unit already converts bits to bytes.
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

    /// Adds a meaning to the 1000 of `1000 / 8.5 ms = 117.65 tok/s`: the unit already converts
    /// milliseconds to seconds.
    fn convert_milliseconds_of(&mut self, divisor: &Self) {
        let mut literals = Vec::new();
        divisor.literals(&mut literals);
        if literals.iter().any(|literal| literal.unit.starts_with("ms")) {
            self.add_thousandths_meaning();
        }
    }

    fn add_thousandths_meaning(&mut self) {
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
                left.add_thousandths_meaning();
                right.add_thousandths_meaning();
            }
            Self::Number(_) | Self::Negative(_) | Self::Binary(..) => {}
        }
    }

    /// Collects the numbers of a product or quotient. Returns `false` for other expressions.
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

    /// Returns whether a divisor is a number of `dimension`.
    pub(super) fn divides_by(&self, dimension: Dimension) -> bool {
        match self {
            Self::Number(_) => false,
            Self::Negative(inner) => inner.divides_by(dimension),
            Self::Binary(operator, left, right) => {
                let is_divisor = *operator == Operator::Divide
                    && right.literal().is_some_and(|literal| {
                        literal.meanings.iter().any(|unit| unit.dimension == dimension)
                    });
                is_divisor || left.divides_by(dimension) || right.divides_by(dimension)
            }
        }
    }

    /// Returns the value; `choose` selects the meaning of each number's unit.
    pub(super) fn evaluate(&self, choose: &dyn Fn(&Literal) -> Unit) -> Result<Amount, ExpressionError> {
        let amount = match self {
            Self::Number(literal) => {
                let unit = choose(literal);
                // An integer without a unit is a count, and exact.
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
            // A number without a unit has the dimension of the other operand and its own scale: `5
            // GB + 3` adds 3 bytes, and `1.5 - 10 %` subtracts 0.1.
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
