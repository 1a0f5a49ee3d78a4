//! File of audit events, one JSON object per line.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::Utf8Path;
use serde_json::Value;
use tokio::sync::mpsc;
use tracing::{info, warn};

use rooflet_apiserver::AuditSink;
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_http_server::DenialAudit;
use rooflet_process::logs::Log;

/// Size at which the file is rotated. One rotated file is kept.
const MAX_BYTES: u64 = 64 << 20;
/// Events that wait for the disk. Further events are dropped, and counted in the log.
const MAX_WAITING: usize = 10_000;
/// Events of one write.
const MAX_BATCH: usize = 256;

/// Sender of events to the file.
pub struct AuditLog {
    events_tx: mpsc::Sender<Value>,
    dropped: Arc<AtomicU64>,
}

impl AuditSink for AuditLog {
    fn record(&self, event: Value) {
        if self.events_tx.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AuditLog {
    /// Returns a receiver of denied requests that writes to a file until `tasks` stop.
    pub fn of_denials(path: &Utf8Path, tasks: &Tasks) -> DenialAudit {
        let log = Self::start(path, tasks);
        DenialAudit::new(move |event| log.record(event))
    }

    /// Starts to write to a file until `tasks` stop, and then the waiting events.
    pub(super) fn start(path: &Utf8Path, tasks: &Tasks) -> Self {
        let (events_tx, mut events_rx) = mpsc::channel(MAX_WAITING);
        let dropped = Arc::<AtomicU64>::default();
        let dropped_events = dropped.clone();
        let log = Log::new(path.to_owned());
        info!(path = %path, "recording requests in the audit log");
        tasks.spawn("audit-log", move |stop| {
            Box::pin(async move {
                let mut has_failed = false;
                let mut batch = Vec::with_capacity(MAX_BATCH);
                loop {
                    let received = stop
                        .run_until_cancelled(events_rx.recv_many(&mut batch, MAX_BATCH))
                        .await;
                    let is_last = received.is_none();
                    if is_last {
                        while let Ok(event) = events_rx.try_recv() {
                            batch.push(event);
                        }
                    }
                    let dropped = dropped_events.swap(0, Ordering::Relaxed);
                    if dropped > 0 {
                        warn!(events = dropped, "audit events dropped: the disk is too slow");
                    }
                    let written = write(&log, &batch);
                    match &written {
                        Ok(()) => has_failed = false,
                        Err(err) if !has_failed => {
                            warn!(path = %log.path(), error = %Chain(err), "failed to write the audit log");
                            has_failed = true;
                        }
                        Err(_) => {}
                    }
                    batch.clear();
                    if is_last || received == Some(0) {
                        return Ok::<_, io::Error>(());
                    }
                }
            })
        });
        Self { events_tx, dropped }
    }
}

fn write(log: &Log, events: &[Value]) -> io::Result<()> {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    log.open_append()?.write_all(lines.as_bytes())?;
    log.rotate(MAX_BYTES).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn events_are_written_until_the_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = camino::Utf8PathBuf::try_from(directory.path().join("audit.log")).expect("UTF-8");
        let tasks = Tasks::new();
        let log = AuditLog::start(&path, &tasks);
        for number in 0..1000 {
            log.record(json!({ "number": number }));
        }
        tasks.stop_token().cancel();
        tasks
            .join(std::time::Duration::from_secs(30))
            .await
            .expect("stopped");
        let text = std::fs::read_to_string(&path).expect("the file");
        let numbers: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["number"].clone())
            .collect();
        assert_eq!(numbers, (0..1000).map(Value::from).collect::<Vec<_>>());
    }
}
