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
    let mut limit = Limit {
        log,
        is_failing: false,
    };
    tasks.spawn_detached(async move {
        loop {
            limit.check(MAX_LOG_BYTES);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    });
}

struct Limit {
    log: Log,
    /// True if the last rotation failed.
    is_failing: bool,
}

impl Limit {
    /// Rotates the log if it is too large. Logs only the first of several consecutive failures, because the log
    /// would grow with each message.
    fn check(&mut self, max_bytes: u64) {
        let rotated = self.log.rotate(max_bytes);
        let path = self.log.path();
        let was_failing = std::mem::replace(&mut self.is_failing, rotated.is_err());
        match rotated {
            Ok(true) => info!(%path, "log rotated"),
            Err(err) if !was_failing => {
                let seconds = PERIOD.as_secs();
                warn!(%path, error = %Chain(&err), "failed to rotate this log; retrying every {seconds} s");
            }
            Ok(false) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use rooflet_testing::TempDir;

    #[test]
    fn log_is_limited_again_after_a_failed_rotation() {
        let directory = TempDir::new();
        let path = directory.path().join("own.log");
        let in_the_way = directory.path().join("own.log.1/file");
        fs::create_dir_all(&in_the_way).unwrap();
        fs::write(&path, "a line\n").unwrap();
        let mut limit = Limit {
            log: Log::new(path.clone()),
            is_failing: false,
        };
        limit.check(1);
        assert!(limit.is_failing && limit.log.bytes() == 7);
        fs::remove_dir_all(directory.path().join("own.log.1")).unwrap();
        limit.check(1);
        assert!(!limit.is_failing && limit.log.bytes() == 0);
    }
}
