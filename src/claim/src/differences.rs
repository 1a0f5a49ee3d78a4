//! Checks of stated differences: their standard errors, and overheads in seconds and percent.

use super::cell::Cell;
use super::limits::{Trimmed, with_unit};
use super::stated::Reading;
use super::{Flag, Report};
use crate::figure_class::FigureClass as _;
use rooflet_api::v1alpha1::{ClaimVerdict, FigureKind, FigurePer};

/// Relative tolerance of an overhead, and of a gain that follows from two figures.
const NEARLY: f64 = 0.05;

pub(super) fn check(cells: &[Cell], report: &mut Report) {
    for (at, cell) in cells.iter().enumerate() {
        below_own_error(cell, cells, report);
        similar_figures(cell, &cells[..at], report);
        overhead(cell, cells, report);
    }
}

/// Returns the stated difference: the figure, or its distance from the factor 1.
fn difference(cell: &Cell) -> Option<f64> {
    let is_gain = matches!(cell.kind, FigureKind::TimeReduction | FigureKind::ThroughputGain);
    if cell.is_factor {
        return cell.kind.is_general().then_some(cell.reading.value - 1.0);
    }
    (is_gain || cell.kind.is_general()).then_some(cell.reading.value)
}

/// Flags a difference that is smaller than its standard error. If the claim states no error of the
/// difference, it follows from the errors of the two compared figures.
fn below_own_error(cell: &Cell, cells: &[Cell], report: &mut Report) {
    let Some(difference) = difference(cell) else {
        return;
    };
    let (error, source) = match cell.reading.standard_error {
        Some(error) => (error, String::new()),
        None => match compared(cell, difference, cells) {
            Some((a, b, error)) => (error, format!(" of {} and {}", with_unit(a), with_unit(b))),
            None => return,
        },
    };
    if difference.abs() >= error {
        report.pass(
            &cell.field,
            format!(
                "{:.1} standard errors",
                difference.abs() / error.max(f64::MIN_POSITIVE)
            ),
        );
        return;
    }
    let message = format!(
        "the difference {} is below its own standard error{source}, {}: repeat the measurement, or claim no difference",
        cell.stated,
        in_unit_of(cell, error)
    );
    report.flag(&cell.field, Flag::new(ClaimVerdict::MethodUnclear, message));
}

/// Formats a difference in the unit of the figure.
fn in_unit_of(cell: &Cell, value: f64) -> String {
    let is_share = matches!(cell.kind, FigureKind::TimeReduction | FigureKind::ThroughputGain);
    if cell.is_percent || is_share {
        format!("{} %", Trimmed(100.0 * value))
    } else if cell.kind == FigureKind::Seconds {
        format!("{} s", Trimmed(value))
    } else {
        Trimmed(value).to_string()
    }
}

/// Returns two figures with standard errors whose relative difference is `difference`, and the
/// standard error of that difference.
fn compared<'a>(cell: &Cell, difference: f64, cells: &'a [Cell]) -> Option<(&'a Cell, &'a Cell, f64)> {
    let is_relative = cell.is_factor
        || cell.is_percent
        || matches!(cell.kind, FigureKind::TimeReduction | FigureKind::ThroughputGain);
    if !is_relative {
        return None;
    }
    let mut pairs = cells.iter().enumerate().flat_map(|(at, other)| {
        let earlier = cells[..at].iter();
        earlier
            .filter(move |one| one.kind == other.kind)
            .map(move |one| (one, other))
    });
    pairs.find_map(|(a, b)| {
        let ratio = b.reading.value / a.reading.value;
        let error = relative_error(a)?.hypot(relative_error(b)?);
        let states = |change: f64| {
            let low = cell.reading.low - if cell.is_factor { 1.0 } else { 0.0 };
            let high = cell.reading.high - if cell.is_factor { 1.0 } else { 0.0 };
            let leeway = NEARLY * difference.abs();
            (low - leeway..=high + leeway).contains(&change)
        };
        let changes = [ratio - 1.0, 1.0 - ratio, ratio.recip() - 1.0, 1.0 - ratio.recip()];
        changes.into_iter().any(states).then_some((a, b, error))
    })
}

fn relative_error(cell: &Cell) -> Option<f64> {
    Some(cell.reading.standard_error? / cell.reading.value.abs().max(f64::MIN_POSITIVE))
}

/// Adds a remark to a figure that differs from an earlier one of the same kind by less than the
/// standard error of the difference.
fn similar_figures(cell: &Cell, earlier: &[Cell], report: &mut Report) {
    if difference(cell).is_some() {
        return;
    }
    for other in earlier.iter().filter(|other| other.kind == cell.kind) {
        let (Some(one), Some(two)) = (other.reading.standard_error, cell.reading.standard_error) else {
            continue;
        };
        let apart = (cell.reading.value - other.reading.value).abs();
        if apart < one.hypot(two) {
            let remark = format!(
                "differs from {} by less than the standard error of the difference, {}",
                with_unit(other),
                Trimmed(one.hypot(two))
            );
            report.remark(&cell.field, remark);
        }
    }
}

/// Time of which an overhead is a part.
struct Base<'a> {
    cell: &'a Cell,
    /// Seconds of a request, or of a token.
    seconds: Reading,
}

impl<'a> Base<'a> {
    /// Returns the time of a figure: of a token if the overhead is counted `per` token, otherwise of a
    /// request or a token.
    fn of(cell: &'a Cell, per: Option<FigurePer>) -> Option<Self> {
        let is_time = matches!(
            cell.kind,
            FigureKind::TotalSeconds
                | FigureKind::DecodeSeconds
                | FigureKind::PrefillSeconds
                | FigureKind::TimeToFirstTokenSeconds
                | FigureKind::Seconds
        );
        let is_per_token = per == Some(FigurePer::Token);
        let seconds = if cell.kind == FigureKind::DecodeTokensPerSecond {
            cell.reading
                .inverse()
                .filter(|_| per != Some(FigurePer::Request))?
        } else if is_time && is_per_token && cell.per != Some(FigurePer::Token) {
            let tokens = cell.workload.generated?.value;
            cell.reading.divided(tokens)
        } else if is_time {
            cell.reading
        } else {
            return None;
        };
        Some(Self { cell, seconds })
    }

    /// Returns whether `time` may be this share. The base contains the overhead or excludes it.
    fn agrees(&self, time: &Reading, share: &Reading) -> bool {
        let ends = |reading: &Reading| {
            let (low, high) = (reading.low.abs(), reading.high.abs());
            (low.min(high), low.max(high))
        };
        let ((low, high), (share_low, share_high)) = (ends(time), ends(share));
        let (least, most) = (low / self.seconds.high, high / self.seconds.low);
        let overlaps = |least: f64, most: f64| {
            share_low <= most * (1.0 + NEARLY) && share_high >= least * (1.0 - NEARLY)
        };
        overlaps(least, most) || most < 1.0 && overlaps(least / (1.0 - least), most / (1.0 - most))
    }
}

/// Checks an overhead in seconds against the percentage of the same name.
fn overhead(cell: &Cell, cells: &[Cell], report: &mut Report) {
    if cell.kind != FigureKind::Ratio || !cell.is_percent || cell.name.is_none() {
        return;
    }
    let same_name = |other: &&Cell| other.kind == FigureKind::Seconds && other.name == cell.name;
    let Some(time) = cells.iter().find(same_name) else {
        return;
    };
    let bases: Vec<Base<'_>> = cells
        .iter()
        .filter(|other| other.name != cell.name)
        .filter_map(|other| Base::of(other, time.per))
        .collect();
    if let Some(base) = bases
        .iter()
        .find(|base| base.agrees(&time.reading, &cell.reading))
    {
        report.pass(
            &cell.field,
            format!("{} of {}", with_unit(time), with_unit(base.cell)),
        );
        return;
    }
    // Times of other runs may confirm the percentage, but not contradict it.
    let Some(base) = bases.iter().find(|base| base.cell.same_run(time)) else {
        let remark = format!(
            "not checked: no figure states the time of which {} are this share",
            with_unit(time)
        );
        report.remark(&cell.field, remark);
        return;
    };
    let share = 100.0 * time.reading.value.abs() / base.seconds.value;
    let message = format!(
        "{} of {} are {} %, not {}",
        with_unit(time),
        with_unit(base.cell),
        Trimmed(share),
        cell.stated
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::Contradictory, message)
            .instead(cell.stated.clone(), format!("{} %", Trimmed(share)), share)
            .factor(cell.reading.value.abs() * 100.0 / share),
    );
}
