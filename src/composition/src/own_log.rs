//! Rotation of this process's own log, if standard error is redirected to a file.

use std::time::Duration;

use tracing::{info, warn};

use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_process::logs::{Log, MAX_LOG_BYTES};

/// Interval between checks of the size.
const PERIOD: Duration = Duration::from_secs(10);

/// Limits the file behind standard error to [`MAX_LOG_BYTES`] and one rotated file of this size,
/// until `tasks` stop. Does nothing if standard error is not a file opened for appending.
pub fn limit(tasks: &Tasks) {
    let Some(log) = Log::redirected(std::io::stderr()) else {
        return;
    };
    let stop = tasks.stop_token();
    tasks.spawn_detached(async move {
        loop {
            match log.rotate(MAX_LOG_BYTES) {
                Ok(true) => info!(path = %log.path(), "log rotated"),
                Ok(false) => {}
                Err(err) => {
                    warn!(path = %log.path(), error = %Chain(&err), "failed to rotate this log; it is no longer limited");
                    return;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    });
}
