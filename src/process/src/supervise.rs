//! Supervision of processes: children and processes that a previous instance started.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use nix::errno::Errno;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};
use tokio::process::Child;
use tokio::sync::watch;

use super::identity::ProcessId;
use rooflet_base::latest::Latest;
use rooflet_base::task::Tasks;

/// Interval at which a process that is not a child is checked.
const ADOPTED_POLL: Duration = Duration::from_millis(500);

/// Maximum time that the kernel may need after SIGKILL. A GPU driver can delay the exit.
pub const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Exit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The process was not a child, so its exit status is unknown.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match nix::sys::signal::Signal::try_from(*signal) {
                Ok(name) => write!(f, "signal {name}"),
                Err(_) => write!(f, "signal {signal}"),
            },
            Self::Unknown => f.write_str("an unknown exit code"),
        }
    }
}

/// Reason why a process could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    #[error("signalling process {pid}")]
    Signal {
        pid: i32,
        #[source]
        err: Errno,
    },
    #[error("process {pid} still runs {} s after SIGKILL", KILL_PATIENCE.as_secs())]
    StillThere { pid: i32 },
}

/// Supervised process. Dropping this value does not affect the process.
#[derive(Debug, Clone)]
pub struct Process {
    /// `None` if the process exited before it could be identified.
    id: Option<ProcessId>,
    exit_rx: watch::Receiver<Option<Exit>>,
}

impl Process {
    /// Supervises and reaps a child. The shutdown of `tasks` does not wait for the child, which can
    /// outlive this process.
    pub(super) fn of_child(tasks: &Tasks, mut child: Child, id: Option<ProcessId>) -> Self {
        let (exit_tx, exit_rx) = watch::channel(None);
        tasks.spawn_unjoined(async move {
            let exit = match child.wait().await {
                Ok(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => Exit::Code(code),
                    (None, Some(signal)) => Exit::Signal(signal),
                    (None, None) => Exit::Unknown,
                },
                Err(_) => Exit::Unknown,
            };
            exit_tx.send_replace(Some(exit));
        });
        Self { id, exit_rx }
    }

    /// Supervises a process that a previous instance started. `None` if it no longer runs.
    pub fn adopt(tasks: &Tasks, id: ProcessId) -> Option<Self> {
        if !id.is_alive() {
            return None;
        }
        let (exit_tx, exit_rx) = watch::channel(None);
        let (watched, stop) = (id.clone(), tasks.stop_token());
        tasks.spawn_detached(async move {
            while watched.is_alive() {
                tokio::select! {
                    () = stop.cancelled() => {
                        // The task set is stopping, but a caller that stops this process still
                        // waits for its exit.
                        if exit_tx.is_closed() { return; }
                        tokio::time::sleep(ADOPTED_POLL).await;
                    }
                    () = exit_tx.closed() => return,
                    () = tokio::time::sleep(ADOPTED_POLL) => {}
                }
            }
            exit_tx.send_replace(Some(Exit::Unknown));
        });
        Some(Self {
            id: Some(id),
            exit_rx,
        })
    }

    pub fn id(&self) -> Option<&ProcessId> {
        self.id.as_ref()
    }

    /// Returns the exit, if the process has exited.
    pub fn exit(&self) -> Option<Exit> {
        self.exit_rx.latest()
    }

    /// Waits for the exit.
    pub async fn wait(&self) -> Exit {
        let mut exit_rx = self.exit_rx.clone();
        match exit_rx.wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit::Unknown),
            // The supervising task was dropped with its runtime.
            Err(_) => Exit::Unknown,
        }
    }

    /// Sends SIGTERM, waits `grace`, then sends SIGKILL to the group. Returns when the process has
    /// exited.
    pub async fn stop(&self, grace: Duration) -> Result<Exit, StopError> {
        let Some(id) = &self.id else {
            return Ok(self.wait().await);
        };
        let failed = |err| StopError::Signal { pid: id.pid(), err };
        id.terminate().map_err(failed)?;
        self.end_within(grace).await
    }

    /// Waits `grace` for the exit, then sends SIGKILL to the group. Returns when the process has
    /// exited.
    pub async fn end_within(&self, grace: Duration) -> Result<Exit, StopError> {
        let Some(id) = &self.id else {
            return Ok(self.wait().await);
        };
        let failed = |err| StopError::Signal { pid: id.pid(), err };
        if let Ok(exit) = tokio::time::timeout(grace, self.wait()).await {
            return Ok(exit);
        }
        id.kill_group().map_err(failed)?;
        tokio::time::timeout(KILL_PATIENCE, self.wait())
            .await
            .map_err(|_| StopError::StillThere { pid: id.pid() })
    }
}

/// Returns processes whose first argument is `word` and that have an argument starting with
/// `prefix`: orphans of a previous instance without a record.
pub fn find_by_argument(word: &str, prefix: &str) -> Vec<ProcessId> {
    let mut system = System::new();
    system.refresh_processes_specifics(
        ProcessesToUpdate::All,
        true,
        ProcessRefreshKind::nothing().with_cmd(UpdateKind::Always),
    );
    system
        .processes()
        .values()
        .filter(|process| {
            let command = process.cmd();
            let starts = |one: &OsString| one.as_encoded_bytes().starts_with(prefix.as_bytes());
            command.get(1).is_some_and(|first| first == word) && command.iter().any(starts)
        })
        // A thread appears like a process with the same command line.
        .filter(|process| process.thread_kind().is_none())
        .filter_map(|process| ProcessId::of(process.pid().as_u32()))
        .collect()
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::super::logs::Log;
    use super::super::{Command, spawn};
    use super::*;
    use rooflet_testing::TempDir;

    const LONG: Duration = Duration::from_secs(20);

    struct Scene {
        tasks: Tasks,
        directory: TempDir,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                tasks: Tasks::new(),
                directory: TempDir::new(),
            }
        }

        fn path(&self, name: &str) -> Utf8PathBuf {
            self.directory.path().join(name)
        }

        fn start(&self, script: &str) -> Process {
            let arguments = vec!["-c".to_owned(), script.to_owned(), "rooflet-test".to_owned()];
            let log = Log::new(self.path("log"));
            let command = Command {
                program: "/bin/sh".into(),
                arguments,
                log,
            };
            spawn(&self.tasks, &command).unwrap()
        }

        async fn until(&self, what: &str, condition: impl Fn() -> bool) {
            let waiting = async {
                while !condition() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(LONG, waiting)
                .await
                .unwrap_or_else(|_| panic!("{what} did not happen"));
        }

        fn log(&self) -> String {
            std::fs::read_to_string(self.path("log")).unwrap_or_default()
        }
    }

    #[tokio::test]
    async fn reports_exit_and_keeps_log() {
        let scene = Scene::new();
        let process = scene.start("echo out; echo err >&2; exit 3");
        assert_eq!(
            tokio::time::timeout(LONG, process.wait()).await.unwrap(),
            Exit::Code(3)
        );
        assert_eq!(scene.log(), "out\nerr\n");
        let process = scene.start("kill -9 $$");
        assert_eq!(
            tokio::time::timeout(LONG, process.wait()).await.unwrap(),
            Exit::Signal(9)
        );
        assert_eq!(Exit::Signal(9).to_string(), "signal SIGKILL");
    }

    #[tokio::test]
    async fn child_exits_on_sigterm() {
        let scene = Scene::new();
        let process = scene.start("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done");
        scene.until("the child", || scene.log().contains("up")).await;
        assert_eq!(process.stop(LONG).await.unwrap(), Exit::Code(0));
        assert!(scene.log().ends_with("bye\n"));
    }

    #[tokio::test]
    async fn kills_group_of_child_that_ignores_sigterm() {
        let scene = Scene::new();
        let process = scene.start("trap '' TERM; sleep 600 & echo child $!; while :; do sleep 0.05; done");
        scene
            .until("the grandchild", || scene.log().contains("child"))
            .await;
        let grandchild: u32 = scene.log().trim().trim_start_matches("child ").parse().unwrap();
        let grandchild = ProcessId::of(grandchild).unwrap();
        assert_eq!(
            process.stop(Duration::from_millis(100)).await.unwrap(),
            Exit::Signal(9)
        );
        scene
            .until("the grandchild's end", || !grandchild.is_alive())
            .await;
        assert_eq!(
            process.stop(LONG).await.unwrap(),
            Exit::Signal(9),
            "stopping twice has no effect"
        );
    }

    #[tokio::test]
    async fn adopts_and_stops_process_of_previous_instance() {
        let scene = Scene::new();
        let child = scene.start("echo up; exec sleep 600");
        scene.until("the child", || scene.log().contains("up")).await;
        let id = child.id().unwrap().clone();
        let adopted = Process::adopt(&scene.tasks, id.clone()).unwrap();
        assert_eq!(adopted.exit(), None);
        assert_eq!(adopted.stop(LONG).await.unwrap(), Exit::Unknown);
        assert_eq!(child.wait().await, Exit::Signal(15));
        assert!(Process::adopt(&scene.tasks, id).is_none(), "it is gone");
    }

    #[tokio::test]
    async fn finds_orphan_by_command_line() {
        let scene = Scene::new();
        let mark = scene.path("w.sock");
        std::fs::write(&mark, "").unwrap();
        // A shell without children: they would briefly have the same command line.
        let process = spawn(
            &scene.tasks,
            &Command {
                program: "/usr/bin/tail".into(),
                arguments: vec!["-f".to_owned(), mark.to_string()],
                log: Log::new(scene.path("log")),
            },
        )
        .unwrap();
        // The kernel sets the command line shortly after the start has succeeded.
        let expected = [process.id().unwrap().clone()];
        let is_found = || find_by_argument("-f", mark.as_str()) == expected;
        scene.until("the child's command line", is_found).await;
        assert_eq!(find_by_argument("worker", mark.as_str()), []);
        process.stop(LONG).await.unwrap();
        assert_eq!(find_by_argument("-f", mark.as_str()), []);
    }

    #[tokio::test]
    async fn running_child_does_not_delay_shutdown() {
        let scene = Scene::new();
        let process = scene.start("sleep 60");
        scene.tasks.cancel();
        assert_eq!(scene.tasks.join(Duration::from_secs(1)).await, Ok(()));
        process.stop(LONG).await.unwrap();
    }

    #[tokio::test]
    async fn error_names_missing_program() {
        let scene = Scene::new();
        let command = Command {
            program: "/no/such/program".into(),
            arguments: vec![],
            log: Log::new(scene.path("log")),
        };
        let err = spawn(&scene.tasks, &command).unwrap_err();
        assert_eq!(
            (err.to_string().as_str(), err.reason()),
            ("starting `/no/such/program`", "StartFailed")
        );
    }
}
