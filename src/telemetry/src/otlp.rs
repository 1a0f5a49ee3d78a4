//! Export of spans and measurements to an OpenTelemetry collector over OTLP and HTTP.
//!
//! The standard `OTEL_*` variables configure it
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>). Without
//! an endpoint nothing is exported.

mod client;
mod settings;

use std::collections::HashMap;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::client::Client;
use self::settings::{Destination, Encoding, MetricSettings, SettingsError, TraceSettings};
use crate::meter::Meter;
use crate::trace::Tracer;
use rooflet_base::clock::Clock;
use rooflet_base::environment::variable;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;

/// Timeout of the last export when the process stops.
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// Reason why a signal is not exported.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("the HTTP client cannot be built")]
    Client(#[from] reqwest::Error),
    #[error("the exporter cannot be built")]
    Exporter(#[from] ExporterBuildError),
}

/// Returns a tracer that exports as the environment configures it. `service` is the default of
/// `OTEL_SERVICE_NAME`. When `stop` is cancelled, the remaining spans and measurements are
/// exported.
pub fn start(service: &str, clock: Clock, stop: CancellationToken, tasks: &Tasks) -> Tracer {
    let spans = started("traces", TraceSettings::read(service, variable), |settings| {
        start_spans(settings, stop.clone(), tasks)
    });
    let meter = started("metrics", MetricSettings::read(service, variable), |settings| {
        start_metrics(settings, stop.clone(), tasks)
    });
    Tracer::new(spans, meter, clock)
}

fn started<S, T>(
    signal: &str,
    settings: Result<Option<S>, SettingsError>,
    start: impl FnOnce(S) -> Result<T, StartError>,
) -> Option<T> {
    let started = settings.map_err(StartError::from);
    let started = started.and_then(|settings| settings.map(start).transpose());
    started.unwrap_or_else(|err| {
        warn!(error = %Chain(&err), "{signal} are not exported");
        None
    })
}

fn start_spans(
    settings: TraceSettings,
    stop: CancellationToken,
    tasks: &Tasks,
) -> Result<SdkTracer, StartError> {
    let destination = &settings.destination;
    let exporter = configured(SpanExporter::builder().with_http(), destination)?.build()?;
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(settings.queue_spans)
        .with_max_export_batch_size(settings.batch_spans)
        .with_scheduled_delay(settings.delay);
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches.build());
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor.build())
        .with_sampler(settings.sampler)
        .with_resource(resource(destination))
        .build();
    info!(endpoint = %destination.endpoint, "traces are exported");
    let tracer = provider.tracer("rooflet");
    shut_down_at("traces", stop, tasks, move || {
        provider.shutdown_with_timeout(LAST_EXPORT)
    });
    Ok(tracer)
}

fn start_metrics(
    settings: MetricSettings,
    stop: CancellationToken,
    tasks: &Tasks,
) -> Result<Meter, StartError> {
    let destination = &settings.destination;
    let exporter = configured(MetricExporter::builder().with_http(), destination)?.build()?;
    let reader = PeriodicReader::builder(exporter)
        .with_interval(settings.interval)
        .build();
    let provider = SdkMeterProvider::builder()
        .with_reader(reader)
        .with_resource(resource(destination))
        .build();
    info!(endpoint = %destination.endpoint, "metrics are exported");
    let meter = Meter::new(&provider);
    shut_down_at("metrics", stop, tasks, move || {
        provider.shutdown_with_timeout(LAST_EXPORT)
    });
    Ok(meter)
}

fn configured<B: WithExportConfig + WithHttpConfig>(
    builder: B,
    destination: &Destination,
) -> Result<B, StartError> {
    let headers = destination.headers.iter();
    let headers =
        headers.filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
    let protocol = match destination.encoding {
        Encoding::Json => Protocol::HttpJson,
        Encoding::Protobuf => Protocol::HttpBinary,
    };
    Ok(builder
        .with_http_client(Client::new(destination)?)
        .with_endpoint(destination.endpoint.as_str())
        .with_protocol(protocol)
        .with_timeout(destination.timeout)
        .with_headers(headers.collect::<HashMap<_, _>>()))
}

fn resource(destination: &Destination) -> Resource {
    let attributes = destination.resource.iter();
    let attributes = attributes.map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    Resource::builder_empty().with_attributes(attributes).build()
}

/// Exports the rest when `stop` is cancelled.
fn shut_down_at(
    signal: &'static str,
    stop: CancellationToken,
    tasks: &Tasks,
    shut_down: impl FnOnce() -> OTelSdkResult + Send + 'static,
) {
    tasks.spawn_detached(async move {
        stop.cancelled().await;
        let export = tokio::task::spawn_blocking(shut_down);
        match tokio::time::timeout(LAST_EXPORT, export).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(err))) => warn!(error = %err, "the last {signal} were not exported"),
            Ok(Err(err)) => warn!(error = %err, "the last {signal} were not exported"),
            Err(_elapsed) => warn!("the last {signal} were not exported in time"),
        }
    });
}

#[cfg(test)]
mod tests;
