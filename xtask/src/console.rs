//! Execution of programs, and progress output.

use std::{
    env,
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Maximum number of lines of a failed command's output in an error. Compilers print the first
/// cause at the top.
const FAILURE_LINES_MAX: usize = 60;

/// Interval of the checks whether a command with a time limit has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the directory of cargo's build results.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns the repository root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask/ is in the repository root")
        .to_path_buf()
}

/// Runs `command` silently and returns its standard output. If it fails, the error contains its
/// output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = display(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running `{name}`"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let printed = [output.stderr, output.stdout].concat();
    let printed: Vec<String> = String::from_utf8_lossy(&printed)
        .lines()
        .map(str::to_owned)
        .collect();
    bail!(
        "`{name}` failed ({}):\n{}",
        output.status,
        printed[..printed.len().min(FAILURE_LINES_MAX)].join("\n")
    );
}

/// Result of a check.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Passed,
    /// Some tests failed and passed when they were repeated, as the text states.
    Unsteady(String),
    /// The check is impossible on this machine, for the given reason.
    Skipped(String),
    Failed(String),
}

/// Prints the command and runs it with inherited output.
pub(crate) fn run(command: &mut Command) -> Result<Outcome> {
    let name = display(command);
    println!("{name}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("running `{name}`"))?;
    Ok(if status.success() {
        Outcome::Passed
    } else {
        Outcome::Failed(status.to_string())
    })
}

/// Runs the command with inherited output, at most for `limit`. Returns `None` if the limit ends the
/// command.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<Option<ExitStatus>> {
    let name = display(command);
    println!("{name}");
    let since = Stopwatch::start();
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("running `{name}`"))?;
    loop {
        let status = child
            .try_wait()
            .with_context(|| format!("waiting for `{name}`"))?;
        if status.is_some() {
            return Ok(status);
        }
        if since.elapsed() >= limit {
            // If the command ended meanwhile, there is nothing to kill.
            drop(child.kill());
            child.wait().with_context(|| format!("waiting for `{name}`"))?;
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns true if `program` is on the PATH.
pub(crate) fn is_installed(program: impl AsRef<OsStr>) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    !matches!(found, Err(error) if error.kind() == ErrorKind::NotFound)
}

/// Returns a command for the cargo that runs this task, in the repository root.
///
/// The command does not inherit the variables with which cargo describes the package of this task.
/// Build scripts that depend on them, such as that of ring, would otherwise run again after every
/// direct `cargo build`, and vice versa.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in env::vars_os().filter(|(name, _)| describes_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

fn describes_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Returns the name of the program and its arguments.
pub(crate) fn display(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program());
    let words = [program].into_iter().chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Time since the start of a task.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "rooflet's clock.rs is not for tasks")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Progress output of a task. Each line has the time since the start.
pub(crate) struct Progress {
    task: &'static str,
    since: Stopwatch,
}

impl Progress {
    pub(crate) fn new(task: &'static str) -> Self {
        Self {
            task,
            since: Stopwatch::start(),
        }
    }

    pub(crate) fn print(&self, line: impl AsRef<str>) {
        eprintln!(
            "{} {:>5.1}s  {}",
            self.task,
            self.since.elapsed().as_secs_f64(),
            line.as_ref()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_ends_at_its_limit() {
        let run = |script: &str, limit| {
            run_within(Command::new("sh").args(["-c", script]), limit).expect("sh starts")
        };
        let long = Duration::from_secs(60);
        assert_eq!(run("exit 3", long).and_then(|status| status.code()), Some(3));
        assert_eq!(run("exec sleep 60", Duration::ZERO), None);
    }
}
