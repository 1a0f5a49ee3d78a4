//! The sides of a statement, in the order in which they are compared: a calculation first, and what
//! it is said to give behind it.

use super::expression::{self, Expression, ExpressionError, Operator, Relation, Side};
use super::lexer::Hyphen;

/// The words in front of a calculation that name its result, and the calculation:
/// `total = 1.3 + 2.4 = 3.7`. Nothing is taken where no two sides would be left.
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
    let starts_like_one = |word: &str| {
        word.trim_start_matches(['(', '['])
            .starts_with(char::is_alphabetic)
    };
    let of_one = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '(' | ')' | '[' | ']');
    words.peek().is_some() && words.all(|word| starts_like_one(word) && word.chars().all(of_one))
}

/// What the sides of a text may be, the likeliest first. Never empty.
pub(super) fn read(text: &str) -> Result<Vec<Vec<Side>>, ExpressionError> {
    let sides = changes(expression::parse(text, Hyphen::Usual)?);
    // `-2.58 = 181.82-184.40` subtracts, and `4.7-5.9x = 94/17` begins with a range.
    let other = expression::parse(text, Hyphen::ResultFirst)
        .ok()
        .map(changes)
        .filter(|other| *other != sides && leads(other));
    Ok(std::iter::once(sides).chain(other).collect())
}

/// Whether the result stands first: `118 = (95 + 120) / 2`.
pub(super) fn leads(sides: &[Side]) -> bool {
    matches!(sides, [first, second, ..] if gives(second, first))
}

fn gives(calculation: &Side, result: &Side) -> bool {
    result.expression.literal().is_some() && calculation.expression.literal().is_none()
}

/// Two neighbours as calculation and result. A calculation on the right of a number is what gives
/// that number.
pub(super) fn in_order(left: &Side, right: &Side) -> (Side, Side) {
    if !gives(right, left) {
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

/// `60 -> 72 = +20 %` says by how much a number changed, as does `+20 % = 60 -> 72`: what it became
/// over what it was.
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
