//! Number ranges and multiples, digit by digit, without exponents.

use std::cmp::Ordering;

use super::{Builder, ByteSet, NodeId, RETURN};
use rooflet_inference_api::openai::json::Number;

/// Maximum number of digits of a bound, before and after the point: a grammar has states for each.
/// The largest double has 309 digits before the point, the smallest 324 after it.
const MAX_DIGITS: usize = 400;

/// Exact decimal without a sign.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decimal {
    /// Digits before the point, without leading zeros; at least `0`.
    whole: Vec<u8>,
    /// Digits after the point, without trailing zeros.
    fraction: Vec<u8>,
}

/// Absolute value of a bound.
#[derive(Debug, Clone)]
struct Edge {
    decimal: Decimal,
    exclusive: bool,
}

/// Minimum or maximum of a range.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    negative: bool,
    edge: Edge,
}

impl Decimal {
    fn zero() -> Self {
        Self {
            whole: b"0".to_vec(),
            fraction: Vec::new(),
        }
    }

    /// Returns all digits of a number, or `None` if there are too many.
    fn new(value: &Number) -> Option<Self> {
        let text = value.decimal();
        let text = text.trim_start_matches('-');
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i32 = exponent.parse().ok()?;
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let length = |digits: &str| i32::try_from(digits.len()).ok();
        // Position of the point within all digits.
        let point = length(whole)?.checked_add(exponent)?;
        let all = [whole, fraction].concat();
        let [before, after] = [point.checked_neg()?, point.checked_sub(length(&all)?)?]
            .map(|missing| usize::try_from(missing).unwrap_or(0));
        if all.len() + before + after > MAX_DIGITS {
            return None;
        }
        let all = [vec![b'0'; before], all.into_bytes(), vec![b'0'; after]].concat();
        let (whole, fraction) = all.split_at(usize::try_from(point).unwrap_or(0));
        let zeros = whole.iter().take_while(|digit| **digit == b'0').count();
        let last = fraction.iter().rposition(|digit| *digit != b'0');
        Some(Self {
            whole: match &whole[zeros..] {
                [] => b"0".to_vec(),
                digits => digits.to_vec(),
            },
            fraction: fraction[..last.map_or(0, |last| last + 1)].to_vec(),
        })
    }
}

impl Edge {
    /// Returns the smallest permitted integer, if this is a minimum.
    fn first_whole(&self) -> Vec<u8> {
        match self.exclusive || !self.decimal.fraction.is_empty() {
            true => incremented(&self.decimal.whole),
            false => self.decimal.whole.clone(),
        }
    }

    /// Returns the largest permitted integer, if this is a maximum.
    fn last_whole(&self) -> Option<Vec<u8>> {
        let Decimal { whole, fraction } = &self.decimal;
        match self.exclusive && fraction.is_empty() {
            true => (whole != b"0").then(|| decremented(whole)),
            false => Some(whole.clone()),
        }
    }
}

impl Bound {
    /// Creates a bound. `exclusive` is true if the value itself is not permitted. Returns `None`
    /// for too many digits.
    pub(super) fn new(value: &Number, exclusive: bool) -> Option<Self> {
        let decimal = Decimal::new(value)?;
        Some(Self {
            negative: value.decimal().starts_with('-') && decimal != Decimal::zero(),
            edge: Edge { decimal, exclusive },
        })
    }

    /// Returns true if this maximum is below the minimum `least`, so that no number satisfies both.
    pub(super) fn is_below(&self, least: &Self) -> bool {
        match self.order(least) {
            Ordering::Less => true,
            Ordering::Equal => self.edge.exclusive || least.edge.exclusive,
            Ordering::Greater => false,
        }
    }

    /// Compares the values, regardless of exclusivity.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let magnitude = |bound: &Self| {
            let Decimal { whole, fraction } = bound.edge.decimal.clone();
            (whole.len(), whole, fraction)
        };
        match (self.negative, other.negative) {
            (false, false) => magnitude(self).cmp(&magnitude(other)),
            (true, true) => magnitude(other).cmp(&magnitude(self)),
            (negative, _) => [Ordering::Greater, Ordering::Less][usize::from(negative)],
        }
    }
}

/// Returns the same text for equal numbers: without an exponent and superfluous zeros. Numbers with
/// too many digits are returned as written.
pub(super) fn plain(value: &Number) -> String {
    let Some(Bound { negative, edge }) = Bound::new(value, false) else {
        return value.decimal();
    };
    let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
    let Decimal { whole, fraction } = &edge.decimal;
    let sign = if negative { "-" } else { "" };
    match &fraction[..] {
        [] => format!("{sign}{}", text(whole)),
        fraction => format!("{sign}{}.{}", text(whole), text(fraction)),
    }
}

/// Builds a rule of the integers in a range; `None` if the range is empty.
pub(super) fn integers(builder: &mut Builder, min: Option<&Bound>, max: Option<&Bound>) -> Option<NodeId> {
    signed(builder, (min, max), |builder, low, high| {
        let last = match high {
            Some(high) => Some(high.last_whole()?),
            None => None,
        };
        naturals(builder, &low.first_whole(), last.as_deref(), RETURN)
    })
}

/// Builds a rule of the numbers in a range; `None` if the range is empty.
pub(super) fn numbers(builder: &mut Builder, min: Option<&Bound>, max: Option<&Bound>) -> Option<NodeId> {
    signed(builder, (min, max), unsigned)
}

/// Builds the positive and the negative part of a range with `unsigned`.
fn signed(
    builder: &mut Builder,
    (min, max): (Option<&Bound>, Option<&Bound>),
    unsigned: impl Fn(&mut Builder, &Edge, Option<&Edge>) -> Option<NodeId>,
) -> Option<NodeId> {
    let zero = |exclusive| Edge {
        decimal: Decimal::zero(),
        exclusive,
    };
    let mut branches = Vec::new();
    if max.is_none_or(|max| !max.negative) {
        let low = min.filter(|min| !min.negative);
        let low = low.map_or_else(|| zero(false), |min| min.edge.clone());
        branches.extend(unsigned(builder, &low, max.map(|max| &max.edge)));
    }
    if min.is_none_or(|min| min.negative) {
        let low = max.filter(|max| max.negative);
        let low = low.map_or_else(|| zero(true), |max| max.edge.clone());
        let branch = unsigned(builder, &low, min.map(|min| &min.edge));
        branches.extend(branch.map(|branch| builder.literal(b"-", branch)));
    }
    (!branches.is_empty()).then(|| builder.any_of(branches))
}

/// Step of `multipleOf`: `units` of the last of `places` decimals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) units: u32,
    pub(super) places: u32,
}

impl Step {
    /// Creates a step from the shortest decimal of a number, because most decimals are not exact in
    /// binary. `None` if it has too many digits.
    pub(super) fn new(step: f64) -> Option<Self> {
        let text = step.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        Some(Self {
            units: format!("{whole}{fraction}").parse().ok()?,
            places: u32::try_from(fraction.len()).ok().filter(|places| *places <= 9)?,
        })
    }

    /// Returns true if a number is a multiple of the step, given the remainder of its digits so far
    /// by `units` and the number of decimals that are missing and zero.
    fn has_multiple(self, remainder: u32, places: u32) -> bool {
        (u64::from(remainder) * 10_u64.pow(places)).is_multiple_of(self.units.into())
    }

    /// Returns the step of the multiples that are integers.
    pub(super) fn of_integers(self) -> Self {
        let (mut units, mut one) = (self.units, 10_u32.pow(self.places));
        while one != 0 {
            (units, one) = (one, units % one);
        }
        Self {
            units: self.units / units,
            places: 0,
        }
    }
}

/// Builds a rule of all multiples of a step. It has a state for each remainder of the digits so far
/// and each number of decimals.
pub(super) fn multiples(builder: &mut Builder, step: Step) -> NodeId {
    // From the last decimal to the first: the rest of the number by remainder, or `None` if no
    // digit leads to a multiple.
    let mut decimals: Vec<Option<NodeId>> = Vec::new();
    for place in (0..step.places).rev() {
        let after: Vec<Option<NodeId>> = (0..step.units)
            .map(|remainder| {
                let ends = step.has_multiple(remainder, step.places - place - 1);
                let more = decimals.get(remainder as usize).copied().flatten();
                let branches: Vec<NodeId> = ends.then_some(RETURN).into_iter().chain(more).collect();
                (!branches.is_empty()).then(|| builder.any_of(branches))
            })
            .collect();
        decimals = (0..step.units)
            .map(|remainder| remainder_digits(builder, (step.units, remainder), b'0', &after))
            .collect();
    }
    let states: Vec<NodeId> = (0..step.units).map(|_| builder.reserve()).collect();
    let mut ends = Vec::new();
    for remainder in 0..step.units {
        let is_multiple = step.has_multiple(remainder, step.places);
        let fraction = decimals.get(remainder as usize).copied().flatten();
        let fraction = fraction.map(|fraction| builder.literal(b".", fraction));
        ends.push((is_multiple.then_some(RETURN), fraction));
    }
    let whole: Vec<Option<NodeId>> = states.iter().copied().map(Some).collect();
    for (remainder, (stop, fraction)) in (0..step.units).zip(&ends) {
        let digits = remainder_digits(builder, (step.units, remainder), b'0', &whole);
        let branches = [digits, *stop, *fraction].into_iter().flatten().collect();
        let branches = builder.any_of(branches);
        builder.define(states[remainder as usize], branches);
    }
    let (_, fraction) = ends[0];
    let below_one = fraction.map(|fraction| builder.literal(b"0", fraction));
    let above = remainder_digits(builder, (step.units, 0), b'1', &whole);
    let unsigned: Vec<NodeId> = [above, below_one].into_iter().flatten().collect();
    let unsigned = builder.any_of(unsigned);
    let negative = builder.literal(b"-", unsigned);
    let zero = builder.literal(b"0", RETURN);
    builder.any_of(vec![zero, unsigned, negative])
}

/// Builds one more digit, at least `first`, of a number with this remainder by `units`. `after` is
/// the rest of the number by new remainder.
fn remainder_digits(
    builder: &mut Builder,
    (units, remainder): (u32, u32),
    first: u8,
    after: &[Option<NodeId>],
) -> Option<NodeId> {
    let mut sets: Vec<(NodeId, ByteSet)> = Vec::new();
    for digit in first..=b'9' {
        let next = (remainder * 10 + u32::from(digit - b'0')) % units;
        if let Some(next) = after[next as usize] {
            match sets.iter_mut().find(|(to, _)| *to == next) {
                Some((_, set)) => set.insert(digit),
                None => sets.push((next, ByteSet::of(&[digit]))),
            }
        }
    }
    let branches: Vec<NodeId> = sets.into_iter().map(|(to, set)| builder.bytes(set, to)).collect();
    (!branches.is_empty()).then(|| builder.any_of(branches))
}

fn digits(builder: &mut Builder, min: usize, max: Option<usize>, next: NodeId) -> NodeId {
    let digit = builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
    let count = |count: usize| u32::try_from(count).expect("a number has fewer than 2^32 digits");
    builder.repeat(digit, count(min), max.map(count), next)
}

/// Builds the integers from `min` to `max`, given as digits; `None` if the range is empty.
fn naturals(builder: &mut Builder, min: &[u8], max: Option<&[u8]>, next: NodeId) -> Option<NodeId> {
    let length = min.len();
    if max.is_some_and(|max| (max.len(), max) < (length, min)) {
        return None;
    }
    if let Some(max) = max.filter(|max| max.len() == length) {
        return Some(between(builder, min, max, next));
    }
    let mut branches = vec![between(builder, min, &vec![b'9'; length], next)];
    // Numbers with a length strictly between both bounds may have any digits.
    let most = max.map(|max| max.len() - 2);
    if most.is_none_or(|most| most >= length) {
        let more = digits(builder, length, most, next);
        branches.push(builder.bytes(ByteSet::range(b'1', b'9'), more));
    }
    if let Some(max) = max {
        let mut least = vec![b'0'; max.len()];
        least[0] = b'1';
        branches.push(between(builder, &least, max, next));
    }
    Some(builder.any_of(branches))
}

/// Builds the numbers of a range whose bounds have the same number of digits.
fn between(builder: &mut Builder, low: &[u8], high: &[u8], next: NodeId) -> NodeId {
    let all = |digits: &[u8], digit: u8| digits.iter().all(|own| *own == digit);
    let length = low.len();
    if all(low, b'0') && all(high, b'9') {
        return digits(builder, length, Some(length), next);
    }
    let (first, last) = (low[0], high[0]);
    if first == last {
        let rest = between(builder, &low[1..], &high[1..], next);
        return builder.literal(&[first], rest);
    }
    let (zeros, nines) = (vec![b'0'; length - 1], vec![b'9'; length - 1]);
    let lowest = between(builder, &low[1..], &nines, next);
    let highest = between(builder, &zeros, &high[1..], next);
    let mut branches = vec![
        builder.literal(&[first], lowest),
        builder.literal(&[last], highest),
    ];
    if first + 1 < last {
        let any = digits(builder, length - 1, Some(length - 1), next);
        branches.push(builder.bytes(ByteSet::range(first + 1, last - 1), any));
    }
    builder.any_of(branches)
}

/// Builds the numbers without a sign between two bounds.
fn unsigned(builder: &mut Builder, low: &Edge, high: Option<&Edge>) -> Option<NodeId> {
    if let Some(high) = high
        && high.decimal.whole == low.decimal.whole
    {
        let fraction = fraction(builder, Some(low), Some(high))?;
        return Some(builder.literal(&low.decimal.whole, fraction));
    }
    let order = |edge: &Edge| (edge.decimal.whole.len(), edge.decimal.whole.clone());
    if high.is_some_and(|high| order(high) < order(low)) {
        return None;
    }
    let mut branches = Vec::new();
    if let Some(rest) = fraction(builder, Some(low), None) {
        branches.push(builder.literal(&low.decimal.whole, rest));
    }
    if let Some(high) = high
        && let Some(rest) = fraction(builder, None, Some(high))
    {
        branches.push(builder.literal(&high.decimal.whole, rest));
    }
    let any_fraction = {
        let some = digits(builder, 1, None, RETURN);
        let some = builder.literal(b".", some);
        builder.optional(some, RETURN)
    };
    let above = incremented(&low.decimal.whole);
    let below = high.map(|high| decremented(&high.decimal.whole));
    branches.extend(naturals(builder, &above, below.as_deref(), any_fraction));
    (!branches.is_empty()).then(|| builder.any_of(branches))
}

fn incremented(whole: &[u8]) -> Vec<u8> {
    let nines = whole.iter().rev().take_while(|digit| **digit == b'9').count();
    let (head, _) = whole.split_at(whole.len() - nines);
    let mut next = match head.split_last() {
        Some((last, head)) => [head, &[last + 1]].concat(),
        None => vec![b'1'],
    };
    next.extend(std::iter::repeat_n(b'0', nines));
    next
}

/// Decrements a positive number.
fn decremented(whole: &[u8]) -> Vec<u8> {
    let zeros = whole.iter().rev().take_while(|digit| **digit == b'0').count();
    let (head, _) = whole.split_at(whole.len() - zeros);
    let Some((last, head)) = head.split_last() else {
        return b"0".to_vec();
    };
    let mut before = [head, &[last - 1]].concat();
    before.extend(std::iter::repeat_n(b'9', zeros));
    match before[..] {
        [b'0', _, ..] => before[1..].to_vec(),
        _ => before,
    }
}

/// Builds the text after the integer digits of a bound: nothing, or a point and decimals.
fn fraction(builder: &mut Builder, low: Option<&Edge>, high: Option<&Edge>) -> Option<NodeId> {
    let length = [low, high]
        .into_iter()
        .flatten()
        .map(|edge| edge.decimal.fraction.len())
        .max()?;
    let padded = |edge: &Edge| {
        let mut digits = edge.decimal.fraction.clone();
        digits.resize(length, b'0');
        (digits, edge.exclusive)
    };
    let (low, high) = (low.map(padded), high.map(padded));
    let side = |edge: &Option<(Vec<u8>, bool)>| {
        edge.as_ref()
            .map(|(digits, exclusive)| (digits.clone(), *exclusive))
    };
    let digits = after_point(builder, side(&low), side(&high));
    let mut branches: Vec<NodeId> = digits
        .map(|digits| builder.literal(b".", digits))
        .into_iter()
        .collect();
    if may_stop(&low, &high) {
        branches.push(RETURN);
    }
    (!branches.is_empty()).then(|| builder.any_of(branches))
}

/// Remaining digits of a bound, and whether it is exclusive.
type Rest = Option<(Vec<u8>, bool)>;

/// Returns true if a number that equals the bounds so far may end.
fn may_stop(low: &Rest, high: &Rest) -> bool {
    let above = low
        .as_ref()
        .is_none_or(|(digits, exclusive)| digits.iter().all(|digit| *digit == b'0') && !exclusive);
    let below = high
        .as_ref()
        .is_none_or(|(digits, exclusive)| digits.iter().any(|digit| *digit != b'0') || !exclusive);
    above && below
}

/// Builds at least one more digit of a number that equals the bounds so far.
fn after_point(builder: &mut Builder, low: Rest, high: Rest) -> Option<NodeId> {
    let is_used_up = |(digits, _): &(Vec<u8>, bool)| digits.is_empty();
    if low.as_ref().or(high.as_ref()).is_none_or(is_used_up) {
        return beyond(builder, &low, &high);
    }
    let first = |rest: &Rest| rest.as_ref().map(|(digits, _)| digits[0]);
    let shorter = |rest: &Rest| {
        rest.as_ref()
            .map(|(digits, exclusive)| (digits[1..].to_vec(), *exclusive))
    };
    let (least, most) = (first(&low), first(&high));
    let mut branches = Vec::new();
    let edges = [least, most.filter(|_| most != least)];
    if least.zip(most).is_some_and(|(least, most)| least > most) {
        return None;
    }
    for digit in edges.into_iter().flatten() {
        let low = shorter(&low).filter(|_| least == Some(digit));
        let high = shorter(&high).filter(|_| most == Some(digit));
        let mut after: Vec<NodeId> = Vec::new();
        if may_stop(&low, &high) {
            after.push(RETURN);
        }
        after.extend(after_point(builder, low, high));
        if !after.is_empty() {
            let after = builder.any_of(after);
            branches.push(builder.bytes(ByteSet::range(digit, digit), after));
        }
    }
    let (from, to) = (
        least.map_or(b'0', |digit| digit + 1),
        most.map_or(b'9', |digit| digit - 1),
    );
    if from <= to {
        let rest = digits(builder, 0, None, RETURN);
        branches.push(builder.bytes(ByteSet::range(from, to), rest));
    }
    (!branches.is_empty()).then(|| builder.any_of(branches))
}

/// Builds more digits after the last digit of the bounds.
fn beyond(builder: &mut Builder, low: &Rest, high: &Rest) -> Option<NodeId> {
    let zero = builder.literal(b"0", RETURN);
    match (low, high) {
        // Only zeros do not exceed the maximum.
        (_, Some((_, false))) if low.as_ref().is_none_or(|(_, exclusive)| !exclusive) => {
            Some(builder.repeat(zero, 1, None, RETURN))
        }
        (_, Some(_)) => None,
        // Anything but zeros exceeds the minimum.
        (Some((_, true)), None) => {
            let rest = digits(builder, 0, None, RETURN);
            let positive = builder.bytes(ByteSet::range(b'1', b'9'), rest);
            Some(builder.repeat(zero, 0, None, positive))
        }
        (Some((_, false)) | None, None) => Some(digits(builder, 1, None, RETURN)),
    }
}
