//! The smallest changes with which a replica would be admitted.

use std::fmt;

use super::{Ask, FirstTokenObjective, Objectives, Speed, Supply, Verdict};
use crate::disk::DiskDemand;
use crate::memory::{Demand, last_that};
use crate::predict::Parameters;
use rooflet_base::quantity::format_bytes;
use rooflet_base::units::Bytes;

/// A shorter context than this is no advice worth giving, in tokens.
const SHORTEST_ADVICE_TOKENS: u32 = 256;

/// One change with which the replica would be admitted, everything else as it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Suggestion {
    ContextTokens(u32),
    MaxConcurrency(u32),
    KvCacheBits(u32),
    DiskSize(Bytes),
    DecodeTokensPerSecond(f64),
    FirstTokenSeconds(f64),
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContextTokens(tokens) => write!(f, "spec.serving.contextTokens: {tokens}"),
            Self::MaxConcurrency(streams) => write!(f, "spec.serving.maxConcurrency: {streams}"),
            Self::KvCacheBits(bits) => write!(f, "spec.serving.kvCache.bits: {bits}"),
            Self::DiskSize(bytes) => write!(f, "spec.serving.kvCache.diskSize: {}", format_bytes(*bytes)),
            Self::DecodeTokensPerSecond(rate) => write!(f, "spec.objectives.decodeTokensPerSecond: {rate}"),
            Self::FirstTokenSeconds(seconds) => write!(f, "spec.objectives.timeToFirstToken.max: {seconds}s"),
        }
    }
}

/// Single changes that would admit the replica, each as small as it can be. Empty where it is
/// admitted or no single change is enough.
pub fn suggestions(ask: &Ask<'_>, supply: &Supply<'_>, parameters: &Parameters) -> Vec<Suggestion> {
    let admits = |changed: Ask<'_>| Verdict::new(&changed, supply, parameters).admitted();
    if admits(*ask) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let with_context = |context_tokens| Ask {
        demand: Demand {
            context_tokens,
            ..ask.demand
        },
        ..*ask
    };
    let longest = ask.demand.context_tokens.saturating_sub(1);
    let context = last_that(SHORTEST_ADVICE_TOKENS, longest, |tokens| {
        admits(with_context(tokens))
    });
    found.extend(context.map(Suggestion::ContextTokens));

    let with_concurrency = |max_concurrency| Ask {
        demand: Demand {
            max_concurrency,
            ..ask.demand
        },
        ..*ask
    };
    let most = ask.demand.max_concurrency.saturating_sub(1);
    let streams = last_that(1, most, |streams| admits(with_concurrency(streams)));
    found.extend(streams.map(Suggestion::MaxConcurrency));

    let with_kv_bits = |bits: &u32| {
        let model = ask.model.quantised(*bits);
        model.is_some_and(|model| {
            admits(Ask {
                model: &model,
                ..*ask
            })
        })
    };
    found.extend([8, 4].into_iter().find(with_kv_bits).map(Suggestion::KvCacheBits));

    let left = supply
        .disk
        .map_or(Bytes::ZERO, |disk| disk.free - ask.disk.download);
    let disk = DiskDemand {
        prefixes: whole_unit_below(left),
        ..ask.disk
    };
    if disk < ask.disk && admits(Ask { disk, ..*ask }) {
        found.push(Suggestion::DiskSize(disk.prefixes));
    }

    if let Some(hardware) = supply.hardware {
        let speed = Speed::new(ask, hardware, parameters).calibrated(&ask.model.cost, supply.calibrations);
        let free_share = supply.free_share();
        let objectives = ask.objectives;
        let with = |objectives| Ask { objectives, ..*ask };
        let rate = two_digits_below(free_share * speed.decode.p10);
        let slower = Objectives {
            decode: Some(rate),
            ..objectives
        };
        if objectives.decode.is_some() && rate > 0.0 && admits(with(slower)) {
            found.push(Suggestion::DecodeTokensPerSecond(rate));
        }
        let max_seconds = two_digits_above(speed.first_token.p90 / free_share);
        let later = Objectives {
            first_token: objectives.first_token.map(|objective| FirstTokenObjective {
                max_seconds,
                ..objective
            }),
            ..objectives
        };
        if objectives.first_token.is_some() && max_seconds.is_finite() && admits(with(later)) {
            found.push(Suggestion::FirstTokenSeconds(max_seconds));
        }
    }
    found
}

/// The longest context, at most `longest` tokens, with which the replica would be admitted,
/// everything else as it is.
pub fn shorter(
    ask: &Ask<'_>,
    longest: u32,
    supply: &Supply<'_>,
    parameters: &Parameters,
) -> Option<Suggestion> {
    let mut ask = *ask;
    ask.demand.context_tokens = longest;
    if Verdict::new(&ask, supply, parameters).admitted() {
        return Some(Suggestion::ContextTokens(longest));
    }
    suggestions(&ask, supply, parameters)
        .into_iter()
        .find(|one| matches!(one, Suggestion::ContextTokens(_)))
}

/// In whole gibibytes, or mebibytes where it is less than one.
fn whole_unit_below(Bytes(bytes): Bytes) -> Bytes {
    let unit = if bytes >= 1 << 30 { 1 << 30 } else { 1 << 20 };
    Bytes(bytes / unit * unit)
}

/// `value` rounded down to two significant digits.
pub(super) fn two_digits_below(value: f64) -> f64 {
    rounded(value, f64::floor)
}

pub(super) fn two_digits_above(value: f64) -> f64 {
    rounded(value, f64::ceil)
}

fn rounded(value: f64, round: impl Fn(f64) -> f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return value;
    }
    let digits = 1 - value.log10().floor() as i32;
    // Through text, so that 0.31 is not 0.31000000000000005.
    let unit = 10f64.powi(digits);
    format!("{:.*}", digits.max(0) as usize, round(value * unit) / unit)
        .parse()
        .unwrap_or(value)
}
