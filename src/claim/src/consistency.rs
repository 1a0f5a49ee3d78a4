//! Checks of a claim's figures against each other: two values of one quantity, shares and totals.

use super::cell::Cell;
use super::limits::{DecodeLimit, Trimmed, gigabytes, kv_bytes, machine_name, with_unit};
use super::machine::{default_working_set, gigabytes_per_second};
use super::request_times;
use super::{Flag, Report};
use rooflet_api::v1alpha1::{ClaimTiming, ClaimVerdict, FigureKind};
use rooflet_model::kv_cache::KvBits;

/// Relative difference between repeated runs.
pub(super) const RUN_TO_RUN: f64 = 0.05;
/// Relative tolerance of a share.
pub(super) const SHARE: f64 = 0.10;

/// Remark on bandwidths and shares of speculative decoding.
pub(super) const SPECULATIVE_PASSES: &str =
    "not checked: speculative decoding generates an unknown number of tokens per pass";

pub(super) fn check(cells: &[Cell], report: &mut Report) {
    for (at, cell) in cells.iter().enumerate() {
        let earlier = &cells[..at];
        same_quantity(cell, earlier, report);
        unit_of_work(cell, earlier, report);
        request_times::check(cell, cells, report);
        shares(cell, cells, report);
        bandwidth_used(cell, cells, report);
        gain(cell, cells, report);
    }
}

/// Marks throughputs without a batch that the tokens and seconds of one sequence confirm.
pub(super) fn find_single_sequences(cells: &mut [Cell]) {
    let confirmed = |cell: &Cell| {
        let times = [FigureKind::TotalSeconds, FigureKind::DecodeSeconds];
        let seconds = times.iter().find_map(|kind| partner(cell, cells, *kind))?;
        let tokens = cell.workload.generated.or(seconds.workload.generated)?;
        let rate = tokens.value / seconds.reading.value;
        Some(cell.reading.admits(rate, RUN_TO_RUN))
    };
    let single: Vec<bool> = cells
        .iter()
        .map(|cell| {
            let is_open =
                cell.kind == FigureKind::ThroughputTokensPerSecond && cell.conditions.batch.is_none();
            is_open && !cell.may_count_several_requests() && confirmed(cell) == Some(true)
        })
        .collect();
    for (cell, is_single) in cells.iter_mut().zip(single) {
        cell.workload.is_one_sequence |= is_single;
    }
}

/// Returns the figure of this kind under the same conditions. A figure of another answer length is
/// none. Prefers a figure that states the length, then one with an equal name.
pub(super) fn partner<'a>(cell: &Cell, cells: &'a [Cell], kind: FigureKind) -> Option<&'a Cell> {
    let length = |cell: &Cell| cell.workload.generated.map(|generated| generated.value);
    let may_be_equal = |other: &Cell| match (length(cell), length(other)) {
        (Some(one), Some(other)) => one == other,
        (None, _) | (_, None) => true,
    };
    cells
        .iter()
        .filter(|other| other.kind == kind && other.field != cell.field)
        .filter(|other| other.same_run(cell) && may_be_equal(other))
        // The first of equal candidates counts.
        .min_by_key(|other| {
            let unknown_length = length(cell).is_some() && length(other).is_none();
            (unknown_length, other.name != cell.name)
        })
}

fn same_quantity(cell: &Cell, earlier: &[Cell], report: &mut Report) {
    let Some(other) = earlier
        .iter()
        .find(|other| other.same_quantity(cell) && !other.reading.agrees(&cell.reading, RUN_TO_RUN))
    else {
        return;
    };
    let apart = 100.0 * (cell.reading.value / other.reading.value - 1.0);
    let methods = match (&other.conditions.method, &cell.conditions.method) {
        (Some(one), Some(two)) if one != two => format!(" ({one}, {two})"),
        _ => String::new(),
    };
    let message = format!(
        "{} and {} state the same quantity{methods} but differ by {:.0} %; describe the difference in `variant`",
        with_unit(other),
        with_unit(cell),
        apart.abs()
    );
    let mut flag =
        Flag::new(ClaimVerdict::Contradictory, message).factor(cell.reading.value / other.reading.value);
    flag.claimed = Some(with_unit(cell));
    report.flag(&cell.field, flag);
}

/// Flags a cost that is counted per request in one figure and per token in another.
fn unit_of_work(cell: &Cell, earlier: &[Cell], report: &mut Report) {
    let (Some(name), Some(per)) = (&cell.name, cell.per) else {
        return;
    };
    let other = earlier.iter().find(|other| {
        other.name.as_ref() == Some(name)
            && other.per.is_some_and(|other| other != per)
            && other.kind == cell.kind
            && other.reading.agrees(&cell.reading, 0.0)
    });
    if other.is_some() {
        let message = format!(
            "{name} is counted per request in one figure and per token in another, both as {}",
            with_unit(cell)
        );
        report.flag(&cell.field, Flag::new(ClaimVerdict::Contradictory, message));
    }
}

fn shares(cell: &Cell, cells: &[Cell], report: &mut Report) {
    if cell.kind == FigureKind::ShareOfMemory {
        share_of_memory(cell, cells, report);
        return;
    }
    let decode = partner(cell, cells, FigureKind::DecodeTokensPerSecond)
        .or_else(|| partner(cell, cells, FigureKind::ThroughputTokensPerSecond));
    let maximum = partner(cell, cells, FigureKind::MaximumDecodeTokensPerSecond);
    if cell.kind == FigureKind::MaximumDecodeTokensPerSecond {
        if let Some(decode) = decode.filter(|decode| decode.reading.low > cell.reading.high * 1.01) {
            let message = format!(
                "{} is {:.1} % of the stated maximum, {}",
                with_unit(decode),
                100.0 * decode.reading.value / cell.reading.value,
                with_unit(cell)
            );
            report.flag(
                &cell.field,
                Flag::new(ClaimVerdict::Contradictory, message)
                    .factor(decode.reading.value / cell.reading.value),
            );
        }
        return;
    }
    if !matches!(
        cell.kind,
        FigureKind::ShareOfBandwidth | FigureKind::ShareOfMaximum
    ) {
        return;
    }
    if cell.reading.low > 1.0 + 1e-9 {
        let message = format!(
            "{} of a maximum exceeds 100 %: the maximum or the figure is wrong",
            cell.stated
        );
        report.flag(&cell.field, Flag::new(ClaimVerdict::Contradictory, message));
        return;
    }
    let Some(decode) = decode else {
        share_of_bandwidth(cell, cells, report);
        return;
    };
    if let Some(maximum) = maximum.filter(|_| cell.kind == FigureKind::ShareOfMaximum) {
        let share = decode.reading.value / maximum.reading.value;
        let (low, high) = (
            decode.reading.low / maximum.reading.high,
            decode.reading.high / maximum.reading.low,
        );
        if cell.reading.high < low * 0.98 || cell.reading.low > high * 1.02 {
            let message = format!(
                "{} / {} = {:.1} %, not {}",
                with_unit(decode),
                with_unit(maximum),
                100.0 * share,
                cell.stated
            );
            report.flag(
                &cell.field,
                Flag::new(ClaimVerdict::Contradictory, message)
                    .instead(
                        cell.stated.clone(),
                        format!("{:.1} %", 100.0 * share),
                        100.0 * share,
                    )
                    .factor(cell.reading.value / share),
            );
            return;
        }
    }
    share_of_rate(cell, decode, report);
}

/// Checks the share of bandwidth or of the maximum that a decode rate has.
fn share_of_rate(cell: &Cell, decode: &Cell, report: &mut Report) {
    let (Some(limit), Some(bin)) = (DecodeLimit::new(decode), decode.machine.fastest()) else {
        report.remark(&cell.field, "not checked: machine, model or format is unknown");
        return;
    };
    // An impossible rate has a finding already.
    if decode.reading.low > limit.hard {
        return;
    }
    let passes = decode.reading.value / decode.workload.batch;
    let used = passes * limit.read_per_pass();
    let is_of_compute = cell.kind == FigureKind::ShareOfMaximum && limit.is_compute();
    let share = if is_of_compute {
        decode.reading.value / limit.ceiling
    } else {
        used / limit.bandwidth
    };
    let (_, most) = limit.bandwidth_used(passes);
    // The experts that a batch reads are unknown.
    let shares = (share, share.max(most / limit.bandwidth));
    let working = if is_of_compute {
        format!(
            "{} are {:.0} % of {} tok/s, the maximum by compute of {}",
            with_unit(decode),
            100.0 * share,
            Trimmed(limit.ceiling),
            machine_name(decode, bin)
        )
    } else {
        format!(
            "{} = {}, {:.0} % of {}",
            reads(decode, limit.read_per_pass()),
            gigabytes_per_second(used),
            100.0 * share,
            machine_name(decode, bin)
        )
    };
    let spread = decode.model.format.map_or(0.0, |format| format.spread);
    if cell.reading.admits_any(shares, SHARE + spread) {
        report.pass(&cell.field, working);
        return;
    }
    if decode.workload.speculative {
        report.remark(&cell.field, SPECULATIVE_PASSES);
        return;
    }
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, working)
            .instead(
                cell.stated.clone(),
                format!("{:.0} %", 100.0 * share),
                100.0 * share,
            )
            .factor(cell.reading.value / share),
    );
}

/// Describes the reads of a decode rate: `40 tok/s × 4.6 GB`.
fn reads(decode: &Cell, bytes: f64) -> String {
    let each = if decode.workload.batch > 1.0 {
        format!(" / {} sequences", decode.workload.batch)
    } else {
        String::new()
    };
    format!("{}{each} × {}", with_unit(decode), gigabytes(bytes))
}

/// Checks used or measured bandwidth as a share of the chip's bandwidth.
fn share_of_bandwidth(cell: &Cell, cells: &[Cell], report: &mut Report) {
    let used = partner(cell, cells, FigureKind::BandwidthUsed)
        .or_else(|| partner(cell, cells, FigureKind::Bandwidth))
        .filter(|_| cell.kind == FigureKind::ShareOfBandwidth);
    let (Some(used), Some(bin)) = (used, cell.machine.fastest()) else {
        report.remark(
            &cell.field,
            "not checked: the figure to which the share refers is missing",
        );
        return;
    };
    let whole = bin.bandwidth * cell.machine.machines;
    // A bandwidth above the chip's has a finding already.
    if used.reading.low > whole {
        return;
    }
    let share = used.reading.value / whole;
    let message = format!(
        "{} of {} are {:.0} %",
        used.stated,
        machine_name(cell, bin),
        100.0 * share
    );
    if cell.reading.admits(share, SHARE) {
        report.pass(&cell.field, message);
        return;
    }
    report.flag(
        &cell.field,
        Flag::new(
            ClaimVerdict::Contradictory,
            format!("{message}, not {}", cell.stated),
        )
        .instead(
            cell.stated.clone(),
            format!("{:.0} %", 100.0 * share),
            100.0 * share,
        )
        .factor(cell.reading.value / share),
    );
}

/// Checks memory in use as a share of the memory that the GPU may use.
fn share_of_memory(cell: &Cell, cells: &[Cell], report: &mut Report) {
    let used = partner(cell, cells, FigureKind::MemoryBytes);
    let (Some(used), Some(memory)) = (used, cell.machine.memory) else {
        report.remark(
            &cell.field,
            "not checked: the memory in use or the memory of the machine is not stated",
        );
        return;
    };
    let machines = cell.machine.machines;
    let gpu = default_working_set(memory) * machines;
    let share = used.reading.value / gpu;
    // The memory in use may be that of all machines, or of each.
    if cell.reading.admits(share, SHARE) || cell.reading.admits(share * machines, SHARE) {
        report.pass(&cell.field, format!("{} of {}", used.stated, gigabytes(gpu)));
        return;
    }
    let message = format!(
        "by default, the GPU may use {} of the memory: {} are {:.0} % of that",
        gigabytes(gpu),
        used.stated,
        100.0 * share
    );
    let of_all = used.reading.value / (memory * machines);
    let is_of_all = cell.reading.admits(of_all, SHARE) || cell.reading.admits(of_all * machines, SHARE);
    if is_of_all && fits_at_full_length(cell, gpu) {
        report.pass(&cell.field, format!("{} of all memory", used.stated));
        report.remark(&cell.field, message);
        return;
    }
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(
                cell.stated.clone(),
                format!("{:.0} %", 100.0 * share),
                100.0 * share,
            )
            .factor(cell.reading.value / share),
    );
}

/// Returns whether weights and a full KV cache (all tokens in all layers) fit into `bytes`. Returns
/// `true` for unknown models.
fn fits_at_full_length(cell: &Cell, bytes: f64) -> bool {
    let Some((model, _, format)) = cell.model.sized() else {
        return true;
    };
    let cache_of = |tokens: f64| kv_bytes(model, tokens, cell.workload.kv_bits.unwrap_or(KvBits::HALF.0));
    let cache = (cache_of(2.0) - cache_of(1.0)) * cell.workload.context_tokens() * cell.workload.batch;
    model.resident(format.likely) + cache <= bytes
}

/// Checks the bandwidth that decode uses.
fn bandwidth_used(cell: &Cell, cells: &[Cell], report: &mut Report) {
    if cell.kind != FigureKind::BandwidthUsed || report.has(&cell.field, ClaimVerdict::ExceedsRoofline) {
        return;
    }
    let decode = partner(cell, cells, FigureKind::DecodeTokensPerSecond)
        .or_else(|| partner(cell, cells, FigureKind::ThroughputTokensPerSecond));
    let Some((decode, limit)) = decode.and_then(|decode| Some((decode, DecodeLimit::new(decode)?))) else {
        report.remark(
            &cell.field,
            "not checked: no figure states a decode rate that can be checked",
        );
        return;
    };
    let used = limit.bandwidth_used(decode.reading.value / decode.workload.batch);
    let (weights, _) = used;
    if cell.reading.admits_any(used, SHARE) {
        report.pass(&cell.field, gigabytes_per_second(weights));
        return;
    }
    if decode.workload.speculative {
        report.remark(&cell.field, SPECULATIVE_PASSES);
        return;
    }
    let message = format!(
        "{} = {}",
        reads(decode, limit.streamed),
        gigabytes_per_second(weights)
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(cell.stated.clone(), gigabytes_per_second(weights), weights / 1e9)
            .factor(cell.reading.value / weights),
    );
}

/// Checks a throughput gain against the time reduction, which is a different percentage.
fn gain(cell: &Cell, cells: &[Cell], report: &mut Report) {
    if cell.kind != FigureKind::ThroughputGain {
        return;
    }
    let Some(reduction) =
        partner(cell, cells, FigureKind::TimeReduction).filter(|reduction| reduction.reading.value < 1.0)
    else {
        report.remark(&cell.field, "not checked: no figure states a timeReduction");
        return;
    };
    let of = |share: f64| share / (1.0 - share);
    let right = of(reduction.reading.value);
    let tolerance = of(reduction.reading.high.min(0.999)) - right;
    let range = cell.reading.low - tolerance..=cell.reading.high + tolerance;
    if range.contains(&right) {
        report.pass(&cell.field, format!("{:.1} %", 100.0 * right));
        return;
    }
    let message = format!(
        "a time reduction of {} increases throughput by {:.1} %, not by {}",
        reduction.stated,
        100.0 * right,
        cell.stated
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::ArithmeticError, message)
            .instead(
                cell.stated.clone(),
                format!("{:.1} %", 100.0 * right),
                100.0 * right,
            )
            .factor(cell.reading.value / right),
    );
}

/// Returns whether the rate was timed over whole requests.
pub(super) fn is_wall_clock(cell: &Cell) -> bool {
    cell.conditions.timing == Some(ClaimTiming::WallClock)
}
