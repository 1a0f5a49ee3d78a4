//! Maintenance of the store: compaction, smaller files after deletions, recovery of failed writes.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use rooflet_store::Store;

/// Interval of maintenance.
const PERIOD: Duration = Duration::from_secs(60);
/// Interval while writes fail. `/readyz` fails for as long after their cause has ended.
const FAILURE_PERIOD: Duration = Duration::from_secs(2);

/// Maintains the store until `stop`.
pub(crate) async fn run(store: Store, stop: CancellationToken) {
    // The first maintenance reserves disk space. It does not delay the start of the server.
    let mut waited = PERIOD;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(FAILURE_PERIOD) => {}
        }
        waited += FAILURE_PERIOD;
        if waited >= PERIOD || store.write_failure().is_some() {
            store.maintain().await;
            waited = Duration::ZERO;
        }
    }
}
