//! Hard limits: bandwidth for decode, compute for prefill, memory for weights and KV cache, disk
//! for loading.
//!
//! Every limit favours the claim:
//! - Weights have the fewest bits that a build of that name can have.
//! - Data that fits the chip's system cache is never read from memory.
//! - A mixture of experts reads the experts of one token, for any batch size.
//! - The KV cache has 4 bits unless the claim states its precision.

mod bandwidth;
mod disk;
mod format;
mod memory;
mod prefill;

use self::bandwidth::{bandwidth, kv_bandwidth};
use self::disk::disk;
use self::format::operations_per_second;
pub(super) use self::format::{Trimmed, gigabytes, with_unit};
use self::memory::{memory, memory_in_use};
pub(super) use self::prefill::flag_cached_tokens;
use self::prefill::prefill;
use super::cell::{Cell, SizeSource};
use super::machine::{Bin, gigabytes_per_second};
use super::model::{ClaimedFormat, KnownModel};
use super::{Flag, Report};
use rooflet_api::v1alpha1::{ClaimVerdict, FigureKind};
use rooflet_model::kv_cache::KvBits;

/// Maximum read rate of any Mac's disk, in bytes per second.
const MAX_DISK_RATE: f64 = 15e9;
/// Minimum bits of a cached element, scales included, if the claim states none.
const MIN_KV_BITS: f64 = 4.5;
/// Maximum accepted tokens per pass; above all published results of speculative decoding.
const MAX_ACCEPTED_TOKENS: f64 = 8.0;

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

/// Upper limits of the decode rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DecodeLimit {
    /// Maximum tokens per second of all sequences, with all assumptions in favour of the claim.
    pub(super) hard: f64,
    /// Bandwidth divided by the bytes of one token, or the compute limit if that is lower.
    pub(super) ceiling: f64,
    /// Bytes of weights that one pass reads, with the experts of one token.
    pub(super) streamed: f64,
    /// Bytes of weights that one pass reads if each token of the batch uses other experts.
    most_streamed: f64,
    /// Bytes of KV cache that one pass reads, at the stated precision or the assumed one.
    cache: f64,
    /// True if the KV cache is assumed to have 4 bits, because the claim does not state its bits.
    assumes_4bit_cache: bool,
    /// Memory bandwidth of all machines, in bytes per second.
    pub(super) bandwidth: f64,
    /// Maximum tokens per second by compute, for any batch size.
    compute: f64,
}

impl DecodeLimit {
    /// Returns `None` if model, format or machine are unknown.
    pub(super) fn new(cell: &Cell) -> Option<Self> {
        let Self { hard, .. } = Self::with_cache(cell, MIN_KV_BITS)?;
        let usual = Self::with_cache(cell, KvBits::HALF.0)?;
        Some(Self { hard, ..usual })
    }

    /// Returns the limit for `rate`: with a KV cache of 16 bits, or of fewer bits if `rate` exceeds
    /// it.
    fn for_rate(cell: &Cell, rate: f64) -> Option<Self> {
        let usual = Self::with_cache(cell, KvBits::HALF.0)?;
        if rate <= usual.hard {
            Some(usual)
        } else {
            Self::with_cache(cell, MIN_KV_BITS)
        }
    }

    /// Returns the limit of one pass over the weights without a KV cache.
    fn without_cache(cell: &Cell) -> Option<Self> {
        Self::with_cache(cell, 0.0)
    }

    /// Returns the limit with `bits` per cached element if the claim states none.
    fn with_cache(cell: &Cell, bits: f64) -> Option<Self> {
        let bin = cell.machine.fastest()?;
        let (model, _, format) = cell.model.sized()?;
        let bandwidth = bin.bandwidth * cell.machine.machines;
        let streamed = model.least_streamed(format.likely)?;
        let least = model.least_streamed(format.least)?;
        let batch = cell.workload.batch;
        let most_streamed = model.most_streamed(format.likely, batch)?;
        let stated = cell.workload.kv_bits;
        let cache = batch * kv_bytes(model, cell.workload.context_tokens(), stated.unwrap_or(bits));
        let unread = bin.cache * cell.machine.machines;
        // A pass reads at least 1 % of the weights, for any system cache.
        let fewest = (least - unread).max(least / 100.0) + cache;
        let compute = cell.machine.peak()? / (2.0 * model.active?);
        Some(Self {
            hard: (batch * bandwidth / fewest).min(compute),
            ceiling: (batch * bandwidth / (streamed + cache)).min(compute),
            streamed,
            most_streamed,
            cache,
            assumes_4bit_cache: stated.is_none() && cache > 0.0 && bits < KvBits::HALF.0,
            bandwidth,
            compute,
        })
    }

    /// Returns the bandwidth that `passes` per second use: the weights with the fewest experts, and
    /// the weights with the most experts and the KV cache.
    pub(super) fn bandwidth_used(&self, passes: f64) -> (f64, f64) {
        let most = self.most_streamed + self.cache;
        (passes * self.streamed, passes * most)
    }

    /// Returns the bytes that one pass reads: the weights with the experts of one token, and the KV
    /// cache.
    pub(super) fn read_per_pass(&self) -> f64 {
        self.streamed + self.cache
    }

    /// Returns whether compute limits the rate, and not bandwidth.
    pub(super) fn is_compute(&self) -> bool {
        self.compute <= self.ceiling
    }

    /// Describes the accepted tokens per pass that `rate` needs. Empty if compute does not permit the
    /// rate for any number of accepted tokens.
    fn accepted_tokens(&self, rate: f64) -> String {
        let per_pass = (rate / self.hard).ceil();
        if rate > self.compute {
            return String::new();
        }
        let unusual = if per_pass > MAX_ACCEPTED_TOKENS {
            format!(", and published results have at most {MAX_ACCEPTED_TOKENS:.0}")
        } else {
            String::new()
        };
        format!(
            "; with speculative decoding, it needs at least {per_pass:.0} accepted tokens per pass{unusual}"
        )
    }

    /// Describes the bandwidth or compute that the figure requires.
    fn working(&self, cell: &Cell, bin: &Bin, model: &KnownModel) -> String {
        let name = machine_name(cell, bin);
        let rate = cell.reading.value;
        if let (true, Some(active)) = (self.is_compute(), model.active) {
            let per_token = 2.0 * active;
            return format!(
                "{:.1} GFLOP per token × {} tok/s = {}, and {name} has at most {}; ceiling {:.1} tok/s",
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
            let bits = if self.assumes_4bit_cache { " in 4 bits" } else { "" };
            format!(" and {} of KV cache{bits}", gigabytes(self.cache))
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

/// Returns the bytes of the KV cache of one sequence, with the model's sliding windows.
pub(super) fn kv_bytes(model: &KnownModel, context: f64, bits: f64) -> f64 {
    let context = context.clamp(0.0, f64::from(u32::MAX)) as u32;
    model.dimensions.as_ref().map_or(0.0, |dimensions| {
        dimensions.kv_bytes(context, KvBits(bits)).0 as f64
    })
}

/// Returns whether the figure is a throughput without a stated batch size. If the claim also states
/// the tokens and seconds of one sequence, the size is known.
fn has_unknown_batch(cell: &Cell) -> bool {
    cell.kind == FigureKind::ThroughputTokensPerSecond
        && cell.conditions.batch.is_none()
        && !cell.workload.is_one_sequence
}

fn decode(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let low = cell.reading.low;
    let Some(limit) = DecodeLimit::for_rate(cell, low) else {
        check_without_format(cell, report);
        return;
    };
    let (Some(bin), Some((model, knowledge, format))) = (cell.machine.fastest(), cell.model.sized()) else {
        return;
    };
    if low <= limit.hard {
        let passes = cell.reading.value / cell.workload.batch;
        if cell.workload.speculative && passes * limit.streamed > limit.bandwidth {
            report.pass(field, "speculative decoding generates several tokens per pass");
        }
        if limit.assumes_4bit_cache {
            report.pass(field, "possible only with a 4-bit KV cache");
        }
        let doubt = if cell.reading.value > limit.ceiling {
            format!(", {:.1} with all assumptions in favour of the claim", limit.hard)
        } else {
            String::new()
        };
        report.pass(field, format!("{}{doubt}", limit.working(cell, bin, model)));
        return;
    }
    if cell.workload.speculative {
        let per_pass = low / limit.hard;
        if per_pass <= MAX_ACCEPTED_TOKENS {
            report.pass(field, format!("possible only with speculative decoding: at least {per_pass:.1} tokens must be accepted per pass"));
        } else {
            report.flag(field, Flag::new(ClaimVerdict::MethodUnclear, format!("even with speculative decoding, {per_pass:.0} tokens must be accepted per pass: state how tokens were counted")));
        }
        return;
    }
    if knowledge == SizeSource::Name && model.active.is_some_and(|active| active >= model.parameters) {
        report.remark(field, "assumed to be a dense model");
    }
    if has_unknown_batch(cell) && low <= limit.compute {
        let message = format!(
            "{} exceeds the limit of one sequence: {}; state the batch, the number of sequences decoded together",
            with_unit(cell),
            limit.working(cell, bin, model)
        );
        report.flag(field, Flag::new(ClaimVerdict::MethodUnclear, message));
        return;
    }
    // Without a batch size, compute is the only limit.
    let ceiling = if has_unknown_batch(cell) {
        limit.compute
    } else {
        limit.ceiling
    };
    let limit = DecodeLimit { ceiling, ..limit };
    let fewest = if format.spread > 0.0 && !limit.is_compute() {
        " (with the fewest bits that a build of that name can have)"
    } else {
        ""
    };
    let accepted = limit.accepted_tokens(low);
    let message = format!(
        "{} is impossible: {}{fewest}{accepted}",
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

/// Checks the time for the tokens after the first.
fn decode_time(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let Some(generated) = cell.workload.generated else {
        report.remark(field, "not checked: the number of generated tokens is not stated");
        return;
    };
    let batch = cell.workload.batch;
    let decoded = |generated: f64| (generated - 1.0).max(0.0) * batch;
    let slowest = decoded(generated.low) / cell.reading.high.max(1e-9);
    let Some(limit) = DecodeLimit::for_rate(cell, slowest) else {
        report.remark(field, untestable_reason(cell));
        return;
    };
    let cache = if limit.assumes_4bit_cache {
        " with a 4-bit KV cache"
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
    if cell.may_count_several_requests() && slowest <= limit.compute {
        let message = format!(
            "{} exceeds the limit of one sequence: {working}; state the batch, the number of sequences decoded together",
            with_unit(cell)
        );
        report.flag(field, Flag::new(ClaimVerdict::MethodUnclear, message));
        return;
    }
    let seconds = decoded(generated.value) / limit.ceiling;
    report.flag(
        field,
        Flag::new(
            ClaimVerdict::ExceedsRoofline,
            format!(
                "{} is impossible: {working}{}",
                with_unit(cell),
                limit.accepted_tokens(slowest)
            ),
        )
        .instead(
            with_unit(cell),
            format!("at least {} s", Trimmed(seconds)),
            seconds,
        )
        .factor(cell.reading.value / seconds),
    );
}

/// Checks a rate without a known format: it may exceed the limit of every format.
fn check_without_format(cell: &Cell, report: &mut Report) {
    let mut fewest = cell.clone();
    fewest.model.format.get_or_insert_with(ClaimedFormat::fewest);
    let limit = DecodeLimit::new(&fewest).filter(|limit| {
        let most = if has_unknown_batch(cell) {
            limit.compute
        } else {
            limit.hard
        };
        cell.reading.low > most && !cell.workload.speculative
    });
    let Some(limit) = limit else {
        report.remark(&cell.field, untestable_reason(cell));
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

/// Describes the machine of a figure, with the number of machines.
pub(super) fn machine_name(cell: &Cell, bin: &Bin) -> String {
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
        "the fastest candidate, "
    } else {
        ""
    };
    format!("{any}{several}{}", bin.shown())
}

/// Returns why a speed cannot be checked.
fn untestable_reason(cell: &Cell) -> String {
    if cell.machine.bins.is_empty() {
        return "not checked: the chip is unknown or not made by Apple; state hardware.bandwidth to check against it".to_owned();
    }
    let Some((model, _)) = &cell.model.known else {
        return match &cell.model.name {
            Some(name) => {
                format!("not checked: model `{name}` is unknown; state model.parameters or model.shape")
            }
            None => "not checked: the model is not named".to_owned(),
        };
    };
    if model.active.is_none() {
        return format!(
            "not checked: only the size of {} is known; state model.activeParameters, or model.parameters if it is dense",
            model.name
        );
    }
    "not checked: the format of the weights is not stated".to_owned()
}
