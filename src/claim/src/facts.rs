//! Checks of figures that follow from chip and model: parameters, and bytes of weights and KV
//! caches.

use super::cell::Cell;
use super::consistency::SPECULATIVE_PASSES;
use super::limits::{DecodeLimit, Trimmed, gigabytes, kv_bytes};
use super::machine::gigabytes_per_second;
use super::model::{ClaimedFormat, KnownModel};
use super::stated::Reading;
use super::{Flag, Report};
use rooflet_api::v1alpha1::{ClaimVerdict, FigureKind};
use rooflet_model::dimensions::Attention;
use rooflet_model::kv_cache::KvBits;

/// Tolerance of sizes computed from dimensions, which omit norms, biases and rounding.
const SIZE: f64 = 0.04;
/// Tolerance of parameters in model names: a 7B model has 7.6 billion.
const MARKETING: f64 = 0.10;
/// Tolerance of a computed maximum, which may include the embedding table or some KV cache.
const MAXIMUM: f64 = 0.10;
pub(super) const GIB_PER_GB: f64 = 1.073_741_824;

/// Checks a stated number of parameters.
pub(super) fn parameters(
    field: &str,
    claimed: &str,
    stated: &Reading,
    right: f64,
    model: &KnownModel,
    report: &mut Report,
) {
    // Three or more significant digits are exact.
    let leeway = if stated.significant >= 3 { 0.02 } else { MARKETING };
    if stated.admits(right, leeway) || (stated.value / right - 1.0).abs() < leeway {
        report.pass(field, format!("{:.2} billion", right / 1e9));
        return;
    }
    let shown = format!("{:.2}B", right / 1e9);
    report.flag(
        field,
        Flag::new(
            ClaimVerdict::WrongFact,
            format!("{} has {shown}, not {claimed}", model.name),
        )
        .instead(claimed, shown, right)
        .factor(stated.value / right),
    );
}

/// Checks a figure that states a fact.
pub(super) fn check_figure(cell: &Cell, report: &mut Report) {
    let field = &cell.field;
    let stated = &cell.reading;
    let Some((model, _)) = &cell.model.known else {
        return;
    };
    match cell.kind {
        FigureKind::WeightBytes | FigureKind::FileBytes => match cell.model.sized() {
            Some((_, _, format)) => weights(field, &cell.stated, stated, cell.kind, model, format, report),
            None => report.remark(field, "not checked: the format of the weights is not stated"),
        },
        FigureKind::StreamedBytes => streamed(cell, model, report),
        FigureKind::KvBytes => kv_cache(cell, model, report),
        FigureKind::KvBytesPerToken => kv_per_token(cell, model, report),
        FigureKind::MemoryBytes => memory_in_use(cell, model, report),
        FigureKind::BitsPerWeight => bits_per_weight(cell, model, report),
        FigureKind::Parameters if model.dimensions.is_some() => {
            parameters(field, &cell.stated, stated, model.parameters, model, report);
        }
        FigureKind::ActiveParameters => {
            if let (Some(active), Some(_)) = (model.active, &model.dimensions) {
                parameters(field, &cell.stated, stated, active, model, report);
            }
        }
        FigureKind::MaximumDecodeTokensPerSecond => maximum(cell, report),
        FigureKind::Parameters
        | FigureKind::DecodeTokensPerSecond
        | FigureKind::ThroughputTokensPerSecond
        | FigureKind::EndToEndTokensPerSecond
        | FigureKind::PrefillTokensPerSecond
        | FigureKind::PrefillSeconds
        | FigureKind::TimeToFirstTokenSeconds
        | FigureKind::TotalSeconds
        | FigureKind::DecodeSeconds
        | FigureKind::LoadSeconds
        | FigureKind::DiskReadSeconds
        | FigureKind::Bandwidth
        | FigureKind::BandwidthUsed
        | FigureKind::KvBandwidth
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

/// Returns whether the stated number may be `right` bytes. GB often means GiB.
fn may_be(stated: &Reading, right: f64, leeway: f64) -> bool {
    stated.admits(right, leeway) || stated.admits(right / GIB_PER_GB, leeway)
}

/// Like [`may_be`], but without the tolerance of the number's rounding.
fn is_nearly(stated: &Reading, right: f64, leeway: f64) -> bool {
    (stated.value / right - 1.0).abs() <= leeway || (stated.value * GIB_PER_GB / right - 1.0).abs() <= leeway
}

/// Checks the bytes of weights in memory or files. A number from a known wrong premise is a wrong
/// fact, and the message names the premise. Any other wrong number is an arithmetic error.
pub(super) fn weights(
    field: &str,
    claimed: &str,
    stated: &Reading,
    kind: FigureKind,
    model: &KnownModel,
    format: ClaimedFormat,
    report: &mut Report,
) {
    let right = model.resident(format.likely);
    let leeway = SIZE + format.spread;
    let shown = gigabytes(right);
    let bits = model.mean_bits(format.likely);
    let calculation = format!(
        "{:.2} billion × {} bits / 8 = {shown}",
        model.parameters / 1e9,
        Trimmed(bits)
    );
    if (stated.value / right - 1.0).abs() <= leeway {
        report.pass(field, calculation);
        return;
    }
    // Files contain more than the text model.
    if kind == FigureKind::FileBytes && stated.value > right && stated.value < 1.6 * right {
        report.pass(field, format!("the text model alone has {shown}: the rest is vision towers or tensors that are not quantised"));
        return;
    }
    let nominal = |parameters: f64| parameters * format.nominal / 8.0;
    let named = super::model::size_of_name(&model.name).unwrap_or(model.parameters);
    let fp16 = model.parameters * 2.0;
    let is_nominal = [model.parameters, named]
        .iter()
        .any(|parameters| (stated.value / nominal(*parameters) - 1.0).abs() <= 0.03);
    let wrong = if bits - format.nominal >= 0.2 && is_nominal {
        Some(format!(
            "the claim counts {} bits per weight; with scales and biases there are {}: {calculation}",
            format.nominal,
            Trimmed(bits)
        ))
    } else if may_be(stated, right, leeway) {
        report.pass(field, calculation);
        return;
    } else if let Some(active) = model
        .least_streamed(format.likely)
        .filter(|active| model.is_mixture() && stated.value < 2.0 * active)
    {
        Some(format!(
            "the claim counts what one token reads ({}); memory contains all experts: {calculation}",
            gigabytes(active)
        ))
    } else if is_nearly(stated, fp16, 0.05) {
        Some(format!("the claim states the size in 16 bits; {calculation}"))
    } else if !(0.5..=2.0).contains(&(stated.value / right)) {
        Some(calculation.clone())
    } else {
        None
    };
    let (verdict, message) = match wrong {
        Some(why) => (ClaimVerdict::WrongFact, why),
        None => (
            ClaimVerdict::ArithmeticError,
            format!("parameters × bits per weight yield another size: {calculation}"),
        ),
    };
    report.flag(
        field,
        Flag::new(verdict, message)
            .instead(claimed, shown, right / 1e9)
            .factor(stated.value / right),
    );
}

fn streamed(cell: &Cell, model: &KnownModel, report: &mut Report) {
    let Some((right, format)) = cell
        .model
        .format
        .and_then(|format| Some((model.least_streamed(format.likely)?, format)))
    else {
        report.remark(&cell.field, "not checked: model or format is unknown");
        return;
    };
    if is_nearly(&cell.reading, right, MAXIMUM + format.spread) {
        report.pass(&cell.field, gigabytes(right));
        return;
    }
    let kind = if model.is_mixture() {
        "a token reads only its own experts"
    } else {
        "a token reads only the weights of the text model, not the other contents of the files"
    };
    let message = format!("{kind}: {}", gigabytes(right));
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(cell.stated.clone(), gigabytes(right), right / 1e9)
            .factor(cell.reading.value / right),
    );
}

/// Returns the model without sliding windows, for engines without rotating caches.
fn without_windows(model: &KnownModel) -> KnownModel {
    let mut model = model.clone();
    for layer in model
        .dimensions
        .iter_mut()
        .flat_map(|dimensions| &mut dimensions.layers)
    {
        if let Attention::Grouped { window, .. } = &mut layer.attention {
            *window = None;
        }
    }
    model
}

/// Returns the stated bits of the KV cache, or all usual ones.
fn kv_widths(cell: &Cell) -> Vec<f64> {
    match cell.conditions.kv_bits {
        // A cache of MLX has scales, and one of FP8 has none.
        Some(bits) => vec![KvBits::new(bits).0, f64::from(bits)],
        None => vec![KvBits::HALF.0, 8.5, 8.0, 4.5, 4.0],
    }
}

fn kv_cache(cell: &Cell, model: &KnownModel, report: &mut Report) {
    let context = cell.workload.context_tokens();
    if model.dimensions.is_none() || context <= 0.0 {
        report.remark(
            &cell.field,
            "not checked: the dimensions of the model or the context are unknown",
        );
        return;
    }
    let batch = cell.workload.batch;
    let whole = without_windows(model);
    let size = |model: &KnownModel, bits: f64| kv_bytes(model, context, bits) * batch;
    let widths = kv_widths(cell);
    let (rotating, full) = (size(model, widths[0]), size(&whole, widths[0]));
    let shown = if rotating == full {
        format!("{} ({:.2} GiB)", gigabytes(rotating), rotating / GIB_PER_GB / 1e9)
    } else {
        format!(
            "{} with rotating caches, {} without",
            gigabytes(rotating),
            gigabytes(full)
        )
    };
    let fits = |bits: &f64| {
        [model, &whole]
            .iter()
            .any(|model| may_be(&cell.reading, size(model, *bits), 0.05))
    };
    if let Some(bits) = widths.iter().find(|bits| fits(bits)) {
        let note = if *bits == widths[0] {
            String::new()
        } else {
            format!("; with {bits} bits per element, the claim is correct")
        };
        report.pass(&cell.field, format!("{shown} at {context:.0} tokens{note}"));
        return;
    }
    let nearest = if distance(cell.reading.value, rotating) <= distance(cell.reading.value, full) {
        rotating
    } else {
        full
    };
    let message = format!(
        "the KV cache of {context:.0} tokens takes {shown}{}",
        query_heads_hint(cell, model, &size)
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(cell.stated.clone(), shown, nearest / 1e9)
            .factor(cell.reading.value / nearest),
    );
}

/// Returns a hint if the claim counts keys and values for every query head.
fn query_heads_hint(cell: &Cell, model: &KnownModel, size: &dyn Fn(&KnownModel, f64) -> f64) -> &'static str {
    let mut ungrouped = without_windows(model);
    for layer in ungrouped
        .dimensions
        .iter_mut()
        .flat_map(|dimensions| &mut dimensions.layers)
    {
        if let Attention::Grouped { heads, kv_heads, .. } = &mut layer.attention {
            *kv_heads = *heads;
        }
    }
    if may_be(&cell.reading, size(&ungrouped, KvBits::HALF.0), 0.05) {
        "; the claim counts query heads, but the KV cache contains key-value heads"
    } else {
        ""
    }
}

fn kv_per_token(cell: &Cell, model: &KnownModel, report: &mut Report) {
    if model.dimensions.is_none() {
        report.remark(
            &cell.field,
            "not checked: the dimensions of the model are unknown",
        );
        return;
    }
    let whole = without_windows(model);
    // With full windows, an additional token costs only the global layers.
    let step =
        |model: &KnownModel, at: f64, bits: f64| kv_bytes(model, at + 1.0, bits) - kv_bytes(model, at, bits);
    let far = 1e6;
    let widths = kv_widths(cell);
    let right = step(&whole, 1.0, widths[0]);
    let shown = format!("{:.0} KiB", right / 1024.0);
    let fits = widths.iter().any(|bits| {
        [step(&whole, 1.0, *bits), step(model, far, *bits)]
            .iter()
            .any(|right| cell.reading.admits(*right, 0.05))
    });
    if fits {
        report.pass(&cell.field, shown);
        return;
    }
    report.flag(
        &cell.field,
        Flag::new(
            ClaimVerdict::WrongFact,
            format!("{} stores {shown} per token", model.name),
        )
        .instead(cell.stated.clone(), shown, right)
        .factor(cell.reading.value / right),
    );
}

fn memory_in_use(cell: &Cell, model: &KnownModel, report: &mut Report) {
    let Some(format) = cell.model.format else {
        return;
    };
    let weights = model.resident(format.least);
    if may_be(&cell.reading, weights, 0.05) || cell.reading.value >= weights {
        report.pass(
            &cell.field,
            format!(
                "weights take {} of that",
                gigabytes(model.resident(format.likely))
            ),
        );
        return;
    }
    let right = model.resident(format.likely);
    report.flag(
        &cell.field,
        Flag::new(
            ClaimVerdict::WrongFact,
            format!("the weights alone take {}", gigabytes(right)),
        )
        .instead(
            cell.stated.clone(),
            format!("more than {}", gigabytes(right)),
            right / 1e9,
        )
        .factor(cell.reading.value / right),
    );
}

fn bits_per_weight(cell: &Cell, model: &KnownModel, report: &mut Report) {
    let Some(format) = cell.model.format else {
        report.remark(
            &cell.field,
            "not checked: the format of the weights is not stated",
        );
        return;
    };
    let right = model.mean_bits(format.of(model).likely);
    // The stated bits may be those of most weights instead of the mean.
    let accepted = [right, format.likely.experts];
    let leeway = 0.03 + format.spread;
    let shown = Trimmed(right).to_string();
    if accepted
        .iter()
        .any(|bits| (cell.reading.value / bits - 1.0).abs() <= leeway)
    {
        report.pass(&cell.field, format!("{shown} bits"));
        return;
    }
    let message = format!("with scales and biases, there are {shown} bits per weight");
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(cell.stated.clone(), shown, right)
            .factor(cell.reading.value / right),
    );
}

fn maximum(cell: &Cell, report: &mut Report) {
    let (Some(limit), Some((model, _, format))) = (DecodeLimit::new(cell), cell.model.sized()) else {
        report.remark(&cell.field, "not checked: machine, model or format is unknown");
        return;
    };
    let without_kv = cell.workload.batch * limit.bandwidth / limit.streamed;
    // A batch reads an unknown number of experts.
    let (_, of_all_experts) = limit.bandwidth_used(cell.workload.batch.recip());
    let slowest = limit.bandwidth / of_all_experts;
    let low = limit.ceiling.min(without_kv).min(slowest) * (1.0 - MAXIMUM - format.spread);
    let high = limit.ceiling.max(without_kv) * (1.0 + MAXIMUM + format.spread);
    if cell.reading.value >= low && cell.reading.value <= high {
        report.pass(&cell.field, format!("{:.1} tok/s", limit.ceiling));
        return;
    }
    if cell.workload.speculative {
        report.remark(&cell.field, SPECULATIVE_PASSES);
        return;
    }
    let bytes_meant = cell
        .machine
        .fastest()
        .map_or(0.0, |bin| bin.bandwidth / cell.reading.value);
    let file = cell
        .model
        .file_size
        .is_some_and(|size| is_nearly(&size, bytes_meant, 0.03))
        || bytes_meant > limit.streamed
            && is_nearly(
                &cell.reading,
                limit.bandwidth / model.resident(format.likely),
                0.05,
            );
    let why = if file {
        "; the claim divides by the size of the files, but a token does not read whole files"
    } else {
        ""
    };
    let message = format!(
        "bandwidth ÷ bytes of one token: {} / {} = {:.1} tok/s{why}",
        gigabytes_per_second(limit.bandwidth),
        gigabytes(limit.streamed),
        limit.ceiling
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(
                cell.stated.clone(),
                format!("{:.1} tok/s", limit.ceiling),
                limit.ceiling,
            )
            .factor(cell.reading.value / limit.ceiling),
    );
}

fn distance(a: f64, b: f64) -> f64 {
    (a.max(1.0) / b.max(1.0)).ln().abs()
}
