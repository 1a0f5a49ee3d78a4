//! Measured speed of a simulated worker, timed like by a client.

use std::collections::VecDeque;

use rooflet_api::v1alpha1::Sample;
use rooflet_api::wire::MeasuredSpeed;
use rooflet_base::quantile::{nearest, sorted};

/// Maximum number of requests in the medians.
const RECENT: usize = 64;

/// Completed request.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompletedRequest {
    /// Time to first token, in seconds.
    pub(super) first_token: f64,
    /// Decode speed after the first token. `None` for an answer of one token.
    pub(super) tokens_per_second: Option<f64>,
    /// Average number of concurrent requests of the worker, including this one.
    pub(super) streams: f64,
    pub(super) prompt_tokens: f64,
    pub(super) context_tokens: f64,
}

/// Most recent requests.
#[derive(Debug, Default)]
pub(super) struct RecentAnswers(VecDeque<CompletedRequest>);

impl RecentAnswers {
    pub(super) fn add(&mut self, completed_request: CompletedRequest) {
        self.0.push_back(completed_request);
        if self.0.len() > RECENT {
            self.0.pop_front();
        }
    }

    pub(super) fn measured(&self) -> MeasuredSpeed {
        let all = |of: fn(&CompletedRequest) -> Option<f64>| sorted(self.0.iter().filter_map(of));
        let middle = |sorted: &[f64]| nearest(sorted, 0.5);
        let rates = all(|one| one.tokens_per_second);
        let first_tokens = all(|one| Some(one.first_token));
        MeasuredSpeed {
            decode_tokens_per_second: middle(&rates),
            time_to_first_token_seconds: middle(&first_tokens),
            streams: middle(&all(|one| Some(one.streams))),
            prompt_tokens: middle(&all(|one| Some(one.prompt_tokens))),
            context_tokens: middle(&all(|one| Some(one.context_tokens))),
            samples: self.0.len() as u64,
            prefill: None,
            decode_tokens_per_second_sample: Sample::of(rates),
            time_to_first_token_seconds_sample: Sample::of(first_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_cover_the_most_recent_answers() {
        let mut recent = RecentAnswers::default();
        assert_eq!(recent.measured(), MeasuredSpeed::default());
        for number in 1..=100 {
            recent.add(CompletedRequest {
                first_token: f64::from(number),
                tokens_per_second: (number % 2 == 0).then_some(10.0),
                streams: 1.0,
                prompt_tokens: 7.0,
                context_tokens: 9.0,
            });
        }
        let measured = recent.measured();
        assert_eq!(measured.samples, 64);
        assert_eq!(measured.decode_tokens_per_second, Some(10.0));
        assert_eq!(measured.time_to_first_token_seconds, Some(69.0), "of 37 to 100");
        let rates = measured.decode_tokens_per_second_sample.map(|rates| rates.count);
        assert_eq!(rates, Some(32));
    }
}
