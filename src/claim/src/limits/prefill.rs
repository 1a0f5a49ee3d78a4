//! The arithmetic of a prompt.

use super::super::cell::Cell;
use super::super::{Flag, Report};
use super::shown::{Trimmed, operations_per_second, with_unit};
use super::{machine_name, why_untestable};
use rooflet_api::v1alpha1::{CacheState, ClaimVerdict, FigureKind};

/// Arithmetic of prefilling the prompt, as far as it is known: operations, and the tokens they are
/// for.
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

pub(super) fn prefill(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let (Some((operations, tokens)), Some(peak)) = (prefill_work(cell), cell.machine.peak()) else {
        report.remark(field, why_untestable(cell));
        return;
    };
    let is_time = cell.kind != FigureKind::PrefillTokensPerSecond;
    if is_time && cell.workload.prompt.is_none() {
        report.remark(field, "not checked: the length of the prompt is not stated");
        return;
    }
    if cell.conditions.state == Some(CacheState::Warm) && cell.workload.cached.is_none() {
        report.pass(
            field,
            "the prefix cache held the prompt, or most of it: there is nothing to compute",
        );
        return;
    }
    // Operations per second that the figure needs at least.
    let needs = |seconds_or_rate: f64| {
        if is_time {
            operations / seconds_or_rate.max(1e-9)
        } else {
            operations / tokens * seconds_or_rate
        }
    };
    let (mildest, usual) = if is_time {
        (needs(cell.reading.high), needs(cell.reading.value))
    } else {
        (needs(cell.reading.low), needs(cell.reading.value))
    };
    let working = format!("{} needs {}", with_unit(cell), operations_per_second(usual));
    if mildest <= peak {
        let share = if peak.is_finite() {
            format!(
                ", {:.0} % of the {} that the chip can do at most",
                100.0 * usual / peak,
                operations_per_second(peak)
            )
        } else {
            String::new()
        };
        report.pass(field, format!("{working}{share}"));
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
        Some(CacheState::Cold) => "; if it was measured, the prompt was not cold or the clock was not right",
        Some(CacheState::Warm) | None => "; only a prompt that was in the prefix cache can be that fast",
    };
    let message = format!(
        "{working}, and {name} has {} at most{hint}",
        operations_per_second(peak)
    );
    report.flag(
        field,
        Flag::new(ClaimVerdict::ExceedsRoofline, message)
            .instead(with_unit(cell), right, limit)
            .factor(cell.reading.value / limit),
    );
}
