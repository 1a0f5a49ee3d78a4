//! Texts of figures.

use super::Usage;
use crate::table::{Cell, Order, Tone};

/// Share from which a bar is drawn as a warning, and as full.
const HIGH: f64 = 0.75;
const FULL: f64 = 0.9;

pub(crate) fn tone_of_share(share: f64) -> Tone {
    match share {
        share if share >= FULL => Tone::Bad,
        share if share >= HIGH => Tone::Warning,
        _ => Tone::Good,
    }
}

/// Formats `reserved/allocatable` in GiB.
pub(crate) fn memory(usage: Usage) -> String {
    let gibibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1u32 << 30));
    format!("{}/{}Gi", gibibytes(usage.reserved), gibibytes(usage.allocatable))
}

/// Formats `reserved/measured` in GB/s.
pub(crate) fn bandwidth(usage: Usage) -> String {
    let gigabytes = |rate: u64| match rate as f64 / 1e9 {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate => format!("{rate:.1}"),
    };
    format!(
        "{}/{}GB/s",
        gigabytes(usage.reserved),
        gigabytes(usage.allocatable)
    )
}

/// Formats bytes in GiB.
pub(crate) fn gibibytes(bytes: u64) -> String {
    format!("{:.1}Gi", bytes as f64 / f64::from(1u32 << 30))
}

pub(crate) fn rate(tokens_per_second: f64) -> String {
    match tokens_per_second {
        rate if rate >= 1_000.0 => format!("{rate:.0}"),
        rate => format!("{rate:.1}"),
    }
}

pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.9995 => format!("{:.0}ms", seconds * 1e3),
        seconds => format!("{seconds:.2}s"),
    }
}

/// Cell with a bar of the reserved share.
pub(super) fn usage_cell(usage: Option<Usage>, show: impl FnOnce(Usage) -> String) -> Cell {
    usage.map_or_else(Cell::unknown, |usage| {
        let share = usage.reserved_share();
        let mut cell = Cell::text(show(usage))
            .with_tone(tone_of_share(share))
            .with_share(share);
        cell.order = Order::Number(share);
        cell
    })
}
