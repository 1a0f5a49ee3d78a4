//! Histograms of model requests, as OpenTelemetry's semantic conventions for generative AI define
//! them, status Development (<https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/>).
//! Prometheus metrics are in [`rooflet_base::metrics`].

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;

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

/// Quantity that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instrument {
    /// Seconds from a request to the end of its response.
    RequestDuration,
    /// Seconds from a request to its first token.
    TimeToFirstToken,
    /// Mean seconds per token after the first.
    TimePerOutputToken,
    /// Tokens of a prompt or an answer. The conventions define it for clients only.
    TokenUsage,
}

/// Name, unit (UCUM), description and bucket bounds of a histogram.
struct Definition {
    name: &'static str,
    unit: &'static str,
    description: &'static str,
    bounds: &'static [f64],
}

impl Instrument {
    fn definition(self) -> Definition {
        match self {
            Self::RequestDuration => Definition {
                name: "gen_ai.server.request.duration",
                unit: "s",
                description: "Time from a request to the end of its response.",
                bounds: REQUEST_SECONDS,
            },
            Self::TimeToFirstToken => Definition {
                name: "gen_ai.server.time_to_first_token",
                unit: "s",
                description: "Time to the first token of completed answers.",
                bounds: FIRST_TOKEN_SECONDS,
            },
            Self::TimePerOutputToken => Definition {
                name: "gen_ai.server.time_per_output_token",
                unit: "s",
                description: "Time per token after the first of completed answers.",
                bounds: OUTPUT_TOKEN_SECONDS,
            },
            Self::TokenUsage => Definition {
                name: "gen_ai.client.token.usage",
                unit: "{token}",
                description: "Tokens of prompts and answers.",
                bounds: TOKENS,
            },
        }
    }
}

/// Recorder of request measurements. Clones record into the same histograms.
///
/// The SDK limits each histogram to 2,000 attribute sets; further sets share one with
/// `otel.metric.overflow=true`.
#[derive(Debug, Clone)]
pub struct Meter {
    request_duration: Histogram<f64>,
    time_to_first_token: Histogram<f64>,
    time_per_output_token: Histogram<f64>,
    token_usage: Histogram<f64>,
}

impl Meter {
    pub fn new(provider: &SdkMeterProvider) -> Self {
        let meter = provider.meter("rooflet");
        let histogram = |instrument: Instrument| {
            let Definition {
                name,
                unit,
                description,
                bounds,
            } = instrument.definition();
            let builder = meter
                .f64_histogram(name)
                .with_unit(unit)
                .with_description(description);
            builder.with_boundaries(bounds.to_vec()).build()
        };
        Self {
            request_duration: histogram(Instrument::RequestDuration),
            time_to_first_token: histogram(Instrument::TimeToFirstToken),
            time_per_output_token: histogram(Instrument::TimePerOutputToken),
            token_usage: histogram(Instrument::TokenUsage),
        }
    }

    pub(crate) fn record(&self, instrument: Instrument, value: f64, attributes: &[KeyValue]) {
        let histogram = match instrument {
            Instrument::RequestDuration => &self.request_duration,
            Instrument::TimeToFirstToken => &self.time_to_first_token,
            Instrument::TimePerOutputToken => &self.time_per_output_token,
            Instrument::TokenUsage => &self.token_usage,
        };
        histogram.record(value, attributes);
    }
}
