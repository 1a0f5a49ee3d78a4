//! Published number: `77.7`, `~26`, `12-15`, `30.2 ± 0.5`, `8.03 GB`, `94 %`, `4K`.

use std::fmt;

use super::expression::{self, Expression, Literal, Relation};
use super::lexer::Hyphen;
use super::statement::ABOUT;
use super::unit::{Dimension, Unit};
use rooflet_api::v1alpha1::Published;

/// Published number with its precision and original unit.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stated {
    literal: Literal,
    about: bool,
    negative: bool,
    /// Standard error, such as 0.5 in `30.2 ± 0.5`.
    error: Option<Literal>,
}

/// Reason why a text is not a number of the expected dimension.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum StatedError {
    #[error(
        "`{0}` is not a number; write it as published, such as 77.7, ~26, 12-15, 30.2 ± 0.5, 8.03 GB or 94 %"
    )]
    Malformed(String),
    #[error("`{text}` is not {expected}")]
    Unit { text: String, expected: &'static str },
}

/// Expected dimension of a number, with its default unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Measure {
    /// Tokens per second; accepts times per token such as `20 ms/token`.
    Rate,
    Seconds,
    /// Bytes; requires a unit, except for numbers from 1,000,000 on.
    Bytes,
    /// Bandwidth; the default unit is GB/s.
    Bandwidth,
    /// Share; `94 %` equals `0.94`.
    Share,
    /// Tokens, parameters and other counts; accepts `4K` and `12B`.
    Count,
    /// Any unit.
    Any,
}

impl Stated {
    pub(super) fn parse(published: &Published) -> Result<Self, StatedError> {
        let text = published.to_string();
        let malformed = || StatedError::Malformed(text.clone());
        let spelled = text.replace("+/-", "±").replace("+-", "±");
        let Some((number, error)) = spelled.split_once('±') else {
            return Self::number(&text).ok_or_else(malformed);
        };
        let mut error = Self::number(error).ok_or_else(malformed)?.literal;
        let mut stated = Self::number(number).ok_or_else(malformed)?;
        // In `30.2 ± 0.5 tok/s`, the unit belongs to both numbers. In `30.2 tok/s ± 2 %`, the error
        // is relative.
        if stated.literal.unit.is_empty() && !error.unit.is_empty() && !error.is_percent() {
            stated.literal.unit.clone_from(&error.unit);
            stated.literal.meanings.clone_from(&error.meanings);
        } else if error.unit.is_empty() {
            error.unit.clone_from(&stated.literal.unit);
            error.meanings.clone_from(&stated.literal.meanings);
        }
        stated.error = Some(error);
        Ok(stated)
    }

    fn number(text: &str) -> Option<Self> {
        // Ignore a leading relation: `< 30`, `≥ 5`, `= 7`.
        let number = text.trim_start_matches(['=', '<', '>', '≤', '≥', ' ']);
        let sides = expression::parse(number, Hyphen::Usual).ok()?;
        let [side] = sides.as_slice() else {
            return None;
        };
        let literal = side.expression.literal()?;
        let negative = matches!(side.expression, Expression::Negative(_));
        Some(Self::of(literal, side.relation == Relation::About, negative))
    }

    pub(super) fn of(literal: &Literal, about: bool, negative: bool) -> Self {
        Self {
            literal: literal.clone(),
            about,
            negative,
            error: None,
        }
    }

    /// Returns whether the number is a factor such as `1.02x`.
    pub(super) fn is_factor(&self) -> bool {
        self.literal.is_factor()
    }

    /// Returns whether the number is a percentage.
    pub(super) fn is_percent(&self) -> bool {
        self.literal.is_percent() || self.literal.unit.is_empty() && self.has_percent_error()
    }

    fn has_percent_error(&self) -> bool {
        self.error.as_ref().is_some_and(Literal::is_percent)
    }

    /// Returns the standard error in the base units of `measure`, for the number `value`.
    fn standard_error(&self, measure: Measure, value: f64) -> Result<Option<f64>, StatedError> {
        let Some(error) = &self.error else {
            return Ok(None);
        };
        if error.is_percent() && !self.literal.is_percent() {
            return Ok(Some(error.number / 100.0 * value.abs()));
        }
        let amount = Self::of(error, false, false).read(measure)?;
        Ok(Some(amount.value))
    }

    fn is_time_per_token(&self) -> bool {
        let per = self.literal.unit.split_once('/').map(|(_, per)| per);
        matches!(per, Some("t" | "tok" | "toks" | "token" | "tokens"))
            && self.literal.meanings[0].dimension == Dimension::SECONDS
    }

    /// Converts to `measure` in base units: bytes, seconds, bytes per second, tokens per second, or
    /// 1.
    pub(super) fn read(&self, measure: Measure) -> Result<Reading, StatedError> {
        if measure == Measure::Rate && self.is_time_per_token() {
            let seconds = self.read(Measure::Seconds)?;
            return seconds
                .inverse()
                .ok_or_else(|| StatedError::Malformed(self.to_string()));
        }
        let bare = self.literal.unit.is_empty();
        // In `1.2 ± 0.4 %`, a share is in percent as well. The error of other numbers is relative.
        if bare
            && matches!(measure, Measure::Share | Measure::Any)
            && let Some(error) = self.error.as_ref().filter(|error| error.is_percent())
        {
            let mut share = self.clone();
            share.literal.unit.clone_from(&error.unit);
            share.literal.meanings.clone_from(&error.meanings);
            return share.read(measure);
        }
        let (dimension, expected) = match measure {
            Measure::Rate => (
                Dimension::PER_SECOND,
                "a rate: write tok/s or ms/token, or no unit",
            ),
            Measure::Seconds => (
                Dimension::SECONDS,
                "a time: write s, ms or min, or no unit for seconds",
            ),
            Measure::Bytes => (
                Dimension::BYTES,
                "a number of bytes: write its unit, such as GB, GiB or MB",
            ),
            Measure::Bandwidth => (
                Dimension::BYTES_PER_SECOND,
                "a bandwidth: write GB/s, or no unit for GB/s",
            ),
            Measure::Share => (Dimension::NONE, "a share: write it with %"),
            Measure::Count => (Dimension::NONE, "a count"),
            Measure::Any => (self.literal.meanings[0].dimension, ""),
        };
        let unit = self
            .literal
            .meanings
            .iter()
            .find(|unit| unit.dimension == dimension)
            .copied();
        let unit = match (unit, measure) {
            _ if bare && measure == Measure::Bandwidth => Some(Unit {
                scale: 1e9,
                dimension,
            }),
            (None, Measure::Bytes) if bare && self.literal.number >= 1e6 => Some(Unit {
                scale: 1.0,
                dimension,
            }),
            (None, Measure::Rate | Measure::Seconds) if bare => Some(Unit {
                scale: 1.0,
                dimension,
            }),
            (
                Some(_),
                Measure::Rate
                | Measure::Seconds
                | Measure::Bytes
                | Measure::Share
                | Measure::Count
                | Measure::Any
                | Measure::Bandwidth,
            )
            | (None, _) => unit,
        };
        let mut scale = unit
            .ok_or_else(|| StatedError::Unit {
                text: self.to_string(),
                expected,
            })?
            .scale;
        // 94 without `%` means 94 %, not 94 times the maximum.
        if measure == Measure::Share && bare && self.literal.high > 2.0 {
            scale = 0.01;
        }
        if self.negative {
            scale = -scale;
        }
        let ends = [self.literal.number * scale, self.literal.high * scale];
        let value = f64::midpoint(ends[0], ends[1]);
        let mut slack = self.literal.half_place * scale.abs();
        if self.about {
            slack = slack.max(ABOUT * value.abs());
        }
        let standard_error = self.standard_error(measure, value)?;
        slack = slack.max(standard_error.unwrap_or_default());
        Ok(Reading {
            value,
            standard_error,
            low: ends[0].min(ends[1]) - slack,
            high: ends[0].max(ends[1]) + slack,
            is_range: self.literal.high > self.literal.number,
            significant: significant_digits(&self.literal),
        })
    }
}

/// Number in base units, with the bounds of its rounding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    /// Value; the midpoint of a range.
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) is_range: bool,
    pub(super) significant: u32,
    /// Standard error, if stated.
    pub(super) standard_error: Option<f64>,
}

impl Reading {
    /// Divides the number by a positive `divisor`.
    pub(super) fn divided(self, divisor: f64) -> Self {
        Self {
            value: self.value / divisor,
            low: self.low / divisor,
            high: self.high / divisor,
            standard_error: self.standard_error.map(|error| error / divisor),
            ..self
        }
    }

    /// Returns the reciprocal, or `None` if the number may be 0.
    pub(super) fn inverse(self) -> Option<Self> {
        (self.low > 0.0).then(|| Self {
            value: self.value.recip(),
            low: self.high.recip(),
            high: self.low.recip(),
            standard_error: self.standard_error.map(|error| error / self.value.powi(2)),
            ..self
        })
    }

    /// Returns whether the number may stand for `value`, with an additional relative tolerance
    /// `share`.
    pub(super) fn admits(&self, value: f64, share: f64) -> bool {
        let leeway = share * value.abs();
        (self.low - leeway..=self.high + leeway).contains(&value)
    }

    /// Returns whether the number may stand for a value of a range of positive numbers, with an
    /// additional relative tolerance `share`.
    pub(super) fn admits_any(&self, (low, high): (f64, f64), share: f64) -> bool {
        self.high + share * low >= low && self.low - share * high <= high
    }

    /// Returns whether both may be the same number, with a relative tolerance `share`. Ranges must
    /// overlap by more than half of the narrower one.
    pub(super) fn agrees(&self, other: &Self, share: f64) -> bool {
        if self.is_range && other.is_range {
            let overlap = self.high.min(other.high) - self.low.max(other.low);
            let narrower = (self.high - self.low).min(other.high - other.low);
            // Both ends include rounding, so ranges that only touch differ.
            return overlap > 0.5 * narrower;
        }
        let leeway = share * self.value.abs().max(other.value.abs());
        self.low - leeway <= other.high && other.low - leeway <= self.high
    }
}

fn significant_digits(literal: &Literal) -> u32 {
    let places = (literal.high.abs() / (2.0 * literal.half_place)).log10();
    if places.is_finite() && places >= 0.0 {
        places.floor() as u32 + 1
    } else {
        1
    }
}

impl fmt::Display for Stated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let literal = &self.literal;
        if self.about {
            f.write_str("~")?;
        }
        if self.negative {
            f.write_str("-")?;
        } else if literal.signed {
            f.write_str("+")?;
        }
        write!(f, "{:.*}", literal.decimals, literal.number)?;
        if literal.high > literal.number {
            write!(f, "–{:.*}", literal.decimals, literal.high)?;
        }
        if let Some(error) = &self.error {
            write!(f, " ± {:.*}", error.decimals, error.number)?;
            if error.unit != literal.unit {
                f.write_str(&error.unit)?;
            }
        }
        match literal.unit.as_str() {
            "" => Ok(()),
            unit @ ("%" | "x" | "×" | "K" | "k" | "M" | "B" | "T") => write!(f, "{unit}"),
            unit => write!(f, " {unit}"),
        }
    }
}
