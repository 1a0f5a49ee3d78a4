//! Checks of rates against the times of a request.

use super::cell::Cell;
use super::consistency::{RUN_TO_RUN, SHARE, partner};
use super::limits::{Trimmed, flag_cached_tokens, with_unit};
use super::{Flag, Report};
use rooflet_api::v1alpha1::{ClaimVerdict, FigureKind};

/// Time to first token beyond prefill: queue, tokenizer, sampling.
const FIRST_TOKEN_EXTRA_SECONDS: f64 = 0.5;

pub(super) fn check(cell: &Cell, cells: &[Cell], report: &mut Report) {
    rate_and_time(cell, cells, report);
    part_exceeds_whole(cell, cells, report);
    request_time(cell, cells, report);
}

/// Flags a part of a time that is longer than the whole.
fn part_exceeds_whole(cell: &Cell, cells: &[Cell], report: &mut Report) {
    let parts: &[FigureKind] = if cell.kind == FigureKind::TotalSeconds {
        &[
            FigureKind::TimeToFirstTokenSeconds,
            FigureKind::PrefillSeconds,
            FigureKind::DecodeSeconds,
        ]
    } else if cell.kind == FigureKind::TimeToFirstTokenSeconds {
        &[FigureKind::PrefillSeconds]
    } else {
        return;
    };
    // Prefill of a batch covers all prompts, and the mean first token at least one of them.
    let prompts = if cell.kind == FigureKind::TimeToFirstTokenSeconds {
        cell.workload.batch
    } else {
        1.0
    };
    let longer = parts
        .iter()
        .filter_map(|part| partner(cell, cells, *part))
        .find(|part| part.reading.low / prompts > cell.reading.high * (1.0 + RUN_TO_RUN));
    let Some(part) = longer else { return };
    let of_one = if prompts > 1.0 {
        format!(" / {prompts:.0} prompts")
    } else {
        String::new()
    };
    let message = format!(
        "{}{of_one} is a part of {} but longer",
        with_unit(part),
        with_unit(cell)
    );
    let least = part.reading.value / prompts;
    report.flag(
        &cell.field,
        Flag::new(ClaimVerdict::Contradictory, message)
            .instead(with_unit(cell), format!("at least {} s", Trimmed(least)), least)
            .factor(cell.reading.value / least),
    );
}

/// Checks that prefill rate × time yields the computed prompt tokens.
fn rate_and_time(cell: &Cell, cells: &[Cell], report: &mut Report) {
    if cell.kind != FigureKind::PrefillTokensPerSecond {
        return;
    }
    let time = partner(cell, cells, FigureKind::PrefillSeconds)
        .or_else(|| partner(cell, cells, FigureKind::TimeToFirstTokenSeconds));
    let (Some(time), Some(prompt)) = (time, cell.workload.prompt) else {
        return;
    };
    let cached = cell.workload.cached.map_or(0.0, |cached| cached.value);
    let each = (prompt.value - cached).max(1.0);
    // The prefill time of a batch covers all prompts. A mean time to first token covers at least one
    // prompt and at most all.
    let computed = each * cell.workload.batch;
    let fewest = if time.kind == FigureKind::PrefillSeconds {
        computed
    } else {
        each
    };
    let implied = cell.reading.value * time.reading.value;
    // Bounds of the product that follow from the rounding of both numbers.
    let (low, high) = (
        cell.reading.low * time.reading.low,
        cell.reading.high * time.reading.high,
    );
    let rate = computed / time.reading.value;
    let seconds = computed / cell.reading.value;
    if low > computed * 1.03 {
        let extra = time.reading.value - seconds;
        if time.kind == FigureKind::TimeToFirstTokenSeconds
            && extra < FIRST_TOKEN_EXTRA_SECONDS.max(0.1 * seconds)
        {
            report.remark(
                &cell.field,
                format!("{} s of the time to first token are not prefill", Trimmed(extra)),
            );
            return;
        }
        let whole = prompt.value * cell.workload.batch;
        if cached > 0.0 && low <= whole * 1.03 && high >= whole * 0.97 {
            let (rate_text, time_text) = (with_unit(cell), with_unit(time));
            let reason = format!("{rate_text} for {time_text} counts the cached tokens of the prompt");
            flag_cached_tokens(cell, &reason, rate, report);
            return;
        }
        let mut message = format!(
            "{} for {} would be {implied:.0} tokens, but {} {computed:.0}: either {rate:.0} tok/s or {} s",
            with_unit(cell),
            with_unit(time),
            if cell.workload.batch > 1.0 {
                "the prompts have"
            } else {
                "the prompt has"
            },
            Trimmed(seconds)
        );
        // If the time is possible, the contradiction is more specific than the exceeded limit.
        if !report.has(&time.field, ClaimVerdict::ExceedsRoofline)
            && let Some(beyond) = report.remove_finding(&cell.field, ClaimVerdict::ExceedsRoofline)
        {
            message = format!("{message}; also, {}", beyond.message);
        }
        report.flag(
            &cell.field,
            Flag::new(ClaimVerdict::Contradictory, message)
                .instead(with_unit(cell), format!("{rate:.0} tok/s"), rate)
                .factor(cell.reading.value / rate),
        );
    } else if high < fewest * 0.97 {
        let message = format!(
            "{} for {} are {implied:.0} tokens, not the {computed:.0} of {}",
            with_unit(cell),
            with_unit(time),
            if cell.workload.batch > 1.0 {
                "all prompts: the rate counts only some of them, or they were shorter than stated or partly cached"
            } else {
                "the prompt: the prompt was shorter than stated, or partly cached"
            }
        );
        report.flag(
            &cell.field,
            Flag::new(ClaimVerdict::MethodUnclear, message)
                .instead(
                    format!("{computed:.0} tokens"),
                    format!("{implied:.0} tokens"),
                    implied,
                )
                .factor(computed / implied),
        );
    } else {
        report.remark(&cell.field, format!("{implied:.0} tokens in {}", with_unit(time)));
    }
}

/// Times of a request, with the number of tokens that all its sequences generate.
struct Request<'a> {
    total: Option<&'a Cell>,
    decoding: Option<&'a Cell>,
    first: Option<&'a Cell>,
    prefill: Option<&'a Cell>,
    generated: f64,
    batch: f64,
}

impl<'a> Request<'a> {
    /// Returns `None` if the number of tokens is not stated. A rate without a length has that of the
    /// first time that states one; times of other lengths are left out.
    fn of(cell: &Cell, cells: &'a [Cell]) -> Option<Self> {
        let stated = cell.workload.generated.or_else(|| {
            let times = [FigureKind::TotalSeconds, FigureKind::DecodeSeconds];
            times
                .into_iter()
                .find_map(|kind| partner(cell, cells, kind)?.workload.generated)
        })?;
        let mut of_length = cell.clone();
        of_length.workload.generated = Some(stated);
        let of_kind = |kind| partner(&of_length, cells, kind);
        let batch = cell.workload.batch;
        let generated = stated.value * batch;
        (generated > 0.0).then_some(Self {
            total: of_kind(FigureKind::TotalSeconds),
            decoding: of_kind(FigureKind::DecodeSeconds),
            first: of_kind(FigureKind::TimeToFirstTokenSeconds),
            prefill: of_kind(FigureKind::PrefillSeconds),
            generated,
            batch,
        })
    }

    /// Returns the range of decode rates that follow from the total time and the first token.
    fn decode_rates(&self) -> Option<(f64, f64)> {
        let (total, first) = (self.total?.reading.value, self.first?.reading.value);
        // In a batch, the first token is the mean. It comes after all prompts that are prefilled
        // together, or after `(batch + 1) / 2` of them.
        let longest = first * 2.0 * self.batch / (self.batch + 1.0);
        let (shortest, longest) = match self.prefill.filter(|_| self.batch > 1.0) {
            Some(prefill) => (prefill.reading.value, prefill.reading.value),
            None => (first, longest),
        };
        let rate = |prefilled: f64| {
            let seconds = total - prefilled;
            if seconds > 0.0 {
                (self.generated - self.batch) / seconds
            } else {
                f64::INFINITY
            }
        };
        let rates = (rate(shortest), rate(longest));
        (rates.0.is_finite() && rates.0 > 0.0).then_some(rates)
    }
}

/// Checks generated tokens against request times. A rate over the whole request is not a decode
/// rate.
fn request_time(cell: &Cell, cells: &[Cell], report: &mut Report) {
    let is_rate = matches!(
        cell.kind,
        FigureKind::DecodeTokensPerSecond
            | FigureKind::ThroughputTokensPerSecond
            | FigureKind::EndToEndTokensPerSecond
    );
    let Some(request) = Request::of(cell, cells).filter(|_| is_rate) else {
        return;
    };
    let is_end_to_end = cell.kind == FigureKind::EndToEndTokensPerSecond;
    match (request.decoding, request.total) {
        (Some(decoding), Some(_)) if !is_end_to_end => decode_seconds(cell, decoding, &request, report),
        (Some(decoding), None) => decode_seconds(cell, decoding, &request, report),
        (_, Some(total)) => total_seconds(cell, total, &request, report),
        (None, None) => {}
    }
}

/// Checks a rate against the time of decode. The first token may be counted or not.
fn decode_seconds(cell: &Cell, decoding: &Cell, request: &Request<'_>, report: &mut Report) {
    let is_near = |rate: f64| {
        let is_value = (cell.reading.value / rate - 1.0).abs() <= RUN_TO_RUN;
        rate > 0.0 && (is_value || cell.reading.admits(rate, RUN_TO_RUN))
    };
    let seconds = decoding.reading.value;
    let rate = request.generated / seconds;
    if is_near(rate) || is_near((request.generated - request.batch) / seconds) {
        return;
    }
    // A whole request takes at least as long as its decode.
    if cell.kind == FigureKind::EndToEndTokensPerSecond && cell.reading.low < rate {
        return;
    }
    let whole = request.total.map(|total| request.generated / total.reading.value);
    if cell.kind == FigureKind::ThroughputTokensPerSecond && whole.is_some_and(is_near) {
        report.pass(
            &cell.field,
            format!(
                "rate over whole requests, prefill included; decode alone reaches {} tok/s",
                Trimmed(rate)
            ),
        );
        return;
    }
    let message = format!(
        "{:.0} tokens in {} are {} tok/s",
        request.generated,
        with_unit(decoding),
        Trimmed(rate)
    );
    let bases = std::iter::once(rate).chain(whole);
    if !is_of_several(cell, bases, &message, report) {
        contradicts(cell, rate, message, report);
    }
}

/// Checks a rate against the time of the whole request.
fn total_seconds(cell: &Cell, total: &Cell, request: &Request<'_>, report: &mut Report) {
    let generated = request.generated;
    let whole = generated / total.reading.value;
    let decode = request.decode_rates();
    let is_whole = (cell.reading.value / whole - 1.0).abs() <= 0.02 || cell.reading.admits(whole, 0.0);
    let differs = decode.is_none_or(|(slowest, _)| (slowest / whole - 1.0).abs() > 0.03);
    if is_whole && differs {
        is_rate_of_whole(cell, total, request, report);
        return;
    }
    // Decode is never slower than the whole request. With the time to first token, its rate is
    // exact, or for a batch within bounds.
    if let Some((slowest, fastest)) = decode.filter(|_| cell.kind != FigureKind::EndToEndTokensPerSecond) {
        let expected = cell.reading.value.clamp(slowest, fastest);
        if (cell.reading.value / expected - 1.0).abs() > SHARE && !cell.reading.admits(expected, RUN_TO_RUN) {
            let start = match (request.prefill.filter(|_| request.batch > 1.0), request.first) {
                (Some(prefill), _) => format!("prefilled after {}", with_unit(prefill)),
                (None, first) => format!("the first after {}", first.map(with_unit).unwrap_or_default()),
            };
            let message = format!(
                "{generated:.0} tokens, {start}, all after {}, are {} tok/s",
                with_unit(total),
                Trimmed(expected)
            );
            if !is_of_several(cell, [whole, slowest], &message, report) {
                contradicts(cell, expected, message, report);
            }
        }
        return;
    }
    let message = format!(
        "{generated:.0} tokens in {} are {} tok/s",
        with_unit(total),
        Trimmed(whole)
    );
    let is_faster = cell.reading.low > whole * (1.0 + RUN_TO_RUN);
    let is_of_whole = matches!(
        cell.kind,
        FigureKind::EndToEndTokensPerSecond | FigureKind::ThroughputTokensPerSecond
    );
    if is_faster && is_of_whole {
        if !is_of_several(cell, [whole], &message, report) {
            contradicts(cell, whole, message, report);
        }
    } else if cell.reading.high < whole * (1.0 - RUN_TO_RUN) {
        contradicts(cell, whole, format!("{message}, prefill included"), report);
    }
}

/// Asks for the time to first token if a rate is tokens ÷ total time.
fn is_rate_of_whole(cell: &Cell, total: &Cell, request: &Request<'_>, report: &mut Report) {
    if cell.kind == FigureKind::EndToEndTokensPerSecond {
        report.pass(&cell.field, "rate over whole requests, prefill included");
        return;
    }
    let decode = request.decode_rates().map(|(slowest, _)| slowest);
    let right = decode.map_or_else(
        || "decode alone is faster; state the time to first token".to_owned(),
        |decode| format!("decode alone reaches {} tok/s", Trimmed(decode)),
    );
    let message = format!(
        "{:.0} tokens / {} = {}: this includes the time to first token; {right}",
        request.generated,
        with_unit(total),
        Trimmed(request.generated / total.reading.value)
    );
    let mut flag = Flag::new(ClaimVerdict::MethodUnclear, message);
    if let Some(decode) = decode {
        flag = flag
            .instead(with_unit(cell), format!("{} tok/s", Trimmed(decode)), decode)
            .factor(cell.reading.value / decode);
    }
    report.flag(&cell.field, flag);
}

/// Flags a throughput that several sequences would have: a multiple of one of the `bases`, the rates
/// of one sequence. Returns whether the claim must state the batch.
fn is_of_several(
    cell: &Cell,
    bases: impl IntoIterator<Item = f64>,
    message: &str,
    report: &mut Report,
) -> bool {
    if cell.kind != FigureKind::ThroughputTokensPerSecond || cell.conditions.batch.is_some() {
        return false;
    }
    let sequences = bases.into_iter().find_map(|base| {
        let sequences = (cell.reading.value / base).round();
        (sequences >= 2.0 && cell.reading.admits(sequences * base, RUN_TO_RUN)).then_some(sequences)
    });
    let Some(sequences) = sequences else { return false };
    let message = format!("{message}: state the batch; {sequences:.0} sequences would have this throughput");
    report.flag(&cell.field, Flag::new(ClaimVerdict::MethodUnclear, message));
    true
}

fn contradicts(cell: &Cell, right: f64, message: String, report: &mut Report) {
    report.flag(
        &cell.field,
        Flag::new(
            ClaimVerdict::Contradictory,
            format!("{message}, not {}", with_unit(cell)),
        )
        .instead(with_unit(cell), format!("{} tok/s", Trimmed(right)), right)
        .factor(cell.reading.value / right),
    );
}
