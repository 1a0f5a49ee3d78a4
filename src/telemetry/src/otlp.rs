//! Spans and measurements on their way to an OpenTelemetry collector: OTLP over HTTP with JSON, set up by the standard
//! `OTEL_*` variables (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>). Off where no
//! endpoint is named.

mod encode;
mod metrics;
mod settings;
mod spans;

use std::time::Duration;

use http::StatusCode;
use serde_json::Value as Json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::settings::{Destination, MetricSettings, SettingsError, TraceSettings};
use crate::trace::Tracer;
use rooflet_base::clock::Clock;
use rooflet_base::environment::variable;
use rooflet_base::error::Chain;
use rooflet_base::loopback;
use rooflet_base::task::Tasks;

/// How long what is left may take once a process stops.
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// Why nothing is exported.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("no HTTP client can be made")]
    Client(#[from] reqwest::Error),
}

/// Why spans or measurements were not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("the collector cannot be reached")]
    Send(#[source] reqwest::Error),
    #[error("the collector answered {0}")]
    Refused(StatusCode),
}

/// A tracer whose spans and measurements go where the environment says; one without any where it names no endpoint.
/// `service` is who we are unless the environment says otherwise. Ends with `stop`, after what is left has been sent.
pub fn start(service: &str, clock: Clock, stop: CancellationToken, tasks: &Tasks) -> Tracer {
    let spans = wanted("traces", TraceSettings::read(service, variable), |settings| {
        spans::export(settings, stop.clone(), tasks)
    });
    let meter = wanted("metrics", MetricSettings::read(service, variable), |settings| {
        metrics::export(settings, clock.clone(), stop.clone(), tasks)
    });
    Tracer::new(spans, meter, clock)
}

fn wanted<S, T>(
    signal: &str,
    settings: Result<Option<S>, SettingsError>,
    export: impl FnOnce(S) -> Result<T, StartError>,
) -> Option<T> {
    let started = settings.map_err(StartError::from);
    let started = started.and_then(|settings| settings.map(export).transpose());
    started.unwrap_or_else(|err| {
        warn!(error = %Chain(&err), "no {signal} are exported");
        None
    })
}

/// Who takes one signal.
struct Collector {
    destination: Destination,
    http: reqwest::Client,
}

impl Collector {
    fn new(signal: &str, destination: Destination) -> Result<Self, StartError> {
        let http = loopback::client_of(&destination.endpoint).timeout(destination.timeout);
        let http = http.build()?;
        info!(endpoint = %destination.endpoint, "{signal} are exported");
        Ok(Self { destination, http })
    }

    async fn post(&self, body: &Json) -> Result<(), ExportError> {
        let request = self.http.post(self.destination.endpoint.clone()).json(body);
        let response = request
            .headers(self.destination.headers.clone())
            .send()
            .await
            .map_err(ExportError::Send)?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(ExportError::Refused(status)),
        }
    }
}

#[cfg(test)]
mod tests;
