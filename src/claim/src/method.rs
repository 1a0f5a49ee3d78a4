//! Checks of the measurement method: what was timed, on which machine, and how it is presented.

use super::cell::Cell;
use super::consistency::is_wall_clock;
use super::limits::{Trimmed, with_unit};
use super::machine::ChipIdentification;
use super::{Flag, Report};
use crate::figure_class::FigureClass as _;
use rooflet_api::v1alpha1::{CacheState, ClaimBasis, ClaimVerdict, FigureKind, PerformanceClaimSpec};
use rooflet_model::kv_cache::KvBits;
use rooflet_model::weights::{WeightFormat, Weights};
use rooflet_roofline::predict::{Engine, Hardware, ModelCost, Parameters, Prediction, Workload};

/// Share of the prediction's 10th percentile below which a rate that was timed over whole requests
/// is flagged.
const FAR_BELOW_PREDICTION: f64 = 0.5;

pub(super) fn check_figure(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let shown = cell.presented_as.unwrap_or(ClaimBasis::Measured);
    let is_not_measured = |basis| {
        matches!(
            basis,
            ClaimBasis::Planned | ClaimBasis::Estimated | ClaimBasis::Extrapolated
        )
    };
    if let (Some(basis), Some(_)) = (cell.basis, cell.presented_as)
        && is_not_measured(basis)
        && shown == ClaimBasis::Measured
    {
        let word = match basis {
            ClaimBasis::Planned => "planned",
            ClaimBasis::Estimated => "estimated",
            ClaimBasis::Extrapolated => "extrapolated",
            ClaimBasis::Measured => "measured",
        };
        let message = format!("{} is {word} but presented as measured", with_unit(cell));
        report.flag(field, Flag::new(ClaimVerdict::MethodUnclear, message));
    }
    if cell.kind == FigureKind::DecodeTokensPerSecond && is_wall_clock(cell) {
        let message = "timed over whole requests, prefill and HTTP included, so it is not a decode rate; use endToEndTokensPerSecond".to_owned();
        report.flag(field, Flag::new(ClaimVerdict::MethodUnclear, message));
    }
    if cell.kind == FigureKind::DecodeTokensPerSecond && !report.has(field, ClaimVerdict::ExceedsRoofline) {
        compare_with_prediction(cell, report);
    }
}

/// Adds a remark that compares a possible figure with the prediction. Only a much slower figure
/// that was timed over whole requests is a finding.
fn compare_with_prediction(cell: &Cell, report: &mut Report) {
    let Some(prediction) = predict(cell) else {
        return;
    };
    let batch = cell.workload.batch;
    let rate = if batch > 1.0 {
        prediction.decode.aggregate_tokens_per_second
    } else {
        prediction.decode.tokens_per_second
    };
    let usual = format!("the prediction is {:.1} to {:.1} tok/s", rate.p10, rate.p90);
    if cell.reading.low > rate.p90 {
        report.remark(&cell.field, format!("faster than predicted: {usual}"));
    } else if cell.reading.high < rate.p10 {
        let note = format!("slower than predicted: {usual}");
        if cell.reading.high < FAR_BELOW_PREDICTION * rate.p10 && is_wall_clock(cell) {
            report.flag(
                &cell.field,
                Flag::new(
                    ClaimVerdict::MethodUnclear,
                    format!("{note}; timing over whole requests explains this"),
                )
                .instead(with_unit(cell), format!("{:.1} tok/s", rate.p50), rate.p50)
                .factor(cell.reading.value / rate.p50),
            );
        } else {
            report.remark(&cell.field, note);
        }
    } else {
        report.remark(&cell.field, usual);
    }
}

fn predict(cell: &Cell) -> Option<Prediction> {
    let bin = cell.machine.fastest()?.catalogued?;
    if cell.machine.naming != ChipIdentification::Named
        || cell.machine.machines > 1.0
        || cell.workload.speculative
    {
        return None;
    }
    let (model, _, _) = cell.model.sized()?;
    let dimensions = model.dimensions.clone()?;
    let format: WeightFormat = cell.model.format_name.as_deref()?.parse().ok().or_else(|| {
        (cell.model.format.is_some_and(|format| format.nominal < 16.0)).then_some(WeightFormat::Affine {
            bits: cell.model.format.map_or(4, |format| format.nominal as u32),
            group: 64,
        })
    })?;
    let engine = cell.engine.as_deref().unwrap_or("mlx").to_ascii_lowercase();
    let engine = if engine.contains("llama") && !engine.contains("mlx") {
        Engine::LlamaCpp
    } else {
        Engine::Mlx
    };
    let context = cell.workload.context_tokens() as u32;
    let workload = Workload {
        batch: cell.workload.batch as u32,
        context_tokens: context,
        prompt_tokens: cell
            .workload
            .prompt
            .map_or(context, |prompt| prompt.value as u32)
            .max(1),
        cached_tokens: 0,
        kv_bits: cell.conditions.kv_bits.map_or(KvBits::HALF, KvBits::new),
    };
    let model = ModelCost {
        weights: Weights::estimate(&dimensions, format),
        dimensions,
    };
    Some(Prediction::new(
        Parameters::built_in(),
        Hardware::Chip(bin),
        engine,
        &model,
        workload,
    ))
}

/// Checks pairs of figures, and missing information.
pub(super) fn check_together(spec: &PerformanceClaimSpec, cells: &[Cell], report: &mut Report) {
    for (at, cell) in cells.iter().enumerate() {
        for other in &cells[..at] {
            extrapolated(cell, other, report);
            cold_and_warm(cell, other, report);
        }
    }
    missing(spec, cells, report);
}

/// Flags prefill times that are exactly proportional to the prompt lengths. Attention does not
/// scale linearly, so one time was computed from the other.
fn extrapolated(cell: &Cell, other: &Cell, report: &mut Report) {
    let times = [FigureKind::PrefillSeconds, FigureKind::TimeToFirstTokenSeconds];
    if cell.kind != other.kind || !times.contains(&cell.kind) || cell.basis == Some(ClaimBasis::Extrapolated)
    {
        return;
    }
    let (long, short) = if cell.reading.value >= other.reading.value {
        (cell, other)
    } else {
        (other, cell)
    };
    let (Some(long_prompt), Some(short_prompt)) = (long.workload.prompt, short.workload.prompt) else {
        return;
    };
    let tokens = long_prompt.value / short_prompt.value;
    let seconds = long.reading.value / short.reading.value;
    // Relative uncertainty of the ratio.
    let blur = (long.reading.high - long.reading.low) / long.reading.value
        + (short.reading.high - short.reading.low) / short.reading.value;
    if tokens < 1.5 || blur > 0.006 || (seconds / tokens - 1.0).abs() > 0.0005_f64.max(blur / 4.0) {
        return;
    }
    let Some(dimensions) = cell
        .model
        .known
        .as_ref()
        .and_then(|(model, _)| model.dimensions.as_ref())
    else {
        return;
    };
    let operations = |prompt: f64| {
        let (matrices, scores) = dimensions.prefill_flops(prompt as u32, 0);
        matrices + scores
    };
    let expected = operations(long_prompt.value) / operations(short_prompt.value);
    if (expected / tokens - 1.0).abs() < 0.01 {
        return;
    }
    let right = expected * short.reading.value;
    let message = format!(
        "{} is exactly {:.3} times {}, the ratio of the prompt lengths: computed, not measured; attention makes the work {expected:.2} times as large, about {} s",
        with_unit(long),
        seconds,
        with_unit(short),
        Trimmed(right)
    );
    report.flag(
        &long.field,
        Flag::new(ClaimVerdict::MethodUnclear, message)
            .instead(with_unit(long), format!("about {right:.0} s"), right)
            .factor(long.reading.value / right),
    );
}

/// Flags a cold prompt that is faster than the same warm prompt.
fn cold_and_warm(cell: &Cell, other: &Cell, report: &mut Report) {
    let same = cell.kind == other.kind && cell.name == other.name && cell.same_run_in_any_cache_state(other);
    let (cold, warm) = match (cell.conditions.state, other.conditions.state) {
        (Some(CacheState::Cold), Some(CacheState::Warm)) => (cell, other),
        (Some(CacheState::Warm), Some(CacheState::Cold)) => (other, cell),
        (_, _) => return,
    };
    let is_time = matches!(
        cell.kind,
        FigureKind::PrefillSeconds | FigureKind::TimeToFirstTokenSeconds
    );
    let reversed = if is_time {
        cold.reading.high < warm.reading.low
    } else {
        cell.kind == FigureKind::PrefillTokensPerSecond && cold.reading.low > warm.reading.high
    };
    if same && reversed {
        let message = format!(
            "cold {} and warm {}: the labels are swapped, or something else was measured",
            with_unit(cold),
            with_unit(warm)
        );
        report.flag(&cold.field, Flag::new(ClaimVerdict::MethodUnclear, message));
    }
}

/// Flags speeds without a chip or weight format, because they cannot be compared.
fn missing(spec: &PerformanceClaimSpec, cells: &[Cell], report: &mut Report) {
    let speeds: Vec<&Cell> = cells.iter().filter(|cell| cell.kind.is_performance()).collect();
    if let Some(cell) = speeds
        .iter()
        .find(|cell| cell.machine.naming == ChipIdentification::Missing)
    {
        report.open(
            "hardware.chip",
            format!(
                "hardware.chip = {}",
                spec.hardware.chip.as_deref().unwrap_or("not stated")
            ),
        );
        let message = format!("{}: the chip is not stated", cell.subject());
        report.flag("hardware.chip", Flag::new(ClaimVerdict::MethodUnclear, message));
    }
    let formatless = speeds
        .iter()
        .find(|cell| cell.model.format.is_none() && cell.model.known.is_some());
    if let Some(cell) = formatless {
        report.open("model.quantization", "model.quantization = not stated".to_owned());
        let message = format!("{}: the format of the weights is not stated", cell.subject());
        report.flag(
            "model.quantization",
            Flag::new(ClaimVerdict::MethodUnclear, message),
        );
    }
    // If only the size is known and a dense model cannot be that fast, ask for active parameters.
    for cell in speeds {
        let Some((model, _, format)) = cell.model.sized().filter(|(model, ..)| model.active.is_none()) else {
            continue;
        };
        let (Some(bin), true) = (
            cell.machine.fastest(),
            cell.kind == FigureKind::DecodeTokensPerSecond,
        ) else {
            continue;
        };
        let dense = 0.9 * model.resident(format.least);
        let most = bin.bandwidth * cell.machine.machines * cell.workload.batch / dense;
        if cell.reading.low > most && !cell.workload.speculative {
            let message = format!(
                "a dense model of that size reaches at most {most:.1} tok/s on this machine: state model.activeParameters if it has experts"
            );
            report.flag(&cell.field, Flag::new(ClaimVerdict::MethodUnclear, message));
        } else {
            report.pass(&cell.field, "possible even if the model is dense");
        }
    }
}
