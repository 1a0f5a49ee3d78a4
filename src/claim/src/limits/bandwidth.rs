//! What a machine's memory moves, in all and of the cache.

use super::super::cell::Cell;
use super::super::machine::gigabytes_per_second;
use super::super::{Flag, Report};
use super::shown::gigabytes;
use super::{DecodeLimit, kv_bytes, machine_name, why_untestable};
use rooflet_api::v1alpha1::ClaimVerdict;
use rooflet_model::kv_cache::KvBits;

/// Kernels that do not share the cache between query heads read it this often, and write beside it.
const KV_READS: f64 = 16.0;

pub(super) fn bandwidth(cell: &Cell, report: &mut Report) {
    let Some(bin) = cell.machine.fastest() else {
        report.remark(&cell.field, why_untestable(cell));
        return;
    };
    let most = bin.bandwidth * cell.machine.machines;
    let name = machine_name(cell, bin);
    // Data sheets round by as much.
    if cell.reading.low <= most * 1.03 {
        report.pass(
            &cell.field,
            format!("{:.0} % of {name}", 100.0 * cell.reading.value / most),
        );
        return;
    }
    let message = format!(
        "{} is {:.0} % of what {name} can move; a figure above the memory's own comes out of a cache, or belongs to another machine",
        cell.stated,
        100.0 * cell.reading.value / most
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::ExceedsRoofline, message)
            .instead(
                cell.stated.clone(),
                format!("at most {}", gigabytes_per_second(most)),
                most / 1e9,
            )
            .factor(cell.reading.value / most),
    );
}

pub(super) fn kv_bandwidth(cell: &Cell, report: &mut Report) {
    let (Some(limit), Some((model, _))) = (DecodeLimit::new(cell), &cell.model.known) else {
        report.remark(&cell.field, why_untestable(cell));
        return;
    };
    if model.dimensions.is_none() {
        report.remark(&cell.field, "not checked: the model's dimensions are not known");
        return;
    }
    let context = cell
        .workload
        .context
        .or(cell.workload.prompt)
        .map_or(0.0, |tokens| tokens.high)
        + cell.workload.generated.map_or(0.0, |tokens| tokens.high);
    if context <= 0.0 {
        report.remark(
            &cell.field,
            "not checked: how many tokens the cache held is not stated",
        );
        return;
    }
    let bits = cell.workload.kv_bits.unwrap_or(KvBits::HALF.0);
    let per_pass = kv_bytes(model, context + 1.0, bits);
    // Each token costs one read of its sequence's cache.
    let most = (limit.hard * per_pass * KV_READS).min(limit.bandwidth);
    let rate = limit.ceiling.min(limit.hard);
    let usual = rate * per_pass;
    if cell.reading.low <= most {
        report.pass(
            &cell.field,
            format!(
                "{} of cache at {context:.0} tokens, read up to {rate:.0} times a second: {}",
                gigabytes(per_pass),
                gigabytes_per_second(usual)
            ),
        );
        return;
    }
    let message = format!(
        "the cache of {context:.0} tokens holds {} and is read once per token: even at {rate:.0} tok/s that is {}",
        gigabytes(per_pass),
        gigabytes_per_second(usual)
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::ExceedsRoofline, message)
            .instead(
                cell.stated.clone(),
                format!("at most {}", gigabytes_per_second(usual)),
                usual / 1e9,
            )
            .factor(cell.reading.value / usual),
    );
}
