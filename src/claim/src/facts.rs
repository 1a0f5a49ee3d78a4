//! Figures that state a fact, against what follows from chip and model: parameters, and the bytes
//! of weights and caches.

use super::cell::Cell;
use super::limits::{DecodeLimit, Trimmed, gigabytes, kv_bytes};
use super::machine::gigabytes_per_second;
use super::model::{ClaimedFormat, KnownModel};
use super::stated::Reading;
use super::{Flag, Report};
use rooflet_api::v1alpha1::{ClaimVerdict, FigureKind};
use rooflet_model::dimensions::Attention;
use rooflet_model::kv_cache::KvBits;

/// Sizes that follow from dimensions are known this well: norms, biases and rounding are left out.
const SIZE: f64 = 0.04;
/// Names round parameters so freely: a 7B model has 7.6 billion.
const MARKETING: f64 = 0.10;
/// A computed maximum is allowed to count the embedding table, or a little of the cache.
const MAXIMUM: f64 = 0.10;
pub(super) const GIB_PER_GB: f64 = 1.073_741_824;

pub(super) fn parameters(
    field: &str,
    claimed: &str,
    stated: &Reading,
    right: f64,
    model: &KnownModel,
    report: &mut Report,
) {
    // Three digits and more are meant exactly.
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

/// Checks figures that state a fact.
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

/// Whether `value`, stated in GB, may be `right` bytes: GB are often GiB.
fn may_be(stated: &Reading, right: f64, leeway: f64) -> bool {
    stated.admits(right, leeway) || stated.admits(right / GIB_PER_GB, leeway)
}

/// As [`may_be`], by the stated number alone: a few digits excuse nothing.
fn is_nearly(stated: &Reading, right: f64, leeway: f64) -> bool {
    (stated.value / right - 1.0).abs() <= leeway || (stated.value * GIB_PER_GB / right - 1.0).abs() <= leeway
}

/// Weights in memory or in files. A number that follows from a wrong premise is a wrong fact, and
/// the premise is told; one that follows from none is a slip in the calculation.
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
    // Files hold more than the text model.
    if kind == FigureKind::FileBytes && stated.value > right && stated.value < 1.6 * right {
        report.pass(field, format!("the text model alone has {shown}: the rest is towers for images, or tensors that are not quantised"));
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
            "that counts {} bits per weight; scales and biases make it {}: {calculation}",
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
            "that is about what one token reads ({}); in memory are all experts: {calculation}",
            gigabytes(active)
        ))
    } else if is_nearly(stated, fp16, 0.05) {
        Some(format!("that is the size in 16 bits; {calculation}"))
    } else if !(0.5..=2.0).contains(&(stated.value / right)) {
        Some(calculation.clone())
    } else {
        None
    };
    let (verdict, message) = match wrong {
        Some(why) => (ClaimVerdict::WrongFact, why),
        None => (
            ClaimVerdict::ArithmeticError,
            format!("parameters times bits per weight give something else: {calculation}"),
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
        report.remark(
            &cell.field,
            "not checked: model or format are not known well enough",
        );
        return;
    };
    if is_nearly(&cell.reading, right, MAXIMUM + format.spread) {
        report.pass(&cell.field, gigabytes(right));
        return;
    }
    let kind = if model.is_mixture() {
        "a token reads its own experts only"
    } else {
        "a token reads the text model's weights, not what else is in the files"
    };
    let message = format!("{kind}: {}", gigabytes(right));
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(cell.stated.clone(), gigabytes(right), right / 1e9)
            .factor(cell.reading.value / right),
    );
}

/// The same model without windows, as engines keep it whose cache does not rotate.
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

/// Bits that a cache may have where the claim does not say.
fn kv_widths(cell: &Cell) -> Vec<f64> {
    match cell.workload.kv_bits {
        Some(bits) => vec![bits],
        None => vec![KvBits::HALF.0, 8.5, 8.0, 4.5, 4.0],
    }
}

fn kv_cache(cell: &Cell, model: &KnownModel, report: &mut Report) {
    let context = cell.workload.context_tokens();
    if model.dimensions.is_none() || context <= 0.0 {
        report.remark(
            &cell.field,
            "not checked: the model's dimensions or the context are not known",
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
            format!("; with {bits} bits per element it is as claimed")
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
        "the cache of {context:.0} tokens takes {shown}{}",
        query_heads_hint(cell, model, &size)
    );
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(cell.stated.clone(), shown, nearest / 1e9)
            .factor(cell.reading.value / nearest),
    );
}

/// Says so where the number counts every query head as though it had keys and values of its own.
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
        "; the claim counts query heads, and the cache holds key-value heads"
    } else {
        ""
    }
}

fn kv_per_token(cell: &Cell, model: &KnownModel, report: &mut Report) {
    if model.dimensions.is_none() {
        report.remark(&cell.field, "not checked: the model's dimensions are not known");
        return;
    }
    let whole = without_windows(model);
    // With windows full, a further token costs the global layers alone.
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
            format!("{} keeps {shown} per token", model.name),
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
            format!("weights take {} of it", gigabytes(model.resident(format.likely))),
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
    // Of a format people say the bits that most weights have, and not the mean with those kept in
    // more.
    let said = [right, format.likely.experts];
    let leeway = 0.03 + format.spread;
    let shown = Trimmed(right).to_string();
    if said
        .iter()
        .any(|bits| (cell.reading.value / bits - 1.0).abs() <= leeway)
    {
        report.pass(&cell.field, format!("{shown} bits"));
        return;
    }
    let message = format!("scales and biases count: {shown} bits per weight");
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::WrongFact, message)
            .instead(cell.stated.clone(), shown, right)
            .factor(cell.reading.value / right),
    );
}

fn maximum(cell: &Cell, report: &mut Report) {
    let (Some(limit), Some((model, _, format))) = (DecodeLimit::new(cell), cell.model.sized()) else {
        report.remark(
            &cell.field,
            "not checked: machine, model or format are not known well enough",
        );
        return;
    };
    let without_kv = cell.workload.batch * limit.bandwidth / limit.streamed;
    let low = limit.ceiling.min(without_kv) * (1.0 - MAXIMUM - format.spread);
    let high = limit.ceiling.max(without_kv) * (1.0 + MAXIMUM + format.spread);
    if cell.reading.value >= low && cell.reading.value <= high {
        report.pass(&cell.field, format!("{:.1} tok/s", limit.ceiling));
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
        "; the claim divides by the size of the files, and files are not what a token reads"
    } else {
        ""
    };
    let message = format!(
        "bandwidth over the bytes of one token: {} / {} = {:.1} tok/s{why}",
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
