//! `Source`, the generator of the input of a case.

use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use serde_json::{Map, Number, Value};

/// Texts with a meaning somewhere: borders of numbers, escapes, Unicode, dates.
const TEXTS: [&str; 28] = [
    "",
    "a",
    "b",
    "name",
    "a/b",
    "~1",
    "~0a",
    "-",
    "0",
    "-1",
    "9223372036854775807",
    "18446744073709551616",
    "1e400",
    "0.1",
    "é",
    "\u{0}",
    "\u{1F600}",
    "\"\\",
    "a\nb",
    "2026-01-01T00:00:00Z",
    "9999-12-31T23:59:60+23:59",
    "1h30m",
    "10Gi",
    "-5m",
    "127.0.0.1",
    "true",
    "null",
    "$patch",
];

/// Deterministic random input of one case.
pub(crate) struct Source {
    rng: StdRng,
    /// Descriptions of the generated input, for the report.
    shown: Vec<String>,
}

impl Source {
    pub(crate) fn of_case(target: &str, case: u64) -> Self {
        // FNV-1a, so that targets with the same case number have different input.
        let hash = target.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            rng: StdRng::seed_from_u64(hash ^ case),
            shown: Vec::new(),
        }
    }

    /// Records input for the report of a failed case.
    pub(crate) fn show(&mut self, name: &str, value: impl std::fmt::Display) {
        self.shown.push(format!("  {name}: {value}"));
    }

    pub(crate) fn shown(&self) -> String {
        self.shown.join("\n")
    }

    /// Returns a number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.rng.random_range(0..bound)
    }

    /// Returns true with a probability of one in `count`.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        let index = self.below(items.len());
        items[index]
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.rng.next_u32() as u8
    }

    pub(crate) fn bytes(&mut self, length_max: usize) -> Vec<u8> {
        (0..self.below(length_max + 1)).map(|_| self.byte()).collect()
    }

    pub(crate) fn number(&mut self) -> Number {
        match self.below(6) {
            0 => Number::from(0),
            1 => Number::from(self.rng.next_u64()),
            2 => Number::from(self.rng.next_u64().cast_signed()),
            // Longer fractions change when serde_json reads them.
            3 => Number::from_f64(self.below(4_000) as f64 / 8.0 - 250.0).unwrap_or_else(|| Number::from(-1)),
            _ => Number::from(self.below(7)),
        }
    }

    pub(crate) fn text(&mut self) -> String {
        match self.below(8) {
            0 => String::from_utf8_lossy(&self.bytes(12)).into_owned(),
            1 => {
                let (first, second) = (self.pick(&TEXTS), self.pick(&TEXTS));
                format!("{first}{second}")
            }
            _ => self.pick(&TEXTS).to_owned(),
        }
    }

    /// Returns one of `words`, or rarely any text.
    pub(crate) fn word(&mut self, words: &[&str]) -> String {
        match words.is_empty() || self.one_in(12) {
            true => self.text(),
            false => self.pick(words).to_owned(),
        }
    }

    /// Returns a value whose members have names of `words`.
    pub(crate) fn json(&mut self, words: &[&str], depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 10 }) {
            0 => Value::Null,
            1 => Value::Bool(self.one_in(2)),
            2 => Value::Number(self.number()),
            3..=5 => Value::String(self.word(words)),
            6 | 7 => Value::Array((0..self.below(4)).map(|_| self.json(words, depth - 1)).collect()),
            _ => self.object(words, depth),
        }
    }

    /// Like [`Self::json`], with texts instead of nulls.
    pub(crate) fn json_without_nulls(&mut self, words: &[&str], depth: usize) -> Value {
        without_nulls(self.json(words, depth))
    }

    pub(crate) fn object(&mut self, words: &[&str], depth: usize) -> Value {
        let members =
            (0..self.below(5)).map(|_| (self.word(words), self.json(words, depth.saturating_sub(1))));
        Value::Object(members.collect::<Map<_, _>>())
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Null => Value::from("a"),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, member)| (name, without_nulls(member)))
            .collect(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}
