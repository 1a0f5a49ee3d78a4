//! Sides of a statement in the order of comparison: the calculation first, then its stated result.

use super::expression::{self, Expression, ExpressionError, Operator, Relation, Side};
use super::lexer::Hyphen;

/// Splits a leading name from a calculation: `total = 1.3 + 2.4 = 3.7`.
///
/// At least two sides remain.
pub(super) fn split_name(text: &str) -> (Option<&str>, &str) {
    let (mut name, mut rest) = (None, text);
    while let Some((head, tail)) = rest.split_once('=')
        && is_name(head)
        && tail.contains(['=', '<', '>', '≤', '≥', '≈', '→'])
    {
        name = Some(head.trim());
        rest = tail.trim_start_matches('=').trim();
    }
    (name, rest)
}

fn is_name(text: &str) -> bool {
    let mut words = text.split_whitespace().peekable();
    let starts_with_letter = |word: &str| {
        word.trim_start_matches(['(', '['])
            .starts_with(char::is_alphabetic)
    };
    let is_name_char = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '(' | ')' | '[' | ']');
    words.peek().is_some() && words.all(|word| starts_with_letter(word) && word.chars().all(is_name_char))
}

/// Returns the possible readings of a text as sides, most likely first. Never empty.
pub(super) fn readings(text: &str) -> Result<Vec<Vec<Side>>, ExpressionError> {
    let sides = changes(expression::parse(text, Hyphen::Usual)?);
    // `-2.58 = 181.82-184.40` contains a subtraction, but `4.7-5.9x = 94/17` starts with a range.
    let other = expression::parse(text, Hyphen::ResultFirst)
        .ok()
        .map(changes)
        .filter(|other| *other != sides && result_is_first(other));
    Ok(std::iter::once(sides).chain(other).collect())
}

/// Returns whether the result comes first: `118 = (95 + 120) / 2`.
pub(super) fn result_is_first(sides: &[Side]) -> bool {
    matches!(sides, [first, second, ..] if is_result_of(second, first))
}

fn is_result_of(calculation: &Side, result: &Side) -> bool {
    result.expression.literal().is_some() && calculation.expression.literal().is_none()
}

/// Returns two adjacent sides as calculation and result. If only the right side is a calculation,
/// the left side is its result.
pub(super) fn in_order(left: &Side, right: &Side) -> (Side, Side) {
    if !is_result_of(right, left) {
        return (left.clone(), right.clone());
    }
    let relation = match right.relation {
        Relation::Below => Relation::Above,
        Relation::Above => Relation::Below,
        Relation::Equal | Relation::Becomes if left.relation == Relation::About => Relation::About,
        other @ (Relation::Equal | Relation::Becomes | Relation::About) => other,
    };
    let result = Side {
        relation,
        expression: left.expression.clone(),
    };
    (right.clone(), result)
}

/// Returns the sides with added and subtracted percentages as shares of the numbers before them.
/// `None` if there are none.
pub(super) fn with_relative_percentages(sides: &[Side]) -> Option<Vec<Side>> {
    let relative: Vec<Side> = sides
        .iter()
        .map(|side| Side {
            expression: side
                .expression
                .with_relative_percentages()
                .unwrap_or_else(|| side.expression.clone()),
            ..side.clone()
        })
        .collect();
    (relative != sides).then_some(relative)
}

/// Converts a change to a ratio: `60 -> 72 = +20 %` and `+20 % = 60 -> 72` become `72 / 60 = +20
/// %`.
fn changes(mut sides: Vec<Side>) -> Vec<Side> {
    let becomes = |at: usize| {
        sides[at].relation == Relation::Becomes
            && sides[at - 1..=at]
                .iter()
                .all(|side| side.expression.literal().is_some())
    };
    let is_factor = |side: &Side| {
        let literal = side.expression.literal();
        literal.is_some_and(|literal| literal.is_percent() || literal.is_factor())
    };
    let at = match sides.len() {
        0..=2 => return sides,
        _ if becomes(1) => 1,
        3 if is_factor(&sides[0]) && becomes(2) => 2,
        _ => return sides,
    };
    let after = Box::new(sides.remove(at).expression);
    let before = Box::new(sides[at - 1].expression.clone());
    sides[at - 1].expression = Expression::Binary(Operator::Divide, after, before);
    sides
}
