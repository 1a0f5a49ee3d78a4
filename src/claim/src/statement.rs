//! Arithmetic that a claim states, checked: `16829/571 = 29.5`, `2*42*16*256*32768*2 B = 2.2 GB`,
//! `(a-b)/a = 10.6 %`.
//!
//! The digits of the stated result decide how exactly it is meant: 29.5 is anything that rounds or
//! is cut to 29.5. `~` widens that to a tenth.

use super::expression::{Amount, Expression, ExpressionError, Literal, Operator, Relation, Side};
use super::sides;
use super::stated::Stated;
use super::unit::{self, Dimension, Unit};

/// `~` means within this share.
pub(super) const ABOUT: f64 = 0.1;
/// A result this near is a slip of rounding at most: means of ratios differ so from ratios of
/// means.
const SLIP: f64 = 0.001;
/// A reading that is off by less than a factor of 1.5 is likely the one that was meant.
const NEARLY: f64 = 0.4;
/// Of one weight.
const MOST_BITS: f64 = 32.0;
/// Numbers whose unit's meaning is varied; more would try too many combinations.
const MAX_AMBIGUOUS: usize = 6;

/// What a statement turned out to be.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Holds {
        working: String,
    },
    Wrong(Mistake),
    /// It cannot be calculated, and why.
    Unreadable(String),
}

impl Outcome {
    /// How far from true it is, to tell readings of one text apart.
    fn distance(&self) -> f64 {
        match self {
            Self::Holds { .. } => 0.0,
            Self::Wrong(mistake) if mistake.factor > 0.0 => mistake.factor.ln().abs(),
            Self::Wrong(_) => f64::MAX,
            Self::Unreadable(_) => f64::INFINITY,
        }
    }
}

/// A calculation that comes out differently.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mistake {
    pub(super) claimed: String,
    pub(super) right: String,
    /// In the unit of `claimed`.
    pub(super) right_value: f64,
    pub(super) factor: f64,
    /// What else is to be said.
    pub(super) note: Option<String>,
}

/// A statement, split into the word before its colon and its calculation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Statement<'a> {
    pub(super) label: Option<&'a str>,
    pub(super) calculation: &'a str,
    /// The result stands in front of the calculation.
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
            result_first: sides::read(calculation)
                .is_ok_and(|readings| readings.iter().any(|sides| sides::leads(sides))),
        }
    }

    /// The number it ends with, or else begins with, as written: what it claims.
    pub(super) fn result(&self) -> Option<Stated> {
        let sides = sides::read(self.calculation).ok()?.pop()?;
        let ends = [sides.get(1..)?.last()?, &sides[0]];
        let result = ends
            .into_iter()
            .find(|side| side.expression.literal().is_some())?;
        let negative = matches!(result.expression, Expression::Negative(_));
        let about = result.relation == Relation::About;
        Some(Stated::of(result.expression.literal()?, about, negative))
    }

    /// Whether its calculation is about that many parameters times bits or bytes for each, and
    /// nothing else.
    pub(super) fn multiplies(&self, parameters: f64) -> bool {
        let Some(sides) = sides::read(self.calculation).ok().and_then(|mut all| all.pop()) else {
            return false;
        };
        let calculation = usize::from(sides::leads(&sides));
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

    /// Whether its result is said to be a gain in throughput.
    fn is_gain(&self) -> bool {
        let says = |text: &str| text.to_ascii_lowercase().contains("throughput");
        let mut pieces = self.calculation.split('=');
        let (first, last) = (pieces.next(), pieces.next_back());
        let result = if self.result_first { first } else { last.or(first) }.unwrap_or_default();
        self.label.is_some_and(says) || says(result)
    }

    pub(super) fn check(&self) -> Outcome {
        let readings = match sides::read(self.calculation) {
            Ok(readings) => readings,
            Err(err) => return Outcome::Unreadable(err.to_string()),
        };
        let mut outcomes: Vec<Outcome> = readings.iter().map(|sides| self.check_sides(sides)).collect();
        // That which holds was meant, or else that which is nearest to it.
        outcomes.sort_by(|a, b| a.distance().total_cmp(&b.distance()));
        outcomes.swap_remove(0)
    }

    fn check_sides(&self, sides: &[Side]) -> Outcome {
        if sides.len() < 2 {
            return Outcome::Unreadable("it has no `=`: write CALCULATION = RESULT".to_owned());
        }
        let mut working = Vec::new();
        for pair in sides.windows(2) {
            let (calculation, result) = sides::in_order(&pair[0], &pair[1]);
            match self.compare(&calculation, &result, sides) {
                Outcome::Holds { working: step } => working.push(step),
                other @ (Outcome::Wrong(_) | Outcome::Unreadable(_)) => return other,
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
        // GB is read as GiB only where no second number could hide a mistake behind it, and nobody
        // who writes GiB, too, means the same by both.
        let tells_apart = literals.iter().any(|literal| unit::is_binary(&literal.unit));
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
                literal.meanings.len() > 1 && !(is_decimal_bytes(literal) && (tells_apart || prefixed > 1))
            })
            .take(MAX_AMBIGUOUS)
            .collect();

        let mut nearest: Option<(f64, Mistake)> = None;
        let mut failure = None;
        for combination in 0..1usize << ambiguous.len() {
            let choose = |literal: &Literal| {
                let at = ambiguous.iter().position(|other| std::ptr::eq(*other, literal));
                let second = at.is_some_and(|at| combination >> at & 1 == 1);
                literal.meanings[usize::from(second)]
            };
            match self.compare_as(left, right, &choose) {
                Ok(Ok(working)) => return Outcome::Holds { working },
                Ok(Err((distance, mistake))) => {
                    // The first reading is the likeliest; another must be much nearer to be the one
                    // that was meant.
                    if nearest.as_ref().is_none_or(|(known, _)| distance < known * 0.5) {
                        nearest = Some((distance, mistake));
                    }
                }
                Err(err) => failure = failure.or(Some(err)),
            }
        }
        match (nearest, failure) {
            (Some((_, mistake)), _) => Outcome::Wrong(mistake),
            (None, Some(err)) => Outcome::Unreadable(err),
            (None, None) => Outcome::Unreadable("it says nothing that can be calculated".to_owned()),
        }
    }

    /// One reading: `Ok(Ok(working))` if it holds, `Ok(Err((distance, mistake)))` if not.
    fn compare_as(
        &self,
        left: &Side,
        right: &Side,
        choose: &dyn Fn(&Literal) -> Unit,
    ) -> Result<Result<String, (f64, Mistake)>, String> {
        let text = |err: ExpressionError| err.to_string();
        let calculated = left.expression.evaluate(choose).map_err(text)?;
        let claimed = right.expression.evaluate(choose).map_err(text)?;
        let shown = Shown::new(&right.expression, choose);
        // Without a unit on one side, its number may be meant in base units or in the unit of the
        // other.
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
            let as_written = left.expression.evaluate(&plain).map_err(text)?;
            if bare(&left.expression) {
                meant.push(as_written.scaled(shown.scale));
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
            } else if !is_loose(&left.expression, choose) {
                return Err(format!(
                    "its sides are different kinds of quantity: {} and {}",
                    calculated.dimension, claimed.dimension
                ));
            }
        }
        let mut nearest: Option<(f64, Mistake)> = None;
        for amount in meant {
            let readings = self.readings(&left.expression, amount.value, &shown, choose);
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
                    &shown,
                    relation,
                ) {
                    return Ok(Ok(format!("{} = {}", shown_left(left), shown.format(value))));
                }
                let distance = distance(value, claimed.value);
                // That a ratio is meant as a change or as its inverse shows by coming out nearly
                // right.
                if index > 0 && distance > NEARLY {
                    continue;
                }
                if nearest.as_ref().is_none_or(|(known, _)| distance < *known) {
                    let mistake = Mistake {
                        claimed: shown.format_claimed(&right.expression, relation),
                        right: shown.format(value),
                        right_value: value / shown.scale,
                        factor: claimed.value / value,
                        note: note.or_else(|| weighted_mean_note(&left.expression)),
                    };
                    nearest = Some((distance, mistake));
                }
            }
        }
        nearest
            .map(Err)
            .ok_or_else(|| "it says nothing that can be calculated".to_owned())
    }

    /// What the calculation may mean for a result of this form: a change where a percentage is
    /// stated of a ratio, the inverse where a factor is.
    fn readings(
        &self,
        left: &Expression,
        value: f64,
        shown: &Shown,
        choose: &dyn Fn(&Literal) -> Unit,
    ) -> Vec<(f64, Option<String>)> {
        if self.is_gain()
            && shown.percent
            && let Some(gain) = throughput_gain(left, choose)
        {
            let note = format!(
                "a time that shrinks by {:.1} % raises throughput by 1/(1 − {:.3}) − 1",
                value * 100.0,
                value
            );
            return vec![(gain, Some(note))];
        }
        let ratio = matches!(left, Expression::Binary(Operator::Divide, ..));
        // What takes half the time is done twice as often.
        let sooner =
            (shown.percent && value > 0.0 && is_change_of_time(left, choose)).then(|| value.recip() - 1.0);
        if let (true, Some(gain)) = (self.is_gain(), sooner) {
            return vec![(gain, None)];
        }
        let is_change = shown.percent && shown.signed;
        let mut readings = if !(shown.percent && ratio) || is_change && is_difference(left) {
            vec![(value, None)]
        } else if is_change {
            // With its sign a percentage says by how much, never how much there is of it.
            vec![(value - 1.0, None)]
        } else {
            vec![(value, None), (value - 1.0, None), (1.0 - value, None)]
        };
        readings.extend(sooner.map(|gain| (gain, None)));
        if shown.factor && ratio && value != 0.0 {
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

/// Whether a factor without a unit stands beside ones with: `77.7 * 8.03 GB` leaves open what 77.7
/// is.
fn is_loose(expression: &Expression, choose: &dyn Fn(&Literal) -> Unit) -> bool {
    let mut literals = Vec::new();
    expression.literals(&mut literals);
    literals
        .iter()
        .any(|literal| literal.unit.is_empty() && choose(literal).dimension == Dimension::NONE)
}

/// Whether what stands above the line is a change already: `(b-a)/a`.
fn is_difference(left: &Expression) -> bool {
    let Expression::Binary(Operator::Divide, above, _) = left else {
        return false;
    };
    matches!(
        above.as_ref(),
        Expression::Negative(_) | Expression::Binary(Operator::Subtract, ..)
    )
}

/// Whether a time stands over another.
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

/// `(a-b)/a` of times, or `1 - b/a`, as the throughput gained: `a/b - 1`.
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

/// `(w1*x1 + w2*x2 + …)/c` where the weights do not sum to `c`: what they sum to, and the mean they
/// give.
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
        "the weights sum to {weights:.2}, not {divisor}; divided by that the mean is {:.1}",
        sum / weights
    );
    if weights > 1.005 {
        note.push_str(", and shares or probabilities of cases that exclude each other sum to 1");
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

/// How a result is written: its unit and its digits.
struct Shown {
    unit: String,
    scale: f64,
    decimals: usize,
    /// The last digit's place in base units; zero for a calculation.
    place: f64,
    percent: bool,
    factor: bool,
    signed: bool,
}

impl Shown {
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
        // Enough digits that the difference shows.
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
        let roughly = if relation == Relation::About { "~" } else { "" };
        format!("{roughly}{}", Stated::of(literal, false, negative))
    }
}

fn shown_left(left: &Side) -> &'static str {
    match left.expression {
        Expression::Number(_) | Expression::Negative(_) => "it",
        Expression::Binary(..) => "the calculation",
    }
}

/// How far apart two numbers are, as a factor.
fn distance(a: f64, b: f64) -> f64 {
    if a * b > 0.0 {
        (a / b).ln().abs()
    } else {
        // Zero or another sign: farther than any factor that matters.
        100.0 + (a - b).abs().min(1e6)
    }
}

fn holds(calculated: Amount, claimed: Amount, shown: &Shown, relation: Relation) -> bool {
    let mut tolerance = claimed.slack.max(shown.place / 2.0) + calculated.slack;
    tolerance = tolerance.max(SLIP * calculated.value.abs());
    // Binary fractions: 0.1 + 0.2.
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
            let was_cut = (0.0..shown.place).contains(&cut) && calculated.value * claimed.value > 0.0;
            difference.abs() <= tolerance || was_cut
        }
    }
}

#[cfg(test)]
mod tests;
