//! Hard limits: bandwidth for decoding, arithmetic for prefill, memory for weights and cache, the disk for loading.
//!
//! Every limit is generous on purpose. Weights count with the fewest bits a build of that name can have, what fits
//! into the chip's system cache counts as never read, a mixture of experts reads the experts of one token however many
//! tokens decode together, and the cache is in four bits unless the claim says otherwise.

mod bandwidth;
mod disk;
mod memory;
mod prefill;
mod shown;

use self::bandwidth::{bandwidth, kv_bandwidth};
use self::disk::disk;
use self::memory::{memory, memory_in_use};
use self::prefill::prefill;
pub(super) use self::shown::{Trimmed, gigabytes, with_unit};
use super::cell::{Cell, Knowledge};
use super::machine::{Bin, gigabytes_per_second};
use super::model::{ClaimedFormat, KnownModel};
use super::{Flag, Report};
use crate::api::v1alpha1::{ClaimVerdict, FigureKind};
use crate::roofline::dimensions::KvBits;

/// No Mac's disk reads faster.
const FASTEST_DISK: f64 = 15e9;
/// Bits of a cached element where the claim does not say: a quantised cache has at least these.
const LEAST_KV_BITS: f64 = 4.5;
/// More accepted tokens per pass than any draft yields in print.
const MOST_SPECULATED: f64 = 8.0;

pub(super) fn check(cell: &Cell, report: &mut Report) {
    match cell.kind {
        FigureKind::DecodeTokensPerSecond
        | FigureKind::ThroughputTokensPerSecond
        | FigureKind::EndToEndTokensPerSecond => {
            if memory(cell, report) {
                decode(cell, report);
            }
        }
        FigureKind::PrefillTokensPerSecond
        | FigureKind::PrefillSeconds
        | FigureKind::TimeToFirstTokenSeconds => {
            if memory(cell, report) {
                prefill(cell, report);
            }
        }
        FigureKind::Bandwidth | FigureKind::BandwidthUsed => bandwidth(cell, report),
        FigureKind::KvBandwidth => kv_bandwidth(cell, report),
        FigureKind::LoadSeconds | FigureKind::DiskReadSeconds => disk(cell, report),
        FigureKind::MemoryBytes => memory_in_use(cell, report),
        FigureKind::TotalSeconds | FigureKind::DecodeSeconds => {
            if memory(cell, report) {
                decode_time(cell, report);
            }
        }
        FigureKind::MaximumDecodeTokensPerSecond
        | FigureKind::WeightBytes
        | FigureKind::StreamedBytes
        | FigureKind::FileBytes
        | FigureKind::KvBytes
        | FigureKind::KvBytesPerToken
        | FigureKind::BitsPerWeight
        | FigureKind::Parameters
        | FigureKind::ActiveParameters
        | FigureKind::ShareOfBandwidth
        | FigureKind::ShareOfMaximum
        | FigureKind::ShareOfMemory
        | FigureKind::TimeReduction
        | FigureKind::ThroughputGain
        | FigureKind::Ratio
        | FigureKind::Seconds
        | FigureKind::Bytes
        | FigureKind::Other => {}
    }
}

/// The most that decoding can reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DecodeLimit {
    /// Tokens per second of all sequences together, with every benefit of the doubt.
    pub(super) hard: f64,
    /// Bandwidth over the bytes of one token, as one would compute it by hand.
    pub(super) ceiling: f64,
    /// Weights that one pass reads.
    pub(super) streamed: f64,
    /// Cache that one pass reads, at the precision stated, else 16 bits.
    cache: f64,
    /// Of all machines together.
    pub(super) bandwidth: f64,
}

impl DecodeLimit {
    /// `None` where model, format or machine are not known well enough.
    pub(super) fn new(cell: &Cell) -> Option<Self> {
        let bin = cell.machine.fastest()?;
        let (model, _, format) = cell.model.sized()?;
        let bandwidth = bin.bandwidth * cell.machine.machines;
        let streamed = model.least_streamed(format.likely)?;
        let least = model.least_streamed(format.least)?;
        let batch = cell.workload.batch;
        let context = cell.workload.context_tokens();
        let kv = |bits: f64| kv_bytes(model, context, bits) * batch;
        let stated_kv = cell.workload.kv_bits;
        let unread = bin.cache * cell.machine.machines;
        // A pass never reads less than a hundredth of the weights, whatever the cache holds.
        let fewest = (least - unread).max(least / 100.0) + kv(stated_kv.unwrap_or(LEAST_KV_BITS));
        let compute = cell.machine.peak()? / (2.0 * model.active?);
        let usual_kv = kv(stated_kv.unwrap_or(KvBits::HALF.0));
        Some(Self {
            hard: (batch * bandwidth / fewest).min(compute),
            ceiling: (batch * bandwidth / (streamed + usual_kv)).min(compute),
            streamed,
            cache: usual_kv,
            bandwidth,
        })
    }
}

/// Cache of one sequence, with windows as the model has them.
pub(super) fn kv_bytes(model: &KnownModel, context: f64, bits: f64) -> f64 {
    let context = context.clamp(0.0, f64::from(u32::MAX)) as u32;
    model.dimensions.as_ref().map_or(0.0, |dimensions| {
        dimensions.kv_bytes(context, KvBits(bits)).0 as f64
    })
}

fn decode(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let Some(limit) = DecodeLimit::new(cell) else {
        beyond_any_format(cell, report);
        return;
    };
    let (Some(bin), Some((model, knowledge, format))) = (cell.machine.fastest(), cell.model.sized()) else {
        return;
    };
    let batch = cell.workload.batch;
    let passes = cell.reading.value / batch;
    let used = passes * (limit.streamed + limit.cache);
    let share = used / limit.bandwidth;
    let cache = if limit.cache > 0.01 * limit.streamed {
        format!(" and {} of cache", gigabytes(limit.cache))
    } else {
        String::new()
    };
    let kind = if model.is_mixture() {
        "active weights"
    } else {
        "weights"
    };
    let working = format!(
        "{} of {kind}{cache} per pass × {} passes/s = {}, {:.0} % of {}; ceiling {:.1} tok/s",
        gigabytes(limit.streamed),
        Trimmed(passes),
        gigabytes_per_second(used),
        100.0 * share,
        machine_name(cell, bin),
        limit.ceiling,
    );
    if cell.reading.low <= limit.hard {
        if cell.workload.speculative && passes * limit.streamed > limit.bandwidth {
            report.pass(field, "speculative decoding makes several tokens per pass");
        }
        report.pass(field, working);
        return;
    }
    if cell.workload.speculative {
        let per_pass = cell.reading.low / limit.hard;
        if per_pass <= MOST_SPECULATED {
            report.pass(field, format!("possible only because speculative decoding makes several tokens per pass: at least {per_pass:.1} must be accepted each time"));
        } else {
            report.flag(field, Flag::new(ClaimVerdict::MethodUnclear, format!("even with speculative decoding {per_pass:.0} tokens would have to be accepted per pass: say how they were counted")));
        }
        return;
    }
    if knowledge == Knowledge::Name && model.active.is_some_and(|active| active >= model.parameters) {
        report.remark(field, "read as a dense model");
    }
    let message = format!(
        "{} is impossible: {working}{}",
        with_unit(cell),
        if format.spread > 0.0 {
            " (with the fewest bits a build of that name can have)"
        } else {
            ""
        },
    );
    report.flag(
        field,
        Flag::new(ClaimVerdict::ExceedsRoofline, message)
            .instead(
                with_unit(cell),
                format!("at most {:.1} tok/s", limit.ceiling),
                limit.ceiling,
            )
            .factor(cell.reading.value / limit.ceiling),
    );
}

/// The time that the tokens after the first take at least.
fn decode_time(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let Some(generated) = cell.workload.generated else {
        report.remark(field, "not checked: the number of generated tokens is not stated");
        return;
    };
    let Some(limit) = DecodeLimit::new(cell) else {
        report.remark(field, why_untestable(cell));
        return;
    };
    let batch = cell.workload.batch;
    let decoded = |generated: f64| (generated - 1.0).max(0.0) * batch;
    let rate = decoded(generated.value) / cell.reading.value.max(1e-9);
    let working = format!(
        "{:.0} tokens in {} are {} tok/s; ceiling {:.1} tok/s",
        generated.value * batch,
        with_unit(cell),
        Trimmed(rate),
        limit.ceiling
    );
    if cell.workload.speculative {
        report.remark(field, format!("{working}, without speculative decoding"));
        return;
    }
    if decoded(generated.low) <= limit.hard * cell.reading.high {
        report.pass(field, working);
        return;
    }
    let seconds = decoded(generated.value) / limit.ceiling;
    report.flag(
        field,
        Flag::new(
            ClaimVerdict::ExceedsRoofline,
            format!("{} is impossible: {working}", with_unit(cell)),
        )
        .instead(
            with_unit(cell),
            format!("at least {} s", Trimmed(seconds)),
            seconds,
        )
        .factor(cell.reading.value / seconds),
    );
}

/// Without its format a rate can still be beyond every one.
fn beyond_any_format(cell: &Cell, report: &mut Report) {
    let mut fewest = cell.clone();
    fewest.model.format.get_or_insert_with(ClaimedFormat::fewest);
    let limit =
        DecodeLimit::new(&fewest).filter(|limit| cell.reading.low > limit.hard && !cell.workload.speculative);
    let Some(limit) = limit else {
        report.remark(&cell.field, why_untestable(cell));
        return;
    };
    let message = format!(
        "{} is impossible even at two bits per weight: {} per pass and {} allow {:.1} tok/s",
        with_unit(cell),
        gigabytes(limit.streamed),
        gigabytes_per_second(limit.bandwidth),
        limit.hard
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::ExceedsRoofline, message)
            .instead(
                with_unit(cell),
                format!("at most {:.1} tok/s", limit.hard),
                limit.hard,
            )
            .factor(cell.reading.value / limit.hard),
    );
}

fn machine_name(cell: &Cell, bin: &Bin) -> String {
    let several = if cell.machine.machines > 1.0 {
        format!("{} × ", cell.machine.machines)
    } else {
        String::new()
    };
    let any = if cell.machine.bins.len() > 1
        && cell
            .machine
            .bins
            .iter()
            .any(|other| other.bandwidth != bin.bandwidth)
    {
        "the fastest it may be, "
    } else {
        ""
    };
    format!("{any}{several}{}", bin.shown())
}

/// Why nothing can be said of a speed.
fn why_untestable(cell: &Cell) -> String {
    if cell.machine.bins.is_empty() {
        return "not checked: the chip is not one of Apple's that are known; state hardware.bandwidth to check against that".to_owned();
    }
    let Some((model, _)) = &cell.model.known else {
        return match &cell.model.name {
            Some(name) => {
                format!("not checked: no model `{name}` is known; state model.parameters, or model.shape")
            }
            None => "not checked: the model is not named".to_owned(),
        };
    };
    if model.active.is_none() {
        return format!(
            "not checked: {} is known by its size alone; state model.activeParameters, or model.parameters if it is dense",
            model.name
        );
    }
    "not checked: the format of the weights is not stated".to_owned()
}
