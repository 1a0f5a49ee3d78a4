//! Limits of memory capacity.

use super::super::cell::Cell;
use super::super::machine::default_working_set;
use super::super::{Flag, Report};
use super::format::{Trimmed, gibibytes, gigabytes, with_unit};
use super::{MAX_ACCEPTED_TOKENS, MAX_DISK_RATE, MIN_KV_BITS, has_unknown_batch, kv_bytes};
use crate::figure_class::FigureClass as _;
use crate::stated::Measure;
use rooflet_api::v1alpha1::{ClaimVerdict, FigureKind};

/// Records a finding if weights and KV cache do not fit into memory. Returns whether the figure may
/// be possible nevertheless.
pub(super) fn memory(cell: &Cell, report: &mut Report) -> bool {
    let (Some((model, _, format)), Some(most)) = (cell.model.sized(), cell.machine.max_memory()) else {
        return true;
    };
    let weights = model.resident(format.least);
    let kv_bits = cell.workload.kv_bits.unwrap_or(MIN_KV_BITS);
    let kv = kv_bytes(model, cell.workload.context_tokens(), kv_bits) * cell.workload.batch;
    let shown_weights = model.resident(format.likely);
    if weights + kv <= most {
        let gpu = cell
            .machine
            .memory
            .map(|memory| default_working_set(memory) * cell.machine.machines);
        if let Some(gpu) = gpu.filter(|gpu| shown_weights > *gpu) {
            let remark = format!(
                "weights of {} exceed the {} that the GPU may use by default: the limit (iogpu.wired_limit_mb) must have \
                 been raised",
                gigabytes(shown_weights),
                gigabytes(gpu)
            );
            report.remark(&cell.field, remark);
        }
        return true;
    }
    let has = match cell.machine.memory {
        Some(_) => format!("the machine has {}", gibibytes(most)),
        None => format!("no machine with that chip has more than {}", gibibytes(most)),
    };
    let cache = if kv > 0.0 {
        format!(" and a KV cache of at least {}", gigabytes(kv))
    } else {
        String::new()
    };
    let does_not_fit = format!("weights of {}{cache} do not fit: {has}", gigabytes(shown_weights));
    // Every pass reads from disk what does not fit into memory, except unused experts.
    let missing = if model.is_mixture() {
        let streamed = model.least_streamed(format.least).unwrap_or(0.0);
        streamed * (1.0 - (most / weights).min(1.0))
    } else {
        weights + kv - most
    };
    let pass_seconds = missing.max(1.0) / (MAX_DISK_RATE * cell.machine.machines);
    let flag = match DiskLimit::of(cell, pass_seconds) {
        DiskLimit::Rate(most) if cell.reading.low > most => {
            let message = format!("{does_not_fit}; from disk, the rate is at most {most:.2} tok/s");
            Flag::new(ClaimVerdict::ExceedsRoofline, message)
                .instead(with_unit(cell), format!("at most {most:.2} tok/s"), most)
                .factor(cell.reading.value / most)
        }
        DiskLimit::Seconds(least) if cell.reading.high < least => {
            let least_shown = format!("at least {} s", Trimmed(least));
            let message = format!("{does_not_fit}; from disk, it takes {least_shown}");
            Flag::new(ClaimVerdict::ExceedsRoofline, message)
                .instead(with_unit(cell), least_shown, least)
                .factor(cell.reading.value / least)
        }
        DiskLimit::Rate(_) | DiskLimit::Seconds(_) => Flag::new(
            ClaimVerdict::MethodUnclear,
            format!("{does_not_fit}; possible only if every pass reads weights from disk"),
        ),
    };
    let is_possible = flag.verdict != ClaimVerdict::ExceedsRoofline;
    report.flag(&cell.field, flag);
    is_possible
}

/// Limit of a figure if every pass reads weights from disk.
enum DiskLimit {
    /// Maximum tokens per second.
    Rate(f64),
    /// Minimum seconds.
    Seconds(f64),
}

impl DiskLimit {
    /// Returns the limit of a speed or time whose passes take at least `pass_seconds`.
    fn of(cell: &Cell, pass_seconds: f64) -> Self {
        let batch = cell.workload.batch;
        let accepted = if cell.workload.speculative {
            MAX_ACCEPTED_TOKENS
        } else {
            1.0
        };
        let generated = cell.workload.generated.map_or(0.0, |generated| generated.low);
        // Each of several requests may generate only a part of the tokens.
        let may_be_several = cell.may_count_several_requests();
        let decoding = |tokens: f64| {
            if may_be_several {
                0.0
            } else {
                pass_seconds * tokens.max(0.0) / accepted
            }
        };
        match cell.kind.measure() {
            // One pass computes all tokens of the prompts.
            Measure::Rate if cell.kind == FigureKind::PrefillTokensPerSecond => {
                let prompt = cell.workload.prompt.map_or(f64::INFINITY, |prompt| prompt.high);
                Self::Rate(batch * prompt.max(1.0) / pass_seconds)
            }
            Measure::Seconds if cell.kind == FigureKind::DecodeSeconds => {
                Self::Seconds(decoding(generated - 1.0))
            }
            Measure::Seconds if cell.kind == FigureKind::TotalSeconds => {
                Self::Seconds(pass_seconds + decoding(generated - 1.0))
            }
            Measure::Seconds => Self::Seconds(pass_seconds),
            Measure::Rate
            | Measure::Bytes
            | Measure::Bandwidth
            | Measure::Share
            | Measure::Count
            | Measure::Any
                if has_unknown_batch(cell) =>
            {
                Self::Rate(f64::INFINITY)
            }
            Measure::Rate
            | Measure::Bytes
            | Measure::Bandwidth
            | Measure::Share
            | Measure::Count
            | Measure::Any => Self::Rate(batch * accepted / pass_seconds),
        }
    }
}

/// Checks a stated memory use against the memory of the machine.
pub(super) fn memory_in_use(cell: &Cell, report: &mut Report) {
    let Some(most) = cell.machine.max_memory() else {
        return;
    };
    // A machine sold with "24 GB" has 24 GiB.
    if cell.reading.low > most * 1.001 {
        let message = format!(
            "{} exceeds the memory of the machine: {}",
            cell.stated,
            gibibytes(most)
        );
        report.flag(
            &cell.field,
            Flag::new(ClaimVerdict::ExceedsRoofline, message)
                .instead(
                    cell.stated.clone(),
                    format!("at most {}", gibibytes(most)),
                    most / 1e9,
                )
                .factor(cell.reading.value / most),
        );
    }
}
