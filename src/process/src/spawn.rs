//! Starting a child in a process group of its own, its output going straight into its log.

use std::fs::File;
use std::io;
use std::process::Stdio;

use camino::Utf8PathBuf;

use super::identity::ProcessId;
use super::logs::Log;
use super::supervise::Process;
use rooflet_base::task::Tasks;

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub program: Utf8PathBuf,
    pub arguments: Vec<String>,
    /// Where standard output and error go, appended.
    pub log: Log,
}

/// Why a child did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("opening the log `{path}`")]
    Log {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("starting `{program}`")]
    Start {
        program: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
}

impl SpawnError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Log { .. } => "LogUnwritable",
            Self::Start { .. } => "StartFailed",
        }
    }
}

/// Starts a child. It keeps running when this process dies: its output does not pass through us,
/// and no signal to our group reaches it. `tasks` only runs the waiting.
pub fn spawn(tasks: &Tasks, command: &Command) -> Result<Process, SpawnError> {
    let log_failed = |err| SpawnError::Log {
        path: command.log.path().to_owned(),
        err,
    };
    let output: File = command.log.open_append().map_err(log_failed)?;
    let errors = output.try_clone().map_err(log_failed)?;
    let failed = |err| SpawnError::Start {
        program: command.program.clone(),
        err,
    };
    let child = prepared(command)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(failed)?;
    // `None` only if it has ended already, and then the wait below says how.
    let id = child.id().and_then(ProcessId::of);
    Ok(Process::of_child(tasks, child, id))
}

/// How to reach a hub, and in whose name: no child asks one.
const HUB_VARIABLES: [&str; 2] = ["HF_TOKEN", "HF_ENDPOINT"];

fn prepared(command: &Command) -> tokio::process::Command {
    let mut child = tokio::process::Command::new(&command.program);
    child
        .args(&command.arguments)
        .process_group(0)
        .kill_on_drop(false);
    for name in HUB_VARIABLES {
        child.env_remove(name);
    }
    child
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_do_not_inherit_the_hubs_token() {
        let command = Command {
            program: "true".into(),
            arguments: Vec::new(),
            log: Log::new("/nowhere/log".into()),
        };
        let child = prepared(&command);
        let changed: Vec<_> = child.as_std().get_envs().collect();
        assert!(changed.contains(&("HF_TOKEN".as_ref(), None)), "{changed:?}");
    }
}
