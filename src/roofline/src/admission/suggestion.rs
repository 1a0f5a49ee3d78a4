//! Smallest changes that lead to the admission of a replica.

use std::fmt;

use super::{AdmissionRequest, FirstTokenObjective, NodeCapacity, Objectives, Speed, Verdict};
use crate::disk::DiskDemand;
use crate::memory::{Demand, largest_where};
use crate::predict::Parameters;
use rooflet_base::quantity::format_bytes;
use rooflet_base::units::Bytes;

/// Shortest context that is suggested, in tokens.
const MIN_CONTEXT_TOKENS: u32 = 256;

/// Single change that leads to admission, with everything else unchanged.
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

/// Returns the smallest single changes that lead to admission. Empty if the replica is admitted or
/// no single change suffices.
pub fn suggestions(
    request: &AdmissionRequest<'_>,
    capacity: &NodeCapacity<'_>,
    parameters: &Parameters,
) -> Vec<Suggestion> {
    let admits = |changed: AdmissionRequest<'_>| Verdict::new(&changed, capacity, parameters).admitted();
    if admits(*request) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let with_context = |context_tokens| AdmissionRequest {
        demand: Demand {
            context_tokens,
            ..request.demand
        },
        ..*request
    };
    let longest = request.demand.context_tokens.saturating_sub(1);
    let context = largest_where(MIN_CONTEXT_TOKENS, longest, |tokens| admits(with_context(tokens)));
    found.extend(context.map(Suggestion::ContextTokens));

    let with_concurrency = |max_concurrency| AdmissionRequest {
        demand: Demand {
            max_concurrency,
            ..request.demand
        },
        ..*request
    };
    let most = request.demand.max_concurrency.saturating_sub(1);
    let streams = largest_where(1, most, |streams| admits(with_concurrency(streams)));
    found.extend(streams.map(Suggestion::MaxConcurrency));

    let with_kv_bits = |bits: &u32| {
        let model = request.model.quantised(*bits);
        model.is_some_and(|model| {
            admits(AdmissionRequest {
                model: &model,
                ..*request
            })
        })
    };
    found.extend([8, 4].into_iter().find(with_kv_bits).map(Suggestion::KvCacheBits));

    let left = capacity
        .disk
        .map_or(Bytes::ZERO, |disk| disk.free - request.disk.download);
    let disk = DiskDemand {
        prefixes: whole_unit_below(left),
        ..request.disk
    };
    if disk < request.disk && admits(AdmissionRequest { disk, ..*request }) {
        found.push(Suggestion::DiskSize(disk.prefixes));
    }

    if let Some(hardware) = capacity.hardware {
        let speed =
            Speed::new(request, hardware, parameters).calibrated(&request.model.cost, capacity.calibrations);
        let free_share = capacity.free_share();
        let objectives = request.objectives;
        let with = |objectives| AdmissionRequest {
            objectives,
            ..*request
        };
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

/// Returns the longest context up to `longest` tokens that leads to admission, with everything else
/// unchanged.
pub fn shorter(
    request: &AdmissionRequest<'_>,
    longest: u32,
    capacity: &NodeCapacity<'_>,
    parameters: &Parameters,
) -> Option<Suggestion> {
    let mut request = *request;
    request.demand.context_tokens = longest;
    if Verdict::new(&request, capacity, parameters).admitted() {
        return Some(Suggestion::ContextTokens(longest));
    }
    suggestions(&request, capacity, parameters)
        .into_iter()
        .find(|suggestion| matches!(suggestion, Suggestion::ContextTokens(_)))
}

/// Rounds down to whole gibibytes, or to mebibytes below one gibibyte.
fn whole_unit_below(Bytes(bytes): Bytes) -> Bytes {
    let unit = if bytes >= 1 << 30 { 1 << 30 } else { 1 << 20 };
    Bytes(bytes / unit * unit)
}

/// Rounds down to two significant digits.
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
    // The conversion to text prevents results such as 0.31000000000000005.
    let unit = 10f64.powi(digits);
    format!("{:.*}", digits.max(0) as usize, round(value * unit) / unit)
        .parse()
        .unwrap_or(value)
}
