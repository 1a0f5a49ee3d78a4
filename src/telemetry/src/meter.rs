//! Histograms of requests to models, for whoever collects them: those of OpenTelemetry's conventions for GenAI, status
//! Development (<https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/>). What Prometheus reads is in
//! [`rooflet_base::metrics`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rooflet_base::mutex::lock;

/// Histograms of one instrument, one for each set of attributes. What would begin another is not counted.
const MAX_HISTOGRAMS: usize = 2000;

const REQUEST_SECONDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
const OUTPUT_TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
];
const TOKENS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instrument {
    /// Seconds from a request to the end of its answer.
    RequestDuration,
    /// Seconds from a request to its first token.
    TimeToFirstToken,
    /// Seconds that each token after the first took, on average.
    TimePerOutputToken,
    /// Tokens of a prompt or of an answer. The conventions have it for clients only.
    TokenUsage,
}

impl Instrument {
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestDuration => "gen_ai.server.request.duration",
            Self::TimeToFirstToken => "gen_ai.server.time_to_first_token",
            Self::TimePerOutputToken => "gen_ai.server.time_per_output_token",
            Self::TokenUsage => "gen_ai.client.token.usage",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Self::RequestDuration => "Time from a request to the end of its answer.",
            Self::TimeToFirstToken => "Time to the first token of answers that came to their end.",
            Self::TimePerOutputToken => "Time per token after the first, of answers that came to their end.",
            Self::TokenUsage => "Tokens of prompts and of answers.",
        }
    }

    /// In UCUM's words.
    pub fn unit(self) -> &'static str {
        match self {
            Self::RequestDuration | Self::TimeToFirstToken | Self::TimePerOutputToken => "s",
            Self::TokenUsage => "{token}",
        }
    }

    /// Upper bounds of the buckets, included; one more is for all beyond.
    pub fn bounds(self) -> &'static [f64] {
        match self {
            Self::RequestDuration => REQUEST_SECONDS,
            Self::TimeToFirstToken => FIRST_TOKEN_SECONDS,
            Self::TimePerOutputToken => OUTPUT_TOKEN_SECONDS,
            Self::TokenUsage => TOKENS,
        }
    }
}

/// Names and values, in an order that is always the same.
pub type Attributes = Vec<(&'static str, String)>;

/// What was measured under the same attributes.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Of each bucket.
    pub counts: Vec<u64>,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
}

impl Histogram {
    fn new(bounds: &[f64]) -> Self {
        Self {
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        }
    }

    fn add(&mut self, bounds: &[f64], value: f64) {
        self.counts[bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }
}

/// Everything that was measured since the process began.
pub type Measured = BTreeMap<Instrument, BTreeMap<Attributes, Histogram>>;

/// Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<Measured>>);

impl Meter {
    pub fn record(&self, instrument: Instrument, value: f64, attributes: Attributes) {
        let mut measured = lock(&self.0);
        let histograms = measured.entry(instrument).or_default();
        if histograms.len() < MAX_HISTOGRAMS || histograms.contains_key(&attributes) {
            let bounds = instrument.bounds();
            let new = || Histogram::new(bounds);
            histograms
                .entry(attributes)
                .or_insert_with(new)
                .add(bounds, value);
        }
    }

    pub fn measured(&self) -> Measured {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(model: usize) -> Attributes {
        vec![("gen_ai.request.model", model.to_string())]
    }

    #[test]
    fn a_value_counts_up_to_its_bucket_s_bound() {
        let meter = Meter::default();
        for seconds in [0.01, 0.010_1, 0.02, 500.0] {
            meter.record(Instrument::RequestDuration, seconds, of(1));
        }
        let measured = meter.measured();
        let histogram = &measured[&Instrument::RequestDuration][&of(1)];
        assert_eq!(histogram.counts[..3], [1, 2, 0]);
        assert_eq!(histogram.counts.last(), Some(&1));
        assert_eq!(histogram.counts.len(), REQUEST_SECONDS.len() + 1);
        assert_eq!((histogram.min, histogram.max), (0.01, 500.0));
        assert!((histogram.sum - 500.0401).abs() < 1e-9);
    }

    #[test]
    fn bounds_ascend() {
        for instrument in [
            Instrument::RequestDuration,
            Instrument::TimeToFirstToken,
            Instrument::TimePerOutputToken,
            Instrument::TokenUsage,
        ] {
            assert!(instrument.bounds().is_sorted(), "{}", instrument.name());
        }
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let meter = Meter::default();
        for model in 0..=MAX_HISTOGRAMS {
            meter.record(Instrument::TokenUsage, 1.0, of(model));
        }
        meter.record(Instrument::TokenUsage, 1.0, of(0));
        let histograms = &meter.measured()[&Instrument::TokenUsage];
        assert_eq!(histograms.len(), MAX_HISTOGRAMS);
        assert_eq!(histograms[&of(0)].counts[0], 2);
    }
}
