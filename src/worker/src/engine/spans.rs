//! The engine's part of a request's trace span: the intervals `queue`, `prefill` and `decode`, the
//! numbers of tokens, and the outcome. Attribute names are those of [`rooflet_telemetry::trace`].

use std::time::Instant;

use crate::batch::event::Done;
use crate::batch::sequence::Sequence;
use crate::batch::step_error::StepError;
use crate::prompt::PromptUse;
use rooflet_inference_api::openai::response::FinishReason;
use rooflet_telemetry::meter::Instrument;
use rooflet_telemetry::trace;
use rooflet_telemetry::trace::OpenSpan;

/// Records the intervals, tokens and outcome of one completion.
pub(crate) fn record_sequence(
    span: &OpenSpan,
    sequence: &Sequence,
    outcome: Result<&Done, &StepError>,
    now: Instant,
) {
    let timing = sequence.timing;
    let joined = timing.joined.unwrap_or(now);
    span.interval("queue", timing.submitted, joined, vec![]);
    let prompt = vec![
        ("rooflet.prompt_tokens", sequence.prompt.len().into()),
        ("rooflet.cached_tokens", sequence.prompt.cached_tokens().into()),
    ];
    span.interval("prefill", joined, timing.first_token.unwrap_or(now), prompt);
    if let Some(first_token) = timing.first_token {
        let answer = vec![
            ("rooflet.completion_tokens", sequence.completion_tokens().into()),
            ("rooflet.batch_rows", sequence.decoding.streams().into()),
        ];
        span.interval("decode", first_token, now, answer);
    }
    let request = sequence.request();
    // All choices of a request share its prompt, which counts once.
    if request.is_first_choice {
        span.add(
            "gen_ai.usage.cache_read.input_tokens",
            sequence.prompt.cached_tokens(),
        );
    }
    let answers = request.prompt_use != PromptUse::Embed;
    if answers {
        span.add(trace::OUTPUT_TOKENS, sequence.completion_tokens());
    }
    match outcome {
        Ok(done) if answers => {
            measure_tokens(span, sequence, now);
            span.push(
                "gen_ai.response.finish_reasons",
                match done.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                    FinishReason::ToolCalls => "tool_calls",
                },
            );
        }
        Ok(_) => {}
        Err(_) => span.fail("engine_error"),
    }
}

fn measure_tokens(span: &OpenSpan, sequence: &Sequence, now: Instant) {
    let timing = sequence.timing;
    let Some(first_token) = timing.first_token else {
        return;
    };
    span.measure(Instrument::TimeToFirstToken, first_token - timing.submitted);
    let later_tokens = u32::try_from(sequence.completion_tokens().saturating_sub(1)).unwrap_or(u32::MAX);
    if later_tokens > 0 {
        span.measure(Instrument::TimePerOutputToken, (now - first_token) / later_tokens);
    }
}

/// Records that the client has disconnected.
pub(crate) fn record_cancelled(span: Option<&OpenSpan>) {
    if let Some(span) = span {
        span.set(trace::ERROR_TYPE, "cancelled");
    }
}
