//! Checks that worker processes can be started, found again, and stopped.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use camino::{Utf8Path, Utf8PathBuf};

use super::check::Check;
use rooflet_base::task::Tasks;
use rooflet_process::logs::Log;
use rooflet_process::{Command, Exit, Process, ProcessId, spawn};

/// Time over which the start time of a process must not change.
const STABLE_FOR: Duration = Duration::from_secs(2);
/// Grace period after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Grace period of a process that ignores SIGTERM.
const SHORT_GRACE: Duration = Duration::from_millis(200);
/// Timeout until a shell has run its first command.
const START: Duration = Duration::from_secs(5);
/// Interval between reads of the log.
const POLL: Duration = Duration::from_millis(20);

/// Script that ignores SIGTERM. It prints `ready` after it has installed its handler.
const STUBBORN: &str = "trap '' TERM; echo ready; while :; do sleep 1; done";

pub(super) async fn check() -> Check {
    let name = "worker processes";
    let log = std::env::temp_dir().join(format!("rooflet-doctor-{}.log", std::process::id()));
    let Ok(log) = Utf8PathBuf::from_path_buf(log) else {
        return Check::unknown(name, "the directory of temporary files has no UTF-8 path");
    };
    let outcome = exercise(&log).await;
    drop(std::fs::remove_file(&log));
    match outcome {
        Ok(()) => Check::ok(name, "started, found again by their start time, stopped, killed"),
        Err(problem) => Check::fail(
            name,
            format!("{problem:#}"),
            "report it with `rooflet doctor --save FILE`: an agent could not manage its workers",
        ),
    }
}

async fn exercise(log: &Utf8Path) -> Result<()> {
    let tasks = Tasks::new();
    let child = start(&tasks, log, "exec sleep 60")?;
    let stopped = adopt_and_stop(&tasks, &child).await;
    if stopped.is_err() {
        drop(child.stop(SHORT_GRACE).await);
        return stopped;
    }
    let stubborn = start(&tasks, log, STUBBORN)?;
    let ready = has_started(log).await;
    let exit = stubborn.stop(SHORT_GRACE).await;
    ready?;
    match exit {
        Ok(Exit::Signal(9)) => Ok(()),
        Ok(exit) => bail!("a process that ignores SIGTERM ended with {exit} instead of SIGKILL"),
        Err(err) => Err(err.into()),
    }
}

fn start(tasks: &Tasks, log: &Utf8Path, script: &str) -> Result<Process> {
    let command = Command {
        program: "/bin/sh".into(),
        arguments: ["-c", script].map(str::to_owned).to_vec(),
        log: Log::new(log.to_owned()),
    };
    // The error names the path of the log, which the report must not contain.
    spawn(tasks, &command).map_err(|err| anyhow!("a process did not start: {}", err.reason()))
}

/// Adopts a process as an agent does after its restart, and stops it.
async fn adopt_and_stop(tasks: &Tasks, child: &Process) -> Result<()> {
    let id = child.id().context("the start time of a process cannot be read")?;
    let pid = id.pid().cast_unsigned();
    tokio::time::sleep(STABLE_FOR).await;
    if ProcessId::of(pid).as_ref() != Some(id) {
        bail!("the start time of a process changes while it runs");
    }
    let adopted = Process::adopt(tasks, id.clone()).context("a running process was not found again")?;
    adopted.stop(GRACE).await?;
    let exit = child.wait().await;
    ensure!(
        exit == Exit::Signal(15),
        "a process ended with {exit} instead of SIGTERM"
    );
    Ok(())
}

async fn has_started(log: &Utf8Path) -> Result<()> {
    let is_ready = async {
        while !std::fs::read_to_string(log).is_ok_and(|text| text.contains("ready")) {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(START, is_ready)
        .await
        .context("a shell wrote nothing to its log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[tokio::test]
    async fn processes_of_this_machine_can_be_managed() {
        let check = check().await;
        assert_eq!(check.status, Status::Ok, "{check:?}");
    }

    #[tokio::test]
    async fn process_that_does_not_start_is_reported_without_its_log_path() {
        let problem = exercise(Utf8Path::new("/does/not/exist/log")).await.unwrap_err();
        assert_eq!(problem.to_string(), "a process did not start: LogUnwritable");
    }
}
