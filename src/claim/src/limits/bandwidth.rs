//! Limits of memory bandwidth: total, and for reading the KV cache.

use super::super::cell::Cell;
use super::super::machine::gigabytes_per_second;
use super::super::{Flag, Report};
use super::format::gigabytes;
use super::{DecodeLimit, kv_bytes, machine_name, untestable_reason};
use rooflet_api::v1alpha1::ClaimVerdict;
use rooflet_model::kv_cache::KvBits;

/// Maximum reads of the KV cache per token. Kernels without sharing between query heads read it
/// once per query head.
const KV_READS: f64 = 16.0;

pub(super) fn bandwidth(cell: &Cell, report: &mut Report) {
    let Some(bin) = cell.machine.fastest() else {
        report.remark(&cell.field, untestable_reason(cell));
        return;
    };
    let most = bin.bandwidth * cell.machine.machines;
    let name = machine_name(cell, bin);
    // Allow for rounding in data sheets.
    if cell.reading.low <= most * 1.03 {
        report.pass(
            &cell.field,
            format!("{:.0} % of {name}", 100.0 * cell.reading.value / most),
        );
        return;
    }
    let message = format!(
        "{} is {:.0} % of the bandwidth of {name}; a figure above the memory bandwidth comes from a cache or from another machine",
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
        report.remark(&cell.field, untestable_reason(cell));
        return;
    };
    if model.dimensions.is_none() {
        report.remark(
            &cell.field,
            "not checked: the dimensions of the model are unknown",
        );
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
            "not checked: the number of cached tokens is not stated",
        );
        return;
    }
    let bits = cell.workload.kv_bits.unwrap_or(KvBits::HALF.0);
    let per_pass = kv_bytes(model, context + 1.0, bits);
    // Each token reads the KV cache of its sequence once.
    let most = (limit.hard * per_pass * KV_READS).min(limit.bandwidth);
    let rate = limit.ceiling.min(limit.hard);
    let usual = rate * per_pass;
    if cell.reading.low <= most {
        report.pass(
            &cell.field,
            format!(
                "{} of KV cache at {context:.0} tokens, read up to {rate:.0} times per second: {}",
                gigabytes(per_pass),
                gigabytes_per_second(usual)
            ),
        );
        return;
    }
    let message = format!(
        "the KV cache of {context:.0} tokens has {} and is read once per token: even at {rate:.0} tok/s, that is {}",
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
