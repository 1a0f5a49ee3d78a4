//! Keeps the machine from falling asleep by itself while it serves.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::reports::Reports;
use rooflet_base::error::Chain;
use rooflet_base::latest::LatestSeen;
use rooflet_host as host;

/// Follows the reports until `stop`: from the first worker's start to the last one's end the machine stays awake.
pub(crate) async fn while_serving(mut reports_rx: watch::Receiver<Arc<Reports>>, stop: CancellationToken) {
    let Some(command) = host::keep_awake() else {
        return;
    };
    let mut awake = Awake {
        command,
        holder: None,
    };
    loop {
        let serves = !reports_rx.see_latest().idle;
        awake.set(serves);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = reports_rx.changed() => if changed.is_err() { return },
        }
    }
}

/// A process that keeps the machine awake as long as it lives.
struct Awake {
    command: Command,
    holder: Option<Child>,
}

impl Awake {
    fn set(&mut self, wanted: bool) {
        // Somebody may have ended it.
        let ended = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
        self.holder.take_if(ended);
        if !wanted {
            return self.let_go();
        }
        if self.holder.is_some() {
            return;
        }
        let spawned = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match spawned {
            Ok(child) => self.holder = Some(child),
            Err(err) => {
                warn!(error = %Chain(&err), "the machine cannot be kept awake: it may fall asleep while it serves");
            }
        }
    }

    fn let_go(&mut self) {
        if let Some(mut child) = self.holder.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Awake {
        let mut command = Command::new("sleep");
        command.arg("600");
        Awake {
            command,
            holder: None,
        }
    }

    fn runs(pid: u32) -> bool {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), None).is_ok()
    }

    #[test]
    fn it_holds_while_wanted_and_is_never_left_behind() {
        let mut awake = sleeper();
        awake.set(false);
        assert!(awake.holder.is_none());
        awake.set(true);
        let first = awake.holder.as_ref().unwrap().id();
        awake.set(true);
        assert_eq!(awake.holder.as_ref().unwrap().id(), first);
        awake.holder.as_mut().unwrap().kill().unwrap();
        awake.holder.as_mut().unwrap().wait().unwrap();
        awake.set(true);
        let second = awake.holder.as_ref().unwrap().id();
        assert!(runs(second) && !runs(first));
        awake.set(false);
        assert!(!runs(second) && awake.holder.is_none());
        awake.set(true);
        let third = awake.holder.as_ref().unwrap().id();
        drop(awake);
        assert!(!runs(third));
    }

    #[test]
    fn one_that_cannot_be_started_is_tried_again_and_breaks_nothing() {
        let mut awake = Awake {
            command: Command::new("/does/not/exist"),
            holder: None,
        };
        awake.set(true);
        assert!(awake.holder.is_none());
    }
}
