//! Limits of reading weights from disk.

use super::super::cell::Cell;
use super::super::machine::gigabytes_per_second;
use super::super::{Flag, Report};
use super::MAX_DISK_RATE;
use super::format::{Trimmed, gigabytes};
use rooflet_api::v1alpha1::{CacheState, ClaimVerdict, FigureKind};
use rooflet_model::weights::FormatBits;

/// Minimum read rate of an internal disk, in bytes per second. The slowest Mac since 2020 reads
/// 1.5 GB/s.
const MIN_DISK_RATE: f64 = 0.5e9;

pub(super) fn disk(cell: &Cell, report: &mut Report) {
    let resident = |bits: fn(&super::super::model::ClaimedFormat) -> FormatBits| {
        cell.model
            .sized()
            .map(|(model, _, format)| model.resident(bits(&format)))
    };
    let bytes = cell.bytes.map(|bytes| (bytes.low, bytes.value));
    let bytes = bytes.or_else(|| {
        Some((
            resident(|format| format.least)?,
            resident(|format| format.likely)?,
        ))
    });
    let Some((least, usual)) = bytes.filter(|(least, _)| *least > 0.0) else {
        report.remark(
            &cell.field,
            "not checked: the number of bytes read is not stated; add `bytes`",
        );
        return;
    };
    let rate = usual / cell.reading.value.max(1e-9);
    let expected = usual / (3e9 * cell.machine.machines);
    let working = format!(
        "{} in {} s is {}",
        gigabytes(usual),
        Trimmed(cell.reading.value),
        gigabytes_per_second(rate)
    );
    let of_each = if cell.machine.machines > 1.0 {
        " of each disk"
    } else {
        ""
    };
    let right = format!("{} s at 3 GB/s{of_each}", Trimmed(expected));
    let flag = |verdict, message: String| {
        Flag::new(verdict, message)
            .instead(cell.stated.clone(), right.clone(), expected)
            .factor(cell.reading.value / expected)
    };
    let is_disk_read = cell.kind == FigureKind::DiskReadSeconds;
    // Each machine reads its part. If only one of them reads, the minimum rate is that of one disk.
    if least / cell.reading.high.max(1e-9) > MAX_DISK_RATE * cell.machine.machines {
        let message = format!("{working}, faster than any disk: the data came from memory or was not read");
        match cell.conditions.state {
            Some(CacheState::Warm) if !is_disk_read => report.pass(
                &cell.field,
                format!("{working}: the system had cached the files in memory"),
            ),
            None if !is_disk_read => {
                let message = format!("{message}; state whether the files were cached (`state`)");
                report.flag(&cell.field, flag(ClaimVerdict::MethodUnclear, message));
            }
            Some(CacheState::Warm | CacheState::Cold) | None => {
                report.flag(&cell.field, flag(ClaimVerdict::ExceedsRoofline, message));
            }
        }
    } else if usual / cell.reading.low.max(1e-9) < MIN_DISK_RATE {
        let message = format!(
            "{working}, but every Mac's disk reads at least {}: the time includes other work",
            gigabytes_per_second(MIN_DISK_RATE)
        );
        let verdict = if is_disk_read {
            ClaimVerdict::ExceedsRoofline
        } else {
            ClaimVerdict::MethodUnclear
        };
        report.flag(&cell.field, flag(verdict, message));
    } else {
        report.pass(&cell.field, working);
    }
}
