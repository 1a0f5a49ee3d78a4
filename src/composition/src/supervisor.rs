//! Supervisor of child processes of this binary: starts them, restarts them after an exit, and
//! stops them in order.
//!
//! `rooflet up` uses it, and `rooflet server` if it has the role gateway and others. In production,
//! launchd supervises the supervisor.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus as ProcessStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use rooflet_base::clock::Clock;
use rooflet_base::error::{Chain, ExitStatus};
use rooflet_base::task::Tasks;
use rooflet_process::logs::{From, Log, MAX_LOG_BYTES};

/// First delay before a restart. The delay doubles with each restart.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum delay before a restart.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// Run time of a child after which the delay is reset.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// Run time before which an exit with an error counts as a failed start.
const STARTED_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of consecutive failed starts of a child that has never run.
const MAX_FAILED_STARTS: u32 = 3;
/// Time after the stop grace of a child before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(30);
/// Interval at which the size of a child's log is checked.
const LOG_POLL: Duration = Duration::from_secs(10);
/// Number of log lines that are printed if a child cannot run.
const LOG_TAIL_LINES: usize = 8;

/// Child process to supervise.
#[derive(Debug, Clone)]
pub struct ChildSpec {
    /// Display name.
    pub name: &'static str,
    /// Arguments after the program's own name.
    pub args: Vec<OsString>,
    /// Log file for standard output and error. `None` if the child shares those of this process.
    pub log: Option<Log>,
    /// Time for the child to finish answers in progress after SIGTERM. It is killed 30 s later.
    pub stop_grace: Duration,
}

/// Event of a child process.
#[derive(Debug)]
pub enum ChildEvent {
    /// The child exited and is restarted after a delay.
    Restarting {
        name: &'static str,
        how: String,
        wait: Duration,
    },
    /// The child cannot run; a restart would fail in the same way.
    GaveUp {
        name: &'static str,
        how: String,
        /// Last lines of the child's log file.
        log: String,
        /// Exit status that reports the reason.
        status: ExitStatus,
    },
}

/// Supervised child process.
pub struct Supervised {
    stop: CancellationToken,
    stopped: oneshot::Receiver<()>,
}

impl Supervised {
    /// Supervises `spec`. Sends its events to `events`.
    pub fn start(spec: ChildSpec, clock: Clock, tasks: &Tasks, events: mpsc::Sender<ChildEvent>) -> Self {
        let stop = CancellationToken::new();
        let (stopped_tx, stopped) = oneshot::channel();
        let token = stop.clone();
        tasks.spawn_unjoined(async move {
            run(&spec, &clock, &token, &events).await;
            drop(stopped_tx);
        });
        Self { stop, stopped }
    }

    /// Stops the child and waits for its exit.
    pub async fn stop(self) {
        self.stop.cancel();
        drop(self.stopped.await);
    }
}

/// Restart policy of a child.
#[derive(Debug)]
struct Restarts {
    wait: Duration,
    failed_starts: u32,
    has_run: bool,
}

impl Restarts {
    fn new() -> Self {
        Self {
            wait: FIRST_BACKOFF,
            failed_starts: 0,
            has_run: false,
        }
    }

    /// Returns the delay before the restart of a child that ran for `ran`. `None` if a restart
    /// would fail in the same way.
    fn after(&mut self, ran: Duration, status: Option<&ProcessStatus>) -> Option<Duration> {
        self.has_run |= ran >= STARTED_AFTER;
        // A killed process may run after a restart.
        let failed = status.is_none_or(|status| status.code().is_some_and(|code| code != 0));
        self.failed_starts = if failed { self.failed_starts + 1 } else { 0 };
        if status.is_some_and(is_final) || (!self.has_run && self.failed_starts >= MAX_FAILED_STARTS) {
            return None;
        }
        if ran >= HEALTHY_AFTER {
            self.wait = FIRST_BACKOFF;
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(LONGEST_BACKOFF);
        Some(wait)
    }
}

async fn run(spec: &ChildSpec, clock: &Clock, stop: &CancellationToken, events: &mpsc::Sender<ChildEvent>) {
    let mut restarts = Restarts::new();
    while !stop.is_cancelled() {
        let started = clock.instant();
        let (how, status) = match spawn(spec) {
            Err(err) => (format!("failed to start: {err}"), None),
            Ok(mut child) => {
                // The pipe stays open here: waiting for the child would close it, which makes the
                // child stop.
                let _lifeline = child.stdin.take();
                let status = tokio::select! {
                    status = child.wait() => status,
                    never = keep_short(spec.log.as_ref()) => match never {},
                    () = stop.cancelled() => return end(child, spec.stop_grace).await,
                };
                let how = status.as_ref().map_or_else(|err| err.to_string(), describe);
                (how, status.ok())
            }
        };
        let name = spec.name;
        let Some(wait) = restarts.after(clock.instant() - started, status.as_ref()) else {
            let log = spec
                .log
                .as_ref()
                .and_then(|log| tail(log).ok())
                .unwrap_or_default();
            let status = status.as_ref().map_or(ExitStatus::Failure, exit_status);
            let event = ChildEvent::GaveUp {
                name,
                how,
                log,
                status,
            };
            drop(events.send(event).await);
            return;
        };
        drop(events.send(ChildEvent::Restarting { name, how, wait }).await);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Rotates a log that has grown too large. Never returns.
async fn keep_short(log: Option<&Log>) -> Infallible {
    let Some(log) = log else {
        return std::future::pending().await;
    };
    loop {
        if let Err(err) = log.rotate(MAX_LOG_BYTES) {
            warn!(log = %log.path(), error = %Chain(&err), "failed to rotate log");
        }
        tokio::time::sleep(LOG_POLL).await;
    }
}

fn spawn(spec: &ChildSpec) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(log) = &spec.log {
        let log = log.open_append()?;
        command.stdout(log.try_clone()?).stderr(log);
    }
    command
        .args(&spec.args)
        // The child stops when this pipe closes, so it never outlives this process.
        .stdin(Stdio::piped())
        // Ctrl-C in a terminal reaches only this process, which stops the children in order.
        .process_group(0)
        .spawn()
}

/// Sends SIGTERM, and SIGKILL if the child has not exited [`KILL_AFTER`] after `grace`.
async fn end(mut child: Child, grace: Duration) {
    let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) else {
        return;
    };
    // The process may have exited already.
    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    if tokio::time::timeout(grace + KILL_AFTER, child.wait())
        .await
        .is_err()
    {
        drop(child.kill().await);
    }
}

/// Returns true for exit codes that a restart cannot change.
fn is_final(status: &ProcessStatus) -> bool {
    exit_status(status) != ExitStatus::Failure
}

/// Returns the exit status of a process that cannot run.
fn exit_status(status: &ProcessStatus) -> ExitStatus {
    let all = [ExitStatus::Usage, ExitStatus::Unavailable, ExitStatus::Config];
    let found = all.into_iter().find(|code| status.code() == Some(*code as i32));
    found.unwrap_or(ExitStatus::Failure)
}

fn describe(status: &ProcessStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was terminated by signal {signal}"),
        (None, None) => "exited".to_owned(),
    }
}

/// Returns the last lines of a log.
fn tail(log: &Log) -> io::Result<String> {
    let mut reader = log.read(From::LastLines(LOG_TAIL_LINES))?;
    let mut bytes = Vec::new();
    loop {
        let chunk = reader.next_chunk()?;
        if chunk.is_empty() {
            return Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned());
        }
        bytes.extend_from_slice(&chunk);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const SHORT: Duration = Duration::from_millis(300);

    fn exit(code: i32) -> ProcessStatus {
        ProcessStatus::from_raw(code << 8)
    }

    #[test]
    fn child_that_never_ran_is_not_restarted_forever() {
        let mut restarts = Restarts::new();
        let mut waits = || restarts.after(SHORT, Some(&exit(1)));
        let waits = [waits(), waits(), waits()];
        assert_eq!(waits, [Some(FIRST_BACKOFF), Some(FIRST_BACKOFF * 2), None]);
        let mut restarts = Restarts::new();
        assert_eq!(
            restarts.after(SHORT, Some(&exit(78))),
            None,
            "a configuration error is final"
        );
    }

    #[test]
    fn child_that_has_run_or_was_killed_is_always_restarted() {
        let mut restarts = Restarts::new();
        restarts.after(STARTED_AFTER, Some(&exit(1)));
        for _ in 0..9 {
            assert!(restarts.after(SHORT, Some(&exit(1))).is_some());
        }
        assert_eq!(restarts.after(SHORT, Some(&exit(1))), Some(LONGEST_BACKOFF));
        assert_eq!(restarts.after(HEALTHY_AFTER, Some(&exit(1))), Some(FIRST_BACKOFF));
        let mut restarts = Restarts::new();
        let killed = ProcessStatus::from_raw(9);
        for _ in 0..9 {
            assert!(restarts.after(SHORT, Some(&killed)).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_log_is_rotated() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("server.log");
        let log = Log::new(path.clone().try_into().expect("UTF-8"));
        let rotated = directory.path().join("server.log.1");
        std::fs::write(&path, "x").expect("written");
        let mut watching = std::pin::pin!(keep_short(Some(&log)));
        assert!(tokio::time::timeout(LOG_POLL * 2, &mut watching).await.is_err());
        assert!(!rotated.exists());
        let long = vec![b'x'; usize::try_from(MAX_LOG_BYTES).expect("it fits") + 1];
        std::fs::write(&path, long).expect("written");
        assert!(tokio::time::timeout(LOG_POLL * 2, &mut watching).await.is_err());
        assert!(rotated.exists());
        assert_eq!(std::fs::metadata(&path).expect("a log file").len(), 0);
    }
}
