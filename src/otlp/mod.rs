//! Spans on their way to an OpenTelemetry collector: OTLP over HTTP with JSON, set up by the standard `OTEL_*` variables
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>). Off where no endpoint is named.

mod encode;
mod settings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::encode::body;
use self::settings::Settings;
use crate::clock::Clock;
use crate::error::Chain;
use crate::task::Tasks;
use crate::trace::{Span, Tracer};

/// How long the last spans may take once a process stops.
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("the collector cannot be reached")]
    Send(#[source] reqwest::Error),
    #[error("the collector answered {0}")]
    Refused(StatusCode),
}

/// A tracer whose spans go where the environment says; one without any where it names no endpoint. `service` is who
/// we are unless the environment says otherwise. Ends with `stop`, after what is left has been sent.
pub(crate) fn start(service: &str, clock: Clock, stop: CancellationToken, tasks: &Tasks) -> Tracer {
    let settings = match Settings::read(service, |name| std::env::var(name).ok()) {
        Ok(Some(settings)) => settings,
        Ok(None) => return Tracer::default(),
        Err(err) => {
            warn!(error = %Chain(&err), "no traces are exported");
            return Tracer::default();
        }
    };
    match export(settings, clock, stop, tasks) {
        Ok(tracer) => tracer,
        Err(err) => {
            warn!(error = %Chain(&err), "no traces are exported");
            Tracer::default()
        }
    }
}

fn export(
    settings: Settings,
    clock: Clock,
    stop: CancellationToken,
    tasks: &Tasks,
) -> Result<Tracer, reqwest::Error> {
    let http = reqwest::Client::builder().timeout(settings.timeout).build()?;
    info!(endpoint = %settings.endpoint, "traces are exported");
    let (spans_tx, spans_rx) = mpsc::channel(settings.queue_spans);
    let lost = Arc::new(AtomicU64::new(0));
    let tracer = Tracer::new(spans_tx, Arc::clone(&lost), settings.sampler, clock);
    let exporter = Exporter {
        settings,
        http,
        spans_rx,
        lost,
    };
    tasks.spawn_detached(exporter.run(stop));
    Ok(tracer)
}

struct Exporter {
    settings: Settings,
    http: reqwest::Client,
    spans_rx: mpsc::Receiver<Span>,
    /// Since the last time it was told.
    lost: Arc<AtomicU64>,
}

impl Exporter {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let mut spans = Vec::new();
            let filled = tokio::select! {
                filled = self.fill(&mut spans) => filled,
                () = stop.cancelled() => break self.send_rest(spans).await,
            };
            self.send(spans).await;
            if !filled {
                break;
            }
        }
    }

    /// Waits for a first span, then for as many as go together or as long as the first may wait. False at the end of all.
    async fn fill(&mut self, spans: &mut Vec<Span>) -> bool {
        let Some(first) = self.spans_rx.recv().await else {
            return false;
        };
        spans.push(first);
        let more = async {
            while spans.len() < self.settings.batch_spans {
                match self.spans_rx.recv().await {
                    Some(span) => spans.push(span),
                    None => return false,
                }
            }
            true
        };
        tokio::time::timeout(self.settings.delay, more)
            .await
            .unwrap_or(true)
    }

    async fn send_rest(&mut self, mut spans: Vec<Span>) {
        while let Ok(span) = self.spans_rx.try_recv() {
            spans.push(span);
        }
        if tokio::time::timeout(LAST_EXPORT, self.send(spans)).await.is_err() {
            warn!("the last spans were not taken in time");
        }
    }

    async fn send(&self, spans: Vec<Span>) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            warn!(spans = lost, "spans were lost: the collector is too slow");
        }
        if spans.is_empty() {
            return;
        }
        match self.post(&spans).await {
            Ok(()) => debug!(spans = spans.len(), "spans were exported"),
            // No second try: spans that queue up behind it would be lost instead.
            Err(err) => warn!(spans = spans.len(), error = %Chain(&err), "spans were lost"),
        }
    }

    async fn post(&self, spans: &[Span]) -> Result<(), ExportError> {
        let body = body(&self.settings.resource, spans);
        let request = self.http.post(self.settings.endpoint.clone()).json(&body);
        let response = request
            .headers(self.settings.headers.clone())
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
