//! Numbers between bounds, digit by digit, written without exponents.

use super::{Builder, ByteSet, NodeId, RETURN};

/// A decimal without a sign, exact.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decimal {
    /// Without superfluous zeros; `0` where there is none.
    whole: Vec<u8>,
    /// Without zeros at the end.
    fraction: Vec<u8>,
}

/// One end of a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bound {
    pub(super) value: f64,
    /// The value itself is outside.
    pub(super) exclusive: bool,
}

/// A bound on numbers without their sign.
#[derive(Debug, Clone)]
struct Edge {
    decimal: Decimal,
    exclusive: bool,
}

impl Decimal {
    fn new(value: f64) -> Self {
        // Rust prints the shortest digits that mean the value, and no exponent.
        let text = format!("{}", value.abs());
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        Self {
            whole: whole.into(),
            fraction: fraction.trim_end_matches('0').into(),
        }
    }
}

/// Integers in a range; `None` where there are none.
pub(super) fn integers(builder: &mut Builder, min: Option<Bound>, max: Option<Bound>) -> Option<NodeId> {
    let min = min.map(|bound| match bound.exclusive {
        true => bound.value.floor() + 1.0,
        false => bound.value.ceil(),
    });
    let max = max.map(|bound| match bound.exclusive {
        true => bound.value.ceil() - 1.0,
        false => bound.value.floor(),
    });
    let digits = |value: f64| Decimal::new(value).whole;
    let mut ways = Vec::new();
    if max.is_none_or(|max| max >= 0.0) {
        let min = digits(min.unwrap_or(0.0).max(0.0));
        ways.extend(naturals(builder, &min, max.map(digits).as_deref(), RETURN));
    }
    if min.is_none_or(|min| min <= -1.0) {
        let least = digits(max.map_or(1.0, |max| (-max).max(1.0)));
        let most = min.map(|min| digits(-min));
        let way = naturals(builder, &least, most.as_deref(), RETURN);
        ways.extend(way.map(|way| builder.literal(b"-", way)));
    }
    if min.zip(max).is_some_and(|(min, max)| min > max) || ways.is_empty() {
        return None;
    }
    Some(builder.any_of(ways))
}

/// The most multiples that are listed one by one.
const MAX_LISTED: i64 = 512;

/// Whole multiples in a range; the inner `None` where there are none, the outer one where the range is too wide to be
/// held to together with the step.
pub(super) fn multiples(
    builder: &mut Builder,
    step: u32,
    min: Option<Bound>,
    max: Option<Bound>,
) -> Option<Option<NodeId>> {
    let first = min.map(|bound| (bound.value / f64::from(step)).ceil());
    let excluded = |bound: Bound, of: f64| bound.exclusive && of * f64::from(step) == bound.value;
    let first = first
        .zip(min)
        .map(|(of, bound)| if excluded(bound, of) { of + 1.0 } else { of });
    let last = max.map(|bound| (bound.value / f64::from(step)).floor());
    let last = last
        .zip(max)
        .map(|(of, bound)| if excluded(bound, of) { of - 1.0 } else { of });
    match (first, last) {
        (None, None) => Some(Some(any_multiple(builder, step, true))),
        // From zero on.
        (Some(0.0), None) => Some(Some(any_multiple(builder, step, false))),
        (Some(first), Some(last)) if first > last => Some(None),
        (Some(first), Some(last)) if last - first < MAX_LISTED as f64 => {
            let all = first as i64..=last as i64;
            let text = |of: i64| (of * i64::from(step)).to_string();
            let ways = all
                .map(|of| builder.literal(text(of).as_bytes(), RETURN))
                .collect();
            Some(Some(builder.any_of(ways)))
        }
        (_, _) => None,
    }
}

/// A state for each remainder of the digits that were read.
fn any_multiple(builder: &mut Builder, step: u32, signed: bool) -> NodeId {
    let states: Vec<NodeId> = (0..step).map(|_| builder.reserve()).collect();
    let digits_to = |builder: &mut Builder, from: u32, first: u8| -> Vec<NodeId> {
        let digit = |digit: u8| {
            let next = (from * 10 + u32::from(digit)) % step;
            (digit, states[next as usize])
        };
        let all: Vec<_> = (first..=9).map(digit).collect();
        all.into_iter()
            .map(|(digit, next)| builder.bytes(ByteSet::of(&[b'0' + digit]), next))
            .collect()
    };
    for (remainder, state) in (0..step).zip(&states) {
        let mut ways = digits_to(builder, remainder, 0);
        ways.extend((remainder == 0).then_some(RETURN));
        let ways = builder.any_of(ways);
        builder.define(*state, ways);
    }
    let natural = digits_to(builder, 0, 1);
    let natural = builder.any_of(natural);
    let zero = builder.literal(b"0", RETURN);
    let mut ways = vec![zero, natural];
    if signed {
        ways.push(builder.literal(b"-", natural));
    }
    builder.any_of(ways)
}

/// Numbers with so many decimals at most.
pub(super) fn decimals(builder: &mut Builder, places: u32) -> NodeId {
    let digit = builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
    let some = builder.repeat(digit, 1, Some(places), RETURN);
    let fraction = builder.literal(b".", some);
    let rest = builder.optional(fraction, RETURN);
    let more = builder.repeat(digit, 0, None, rest);
    let first = builder.bytes(ByteSet::range(b'1', b'9'), more);
    let zero = builder.literal(b"0", rest);
    let natural = builder.any_of(vec![zero, first]);
    let negative = builder.literal(b"-", natural);
    builder.any_of(vec![natural, negative])
}

/// Numbers in a range; `None` where there are none.
pub(super) fn numbers(builder: &mut Builder, min: Option<Bound>, max: Option<Bound>) -> Option<NodeId> {
    if let (Some(min), Some(max)) = (min, max)
        && (min.value > max.value || (min.value == max.value && (min.exclusive || max.exclusive)))
    {
        return None;
    }
    let edge = |bound: Bound| Edge {
        decimal: Decimal::new(bound.value),
        exclusive: bound.exclusive,
    };
    let zero = || Edge {
        decimal: Decimal::new(0.0),
        exclusive: false,
    };
    let mut ways = Vec::new();
    if max.is_none_or(|max| max.value > 0.0 || (max.value == 0.0 && !max.exclusive)) {
        let low = min.filter(|min| min.value >= 0.0).map_or_else(zero, edge);
        ways.extend(unsigned(builder, &low, max.map(edge).as_ref()));
    }
    if min.is_none_or(|min| min.value < 0.0) {
        let low = max.filter(|max| max.value <= 0.0).map_or_else(zero, edge);
        let way = unsigned(builder, &low, min.map(edge).as_ref());
        ways.extend(way.map(|way| builder.literal(b"-", way)));
    }
    (!ways.is_empty()).then(|| builder.any_of(ways))
}

fn digits(builder: &mut Builder, min: usize, max: Option<usize>, next: NodeId) -> NodeId {
    let digit = builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
    let count = |count: usize| u32::try_from(count).expect("a number has few digits");
    builder.repeat(digit, count(min), max.map(count), next)
}

/// Whole numbers from `min` to `max`, given by their digits.
fn naturals(builder: &mut Builder, min: &[u8], max: Option<&[u8]>, next: NodeId) -> Option<NodeId> {
    let longest = max.map_or(min.len(), <[u8]>::len);
    let mut ways = Vec::new();
    for length in min.len()..=longest {
        let mut least = vec![b'0'; length];
        least[0] = b'1';
        let low = if length == min.len() { min.to_vec() } else { least };
        let high = max
            .filter(|max| max.len() == length)
            .map_or(vec![b'9'; length], <[u8]>::to_vec);
        if low <= high {
            ways.push(between(builder, &low, &high, next));
        }
    }
    if max.is_none() {
        let more = digits(builder, min.len(), None, next);
        ways.push(builder.bytes(ByteSet::range(b'1', b'9'), more));
    }
    (!ways.is_empty()).then(|| builder.any_of(ways))
}

/// Numbers of as many digits as both bounds have.
fn between(builder: &mut Builder, low: &[u8], high: &[u8], next: NodeId) -> NodeId {
    let (Some((first, low)), Some((last, high))) = (low.split_first(), high.split_first()) else {
        return next;
    };
    let length = low.len();
    if first == last {
        let rest = between(builder, low, high, next);
        return builder.literal(&[*first], rest);
    }
    let nines = vec![b'9'; length];
    let zeros = vec![b'0'; length];
    let mut ways = vec![
        between(builder, low, &nines, next),
        between(builder, &zeros, high, next),
    ];
    ways[0] = builder.literal(&[*first], ways[0]);
    ways[1] = builder.literal(&[*last], ways[1]);
    if first + 1 < *last {
        let any = digits(builder, length, Some(length), next);
        ways.push(builder.bytes(ByteSet::range(first + 1, last - 1), any));
    }
    builder.any_of(ways)
}

/// Numbers without a sign.
fn unsigned(builder: &mut Builder, low: &Edge, high: Option<&Edge>) -> Option<NodeId> {
    let any_fraction = {
        let some = digits(builder, 1, None, RETURN);
        let some = builder.literal(b".", some);
        builder.optional(some, RETURN)
    };
    if let Some(high) = high
        && high.decimal.whole == low.decimal.whole
    {
        let fraction = fraction(builder, Some(low), Some(high))?;
        return Some(builder.literal(&low.decimal.whole, fraction));
    }
    let mut ways = Vec::new();
    if let Some(rest) = fraction(builder, Some(low), None) {
        ways.push(builder.literal(&low.decimal.whole, rest));
    }
    if let Some(high) = high
        && let Some(rest) = fraction(builder, None, Some(high))
    {
        ways.push(builder.literal(&high.decimal.whole, rest));
    }
    let above = incremented(&low.decimal.whole);
    let below = high.map(|high| decremented(&high.decimal.whole));
    ways.extend(naturals_between(builder, &above, below.as_deref(), any_fraction));
    (!ways.is_empty()).then(|| builder.any_of(ways))
}

fn naturals_between(builder: &mut Builder, low: &[u8], high: Option<&[u8]>, next: NodeId) -> Option<NodeId> {
    let in_order = high.is_none_or(|high| (low.len(), low) <= (high.len(), high));
    in_order.then(|| naturals(builder, low, high, next)).flatten()
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

/// Of a number above zero.
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

/// What may stand behind the whole part that is an edge's own: nothing, or a point and digits.
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
    let mut ways: Vec<NodeId> = digits
        .map(|digits| builder.literal(b".", digits))
        .into_iter()
        .collect();
    if may_stop(&low, &high) {
        ways.push(RETURN);
    }
    (!ways.is_empty()).then(|| builder.any_of(ways))
}

/// Digits of a bound that are still to come, and whether it is exclusive.
type Rest = Option<(Vec<u8>, bool)>;

/// Whether a number that has been equal to the bounds so far is inside as it is.
fn may_stop(low: &Rest, high: &Rest) -> bool {
    let above = low
        .as_ref()
        .is_none_or(|(digits, exclusive)| digits.iter().all(|digit| *digit == b'0') && !exclusive);
    let below = high
        .as_ref()
        .is_none_or(|(digits, exclusive)| digits.iter().any(|digit| *digit != b'0') || !exclusive);
    above && below
}

/// At least one more digit of a number that has been equal to the bounds so far.
fn after_point(builder: &mut Builder, low: Rest, high: Rest) -> Option<NodeId> {
    let first = |rest: &Rest| {
        rest.as_ref()
            .map(|(digits, _)| digits.first().copied().unwrap_or(b'0'))
    };
    let (least, most) = (first(&low), first(&high));
    if low
        .as_ref()
        .or(high.as_ref())
        .is_none_or(|(digits, _)| digits.is_empty())
    {
        return beyond(builder, &low, &high);
    }
    let shorter = |rest: &Rest| {
        rest.as_ref()
            .map(|(digits, exclusive)| (digits[1..].to_vec(), *exclusive))
    };
    let mut ways = Vec::new();
    for digit in least.unwrap_or(b'0')..=most.unwrap_or(b'9') {
        let low = shorter(&low).filter(|_| least == Some(digit));
        let high = shorter(&high).filter(|_| most == Some(digit));
        let mut behind: Vec<NodeId> = Vec::new();
        if may_stop(&low, &high) {
            behind.push(RETURN);
        }
        behind.extend(after_point(builder, low, high));
        if !behind.is_empty() {
            let behind = builder.any_of(behind);
            ways.push(builder.bytes(ByteSet::range(digit, digit), behind));
        }
    }
    (!ways.is_empty()).then(|| builder.any_of(ways))
}

/// More digits where the bounds have none left.
fn beyond(builder: &mut Builder, low: &Rest, high: &Rest) -> Option<NodeId> {
    let zero = builder.literal(b"0", RETURN);
    match (low, high) {
        // Only zeros do not go above.
        (_, Some((_, false))) if low.as_ref().is_none_or(|(_, exclusive)| !exclusive) => {
            Some(builder.repeat(zero, 1, None, RETURN))
        }
        (_, Some(_)) => None,
        // Anything but zeros goes above.
        (Some((_, true)), None) => {
            let rest = digits(builder, 0, None, RETURN);
            let positive = builder.bytes(ByteSet::range(b'1', b'9'), rest);
            Some(builder.repeat(zero, 0, None, positive))
        }
        (Some((_, false)) | None, None) => Some(digits(builder, 1, None, RETURN)),
    }
}
