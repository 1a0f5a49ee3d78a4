//! Limits of memory capacity.

use super::super::cell::Cell;
use super::super::machine::default_working_set;
use super::super::{Flag, Report};
use super::format::{gibibytes, gigabytes, with_unit};
use super::{MAX_DISK_RATE, MIN_KV_BITS, kv_bytes};
use rooflet_api::v1alpha1::{ClaimVerdict, FigureKind};

/// Returns whether weights and KV cache fit into memory, and records a finding if not.
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
    let from_disk = cell.workload.batch * MAX_DISK_RATE * cell.machine.machines / missing.max(1.0);
    let is_rate = !matches!(
        cell.kind,
        FigureKind::PrefillSeconds
            | FigureKind::TimeToFirstTokenSeconds
            | FigureKind::TotalSeconds
            | FigureKind::DecodeSeconds
    );
    let decodes = is_rate && cell.kind != FigureKind::PrefillTokensPerSecond;
    let flag = if decodes && cell.reading.low > from_disk {
        let message = format!("{does_not_fit}; from disk, the rate is at most {from_disk:.2} tok/s");
        Flag::new(ClaimVerdict::ExceedsRoofline, message)
            .instead(
                with_unit(cell),
                format!("at most {from_disk:.2} tok/s"),
                from_disk,
            )
            .factor(cell.reading.value / from_disk)
    } else if decodes {
        Flag::new(
            ClaimVerdict::MethodUnclear,
            format!("{does_not_fit}; possible only if every pass reads weights from disk"),
        )
    } else {
        Flag::new(ClaimVerdict::ExceedsRoofline, does_not_fit)
            .instead(
                gigabytes(shown_weights + kv),
                format!("at most {}", gibibytes(most)),
                most / 1e9,
            )
            .factor((shown_weights + kv) / most)
    };
    report.flag(&cell.field, flag);
    false
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
