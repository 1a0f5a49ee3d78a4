//! Samples and Markdown tables.

use std::fmt::{self, Display};
use std::time::Duration;

/// Sorted measurements. The display form is the median and, in brackets, the 10th and 90th
/// percentiles.
#[derive(Debug)]
pub(crate) struct Samples {
    sorted: Vec<f64>,
}

impl Samples {
    pub(crate) fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        assert!(!sorted.is_empty(), "nothing was measured");
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    /// Returns a quantile by the nearest-rank method, which always returns a measured value.
    pub(crate) fn quantile(&self, fraction: f64) -> f64 {
        let rank = (fraction * self.sorted.len() as f64).ceil() as usize;
        self.sorted[rank.clamp(1, self.sorted.len()) - 1]
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the 95 % confidence interval of the median, whatever the distribution of independent samples: two
    /// order statistics.
    pub(crate) fn interval(&self) -> (f64, f64) {
        let (half, deviation) = (
            self.sorted.len() as f64 / 2.0,
            (self.sorted.len() as f64).sqrt() / 2.0,
        );
        let at = |rank: f64| self.sorted[(rank.max(1.0) as usize).min(self.sorted.len()) - 1];
        (
            at((half - 1.96 * deviation).floor()),
            at((half + 1.96 * deviation).ceil() + 1.0),
        )
    }
}

impl Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(
            f,
            "{:.digits$} ({:.digits$}-{:.digits$})",
            self.median(),
            self.quantile(0.1),
            self.quantile(0.9)
        )
    }
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Prints a Markdown table's head.
pub(crate) fn head(columns: &[&str]) {
    row(columns);
    row(&vec!["---"; columns.len()]);
}

/// Prints one row of a Markdown table.
pub(crate) fn row(cells: &[impl AsRef<str>]) {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    println!("| {} |", cells.join(" | "));
}
