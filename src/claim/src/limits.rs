//! Hard limits: bandwidth for decoding, arithmetic for prefill, memory for weights and cache, the
//! disk for loading.
//!
//! Every limit is generous on purpose. Weights count with the fewest bits a build of that name can
//! have, what fits into the chip's system cache counts as never read, a mixture of experts reads
//! the experts of one token however many tokens decode together, and the cache is in four bits
//! unless the claim says otherwise.

mod bandwidth;
mod disk;
mod memory;
mod prefill;
mod shown;

use self::bandwidth::{bandwidth, kv_bandwidth};
use self::disk::disk;
use self::memory::{memory, memory_in_use};
use self::prefill::prefill;
use self::shown::operations_per_second;
pub(super) use self::shown::{Trimmed, gigabytes, with_unit};
use super::cell::{Cell, Knowledge};
use super::machine::{Bin, gigabytes_per_second};
use super::model::{ClaimedFormat, KnownModel};
use super::{Flag, Report};
use rooflet_api::v1alpha1::{ClaimVerdict, FigureKind};
use rooflet_model::kv_cache::KvBits;

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
    /// Bandwidth over the bytes of one token, or what compute allows if that is less, as one would
    /// compute it by hand.
    pub(super) ceiling: f64,
    /// Weights that one pass reads.
    pub(super) streamed: f64,
    /// Cache that one pass reads, at the precision stated, else 16 bits.
    cache: f64,
    /// That cache is taken to be in four bits, which the claim does not say.
    small_cache: bool,
    /// Of all machines together.
    pub(super) bandwidth: f64,
    /// Tokens per second that the arithmetic of their weights allows, however many decode together.
    compute: f64,
}

impl DecodeLimit {
    /// `None` where model, format or machine are not known well enough.
    pub(super) fn new(cell: &Cell) -> Option<Self> {
        let Self { hard, .. } = Self::with_cache(cell, LEAST_KV_BITS)?;
        let usual = Self::with_cache(cell, KvBits::HALF.0)?;
        Some(Self { hard, ..usual })
    }

    /// What `rate` is judged by: the cache is in 16 bits unless only a smaller one allows it.
    fn judging(cell: &Cell, rate: f64) -> Option<Self> {
        let usual = Self::with_cache(cell, KvBits::HALF.0)?;
        if rate <= usual.hard {
            Some(usual)
        } else {
            Self::with_cache(cell, LEAST_KV_BITS)
        }
    }

    /// With a cache of so many bits where the claim does not say.
    fn with_cache(cell: &Cell, bits: f64) -> Option<Self> {
        let bin = cell.machine.fastest()?;
        let (model, _, format) = cell.model.sized()?;
        let bandwidth = bin.bandwidth * cell.machine.machines;
        let streamed = model.least_streamed(format.likely)?;
        let least = model.least_streamed(format.least)?;
        let batch = cell.workload.batch;
        let stated = cell.workload.kv_bits;
        let cache = batch * kv_bytes(model, cell.workload.context_tokens(), stated.unwrap_or(bits));
        let unread = bin.cache * cell.machine.machines;
        // A pass never reads less than a hundredth of the weights, whatever the system cache holds.
        let fewest = (least - unread).max(least / 100.0) + cache;
        let compute = cell.machine.peak()? / (2.0 * model.active?);
        Some(Self {
            hard: (batch * bandwidth / fewest).min(compute),
            ceiling: (batch * bandwidth / (streamed + cache)).min(compute),
            streamed,
            cache,
            small_cache: stated.is_none() && cache > 0.0 && bits < KvBits::HALF.0,
            bandwidth,
            compute,
        })
    }

    fn is_compute(&self) -> bool {
        self.compute <= self.ceiling
    }

    /// What the figure takes of what there is, in a sentence.
    fn working(&self, cell: &Cell, bin: &Bin, model: &KnownModel) -> String {
        let name = machine_name(cell, bin);
        let rate = cell.reading.value;
        if let (true, Some(active)) = (self.is_compute(), model.active) {
            let per_token = 2.0 * active;
            return format!(
                "{:.1} GFLOP per token × {} tok/s = {}, and {name} has {} at most; ceiling {:.1} tok/s",
                per_token / 1e9,
                Trimmed(rate),
                operations_per_second(per_token * rate),
                operations_per_second(per_token * self.compute),
                self.ceiling,
            );
        }
        let kind = if model.is_mixture() {
            "active weights"
        } else {
            "weights"
        };
        let cache = if self.cache > 0.01 * self.streamed {
            let bits = if self.small_cache { ", in 4 bits," } else { "" };
            format!(" and {} of cache{bits}", gigabytes(self.cache))
        } else {
            String::new()
        };
        let passes = rate / cell.workload.batch;
        let used = passes * (self.streamed + self.cache);
        format!(
            "{} of {kind}{cache} per pass × {} passes/s = {}, {:.0} % of {name}; ceiling {:.1} tok/s",
            gigabytes(self.streamed),
            Trimmed(passes),
            gigabytes_per_second(used),
            100.0 * used / self.bandwidth,
            self.ceiling,
        )
    }
}

/// Cache of one sequence, with windows as the model has them.
pub(super) fn kv_bytes(model: &KnownModel, context: f64, bits: f64) -> f64 {
    let context = context.clamp(0.0, f64::from(u32::MAX)) as u32;
    model.dimensions.as_ref().map_or(0.0, |dimensions| {
        dimensions.kv_bytes(context, KvBits(bits)).0 as f64
    })
}

/// A throughput that may be that of any number of sequences: the claim does not say how many.
fn lacks_batch(cell: &Cell) -> bool {
    cell.kind == FigureKind::ThroughputTokensPerSecond && cell.conditions.batch.is_none()
}

fn decode(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let low = cell.reading.low;
    let Some(limit) = DecodeLimit::judging(cell, low) else {
        beyond_any_format(cell, report);
        return;
    };
    let (Some(bin), Some((model, knowledge, format))) = (cell.machine.fastest(), cell.model.sized()) else {
        return;
    };
    if low <= limit.hard {
        let passes = cell.reading.value / cell.workload.batch;
        if cell.workload.speculative && passes * limit.streamed > limit.bandwidth {
            report.pass(field, "speculative decoding makes several tokens per pass");
        }
        if limit.small_cache {
            report.pass(field, "possible only with a cache in 4 bits");
        }
        let doubt = if cell.reading.value > limit.ceiling {
            format!(", {:.1} with every benefit of the doubt", limit.hard)
        } else {
            String::new()
        };
        report.pass(field, format!("{}{doubt}", limit.working(cell, bin, model)));
        return;
    }
    if cell.workload.speculative {
        let per_pass = low / limit.hard;
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
    if lacks_batch(cell) && low <= limit.compute {
        let message = format!(
            "{} is more than one sequence can have: {}; state the batch, how many were decoded together",
            with_unit(cell),
            limit.working(cell, bin, model)
        );
        report.flag(field, Flag::new(ClaimVerdict::MethodUnclear, message));
        return;
    }
    // However many there were, compute is their limit.
    let ceiling = if lacks_batch(cell) {
        limit.compute
    } else {
        limit.ceiling
    };
    let limit = DecodeLimit { ceiling, ..limit };
    let fewest = if format.spread > 0.0 && !limit.is_compute() {
        " (with the fewest bits a build of that name can have)"
    } else {
        ""
    };
    let message = format!(
        "{} is impossible: {}{fewest}",
        with_unit(cell),
        limit.working(cell, bin, model)
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
    let batch = cell.workload.batch;
    let decoded = |generated: f64| (generated - 1.0).max(0.0) * batch;
    let slowest = decoded(generated.low) / cell.reading.high.max(1e-9);
    let Some(limit) = DecodeLimit::judging(cell, slowest) else {
        report.remark(field, why_untestable(cell));
        return;
    };
    let cache = if limit.small_cache {
        " with a cache in 4 bits"
    } else {
        ""
    };
    let rate = decoded(generated.value) / cell.reading.value.max(1e-9);
    let working = format!(
        "{:.0} tokens in {} are {} tok/s; ceiling {:.1} tok/s{cache}",
        generated.value * batch,
        with_unit(cell),
        Trimmed(rate),
        limit.ceiling
    );
    if cell.workload.speculative {
        report.remark(field, format!("{working}, without speculative decoding"));
        return;
    }
    if slowest <= limit.hard {
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
    let limit = DecodeLimit::new(&fewest).filter(|limit| {
        let most = if lacks_batch(cell) {
            limit.compute
        } else {
            limit.hard
        };
        cell.reading.low > most && !cell.workload.speculative
    });
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
