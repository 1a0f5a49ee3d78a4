//! Steps of an installation.

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};

use crate::daemon::{Daemon, EXIT_SECONDS};
use crate::property_list::PropertyList;

/// Change of the system. Its text is what `--dry-run` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Creates a directory, or changes the mode of an existing one.
    Directory { path: Utf8PathBuf, mode: u32 },
    /// Makes a user the owner of a directory or file, and of all files in the directory if `recursive`.
    Own {
        path: Utf8PathBuf,
        user: String,
        recursive: bool,
    },
    /// Copies a file to the name [`copy_of`] the target. A rename then replaces the target: macOS kills new
    /// processes of a binary that was overwritten in place.
    Copy { from: Utf8PathBuf, to: Utf8PathBuf },
    /// Replaces a file by its copy.
    Rename { to: Utf8PathBuf },
    /// Replaces the property list of a service.
    Write { daemon: Daemon, job: Box<PropertyList> },
    /// Deletes a file or a directory with its content.
    Delete { path: Utf8PathBuf },
    /// Deletes a directory if it is empty.
    DeleteIfEmpty { path: Utf8PathBuf },
    /// Runs a program of macOS.
    Run(Invocation),
    /// Stops a job, and waits until launchd has forgotten it.
    Unload(Daemon),
    /// Starts a job.
    Load(Daemon),
}

/// Time until a stopped job must be gone, in seconds: launchd kills the job after [`EXIT_SECONDS`].
pub(crate) const UNLOAD_SECONDS: u32 = EXIT_SECONDS + 15;

/// Returns the name of the copy that replaces a file.
pub(crate) fn copy_of(path: &Utf8Path) -> Utf8PathBuf {
    format!("{path}.new").into()
}

impl Step {
    /// Returns the line that is printed before a step that can last long.
    pub fn progress(&self) -> Option<String> {
        let Self::Unload(daemon) = self else {
            return None;
        };
        let verb = daemon.verb();
        Some(format!("stopping `rooflet {verb}` (up to {UNLOAD_SECONDS} s)"))
    }
}

/// Program of macOS with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// Absolute path.
    pub(crate) program: &'static str,
    pub(crate) arguments: Vec<String>,
}

impl Invocation {
    pub(crate) fn new<'a>(program: &'static str, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            program,
            arguments: arguments.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Returns the command that makes a user the owner of a directory or file.
    pub(crate) fn chown(path: &Utf8Path, user: &str, recursive: bool) -> Self {
        let recursive = recursive.then_some("-R").into_iter();
        Self::new("/usr/sbin/chown", recursive.chain([user, path.as_str()]))
    }

    pub(crate) fn launchctl<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new("/bin/launchctl", arguments)
    }

    /// Returns the commands of `launchctl` that start a job.
    pub(crate) fn load(daemon: Daemon) -> [Self; 2] {
        let (target, file) = (daemon.target(), daemon.property_list());
        [
            // Reverts an earlier `launchctl disable`.
            Self::launchctl(["enable", &target]),
            Self::launchctl(["bootstrap", "system", file.as_str()]),
        ]
    }

    /// Returns the command of `launchctl` that stops a job.
    pub(crate) fn unload(daemon: Daemon) -> Self {
        Self::launchctl(["bootout", &daemon.target()])
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program.rsplit('/').next().unwrap_or(self.program))?;
        for argument in &self.arguments {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/=:,+@".contains(c);
            match !argument.is_empty() && argument.chars().all(is_plain) {
                true => write!(f, " {argument}")?,
                false => write!(f, " '{}'", argument.replace('\'', r"'\''"))?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { path, mode } => write!(f, "create {path} (mode {mode:o})"),
            Self::Own {
                path,
                user,
                recursive,
            } => {
                let files = if *recursive { " and its files" } else { "" };
                write!(f, "make {user} the owner of {path}{files}")
            }
            Self::Copy { from, to } => write!(f, "copy {from} to {}", copy_of(to)),
            Self::Rename { to } => write!(f, "rename {} to {to}", copy_of(to)),
            Self::Write { daemon, job } => {
                write!(f, "write {} (mode {:o}):", daemon.property_list(), job.mode())?;
                let text = job.as_ref().clone().without_secrets().text();
                text.lines().try_for_each(|line| write!(f, "\n    {line}"))
            }
            Self::Delete { path } => write!(f, "delete {path}"),
            Self::DeleteIfEmpty { path } => write!(f, "delete {path} if it is empty"),
            Self::Run(command) => write!(f, "run {command}"),
            Self::Unload(daemon) => write!(f, "run {}", Invocation::unload(*daemon)),
            Self::Load(daemon) => {
                let [enable, bootstrap] = Invocation::load(*daemon);
                write!(f, "run {enable}\nrun {bootstrap}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted_into_a_shell() {
        let command = Invocation::new("/bin/echo", ["a=b", "two words", "", "it's", "*"]);
        assert_eq!(command.to_string(), r"echo a=b 'two words' '' 'it'\''s' '*'");
    }
}
