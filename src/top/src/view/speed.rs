//! Predicted and measured value of a speed figure.

use serde::Serialize;

use rooflet_api::v1alpha1::{MeasuredSpeed, ModelReplicaStatus};

/// Prediction beside measurement. An unknown value is `None`, never 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Speed {
    pub(crate) predicted: Option<f64>,
    /// Basis of the prediction: Measured, Calibrated or Nominal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) predicted_basis: Option<String>,
    /// Measured with real requests.
    pub(crate) measured: Option<f64>,
}

impl Speed {
    /// Decode tokens/s of one stream. The prediction is for the measured requests, or before the
    /// first request for the full load of the replica.
    pub(super) fn decode(status: &ModelReplicaStatus) -> Self {
        let for_requests = status
            .measured
            .as_ref()
            .and_then(|speed| speed.predicted.as_ref());
        let for_full_load = status
            .admission
            .as_ref()
            .and_then(|admission| admission.speed.as_ref());
        let predicted = for_requests
            .map(|speed| (speed.tokens_per_second, &speed.basis))
            .or_else(|| for_full_load.map(|speed| (speed.tokens_per_second, &speed.basis)));
        Self::new(
            predicted.map(|(speed, basis)| (speed.p50, basis)),
            status.measured.as_ref().map(|speed| &speed.tokens_per_second),
        )
    }

    /// Seconds to the first token. The prediction is for the measured requests, or before the first
    /// request for a prompt of the admitted length.
    pub(super) fn first_token(status: &ModelReplicaStatus) -> Self {
        let for_requests = status
            .measured
            .as_ref()
            .and_then(|speed| speed.predicted.as_ref());
        let for_full_load = status
            .admission
            .as_ref()
            .and_then(|admission| admission.speed.as_ref());
        let predicted = for_requests
            .map(|speed| (speed.time_to_first_token_seconds, &speed.basis))
            .or_else(|| {
                for_full_load.map(|speed| {
                    (
                        speed.time_to_first_token_seconds,
                        &speed.time_to_first_token_basis,
                    )
                })
            });
        let measured = |speed: &'_ MeasuredSpeed| speed.time_to_first_token_seconds.clone();
        Self::new(
            predicted.map(|(speed, basis)| (speed.p50, basis)),
            status.measured.as_ref().map(measured).as_ref(),
        )
    }

    fn new(predicted: Option<(f64, &String)>, measured: Option<&String>) -> Self {
        let predicted = predicted.filter(|(value, _)| is_known(*value));
        Self {
            predicted: predicted.map(|(value, _)| value),
            predicted_basis: predicted
                .map(|(_, basis)| super::text(basis))
                .filter(|basis| !basis.is_empty()),
            measured: measured
                .and_then(|text| text.trim().parse().ok())
                .filter(|value| is_known(*value)),
        }
    }

    /// Parses `predicted/measured` of a deployment's status, such as `12.3/-` or `412ms/1.20s`.
    pub(super) fn of_summary(text: Option<&str>) -> Self {
        let (predicted, measured) = text.and_then(|text| text.split_once('/')).unwrap_or_default();
        Self {
            predicted: figure(predicted),
            predicted_basis: None,
            measured: figure(measured),
        }
    }
}

fn is_known(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Parses a number, or a duration in `ms` or `s`. The result is in seconds for durations.
fn figure(text: &str) -> Option<f64> {
    let (number, per_second) = match text.strip_suffix("ms") {
        Some(milliseconds) => (milliseconds, 1e3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let value: f64 = number.parse().ok()?;
    Some(value / per_second).filter(|value| is_known(*value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(value: serde_json::Value) -> ModelReplicaStatus {
        serde_json::from_value(value).expect("a status")
    }

    #[test]
    fn prediction_for_the_measured_requests_precedes_that_of_admission() {
        let admission = json!({"speed": {
            "tokensPerSecond": {"p50": 40.0}, "basis": "Nominal",
            "timeToFirstTokenSeconds": {"p50": 0.9}, "timeToFirstTokenBasis": "Measured",
        }});
        let before = status(json!({"admission": admission.clone()}));
        let nominal = Speed {
            predicted: Some(40.0),
            predicted_basis: Some("Nominal".to_owned()),
            measured: None,
        };
        assert_eq!(Speed::decode(&before), nominal);
        assert_eq!(
            Speed::first_token(&before).predicted_basis.as_deref(),
            Some("Measured")
        );
        let after = status(json!({"admission": admission, "measured": {
            "tokensPerSecond": "51.5", "timeToFirstTokenSeconds": "0.2",
            "predicted": {"tokensPerSecond": {"p50": 55.0}, "timeToFirstTokenSeconds": {"p50": 0.3}, "basis": "Calibrated"},
        }}));
        let speed = Speed::decode(&after);
        assert_eq!((speed.predicted, speed.measured), (Some(55.0), Some(51.5)));
        let speed = Speed::first_token(&after);
        assert_eq!((speed.predicted, speed.measured), (Some(0.3), Some(0.2)));
    }

    #[test]
    fn unknown_figures_are_not_zero() {
        let unknown = status(json!({
            "admission": {"speed": {"tokensPerSecond": {"p50": 0.0}}},
            "measured": {"tokensPerSecond": "", "timeToFirstTokenSeconds": "0"},
        }));
        assert_eq!(Speed::decode(&unknown), Speed::default());
        assert_eq!(Speed::first_token(&unknown), Speed::default());
    }

    #[test]
    fn parses_the_figures_of_a_deployment() {
        let parsed = |text| {
            let speed = Speed::of_summary(Some(text));
            (speed.predicted, speed.measured)
        };
        assert_eq!(parsed("12.3/11.0"), (Some(12.3), Some(11.0)));
        assert_eq!(parsed("412ms/1.20s"), (Some(0.412), Some(1.2)));
        assert_eq!(parsed("-/-"), (None, None));
        assert_eq!(parsed("12.3"), (None, None));
    }
}
