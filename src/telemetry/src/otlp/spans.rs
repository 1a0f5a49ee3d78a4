//! Spans, in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::settings::TraceSettings;
use super::{Collector, LAST_EXPORT, StartError, encode};
use crate::trace::{Span, SpanQueue};
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;

pub(super) fn export(
    settings: TraceSettings,
    stop: CancellationToken,
    tasks: &Tasks,
) -> Result<SpanQueue, StartError> {
    let (spans_tx, spans_rx) = mpsc::channel(settings.queue_spans);
    let lost = Arc::new(AtomicU64::new(0));
    let exporter = Exporter {
        collector: Collector::new("traces", settings.destination)?,
        batch_spans: settings.batch_spans,
        delay: settings.delay,
        spans_rx,
        lost: Arc::clone(&lost),
    };
    tasks.spawn_detached(exporter.run(stop));
    Ok(SpanQueue {
        spans_tx,
        lost,
        sampler: settings.sampler,
    })
}

struct Exporter {
    collector: Collector,
    batch_spans: usize,
    delay: Duration,
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
            while spans.len() < self.batch_spans {
                match self.spans_rx.recv().await {
                    Some(span) => spans.push(span),
                    None => return false,
                }
            }
            true
        };
        tokio::time::timeout(self.delay, more).await.unwrap_or(true)
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
        let body = encode::spans(&self.collector.destination.resource, &spans);
        match self.collector.post(&body).await {
            Ok(()) => debug!(spans = spans.len(), "spans were exported"),
            // No second try: spans that queue up behind it would be lost instead.
            Err(err) => warn!(spans = spans.len(), error = %Chain(&err), "spans were lost"),
        }
    }
}
