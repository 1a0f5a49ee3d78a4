//! Check of stated arithmetic: `16829/571 = 29.5`, `2*42*16*256*32768*2 B = 2.2 GB`,
//! `(a-b)/a = 10.6 %`.
//!
//! The digits of the stated result define its precision: 29.5 includes every value that rounds or
//! truncates to 29.5. `~` widens the tolerance to 10 %.

use super::expression::{Amount, Expression, ExpressionError, Literal, Operator, Relation, Side};
use super::sides;
use super::stated::Stated;
use super::unit::{self, Dimension, Unit};

/// Relative tolerance of `~`.
pub(super) const ABOUT: f64 = 0.1;
/// Relative tolerance for rounding, such as between the mean of ratios and the ratio of means.
const SLIP: f64 = 0.001;
/// Maximum distance (logarithm of the factor) at which a reading is likely the intended one; a
/// factor of 1.5.
const NEARLY: f64 = 0.4;
/// Maximum bits of one weight.
const MOST_BITS: f64 = 32.0;
/// Maximum number of ambiguous units whose meanings are combined.
const MAX_AMBIGUOUS: usize = 6;

/// Result of checking a statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Holds { working: String },
    Wrong(WrongResult),
    NotCalculable(CalculationError),
}

/// Reason why a statement cannot be calculated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum CalculationError {
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    #[error("no `=` found: write CALCULATION = RESULT")]
    NoResult,
    #[error("the sides have different dimensions: {calculated} and {claimed}")]
    Dimensions {
        calculated: Dimension,
        claimed: Dimension,
    },
    #[error("no interpretation of the statement can be calculated")]
    NoReading,
}

impl Outcome {
    /// Returns the distance from a correct statement, to rank readings of one text.
    fn distance(&self) -> f64 {
        match self {
            Self::Holds { .. } => 0.0,
            Self::Wrong(wrong_result) if wrong_result.factor > 0.0 => wrong_result.factor.ln().abs(),
            Self::Wrong(_) => f64::MAX,
            Self::NotCalculable(_) => f64::INFINITY,
        }
    }
}

/// Calculation with another result than stated.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WrongResult {
    pub(super) claimed: String,
    pub(super) right: String,
    /// Correct value in the unit of `claimed`.
    pub(super) right_value: f64,
    pub(super) factor: f64,
    /// Additional explanation.
    pub(super) note: Option<String>,
}

/// Statement, split into its label and its calculation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Statement<'a> {
    pub(super) label: Option<&'a str>,
    pub(super) calculation: &'a str,
    /// True if the result precedes the calculation.
    result_first: bool,
}

impl<'a> Statement<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let (label, calculation) = match text.split_once(':') {
            Some((label, calculation)) if !label.contains('=') && label.chars().any(char::is_alphabetic) => {
                (Some(label.trim()), calculation.trim())
            }
            _ => (None, text.trim()),
        };
        let (name, calculation) = sides::split_name(calculation);
        Self {
            label: label.or(name),
            calculation,
            result_first: sides::readings(calculation)
                .is_ok_and(|readings| readings.iter().any(|sides| sides::result_is_first(sides))),
        }
    }

    /// Returns the stated result: the last number, or else the first.
    pub(super) fn result(&self) -> Option<Stated> {
        let sides = self.last_reading()?;
        let ends = [sides.get(1..)?.last()?, &sides[0]];
        let result = ends
            .into_iter()
            .find(|side| side.expression.literal().is_some())?;
        let negative = matches!(result.expression, Expression::Negative(_));
        let about = result.relation == Relation::About;
        Some(Stated::of(result.expression.literal()?, about, negative))
    }

    /// Returns the least likely reading of the calculation. `None`: the text is no calculation.
    fn last_reading(&self) -> Option<Vec<Side>> {
        sides::readings(self.calculation).ok()?.pop()
    }

    /// Returns whether the calculation multiplies about `parameters` by bits or bytes per weight.
    pub(super) fn multiplies(&self, parameters: f64) -> bool {
        let Some(sides) = self.last_reading() else {
            return false;
        };
        let calculation = usize::from(sides::result_is_first(&sides));
        let mut factors = Vec::new();
        if sides.len() < 2 || !sides[calculation].expression.factors(&mut factors) || factors.len() < 2 {
            return false;
        }
        let counts = |literal: &Literal| {
            literal.meanings.iter().any(|unit| {
                let count = literal.number * unit.scale;
                unit.dimension == Dimension::NONE && (count / parameters - 1.0).abs() <= ABOUT
            })
        };
        let of_one = |literal: &Literal| literal.number > 0.0 && literal.number <= MOST_BITS;
        let (models, others): (Vec<&Literal>, Vec<&Literal>) =
            factors.into_iter().partition(|literal| counts(literal));
        models.len() == 1 && others.into_iter().all(of_one)
    }

    /// Returns whether the calculation divides by a time: `50 tok / 0.41 s = 120.7 tok/s`.
    pub(super) fn divides_by_time(&self) -> bool {
        let Some(sides) = self.last_reading() else {
            return false;
        };
        let calculation = usize::from(sides::result_is_first(&sides));
        sides.len() >= 2 && sides[calculation].expression.divides_by(Dimension::SECONDS)
    }

    /// Returns whether the result is labelled as a throughput gain.
    fn is_gain(&self) -> bool {
        let mentions_throughput = |text: &str| text.to_ascii_lowercase().contains("throughput");
        let mut pieces = self.calculation.split('=');
        let (first, last) = (pieces.next(), pieces.next_back());
        let result = if self.result_first { first } else { last.or(first) }.unwrap_or_default();
        self.label.is_some_and(mentions_throughput) || mentions_throughput(result)
    }

    /// Checks the statement.
    pub(super) fn check(&self) -> Outcome {
        let readings = match sides::readings(self.calculation) {
            Ok(readings) => readings,
            Err(err) => return Outcome::NotCalculable(err.into()),
        };
        let relative = readings
            .iter()
            .filter_map(|sides| sides::with_relative_percentages(sides));
        let mut outcomes: Vec<Outcome> = readings
            .iter()
            .cloned()
            .chain(relative)
            .map(|sides| self.check_sides(&sides))
            .collect();
        // Prefer the reading that holds, then the nearest one.
        outcomes.sort_by(|a, b| a.distance().total_cmp(&b.distance()));
        outcomes.swap_remove(0)
    }

    fn check_sides(&self, sides: &[Side]) -> Outcome {
        if sides.len() < 2 {
            return Outcome::NotCalculable(CalculationError::NoResult);
        }
        let mut working = Vec::new();
        for pair in sides.windows(2) {
            let (calculation, result) = sides::in_order(&pair[0], &pair[1]);
            match self.compare(&calculation, &result, sides) {
                Outcome::Holds { working: step } => working.push(step),
                other @ (Outcome::Wrong(_) | Outcome::NotCalculable(_)) => return other,
            }
        }
        Outcome::Holds {
            working: working.join("; "),
        }
    }

    fn compare(&self, left: &Side, right: &Side, all: &[Side]) -> Outcome {
        let mut literals = Vec::new();
        for side in all {
            side.expression.literals(&mut literals);
        }
        // GB may mean GiB only if the statement has one such number and no GiB. Otherwise the
        // ambiguity could hide a mistake.
        let distinguishes_binary = literals.iter().any(|literal| unit::is_binary(&literal.unit));
        let prefixed = literals
            .iter()
            .filter(|literal| is_decimal_bytes(literal))
            .count();
        let mut pair = Vec::new();
        left.expression.literals(&mut pair);
        right.expression.literals(&mut pair);
        let ambiguous: Vec<&Literal> = pair
            .into_iter()
            .filter(|literal| {
                literal.meanings.len() > 1
                    && !(is_decimal_bytes(literal) && (distinguishes_binary || prefixed > 1))
            })
            .take(MAX_AMBIGUOUS)
            .collect();

        let mut nearest: Option<(f64, WrongResult)> = None;
        let mut failure = None;
        for combination in 0..1usize << ambiguous.len() {
            let choose = |literal: &Literal| {
                let at = ambiguous.iter().position(|other| std::ptr::eq(*other, literal));
                let second = at.is_some_and(|at| combination >> at & 1 == 1);
                literal.meanings[usize::from(second)]
            };
            match self.compare_as(left, right, &choose) {
                Ok(Ok(working)) => return Outcome::Holds { working },
                Ok(Err((distance, wrong_result))) => {
                    // The first reading is the most likely; another one must be much nearer.
                    if nearest.as_ref().is_none_or(|(known, _)| distance < known * 0.5) {
                        nearest = Some((distance, wrong_result));
                    }
                }
                Err(err) => failure = failure.or(Some(err)),
            }
        }
        match (nearest, failure) {
            (Some((_, wrong_result)), _) => Outcome::Wrong(wrong_result),
            (None, Some(err)) => Outcome::NotCalculable(err),
            (None, None) => Outcome::NotCalculable(CalculationError::NoReading),
        }
    }

    /// Checks one reading. Returns `Ok(Ok(working))` if it holds, `Ok(Err((distance, result)))` if
    /// not.
    fn compare_as(
        &self,
        left: &Side,
        right: &Side,
        choose: &dyn Fn(&Literal) -> Unit,
    ) -> Result<Result<String, (f64, WrongResult)>, CalculationError> {
        let calculated = left.expression.evaluate(choose)?;
        let claimed = right.expression.evaluate(choose)?;
        let result_format = ResultFormat::new(&right.expression, choose);
        // A side without a unit may be in base units or in the unit of the other side.
        let bare = |expression: &Expression| {
            let mut literals = Vec::new();
            expression.literals(&mut literals);
            literals.iter().all(|literal| !literal.has_dimension())
        };
        let mut meant = vec![calculated];
        if calculated.dimension != claimed.dimension {
            let plain = |literal: &Literal| match literal.has_dimension() {
                true => Unit::ONE,
                false => choose(literal),
            };
            let as_written = left.expression.evaluate(&plain)?;
            if bare(&left.expression) {
                meant.push(as_written.scaled(result_format.scale));
            } else if bare(&right.expression) {
                meant.push(as_written);
            } else if calculated.value != 0.0 && calculated.dimension == Dimension::NONE / claimed.dimension {
                // `20 ms/token = 50 tok/s`
                let value = calculated.value.recip();
                meant = vec![Amount {
                    value,
                    slack: value * value * calculated.slack,
                    dimension: claimed.dimension,
                }];
            } else if !has_bare_factor(&left.expression, choose) {
                return Err(CalculationError::Dimensions {
                    calculated: calculated.dimension,
                    claimed: claimed.dimension,
                });
            }
        }
        let mut nearest: Option<(f64, WrongResult)> = None;
        for amount in meant {
            let readings = self.readings(&left.expression, amount.value, &result_format, choose);
            for (index, (value, note)) in readings.into_iter().enumerate() {
                let slack = amount.slack;
                let relation = right.relation;
                if holds(
                    Amount {
                        value,
                        slack,
                        ..amount
                    },
                    claimed,
                    &result_format,
                    relation,
                ) {
                    return Ok(Ok(format!(
                        "{} = {}",
                        describe_left(left),
                        result_format.format(value)
                    )));
                }
                let distance = distance(value, claimed.value);
                // Accept a ratio as a change or inverse only if the result is nearly right.
                if index > 0 && distance > NEARLY {
                    continue;
                }
                if nearest.as_ref().is_none_or(|(known, _)| distance < *known) {
                    let wrong_result = WrongResult {
                        claimed: result_format.format_claimed(&right.expression, relation),
                        right: result_format.format(value),
                        right_value: value / result_format.scale,
                        factor: claimed.value / value,
                        note: note.or_else(|| weighted_mean_note(&left.expression)),
                    };
                    nearest = Some((distance, wrong_result));
                }
            }
        }
        nearest.map(Err).ok_or(CalculationError::NoReading)
    }

    /// Returns the possible values of the calculation: also a change for a percentage of a ratio,
    /// and the inverse for a factor.
    fn readings(
        &self,
        left: &Expression,
        value: f64,
        result_format: &ResultFormat,
        choose: &dyn Fn(&Literal) -> Unit,
    ) -> Vec<(f64, Option<String>)> {
        if self.is_gain()
            && result_format.percent
            && let Some(gain) = throughput_gain(left, choose)
        {
            let note = format!(
                "a time reduction of {:.1} % increases throughput by 1/(1 − {:.3}) − 1",
                value * 100.0,
                value
            );
            return vec![(gain, Some(note))];
        }
        let ratio = matches!(left, Expression::Binary(Operator::Divide, ..));
        // Half the time means twice the throughput.
        let sooner = (result_format.percent && value > 0.0 && is_change_of_time(left, choose))
            .then(|| value.recip() - 1.0);
        if let (true, Some(gain)) = (self.is_gain(), sooner) {
            return vec![(gain, None)];
        }
        let is_change = result_format.percent && result_format.signed;
        let mut readings = if !(result_format.percent && ratio) || is_change && is_difference(left) {
            vec![(value, None)]
        } else if is_change {
            // A signed percentage is a change, never a share.
            vec![(value - 1.0, None)]
        } else {
            vec![(value, None), (value - 1.0, None), (1.0 - value, None)]
        };
        readings.extend(sooner.map(|gain| (gain, None)));
        if result_format.factor && ratio && value != 0.0 {
            readings.push((value.recip(), None));
        }
        readings
    }
}

fn is_decimal_bytes(literal: &Literal) -> bool {
    literal.meanings.len() > 1
        && literal.meanings[0].dimension.bytes == 1
        && literal.meanings[0].scale != literal.meanings[1].scale
        && literal.meanings[1].dimension.bytes == 1
}

/// Returns whether the expression has a factor without a unit, whose dimension is open: the 77.7 of
/// `77.7 * 8.03 GB`.
fn has_bare_factor(expression: &Expression, choose: &dyn Fn(&Literal) -> Unit) -> bool {
    let mut literals = Vec::new();
    expression.literals(&mut literals);
    literals
        .iter()
        .any(|literal| literal.unit.is_empty() && choose(literal).dimension == Dimension::NONE)
}

/// Returns whether the numerator is already a change: `(b-a)/a`.
fn is_difference(left: &Expression) -> bool {
    let Expression::Binary(Operator::Divide, above, _) = left else {
        return false;
    };
    matches!(
        above.as_ref(),
        Expression::Negative(_) | Expression::Binary(Operator::Subtract, ..)
    )
}

/// Returns whether the expression is a ratio of two times.
fn is_change_of_time(left: &Expression, choose: &dyn Fn(&Literal) -> Unit) -> bool {
    let Expression::Binary(Operator::Divide, above, below) = left else {
        return false;
    };
    let is_time = |side: &Expression| {
        side.literal()
            .is_some_and(|literal| choose(literal).dimension == Dimension::SECONDS)
    };
    is_time(above) && is_time(below)
}

/// Converts a time reduction `(a-b)/a` or `1 - b/a` to a throughput gain `a/b - 1`.
fn throughput_gain(left: &Expression, choose: &dyn Fn(&Literal) -> Unit) -> Option<f64> {
    let share = left.evaluate(choose).ok()?.value;
    let is_reduction = match left {
        Expression::Binary(Operator::Divide, above, below) => {
            matches!(above.as_ref(), Expression::Binary(Operator::Subtract, first, _) if first == below)
        }
        Expression::Binary(Operator::Subtract, one, _) => {
            one.literal().is_some_and(|literal| literal.number == 1.0)
        }
        Expression::Number(_) => true,
        Expression::Negative(_) | Expression::Binary(..) => false,
    };
    (is_reduction && share < 1.0).then(|| share / (1.0 - share))
}

/// Returns a note on a weighted mean `(w1*x1 + w2*x2 + …)/c` whose weights do not sum to `c`.
fn weighted_mean_note(left: &Expression) -> Option<String> {
    let Expression::Binary(Operator::Divide, above, below) = left else {
        return None;
    };
    let divisor = below.literal()?.number;
    let mut terms = Vec::new();
    summands(above, &mut terms);
    if terms.len() < 2 {
        return None;
    }
    let products: Option<Vec<(f64, f64)>> = terms
        .into_iter()
        .map(|term| match term {
            Expression::Binary(Operator::Multiply, weight, value) => {
                let literal = weight.literal()?;
                let share = if literal.is_percent() { 0.01 } else { 1.0 };
                Some((literal.number * share, value.literal()?.number))
            }
            Expression::Number(_) | Expression::Negative(_) | Expression::Binary(..) => None,
        })
        .collect();
    let products = products?;
    let weights: f64 = products.iter().map(|(weight, _)| weight).sum();
    let sum: f64 = products.iter().map(|(weight, value)| weight * value).sum();
    let all_shares = products.iter().all(|(weight, _)| (0.0..=1.0).contains(weight));
    if !all_shares || (weights - divisor).abs() <= 0.005 * divisor.abs() || weights == 0.0 {
        return None;
    }
    let mut note = format!(
        "the weights sum to {weights:.2}, not {divisor}; with that divisor, the mean is {:.1}",
        sum / weights
    );
    if weights > 1.005 {
        note.push_str("; shares of mutually exclusive cases must sum to 1");
    }
    Some(note)
}

fn summands<'a>(expression: &'a Expression, into: &mut Vec<&'a Expression>) {
    if let Expression::Binary(Operator::Add, left, right) = expression {
        summands(left, into);
        summands(right, into);
    } else {
        into.push(expression);
    }
}

/// Format of a result: unit and digits.
struct ResultFormat {
    unit: String,
    scale: f64,
    decimals: usize,
    /// Place value of the last digit in base units; 0 for a calculation.
    place: f64,
    percent: bool,
    factor: bool,
    signed: bool,
}

impl ResultFormat {
    fn new(expression: &Expression, choose: &dyn Fn(&Literal) -> Unit) -> Self {
        let Some(literal) = expression.literal() else {
            return Self {
                unit: String::new(),
                scale: 1.0,
                decimals: 2,
                place: 0.0,
                percent: false,
                factor: false,
                signed: false,
            };
        };
        let scale = choose(literal).scale;
        Self {
            unit: literal.unit.clone(),
            scale,
            decimals: literal.decimals,
            place: 2.0 * literal.half_place * scale,
            percent: literal.is_percent(),
            factor: literal.is_factor(),
            signed: literal.signed || matches!(expression, Expression::Negative(_)),
        }
    }

    fn format(&self, value: f64) -> String {
        let number = value / self.scale;
        let sign = if self.signed && number > 0.0 { "+" } else { "" };
        let magnitude = number.abs();
        // Use enough digits to show the difference.
        let digits = if magnitude >= 100.0 {
            0
        } else if magnitude >= 10.0 {
            1
        } else {
            2
        };
        let number = format!("{sign}{number:.*}", self.decimals.max(digits));
        match self.unit.as_str() {
            "" => number,
            unit @ ("x" | "×") => format!("{number}{unit}"),
            unit => format!("{number} {unit}"),
        }
    }

    fn format_claimed(&self, expression: &Expression, relation: Relation) -> String {
        let Some(literal) = expression.literal() else {
            return "the other side".to_owned();
        };
        let negative = matches!(expression, Expression::Negative(_));
        let approximate = if relation == Relation::About { "~" } else { "" };
        format!("{approximate}{}", Stated::of(literal, false, negative))
    }
}

fn describe_left(left: &Side) -> &'static str {
    match left.expression {
        Expression::Number(_) | Expression::Negative(_) => "the number",
        Expression::Binary(..) => "the calculation",
    }
}

/// Returns the logarithm of the factor between two numbers.
fn distance(a: f64, b: f64) -> f64 {
    if a * b > 0.0 {
        (a / b).ln().abs()
    } else {
        // Zero or different signs: farther than any relevant factor.
        100.0 + (a - b).abs().min(1e6)
    }
}

fn holds(calculated: Amount, claimed: Amount, result_format: &ResultFormat, relation: Relation) -> bool {
    let mut tolerance = claimed.slack.max(result_format.place / 2.0) + calculated.slack;
    tolerance = tolerance.max(SLIP * calculated.value.abs());
    // Allow for binary rounding, as in 0.1 + 0.2.
    tolerance += 1e-9 * calculated.value.abs();
    let difference = calculated.value - claimed.value;
    match relation {
        Relation::Below => difference <= tolerance,
        Relation::Above => -difference <= tolerance,
        Relation::Equal | Relation::Becomes | Relation::About => {
            if relation == Relation::About {
                tolerance = tolerance.max(ABOUT * claimed.value.abs());
            }
            let cut = calculated.value.abs() - claimed.value.abs();
            let was_cut = (0.0..result_format.place).contains(&cut) && calculated.value * claimed.value > 0.0;
            difference.abs() <= tolerance || was_cut
        }
    }
}

#[cfg(test)]
mod tests;
