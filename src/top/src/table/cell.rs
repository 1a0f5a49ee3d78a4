//! Cell of a table, and its order.

use std::cmp::{Ordering, Reverse};

use serde::Serialize;

/// Meaning of a cell, which selects its color.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Warning,
    Bad,
}

/// Value by which a column is sorted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Order {
    Number(f64),
    Text(String),
    Unknown,
}

/// Cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) order: Order,
    /// Share from 0 to 1 that is drawn as a bar.
    pub(crate) share: Option<f64>,
    pub(crate) tone: Tone,
}

impl Cell {
    /// Cell with a text; `-` if the text is empty.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        match text.is_empty() {
            true => Self::unknown(),
            false => Self {
                order: Order::Text(text.clone()),
                text,
                share: None,
                tone: Tone::Plain,
            },
        }
    }

    /// Cell of an unknown value.
    pub(crate) fn unknown() -> Self {
        Self {
            text: "-".to_owned(),
            order: Order::Unknown,
            share: None,
            tone: Tone::Plain,
        }
    }

    /// Cell with a number; `-` if the number is unknown.
    pub(crate) fn number(value: Option<f64>, show: impl FnOnce(f64) -> String) -> Self {
        value.map_or_else(Self::unknown, |value| Self {
            text: show(value),
            order: Order::Number(value),
            share: None,
            tone: Tone::Plain,
        })
    }

    /// Cell with a count.
    pub(crate) fn count(value: Option<u64>) -> Self {
        Self::number(value.map(|value| value as f64), |value| format!("{value:.0}"))
    }

    pub(crate) fn with_tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    pub(crate) fn with_share(mut self, share: f64) -> Self {
        self.share = Some(share);
        self
    }
}

/// Sort key of a cell. Known values precede unknown ones in both directions.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Forward(Known),
    Reversed(Reverse<Known>),
    Unknown,
}

impl Key {
    pub(super) fn new(order: Order, is_reversed: bool) -> Self {
        let known = match order {
            Order::Unknown => return Self::Unknown,
            Order::Number(value) => Known::Number(Total(value)),
            Order::Text(text) => Known::Text(natural(&text)),
        };
        match is_reversed {
            true => Self::Reversed(Reverse(known)),
            false => Self::Forward(known),
        }
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Known {
    Number(Total),
    Text(Vec<Part>),
}

/// Part of a text: numbers are compared as numbers, so that `mini-2` precedes `mini-10`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Digits(usize, String),
    Letter(char),
}

/// Number in a total order.
pub(super) struct Total(f64);

impl PartialEq for Total {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Total {}

impl PartialOrd for Total {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Total {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Splits a text into numbers and lower-case letters.
fn natural(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut digits = String::new();
    let push = |digits: &mut String, parts: &mut Vec<Part>| {
        if !digits.is_empty() {
            let significant = digits.trim_start_matches('0').to_owned();
            parts.push(Part::Digits(significant.len(), significant));
            digits.clear();
        }
    };
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        push(&mut digits, &mut parts);
        parts.push(Part::Letter(c));
    }
    push(&mut digits, &mut parts);
    parts
}
