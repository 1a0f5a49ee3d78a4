//! Prevents the machine from going to sleep while it serves.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::reports::Reports;
use rooflet_base::error::Chain;
use rooflet_base::latest::LatestSeen;
use rooflet_host as host;

/// Follows the reports until `stop`. The machine stays inhibitor while at least one worker runs.
pub(crate) async fn while_serving(mut reports_rx: watch::Receiver<Arc<Reports>>, stop: CancellationToken) {
    let Some(command) = host::keep_awake() else {
        return;
    };
    let mut inhibitor = SleepInhibitor {
        command,
        process: None,
    };
    loop {
        let serves = !reports_rx.see_latest().idle;
        inhibitor.set(serves);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = reports_rx.changed() => if changed.is_err() { return },
        }
    }
}

/// Child process that keeps the machine inhibitor while it runs.
struct SleepInhibitor {
    command: Command,
    process: Option<Child>,
}

impl SleepInhibitor {
    fn set(&mut self, wanted: bool) {
        // A user may have killed the process.
        let ended = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
        self.process.take_if(ended);
        if !wanted {
            return self.release();
        }
        if self.process.is_some() {
            return;
        }
        let spawned = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match spawned {
            Ok(child) => self.process = Some(child),
            Err(err) => {
                warn!(error = %Chain(&err), "failed to prevent sleep; the machine may go to sleep while it serves");
            }
        }
    }

    fn release(&mut self) {
        if let Some(mut child) = self.process.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Drop for SleepInhibitor {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> SleepInhibitor {
        let mut command = Command::new("sleep");
        command.arg("600");
        SleepInhibitor {
            command,
            process: None,
        }
    }

    fn runs(pid: u32) -> bool {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), None).is_ok()
    }

    #[test]
    fn runs_only_while_wanted_and_ends_on_drop() {
        let mut inhibitor = sleeper();
        inhibitor.set(false);
        assert!(inhibitor.process.is_none());
        inhibitor.set(true);
        let first = inhibitor.process.as_ref().unwrap().id();
        inhibitor.set(true);
        assert_eq!(inhibitor.process.as_ref().unwrap().id(), first);
        inhibitor.process.as_mut().unwrap().kill().unwrap();
        inhibitor.process.as_mut().unwrap().wait().unwrap();
        inhibitor.set(true);
        let second = inhibitor.process.as_ref().unwrap().id();
        assert!(runs(second) && !runs(first));
        inhibitor.set(false);
        assert!(!runs(second) && inhibitor.process.is_none());
        inhibitor.set(true);
        let third = inhibitor.process.as_ref().unwrap().id();
        drop(inhibitor);
        assert!(!runs(third));
    }

    #[test]
    fn failed_start_is_retried() {
        let mut inhibitor = SleepInhibitor {
            command: Command::new("/does/not/exist"),
            process: None,
        };
        inhibitor.set(true);
        assert!(inhibitor.process.is_none());
    }
}
