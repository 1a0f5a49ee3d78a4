//! Start of a child in its own process group, with output directly into its log.

use std::fs::File;
use std::io;
use std::process::Stdio;

use camino::Utf8PathBuf;

use super::identity::ProcessId;
use super::logs::Log;
use super::supervise::Process;
use rooflet_base::task::Tasks;

/// Command to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub program: Utf8PathBuf,
    pub arguments: Vec<String>,
    /// File to which standard output and error are appended.
    pub log: Log,
}

/// Reason why a child did not start.
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

/// Starts a child. It continues to run when this process exits: its output does not pass through
/// this process, and signals to this process's group do not reach it. `tasks` runs the task that
/// waits for the exit.
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
    // `None` only if the child has already exited; the wait below then returns its status.
    let id = child.id().and_then(ProcessId::of);
    Ok(Process::of_child(tasks, child, id))
}

/// Variables with the address and credentials of a model hub. Child processes do not access hubs.
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
    fn children_do_not_inherit_the_hub_token() {
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
