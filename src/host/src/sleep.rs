//! Prevention of idle sleep. The display may still sleep, and a closed lid still puts a Mac to
//! sleep.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Host, native};
use rooflet_api::v1alpha1::PowerSource;
use rooflet_base::error::Chain;

/// Interval between decisions. It is shorter than any idle time after which a Mac sleeps.
const PERIOD: Duration = Duration::from_secs(5);

/// Prevents idle sleep of this machine until `stop`, if the system supports it. While `serves`
/// returns true, the machine stays awake. While it is idle, it stays awake on AC power, unless
/// `let_sleep` is true.
pub async fn prevent(
    host: Host,
    let_sleep: bool,
    serves: impl Fn() -> bool + Send + 'static,
    stop: CancellationToken,
) {
    let Some(command) = native::keep_awake() else {
        return;
    };
    let mut inhibitor = SleepInhibitor::new(command);
    loop {
        inhibitor.set(must_stay_awake(host.power().source, let_sleep, serves()));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Returns whether the machine must not sleep. A sleeping node renews no Lease and receives no
/// replicas, and a sleeping control plane stops the fleet. On battery, only requests prevent sleep.
fn must_stay_awake(source: PowerSource, let_sleep: bool, serves: bool) -> bool {
    match source {
        PowerSource::Ac | PowerSource::Unknown => serves || !let_sleep,
        PowerSource::Battery | PowerSource::Ups => serves,
    }
}

/// Child process that prevents sleep while it runs.
struct SleepInhibitor {
    command: Command,
    process: Option<Child>,
    /// True if the last start failed.
    failed: bool,
}

impl SleepInhibitor {
    fn new(command: Command) -> Self {
        Self {
            command,
            process: None,
            failed: false,
        }
    }

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
            Ok(child) => {
                self.process = Some(child);
                self.failed = false;
            }
            Err(err) => {
                if !std::mem::replace(&mut self.failed, true) {
                    warn!(error = %Chain(&err), "failed to prevent sleep; the machine may go to sleep while it serves");
                }
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

    #[test]
    fn stays_awake_on_ac_power_and_otherwise_for_requests() {
        // Source, --let-sleep, requests run.
        for (source, let_sleep, serves, expect) in [
            (PowerSource::Ac, false, false, true),
            (PowerSource::Ac, true, false, false),
            (PowerSource::Ac, true, true, true),
            (PowerSource::Battery, false, false, false),
            (PowerSource::Battery, false, true, true),
            (PowerSource::Battery, true, true, true),
            (PowerSource::Ups, false, false, false),
            (PowerSource::Unknown, false, false, true),
            (PowerSource::Unknown, true, false, false),
        ] {
            assert_eq!(
                must_stay_awake(source, let_sleep, serves),
                expect,
                "{source:?} {let_sleep} {serves}"
            );
        }
    }

    fn sleeper() -> SleepInhibitor {
        let mut command = Command::new("sleep");
        command.arg("600");
        SleepInhibitor::new(command)
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
        let mut inhibitor = SleepInhibitor::new(Command::new("/does/not/exist"));
        inhibitor.set(true);
        assert!(inhibitor.process.is_none());
        inhibitor.command = Command::new("true");
        inhibitor.set(true);
        assert!(inhibitor.process.is_some());
    }
}
