//! Hard limits: bandwidth for decoding, arithmetic for prefill, memory for weights and cache, the disk for loading.
//!
//! Every limit is generous on purpose. Weights count with the fewest bits a build of that name can have, what fits
//! into the chip's system cache counts as never read, a mixture of experts reads the experts of one token however many
//! tokens decode together, and the cache is in four bits unless the claim says otherwise.

use super::cell::{Cell, Knowledge};
use super::machine::{Bin, gigabytes_per_second};
use super::model::{ClaimedFormat, KnownModel};
use super::{Flag, Report};
use crate::api::v1alpha1::{CacheState, ClaimVerdict, FigureKind};
use crate::roofline::dimensions::KvBits;
use crate::roofline::weights::FormatBits;

/// No Mac's disk reads faster.
const FASTEST_DISK: f64 = 15e9;
/// No Mac's own disk reads slower; 1.5 GB/s is the slowest sold since 2020.
const SLOWEST_DISK: f64 = 0.5e9;
/// Bits of a cached element where the claim does not say: a quantised cache has at least these.
const LEAST_KV_BITS: f64 = 4.5;
/// Kernels that do not share the cache between query heads read it this often, and write beside it.
const KV_READS: f64 = 16.0;
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

/// Arithmetic of prefilling the prompt, as far as it is known: operations, and the tokens they are for.
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

fn prefill(cell: &Cell, report: &mut Report) {
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

/// Whether weights and cache fit; flags where they do not.
fn memory(cell: &Cell, report: &mut Report) -> bool {
    let (Some((model, _, format)), Some(most)) = (cell.model.sized(), cell.machine.most_memory()) else {
        return true;
    };
    let weights = model.resident(format.least);
    let kv_bits = cell.workload.kv_bits.unwrap_or(LEAST_KV_BITS);
    let kv = kv_bytes(model, cell.workload.context_tokens(), kv_bits) * cell.workload.batch;
    if weights + kv <= most {
        return true;
    }
    let shown_weights = model.resident(format.likely);
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
    // What does not fit must be read from disk in every pass; experts that are not used need not.
    let missing = if model.is_mixture() {
        let streamed = model.least_streamed(format.least).unwrap_or(0.0);
        streamed * (1.0 - (most / weights).min(1.0))
    } else {
        weights + kv - most
    };
    let from_disk = cell.workload.batch * FASTEST_DISK * cell.machine.machines / missing.max(1.0);
    let is_rate = !matches!(
        cell.kind,
        FigureKind::PrefillSeconds
            | FigureKind::TimeToFirstTokenSeconds
            | FigureKind::TotalSeconds
            | FigureKind::DecodeSeconds
    );
    let decodes = is_rate && cell.kind != FigureKind::PrefillTokensPerSecond;
    let flag = if decodes && cell.reading.low > from_disk {
        let message = format!("{does_not_fit}; read from disk it would make at most {from_disk:.2} tok/s");
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
            format!("{does_not_fit}; possible only if weights are read from disk all the time"),
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

fn memory_in_use(cell: &Cell, report: &mut Report) {
    let Some(most) = cell.machine.most_memory() else {
        return;
    };
    // 24 GB of a machine sold with "24 GB" are 24 GiB.
    if cell.reading.low > most * 1.001 {
        let message = format!(
            "{} is more memory than the machine has: {}",
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

fn bandwidth(cell: &Cell, report: &mut Report) {
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

fn kv_bandwidth(cell: &Cell, report: &mut Report) {
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

fn disk(cell: &Cell, report: &mut Report) {
    let resident = |bits: fn(&super::model::ClaimedFormat) -> FormatBits| {
        cell.model
            .sized()
            .map(|(model, _, format)| model.resident(bits(&format)))
    };
    let bytes = cell.bytes.map(|bytes| (bytes.low, bytes.value));
    let bytes = bytes.or_else(|| {
        Some((
            resident(|format| format.least)?,
            resident(|format| format.likely)?,
        ))
    });
    let Some((least, usual)) = bytes.filter(|(least, _)| *least > 0.0) else {
        report.remark(
            &cell.field,
            "not checked: how much was read is not stated; add `bytes`",
        );
        return;
    };
    let rate = usual / cell.reading.value.max(1e-9);
    let expected = usual / 3e9;
    let working = format!(
        "{} in {} s is {}",
        gigabytes(usual),
        Trimmed(cell.reading.value),
        gigabytes_per_second(rate)
    );
    let right = format!("{} s at 3 GB/s", Trimmed(expected));
    let flag = |verdict, message: String| {
        Flag::new(verdict, message)
            .instead(cell.stated.clone(), right.clone(), expected)
            .factor(cell.reading.value / expected)
    };
    if least / cell.reading.high.max(1e-9) > FASTEST_DISK {
        let message = format!("{working}, faster than any disk: it came out of memory, or was not read");
        report.flag(&cell.field, flag(ClaimVerdict::ExceedsRoofline, message));
    } else if usual / cell.reading.low.max(1e-9) < SLOWEST_DISK {
        let message = format!(
            "{working}, and every Mac's disk reads {} or more: the time goes into something else",
            gigabytes_per_second(SLOWEST_DISK)
        );
        let verdict = if cell.kind == FigureKind::DiskReadSeconds {
            ClaimVerdict::ExceedsRoofline
        } else {
            ClaimVerdict::MethodUnclear
        };
        report.flag(&cell.field, flag(verdict, message));
    } else {
        report.pass(&cell.field, working);
    }
}

/// The figure as published, with the unit that its kind implies.
pub(super) fn with_unit(cell: &Cell) -> String {
    let bare = cell.stated.ends_with(|c: char| c.is_ascii_digit());
    let unit = match cell.kind.measure() {
        super::Measure::Rate => " tok/s",
        super::Measure::Seconds => " s",
        super::Measure::Bandwidth => " GB/s",
        super::Measure::Bytes | super::Measure::Share | super::Measure::Count | super::Measure::Any => "",
    };
    if bare {
        format!("{}{unit}", cell.stated)
    } else {
        cell.stated.clone()
    }
}

/// A number without needless digits: `0.183`, `12.3`, `137.8`.
pub(super) struct Trimmed(pub(super) f64);

impl std::fmt::Display for Trimmed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let magnitude = self.0.abs();
        let digits = match magnitude {
            m if m >= 100.0 => 1,
            m if m >= 10.0 => 2,
            m if m >= 1.0 => 2,
            m if m >= 0.01 => 3,
            _ => 5,
        };
        let text = format!("{:.digits$}", self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

pub(super) fn gigabytes(bytes: f64) -> String {
    let gb = bytes / 1e9;
    match gb {
        gb if gb >= 100.0 => format!("{gb:.0} GB"),
        gb if gb >= 10.0 => format!("{gb:.1} GB"),
        gb if gb >= 0.1 => format!("{gb:.2} GB"),
        _ => format!("{:.1} MB", bytes / 1e6),
    }
}

pub(super) fn gibibytes(bytes: f64) -> String {
    format!("{:.0} GiB", bytes / (1u64 << 30) as f64)
}

fn operations_per_second(rate: f64) -> String {
    format!("{:.1} TFLOPS", rate / 1e12)
}
