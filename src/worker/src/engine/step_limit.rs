//! Time limit of an engine step, derived from the durations of earlier steps. If a step takes
//! longer, the engine counts as stalled. The module is pure.

use std::time::Duration;

use super::schedule::Pace;
use rooflet_mlx::backend::Backend;

/// Ratio of the limit to the expected duration. Other processes may slow the device.
const MARGIN: f64 = 4.0;

/// Minimum limit, and limit of an idle engine's start of a step.
pub(super) const SHORTEST: Duration = Duration::from_secs(5);

/// Limit of a step without an expected duration, and maximum limit. On a GPU, the first steps also
/// compile kernels.
const LONGEST_ON_GPU: Duration = Duration::from_secs(60);
const LONGEST_ON_CPU: Duration = Duration::from_secs(180);

/// Time limits of the steps of one engine.
#[derive(Debug)]
pub(super) struct StepLimit {
    longest: Duration,
    /// Longest prefill time per token. Short prompts need more time per token than long ones.
    seconds_per_token: Option<f64>,
}

impl StepLimit {
    pub(super) fn new(backend: Backend) -> Self {
        Self {
            longest: match backend {
                Backend::Metal | Backend::Cuda => LONGEST_ON_GPU,
                Backend::Cpu => LONGEST_ON_CPU,
            },
            seconds_per_token: None,
        }
    }

    /// Records a prefill of `tokens` tokens that took `duration`.
    pub(super) fn record_prefill(&mut self, tokens: usize, duration: Duration) {
        if tokens > 0 {
            let seconds = duration.as_secs_f64() / tokens as f64;
            let longest = self.seconds_per_token.unwrap_or(seconds);
            self.seconds_per_token = Some(longest.max(seconds));
        }
    }

    /// Returns the limit of work without an expected duration, such as reading files.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns the limit of a step that computes `prompt_tokens` tokens of prompts and, with
    /// `decodes`, the next token of each answer.
    pub(super) fn of_step(&self, prompt_tokens: usize, decodes: bool, pace: Pace) -> Duration {
        let per_token = pace.prefill_tokens_per_second.map(f64::recip);
        let per_token = per_token.or(self.seconds_per_token);
        let prefill = match prompt_tokens {
            0 => Some(0.0),
            tokens => per_token.map(|seconds| seconds * tokens as f64),
        };
        let decode = match decodes {
            true => pace.step.map(|step| step.as_secs_f64()),
            false => Some(0.0),
        };
        let expected = prefill.zip(decode).map(|(prefill, decode)| prefill + decode);
        let limit = expected.and_then(|seconds| Duration::try_from_secs_f64(seconds * MARGIN).ok());
        limit.unwrap_or(self.longest).clamp(SHORTEST, self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(tokens_per_second: Option<f64>, step_millis: Option<u64>) -> Pace {
        Pace {
            prefill_tokens_per_second: tokens_per_second,
            step: step_millis.map(Duration::from_millis),
        }
    }

    #[test]
    fn limit_follows_the_expected_duration_of_the_step() {
        let limit = StepLimit::new(Backend::Metal);
        let seconds = |tokens, decodes, pace| limit.of_step(tokens, decodes, pace).as_secs();
        assert_eq!(seconds(0, true, pace(None, Some(50))), 5, "the minimum");
        assert_eq!(seconds(0, true, pace(None, Some(2_000))), 8);
        assert_eq!(seconds(2_048, false, pace(Some(512.0), None)), 16);
        assert_eq!(seconds(2_048, true, pace(Some(512.0), Some(1_000))), 20);
        assert_eq!(seconds(2_048, false, pace(Some(1.0), None)), 60, "the maximum");
    }

    #[test]
    fn step_without_an_expected_duration_has_the_longest_limit() {
        for (backend, expect) in [(Backend::Metal, LONGEST_ON_GPU), (Backend::Cpu, LONGEST_ON_CPU)] {
            let limit = StepLimit::new(backend);
            assert_eq!(limit.of_step(10, false, pace(None, Some(50))), expect);
            assert_eq!(limit.of_step(0, true, pace(Some(100.0), None)), expect);
            assert_eq!(limit.longest(), expect);
        }
    }

    #[test]
    fn recorded_short_prompts_limit_the_next_prompts() {
        let mut limit = StepLimit::new(Backend::Cpu);
        limit.record_prefill(0, Duration::from_secs(9));
        limit.record_prefill(10, Duration::from_millis(500));
        limit.record_prefill(100, Duration::from_secs(1));
        assert_eq!(limit.of_step(10, false, pace(None, None)), SHORTEST);
        assert_eq!(
            limit.of_step(100, false, pace(None, None)),
            Duration::from_secs(20)
        );
    }
}
