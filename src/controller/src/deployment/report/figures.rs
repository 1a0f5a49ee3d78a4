//! Predicted and measured speed of a deployment, from the status of its replicas.

use std::fmt;

use crate::deployment::replica::is_ready;
use rooflet_api::v1alpha1::{MeasuredSpeed, ModelReplica, Percentiles, PredictedSpeed, SpeedWorking};

/// Minimum number of requests for a comparison with the prediction.
const ENOUGH_REQUESTS: u64 = 10;

/// Speed of a deployment's replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Figures {
    /// Tokens per second of one stream.
    pub(super) tokens_per_second: Pair,
    pub(super) first_token_seconds: Pair,
}

/// Predicted and measured value of one figure.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Pair {
    pub(super) predicted: Option<f64>,
    pub(super) measured: Option<f64>,
}

impl Pair {
    /// Formats `predicted/measured`, with `-` for an unknown value.
    pub(super) fn show(self, write: impl Fn(f64) -> String) -> String {
        let text = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), &write);
        format!("{}/{}", text(self.predicted), text(self.measured))
    }
}

/// Returns the means over the replicas that have the figure.
///
/// If a replica has measurements, the predicted mean covers the measured replicas only. Their
/// predictions are for their actual requests, those of other replicas for full streams.
pub(super) fn figures(replicas: &[&ModelReplica]) -> Figures {
    type Figure = fn(&ModelReplica) -> Option<f64>;
    let pair = |predicted: Figure, measured: Figure| {
        let (with, without): (Vec<&ModelReplica>, Vec<_>) = replicas
            .iter()
            .copied()
            .partition(|replica| measured(replica).is_some());
        let compared = if with.is_empty() { &without } else { &with };
        Pair {
            predicted: mean(compared, predicted),
            measured: mean(&with, measured),
        }
    };
    Figures {
        tokens_per_second: pair(
            |replica| {
                predicted(
                    replica,
                    |speed| speed.tokens_per_second,
                    |speed| speed.tokens_per_second,
                )
            },
            |replica| decimal(&measured_of(replica)?.tokens_per_second),
        ),
        first_token_seconds: pair(
            |replica| {
                predicted(
                    replica,
                    |speed| speed.time_to_first_token_seconds,
                    |speed| speed.time_to_first_token_seconds,
                )
            },
            |replica| decimal(&measured_of(replica)?.time_to_first_token_seconds),
        ),
    }
}

fn mean(replicas: &[&ModelReplica], of: fn(&ModelReplica) -> Option<f64>) -> Option<f64> {
    let numbers: Vec<_> = replicas.iter().filter_map(|replica| of(replica)).collect();
    let count = u32::try_from(numbers.len()).ok().filter(|count| *count > 0)?;
    Some(numbers.iter().sum::<f64>() / f64::from(count))
}

/// Returns the median prediction for the actual requests, or before the first requests the
/// prediction at admission, with every stream at full context.
fn predicted(
    replica: &ModelReplica,
    of: fn(&PredictedSpeed) -> Percentiles,
    at_most: fn(&SpeedWorking) -> Percentiles,
) -> Option<f64> {
    let status = replica.status.as_ref()?;
    let of_requests = measured_of(replica).and_then(|measured| measured.predicted.as_ref());
    let of_admission = || status.admission.as_ref()?.speed.as_ref();
    let figure = of_requests.map(of).or_else(|| of_admission().map(at_most))?;
    (figure.p50 > 0.0).then_some(figure.p50)
}

/// Figure that is predicted and measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// Tokens per second of one stream.
    Decode,
    /// Seconds from the start of a request's prefill to its first token.
    FirstToken,
}

/// Measured speed of one replica and its predicted interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Comparison {
    figure: Figure,
    measured: f64,
    predicted: Percentiles,
}

impl Comparison {
    /// Returns the comparisons of all figures that have enough requests and a prediction.
    pub(super) fn all(replica: &ModelReplica) -> impl Iterator<Item = Self> {
        let measured = measured_of(replica);
        let decode = measured.filter(|measured| measured.requests >= ENOUGH_REQUESTS);
        let prefill = measured.and_then(|measured| measured.prefill.as_ref());
        let prefill = prefill.filter(|prefill| prefill.requests >= ENOUGH_REQUESTS);
        let decode = decode.and_then(|measured| {
            Some(Self {
                figure: Figure::Decode,
                measured: decimal(&measured.tokens_per_second)?,
                predicted: measured.predicted.as_ref()?.tokens_per_second,
            })
        });
        let prefill = prefill.and_then(|prefill| {
            Some(Self {
                figure: Figure::FirstToken,
                measured: decimal(&prefill.seconds)?,
                predicted: prefill.predicted.as_ref()?.seconds,
            })
        });
        decode.into_iter().chain(prefill)
    }

    /// Returns whether the measurement is within the predicted interval. The interval of an
    /// accurate prediction covers 80 % of the measurements.
    pub(super) fn is_accurate(self) -> bool {
        (self.predicted.p10..=self.predicted.p90).contains(&self.measured)
    }

    pub(super) fn is_slower(self) -> bool {
        match self.figure {
            Figure::Decode => self.measured < self.predicted.p10,
            Figure::FirstToken => self.measured > self.predicted.p90,
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Percentiles { p10, p50, p90 } = self.predicted;
        let measured = self.measured;
        match self.figure {
            Figure::Decode => write!(
                f,
                "{measured:.1} tokens/s measured, {p50:.1} predicted ({p10:.1} to {p90:.1})"
            ),
            Figure::FirstToken => write!(
                f,
                "first tokens measured after {measured:.2} s, predicted after {p50:.2} s ({p10:.2} to {p90:.2})"
            ),
        }
    }
}

fn measured_of(replica: &ModelReplica) -> Option<&MeasuredSpeed> {
    let status = replica.status.as_ref().filter(|_| is_ready(replica))?;
    status.measured.as_ref()
}

fn decimal(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}
