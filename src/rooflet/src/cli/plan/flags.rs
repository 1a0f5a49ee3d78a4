//! Conversion of the flags for one model to a spec, and of a spec's field back to its flag.

use super::Args;
use rooflet_api::v1alpha1::{
    CapacityPlanSpec, DEFAULT_MAX_UTILIZATION_PERCENT, DecodeContext, DemandSpec, ObjectivesSpec,
    TimeToFirstTokenObjective,
};

/// Arguments that describe one model.
pub(super) const OF_ONE_MODEL: [&str; 14] = [
    "model",
    "quantization",
    "requests_per_second",
    "prompt",
    "cached_prompt",
    "answer",
    "context",
    "disk_size",
    "concurrency",
    "replicas",
    "decode",
    "average_context",
    "speculative_speedup",
    "first_token",
];

/// Returns the spec of the flags for one model.
pub(super) fn spec(args: &Args) -> CapacityPlanSpec {
    let first_token = args.first_token.clone().map(|max| TimeToFirstTokenObjective {
        max,
        at_prompt_tokens: args.prompt,
    });
    CapacityPlanSpec {
        demand: vec![DemandSpec {
            name: None,
            model: args.model.clone().unwrap_or_default(),
            quantization: args.quantization.clone(),
            kv_bits: None,
            disk_size: args.disk_size.clone(),
            requests_per_second: args.requests_per_second.unwrap_or_default(),
            prompt_tokens: args.prompt.unwrap_or(1),
            cached_prompt_tokens: args.cached_prompt,
            answer_tokens: args.answer.unwrap_or(1),
            context_tokens: args.context,
            decode_context: if args.average_context {
                DecodeContext::Average
            } else {
                DecodeContext::Full
            },
            speculative_speedup: args.speculative_speedup,
            max_concurrency: args.concurrency,
            replicas: args.replicas,
            objectives: ObjectivesSpec {
                decode_tokens_per_second: args.decode,
                time_to_first_token: first_token,
            },
        }],
        max_utilization_percent: DEFAULT_MAX_UTILIZATION_PERCENT,
        ..CapacityPlanSpec::default()
    }
}

/// Returns the flag that set `field`, or `None` if the manifest set it.
pub(super) fn of_field(args: &Args, field: &str) -> Option<&'static str> {
    if field.starts_with("spec.fleet.macs") {
        return match (&args.fleet, args.compare.is_empty()) {
            (_, false) => Some("--compare"),
            (Some(_), true) => Some("--fleet"),
            (None, true) => None,
        };
    }
    if field.starts_with("spec.catalogue") && !args.offer.is_empty() && args.filename.is_none() {
        return Some("--offer");
    }
    args.model.as_ref()?;
    Some(match field.strip_prefix("spec.demand[0].")? {
        "model" | "name" => "--model",
        "quantization" => "--quantization",
        "requestsPerSecond" => "--requests-per-second",
        "promptTokens" => "--prompt",
        "cachedPromptTokens" => "--cached-prompt",
        "answerTokens" => "--answer",
        "contextTokens" => "--context",
        "speculativeSpeedup" => "--speculative-speedup",
        "diskSize" => "--disk-size",
        "objectives.decodeTokensPerSecond" => "--decode",
        "objectives.timeToFirstToken.max" => "--first-token",
        _ => return None,
    })
}
