//! Formatting of figures in messages.

use super::super::cell::Cell;
use crate::figure_class::FigureClass as _;

/// Returns the figure as published, with the unit that its kind implies.
pub(crate) fn with_unit(cell: &Cell) -> String {
    let bare = cell.stated.ends_with(|c: char| c.is_ascii_digit());
    let unit = match cell.kind.measure() {
        super::super::Measure::Rate => " tok/s",
        super::super::Measure::Seconds => " s",
        super::super::Measure::Bandwidth => " GB/s",
        super::super::Measure::Bytes
        | super::super::Measure::Share
        | super::super::Measure::Count
        | super::super::Measure::Any => "",
    };
    if bare {
        format!("{}{unit}", cell.stated)
    } else {
        cell.stated.clone()
    }
}

/// Number formatted without trailing zeros: `0.183`, `12.3`, `137.8`.
pub(crate) struct Trimmed(pub(crate) f64);

impl std::fmt::Display for Trimmed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let magnitude = self.0.abs();
        let digits = match magnitude {
            m if m >= 100.0 => 1,
            m if m >= 10.0 => 2,
            m if m >= 1.0 => 2,
            m if m >= 0.01 => 3,
            _ => 5,
        };
        let text = format!("{:.digits$}", self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

pub(crate) fn gigabytes(bytes: f64) -> String {
    let gb = bytes / 1e9;
    match gb {
        gb if gb >= 100.0 => format!("{gb:.0} GB"),
        gb if gb >= 10.0 => format!("{gb:.1} GB"),
        gb if gb >= 0.1 => format!("{gb:.2} GB"),
        _ => format!("{:.1} MB", bytes / 1e6),
    }
}

pub(super) fn gibibytes(bytes: f64) -> String {
    format!("{:.0} GiB", bytes / (1u64 << 30) as f64)
}

pub(super) fn operations_per_second(rate: f64) -> String {
    format!("{:.1} TFLOPS", rate / 1e12)
}
