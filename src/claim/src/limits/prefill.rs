//! Limits of prefill by compute.

use super::super::cell::Cell;
use super::super::{Flag, Report};
use super::format::{Trimmed, gigabytes, operations_per_second, with_unit};
use super::{DecodeLimit, machine_name, untestable_reason};
use rooflet_api::v1alpha1::{CacheState, ClaimVerdict, FigureKind};

/// Returns the operations to prefill the prompts of the batch, and their number of tokens. Without a
/// stated prompt, returns the operations of one token.
fn prefill_work(cell: &Cell) -> Option<(f64, f64)> {
    let (model, _) = cell.model.known.as_ref()?;
    let prompt = cell.workload.prompt.map(|prompt| prompt.low.max(1.0));
    let cached = cell.workload.cached.map_or(0.0, |cached| cached.high.max(0.0));
    match (&model.dimensions, prompt) {
        (Some(dimensions), Some(prompt)) => {
            let past = cached.min(prompt - 1.0).max(0.0);
            let tokens = (prompt - past).clamp(1.0, 1e9);
            let (matrices, scores) = dimensions.prefill_flops(tokens as u32, past as u32);
            Some((matrices + scores, tokens))
        }
        (Some(dimensions), None) => {
            let active = (dimensions.active_parameters() - dimensions.head_parameters()) as f64;
            Some((2.0 * active, 1.0))
        }
        (None, _) => Some((2.0 * 0.9 * model.active?, 1.0)),
    }
}

/// Flags a time in which the chip cannot read the weights once. The first token requires this read
/// for any prompt, cached or not. Returns whether the time is too short.
fn shorter_than_one_pass(cell: &Cell, report: &mut Report) -> bool {
    let mut one = cell.clone();
    one.workload.batch = 1.0;
    one.workload.kv_bits = None;
    let Some(limit) = DecodeLimit::without_cache(&one) else {
        return false;
    };
    let least = limit.hard.recip();
    if cell.kind == FigureKind::PrefillSeconds && cell.conditions.state == Some(CacheState::Warm)
        || cell.reading.high >= least
    {
        return false;
    }
    let seconds = limit.ceiling.recip();
    let name = cell
        .machine
        .fastest()
        .map_or_else(String::new, |bin| machine_name(cell, bin));
    let message = format!(
        "{} is impossible for any prompt, cached or not: one pass over {} of weights takes {} s on {name}",
        with_unit(cell),
        gigabytes(limit.streamed),
        Trimmed(seconds)
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::ExceedsRoofline, message)
            .instead(
                with_unit(cell),
                format!("at least {} s", Trimmed(seconds)),
                seconds,
            )
            .factor(cell.reading.value / seconds),
    );
    true
}

/// Flags a prefill rate that is possible only if it counts cached tokens. `excess` is the rate
/// divided by the limit.
fn counts_cached_tokens(cell: &Cell, excess: f64, report: &mut Report) -> bool {
    let (Some(prompt), Some(cached)) = (cell.workload.prompt, cell.workload.cached) else {
        return false;
    };
    let computed_share = (prompt.low - cached.high).max(1.0) / prompt.low.max(1.0);
    if computed_share >= 1.0 || excess * computed_share > 1.0 {
        return false;
    }
    let rate = cell.reading.value * computed_share;
    let reason = format!(
        "{} is possible only if it counts the cached tokens",
        with_unit(cell)
    );
    flag_cached_tokens(cell, &reason, rate, report);
    true
}

/// Flags a prefill rate that counts cached tokens. `rate` is that of the computed tokens, in tokens per
/// second.
pub(crate) fn flag_cached_tokens(cell: &Cell, reason: &str, rate: f64, report: &mut Report) {
    let rate_text = format!("{} tok/s", Trimmed(rate));
    let message = format!("{reason}; the computed tokens have {rate_text}");
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::MethodUnclear, message)
            .instead(with_unit(cell), rate_text, rate)
            .factor(cell.reading.value / rate),
    );
}

pub(super) fn prefill(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let is_time = cell.kind != FigureKind::PrefillTokensPerSecond;
    if is_time && shorter_than_one_pass(cell, report) {
        return;
    }
    let (Some((operations, tokens)), Some(peak)) = (prefill_work(cell), cell.machine.peak()) else {
        report.remark(field, untestable_reason(cell));
        return;
    };
    if is_time && cell.workload.prompt.is_none() {
        report.remark(
            field,
            "the length of the prompt is not stated: checked for the shortest, one token",
        );
        return;
    }
    // For a batch, the prefill time covers all prompts. The mean time to first token covers the
    // mean position in the batch, `(batch + 1) / 2` prompts.
    let prompts = if cell.kind == FigureKind::PrefillSeconds {
        cell.workload.batch
    } else if cell.kind == FigureKind::TimeToFirstTokenSeconds {
        f64::midpoint(cell.workload.batch, 1.0)
    } else {
        1.0
    };
    let operations = operations * prompts;
    let tokens = tokens * prompts;
    if cell.conditions.state == Some(CacheState::Warm) && cell.workload.cached.is_none() {
        report.pass(
            field,
            "the prefix cache contained the prompt or most of it: prefill computes almost nothing",
        );
        return;
    }
    // Operations per second that the figure requires.
    let required = |seconds_or_rate: f64| {
        if is_time {
            operations / seconds_or_rate.max(1e-9)
        } else {
            operations / tokens * seconds_or_rate
        }
    };
    let (mildest, usual) = if is_time {
        (required(cell.reading.high), required(cell.reading.value))
    } else {
        (required(cell.reading.low), required(cell.reading.value))
    };
    let working = format!("{} needs {}", with_unit(cell), operations_per_second(usual));
    if mildest <= peak {
        let share = if peak.is_finite() {
            format!(
                ", {:.0} % of the chip's maximum of {}",
                100.0 * usual / peak,
                operations_per_second(peak)
            )
        } else {
            String::new()
        };
        report.pass(field, format!("{working}{share}"));
        return;
    }
    if !is_time && counts_cached_tokens(cell, mildest / peak, report) {
        return;
    }
    let name = cell
        .machine
        .fastest()
        .map_or_else(String::new, |bin| machine_name(cell, bin));
    let (limit, right) = if is_time {
        let seconds = operations / peak;
        (seconds, format!("at least {} s", Trimmed(seconds)))
    } else {
        let rate = peak * tokens / operations;
        (rate, format!("at most {rate:.0} tok/s"))
    };
    let hint = match cell.conditions.state {
        Some(CacheState::Cold) => "; the prompt was cached, or the clock was wrong",
        Some(CacheState::Warm) | None => "; only a cached prompt can be that fast",
    };
    let message = format!(
        "{working}, but {name} has at most {}{hint}",
        operations_per_second(peak)
    );
    report.flag(
        field,
        Flag::new(ClaimVerdict::ExceedsRoofline, message)
            .instead(with_unit(cell), right, limit)
            .factor(cell.reading.value / limit),
    );
}
