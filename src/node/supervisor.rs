//! Keeps child processes of this binary running: starts them, restarts them when they end, stops them in order.
//!
//! Used by `rooflet up`. In production launchd does this work.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::process::{ExitStatus as ProcessStatus, Stdio};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::ExitStatus;
use crate::task::Tasks;

/// The first wait before a child that ended is started again; doubles each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// The longest wait before a child that ended is started again.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// A child that ran this long is healthy: the next wait is short again.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// How long a child may take to stop before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(45);
/// How much of a child's log is shown when it cannot run.
const LOG_TAIL_BYTES: u64 = 2048;

/// A child process to keep running.
#[derive(Debug, Clone)]
pub(crate) struct ChildSpec {
    /// What people call it.
    pub(crate) name: &'static str,
    /// Arguments after the program's own name.
    pub(crate) args: Vec<OsString>,
    /// Its standard output and error go here, appended.
    pub(crate) log: Utf8PathBuf,
}

/// What happened to a child.
#[derive(Debug)]
pub(crate) enum ChildEvent {
    /// It ended by itself and is started again after a wait.
    Restarting {
        name: &'static str,
        how: String,
        wait: Duration,
    },
    /// It cannot run: starting it again would end the same way.
    GaveUp {
        name: &'static str,
        how: String,
        log: String,
    },
}

/// A child that is kept running until it is told to stop.
pub(crate) struct Supervised {
    stop: CancellationToken,
    stopped: oneshot::Receiver<()>,
}

impl Supervised {
    /// Keeps `spec` running. Events go to `events`.
    pub(crate) fn start(
        spec: ChildSpec,
        clock: Clock,
        tasks: &Tasks,
        events: mpsc::Sender<ChildEvent>,
    ) -> Self {
        let stop = CancellationToken::new();
        let (stopped_tx, stopped) = oneshot::channel();
        let token = stop.clone();
        tasks.spawn_unjoined(async move {
            run(&spec, &clock, &token, &events).await;
            drop(stopped_tx);
        });
        Self { stop, stopped }
    }

    /// Stops the child and waits until it is gone.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        drop(self.stopped.await);
    }
}

async fn run(spec: &ChildSpec, clock: &Clock, stop: &CancellationToken, events: &mpsc::Sender<ChildEvent>) {
    let mut backoff = FIRST_BACKOFF;
    while !stop.is_cancelled() {
        let started = clock.instant();
        let how = match spawn(spec) {
            Err(err) => format!("could not be started: {err}"),
            Ok(mut child) => {
                // Held here, because waiting for a child would close it, and closing it is what tells the child to stop.
                let _lifeline = child.stdin.take();
                let status = tokio::select! {
                    status = child.wait() => status,
                    () = stop.cancelled() => return end(child).await,
                };
                let how = status.as_ref().map_or_else(|err| err.to_string(), describe);
                if status.is_ok_and(|status| is_final(&status)) {
                    let log = tail(&spec.log).unwrap_or_default();
                    drop(
                        events
                            .send(ChildEvent::GaveUp {
                                name: spec.name,
                                how,
                                log,
                            })
                            .await,
                    );
                    return;
                }
                how
            }
        };
        if clock.instant() - started >= HEALTHY_AFTER {
            backoff = FIRST_BACKOFF;
        }
        drop(
            events
                .send(ChildEvent::Restarting {
                    name: spec.name,
                    how,
                    wait: backoff,
                })
                .await,
        );
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            () = stop.cancelled() => {}
        }
        backoff = (backoff * 2).min(LONGEST_BACKOFF);
    }
}

fn spawn(spec: &ChildSpec) -> io::Result<Child> {
    let log: File = OpenOptions::new().create(true).append(true).open(&spec.log)?;
    Command::new(std::env::current_exe()?)
        .args(&spec.args)
        // The child stops when this pipe closes, so it never outlives us.
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A terminal's Ctrl-C reaches only us; we stop the children in order.
        .process_group(0)
        .spawn()
}

/// SIGTERM, then SIGKILL once the grace is over.
async fn end(mut child: Child) {
    let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) else {
        return;
    };
    // It may have ended just now, which is what we want.
    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    if tokio::time::timeout(STOP_GRACE, child.wait()).await.is_err() {
        drop(child.kill().await);
    }
}

/// Exit codes that say: as things are, this cannot work.
fn is_final(status: &ProcessStatus) -> bool {
    [ExitStatus::Usage, ExitStatus::Unavailable, ExitStatus::Config]
        .iter()
        .any(|code| status.code() == Some(*code as i32))
}

fn describe(status: &ProcessStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The last lines of a log.
fn tail(path: &Utf8Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(8)..].join("\n"))
}
