//! JSON (RFC 8259) as rules of a grammar, with white space as models write it: compact, with single
//! spaces, or in indented lines. White space is limited, because some models would repeat it
//! forever.

use super::{Builder, ByteSet, NodeId, RETURN};

/// Maximum indentation of a line in spaces.
const MAX_INDENT: u32 = 32;

/// Characters without an escape in a string.
const PLAIN: &[(char, char)] = &[
    ('\u{20}', '\u{21}'),
    ('\u{23}', '\u{5b}'),
    ('\u{5d}', '\u{d7ff}'),
    ('\u{e000}', '\u{10ffff}'),
];

/// Rules of JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// White space between the parts of an object or a list.
    pub(super) space: NodeId,
    /// One character of a string, plain or escaped.
    pub(super) character: NodeId,
    /// One plain character of a string.
    pub(super) plain_character: NodeId,
    pub(super) integer: NodeId,
    pub(super) number: NodeId,
    pub(super) object: NodeId,
    pub(super) value: NodeId,
}

impl Rules {
    pub(super) fn new(builder: &mut Builder) -> Self {
        let space = space(builder);
        let plain_character = builder.characters(PLAIN, RETURN);
        let character = character(builder, plain_character);
        let string = string(builder, character);
        let integer = integer(builder);
        let number = number(builder);
        let value = builder.reserve();
        let array = list(builder, space, (b'[', b']'), value);
        let member = member(builder, space, string, value);
        let object = list(builder, space, (b'{', b'}'), member);
        let words = ["true", "false", "null"].map(|word| builder.literal(word.as_bytes(), RETURN));
        let mut branches = vec![string, number, object, array];
        branches.extend(words);
        let any = builder.any_of(branches);
        builder.define(value, any);
        Self {
            space,
            character,
            plain_character,
            integer,
            number,
            object,
            value,
        }
    }
}

/// Digits of canonical numbers: before the decimal point of a fraction, after it, and of integers. Together, they
/// are at most the 15 digits that a double represents exactly.
const WHOLE_DIGITS: u32 = 9;
const FRACTION_DIGITS: u32 = 6;

impl Rules {
    /// Returns rules with one spelling of each value, without white space. They have no objects of any form,
    /// whose members have no order. `character` has one spelling of each character.
    pub(super) fn canonical(self, builder: &mut Builder, character: NodeId) -> Self {
        let string = string(builder, character);
        let integer = canonical_integer(builder, None);
        let number = canonical_number(builder);
        let value = builder.reserve();
        let array = list(builder, RETURN, (b'[', b']'), value);
        let words = ["true", "false", "null"].map(|word| builder.literal(word.as_bytes(), RETURN));
        let mut branches = vec![string, number, array];
        branches.extend(words);
        let any = builder.any_of(branches);
        builder.define(value, any);
        Self {
            space: RETURN,
            character,
            integer,
            number,
            value,
            ..self
        }
    }
}

/// Builds integers of a maximum number of digits, without `-0`.
fn canonical_integer(builder: &mut Builder, most: Option<u32>) -> NodeId {
    let positive = positive(builder, most, RETURN);
    let negative = builder.literal(b"-", positive);
    let zero = builder.literal(b"0", RETURN);
    builder.any_of(vec![zero, positive, negative])
}

fn positive(builder: &mut Builder, most: Option<u32>, next: NodeId) -> NodeId {
    let digit = builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
    let more = builder.repeat(digit, 0, most.map(|most| most - 1), next);
    builder.bytes(ByteSet::range(b'1', b'9'), more)
}

/// Builds numbers without an exponent, a fraction that ends with zeros, and `-0`.
fn canonical_number(builder: &mut Builder) -> NodeId {
    let digit = builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
    let last = builder.bytes(ByteSet::range(b'1', b'9'), RETURN);
    let digits = builder.repeat(digit, 0, Some(FRACTION_DIGITS - 1), last);
    let fraction = builder.literal(b".", digits);
    let positive = positive(builder, Some(WHOLE_DIGITS), fraction);
    let below_one = builder.literal(b"0", fraction);
    let unsigned = builder.any_of(vec![positive, below_one]);
    let negative = builder.literal(b"-", unsigned);
    let whole = canonical_integer(builder, Some(WHOLE_DIGITS + FRACTION_DIGITS));
    builder.any_of(vec![whole, unsigned, negative])
}

fn space(builder: &mut Builder) -> NodeId {
    let one = builder.literal(b" ", RETURN);
    let indent = builder.repeat(one, 0, Some(MAX_INDENT), RETURN);
    let line = builder.literal(b"\n", indent);
    builder.any_of(vec![RETURN, one, line])
}

fn character(builder: &mut Builder, plain: NodeId) -> NodeId {
    let hex = || {
        let mut set = ByteSet::range(b'0', b'9');
        b"abcdefABCDEF".iter().for_each(|byte| set.insert(*byte));
        set
    };
    let last = builder.bytes(hex(), RETURN);
    let last_two = builder.bytes(hex(), last);
    let last_three = builder.bytes(hex(), last_two);
    // Surrogates are no characters, and half a pair is invalid.
    let mut first = hex();
    first.remove(b'd');
    first.remove(b'D');
    let usual = builder.bytes(first, last_three);
    let below_surrogates = builder.bytes(ByteSet::range(b'0', b'7'), last_two);
    let d = builder.bytes(ByteSet::of(b"dD"), below_surrogates);
    let code = builder.any_of(vec![usual, d]);
    let code = builder.literal(b"u", code);
    let short = builder.bytes(ByteSet::of(b"\"\\/bfnrt"), RETURN);
    let escaped = builder.any_of(vec![short, code]);
    let escape = builder.literal(b"\\", escaped);
    builder.any_of(vec![plain, escape])
}

fn string(builder: &mut Builder, character: NodeId) -> NodeId {
    let close = builder.literal(b"\"", RETURN);
    let characters = builder.repeat(character, 0, None, close);
    builder.literal(b"\"", characters)
}

fn integer(builder: &mut Builder) -> NodeId {
    let natural = natural(builder, RETURN);
    let negative = builder.literal(b"-", natural);
    builder.any_of(vec![natural, negative])
}

/// Digits without leading zeros.
fn natural(builder: &mut Builder, next: NodeId) -> NodeId {
    let digit = builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
    let more = builder.repeat(digit, 0, None, next);
    let first = builder.bytes(ByteSet::range(b'1', b'9'), more);
    let zero = builder.literal(b"0", next);
    builder.any_of(vec![zero, first])
}

fn number(builder: &mut Builder) -> NodeId {
    let digit = builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
    let digits = builder.repeat(digit, 1, None, RETURN);
    let sign = builder.bytes(ByteSet::of(b"+-"), digits);
    let signed = builder.optional(sign, digits);
    let exponent = builder.bytes(ByteSet::of(b"eE"), signed);
    let exponent = builder.optional(exponent, RETURN);
    let digits = builder.repeat(digit, 1, None, exponent);
    let fraction = builder.literal(b".", digits);
    let rest = builder.optional(fraction, exponent);
    let natural = natural(builder, rest);
    let negative = builder.literal(b"-", natural);
    builder.any_of(vec![natural, negative])
}

/// Builds a member of an object: `"name": value`.
pub(super) fn member(builder: &mut Builder, space: NodeId, name: NodeId, value: NodeId) -> NodeId {
    let value = builder.call(space, value);
    let colon = builder.literal(b":", value);
    builder.call(name, colon)
}

fn list(builder: &mut Builder, space: NodeId, brackets: (u8, u8), item: NodeId) -> NodeId {
    let close = builder.literal(&[brackets.1], RETURN);
    let end = builder.call(space, close);
    let another = builder.call(space, item);
    let another = builder.literal(b",", another);
    let more = builder.repeat(another, 0, None, end);
    let first = builder.call(item, more);
    let first = builder.call(space, first);
    let content = builder.any_of(vec![first, end]);
    builder.literal(&[brackets.0], content)
}
