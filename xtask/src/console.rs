//! Running other programs and saying what goes on.

use std::{
    env,
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Lines of a failed command's output worth repeating; compilers put the first cause at the top.
const FAILURE_LINES_MAX: usize = 60;

/// The repository root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask/ lies in the root")
        .to_path_buf()
}

/// Runs `command` silently and returns its standard output; on failure, the error repeats what it
/// said.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = display(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running `{name}`"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stderr, output.stdout].concat();
    let said: Vec<String> = String::from_utf8_lossy(&said)
        .lines()
        .map(str::to_owned)
        .collect();
    bail!(
        "`{name}` failed ({}):\n{}",
        output.status,
        said[..said.len().min(FAILURE_LINES_MAX)].join("\n")
    );
}

/// How a check ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Passed,
    /// Could not be done here, and why.
    Skipped(String),
    Failed(String),
}

/// Says what it runs and runs it, with its output shown as it comes.
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

/// Whether `program` can be started at all.
pub(crate) fn is_installed(program: impl AsRef<OsStr>) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    !matches!(found, Err(error) if error.kind() == ErrorKind::NotFound)
}

/// The cargo that runs this task, in the repository root.
///
/// Cargo told this task about its own package through the environment. Passed on, that would make
/// build scripts that watch those names (ring's) run anew after every direct `cargo build`, and the
/// other way round.
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

fn display(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program());
    let words = [program].into_iter().chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Wall-clock time since a task began.
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

/// Progress lines of one task, each with the time since it began.
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

    pub(crate) fn say(&self, line: impl AsRef<str>) {
        eprintln!(
            "{} {:>5.1}s  {}",
            self.task,
            self.since.elapsed().as_secs_f64(),
            line.as_ref()
        );
    }
}
