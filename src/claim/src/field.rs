//! Published numbers of a claim's fields. Errors contain the field and the expected value.

use super::InvalidClaim;
use super::stated::{Measure, Reading, Stated};
use crate::figure_class::FigureClass as _;
use rooflet_api::v1alpha1::{FigureKind, Published};

/// Parses a published number of dimension `measure` that must be above 0.
pub(super) fn read(
    published: Option<&Published>,
    measure: Measure,
    field: &str,
) -> Result<Option<Reading>, InvalidClaim> {
    read_within(published, measure, Least::AboveZero, field)
}

/// Like [`read`], with another lower bound.
pub(super) fn read_within(
    published: Option<&Published>,
    measure: Measure,
    least: Least,
    field: &str,
) -> Result<Option<Reading>, InvalidClaim> {
    let Some(published) = published else {
        return Ok(None);
    };
    let reading = Stated::parse(published)
        .and_then(|stated| stated.read(measure))
        .map_err(|err| InvalidClaim::new(field, err))?;
    least.check(reading, published, field).map(Some)
}

/// Lower bound of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Least {
    AboveZero,
    Zero,
    Any,
}

impl Least {
    pub(super) fn of(kind: FigureKind) -> Self {
        // Differences are published under general kinds, and a gain may be negative.
        if kind.is_general() || matches!(kind, FigureKind::TimeReduction | FigureKind::ThroughputGain) {
            Self::Any
        } else if kind.measure() == Measure::Share {
            Self::Zero
        } else {
            Self::AboveZero
        }
    }

    pub(super) fn admits(self, reading: Reading) -> bool {
        match self {
            Self::AboveZero => reading.value > 0.0,
            Self::Zero => reading.value >= 0.0,
            Self::Any => true,
        }
    }

    pub(super) fn check(
        self,
        reading: Reading,
        published: &Published,
        field: &str,
    ) -> Result<Reading, InvalidClaim> {
        if self.admits(reading) {
            return Ok(reading);
        }
        let message = match self {
            Self::AboveZero => {
                format!("`{published}` must be above 0; write the number as published, or omit it")
            }
            Self::Zero | Self::Any => {
                format!("`{published}` must not be negative; write 0 or more, or omit it")
            }
        };
        Err(InvalidClaim::new(field, message))
    }
}

/// Parses a memory size in GiB: `24`, `24 GB` and `24Gi` all mean 24 GiB.
pub(super) fn read_memory(
    published: Option<&Published>,
    field: &str,
) -> Result<Option<Reading>, InvalidClaim> {
    let Some(published) = published else {
        return Ok(None);
    };
    let text = published.to_string();
    let lower = text.trim().to_ascii_lowercase();
    let terabytes = lower.ends_with("tb") || lower.ends_with("ti") || lower.ends_with("tib");
    let number = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c.is_whitespace());
    let unit = lower[number.len()..].trim();
    let known = matches!(unit, "" | "g" | "gb" | "gi" | "gib" | "tb" | "ti" | "tib");
    match number.trim().parse::<f64>() {
        Ok(number) if known && number > 0.0 && number < 1e6 => {
            let value = number * if terabytes { 1024.0 } else { 1.0 };
            Ok(Some(Reading {
                value,
                low: value,
                high: value,
                is_range: false,
                significant: 3,
                standard_error: None,
            }))
        }
        _ => Err(InvalidClaim::new(
            field,
            format!("`{text}` is not a memory size; write it as sold, such as 24 GB"),
        )),
    }
}
