//! The adapter of installations: files of the system, and the programs `launchctl` and `dscl`.

#[cfg(test)]
pub(crate) mod fake;
mod files;
mod owner;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::Stdio;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::Command;

use self::files::Files;
use crate::accounts::{self, Accounts};
use crate::daemon::{self, DATA, Daemon, MODELS, USER};
use crate::job::Job;
use crate::plan::{self, Installation, Observed};
use crate::property_list::PropertyList;
use crate::step::{Invocation, Step, UNLOAD_SECONDS};

/// Timeout of a program.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two questions to launchd.
const POLL: Duration = Duration::from_secs(1);
/// Number of questions until a stopped job must be gone.
const UNLOAD_POLLS: u32 = UNLOAD_SECONDS;
/// Number of attempts to start a job. After a job has ended, launchd refuses to start it again with
/// `5: Input/output error` or `37: Operation already in progress`, for about 5 s
/// (github.com/headroomlabs-ai/headroom issue 1289).
const LOAD_ATTEMPTS: u32 = 30;
/// Number of questions until a new job must run.
const START_POLLS: u32 = 30;
/// Number of questions in a row for which the same process must run.
const STABLE_POLLS: u32 = 4;

/// System that an installation changes.
#[derive(Debug)]
pub struct System {
    files: Files,
    programs: Programs,
}

/// Programs of macOS.
#[derive(Debug)]
pub enum Programs {
    Native,
    /// Passes the commands to a function instead of running them. Nothing is known about accounts and
    /// jobs.
    Printed(fn(&Invocation)),
    #[cfg(test)]
    #[expect(private_interfaces, reason = "only the tests of this crate use it")]
    Fake(std::sync::Mutex<fake::FakeMac>),
}

/// Error of reading or changing the system.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// `action` names the file.
    #[error("{action}")]
    File {
        action: String,
        #[source]
        err: io::Error,
    },
    #[error("`{path}` has environment variables, which only root may read: repeat the command with sudo")]
    Private { path: Utf8PathBuf },
    #[error("no user has the name `{user}`")]
    NoUser { user: String },
    #[error("`{path}` is not a property list of a service: correct or delete it")]
    PropertyList {
        path: Utf8PathBuf,
        #[source]
        err: plist::Error,
    },
    #[error("running {program}")]
    Program {
        program: &'static str,
        #[source]
        err: io::Error,
    },
    #[error("{command}: no result within {} s", TIMEOUT.as_secs())]
    NoResult { command: Invocation },
    #[error("{command}: {text}")]
    Failed { command: Invocation, text: String },
    #[error("{command}: the service still runs after {UNLOAD_POLLS} s: {text}")]
    StillRuns { command: Invocation, text: String },
    #[error(
        "`rooflet {verb}` does not keep running ({state}); the log `{log}` ends with: {line}",
        verb = .daemon.verb(), log = .daemon.log()
    )]
    Ends {
        daemon: Daemon,
        /// State in launchd, and the last exit.
        state: String,
        /// Last line of the log.
        line: String,
    },
}

impl SystemError {
    /// Returns whether the system denied access to a file.
    fn is_denial(&self) -> bool {
        matches!(self, Self::File { err, .. } if err.kind() == io::ErrorKind::PermissionDenied)
    }
}

type Result<T> = std::result::Result<T, SystemError>;

/// Result of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) succeeded: bool,
    /// Standard output, then standard error.
    pub(crate) text: String,
}

impl Programs {
    async fn run(&self, command: &Invocation) -> Result<Answer> {
        match self {
            Self::Native => native(command).await,
            Self::Printed(print) => {
                print(command);
                Ok(Answer {
                    succeeded: true,
                    text: String::new(),
                })
            }
            #[cfg(test)]
            Self::Fake(mac) => Ok(rooflet_base::mutex::lock(mac).run(command)),
        }
    }

    /// Runs a program that changes nothing. Returns `None` if it fails.
    async fn ask(&self, command: &Invocation) -> Option<String> {
        if matches!(self, Self::Printed(_)) {
            return None;
        }
        let answer = self.run(command).await.ok()?;
        answer.succeeded.then_some(answer.text)
    }
}

async fn native(command: &Invocation) -> Result<Answer> {
    let mut process = Command::new(command.program);
    process
        .args(&command.arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, process.output()).await;
    let program = command.program;
    let output = output
        .map_err(|_| SystemError::NoResult {
            command: command.clone(),
        })?
        .map_err(|err| SystemError::Program { program, err })?;
    let texts = [output.stdout, output.stderr].concat();
    Ok(Answer {
        succeeded: output.status.success(),
        text: String::from_utf8_lossy(&texts).trim().to_owned(),
    })
}

/// Adds the property list of an installed service. The plan of the service `planned` needs the content of its own
/// list only, so this user may not be able to read others.
pub(crate) fn add_list(
    observed: &mut Observed,
    planned: Daemon,
    installed: Daemon,
    list: Result<Option<PropertyList>>,
) -> Result<()> {
    match list {
        Ok(Some(list)) => drop(observed.installed.insert(installed, list)),
        Ok(None) => {}
        Err(SystemError::Private { .. }) if installed != planned => {
            observed.unreadable.insert(installed);
        }
        Err(err) => return Err(err),
    }
    Ok(())
}

impl System {
    /// Returns a system whose files are below `root`.
    pub fn new(root: &Utf8Path, programs: Programs) -> Self {
        Self {
            files: Files::below(root),
            programs,
        }
    }

    /// Reads the property list of a service; `None` if it is not installed.
    pub fn installed_list(&self, daemon: Daemon) -> Result<Option<PropertyList>> {
        let path = daemon.property_list();
        match self.files.read(&path) {
            Ok(None) => Ok(None),
            Ok(Some(text)) => match PropertyList::parse(&text) {
                Ok(list) => Ok(Some(list)),
                Err(err) => Err(SystemError::PropertyList { path, err }),
            },
            Err(err) if err.is_denial() => Err(SystemError::Private { path }),
            Err(err) => Err(err),
        }
    }

    /// Returns the state of a service; `None` if launchd does not know it.
    pub async fn job(&self, daemon: Daemon) -> Option<Job> {
        let print = Invocation::launchctl(["print", &daemon.target()]);
        self.programs.ask(&print).await.map(|text| Job::parse(&text))
    }

    /// Reads the state that the steps of an installation depend on. `credentials` is the name of the
    /// file in the agent's state directory that exists after a join.
    pub async fn observe(&self, desired: &Installation, credentials: &str) -> Result<Observed> {
        let mut observed = self.observe_removal(desired.daemon).await?;
        for (from, to) in &desired.files {
            if !self.files.equal(from, to)? || self.files.is_replaceable(to) {
                observed.outdated.insert(to.clone());
            }
        }
        let directories = desired.directories().into_iter().map(|(path, _)| path.to_owned());
        let mut paths: BTreeSet<Utf8PathBuf> = directories.collect();
        paths.extend(desired.owned());
        observed.modes.extend(self.files.modes(paths)?);
        let user = observed.accounts.users.get(&desired.user).copied();
        for path in desired.owned() {
            if observed.modes.contains_key(&path) && !self.files.are_owned(&path, user) {
                observed.foreign.insert(path);
            }
        }
        observed.is_stale = observed.loaded.contains(&desired.daemon) && self.is_stale(desired.daemon)?;
        if matches!(self.programs, Programs::Printed(_)) {
            // Users and owners of another machine are not known.
            observed.foreign.clear();
            if desired.user != USER {
                observed.accounts.users.insert(desired.user.clone(), 0);
            }
        } else {
            observed.has_joined = self.files.exists(&desired.state_dir().join(credentials));
        }
        Ok(observed)
    }

    /// Returns whether the property list of a loaded service was changed since it was loaded. Without a copy,
    /// that is unknown, and counts as a change.
    fn is_stale(&self, daemon: Daemon) -> Result<bool> {
        match self.files.read(&daemon.loaded_list()) {
            Ok(loaded) => Ok(loaded.is_none() || loaded != self.files.read(&daemon.property_list())?),
            // Only root may read the copy; others only see the steps.
            Err(err) if err.is_denial() => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Returns the names and ids of a list of accounts.
    async fn accounts(&self, list: &str, key: &str) -> BTreeMap<String, u32> {
        let list = Invocation::new("/usr/bin/dscl", [".", "-list", list, key]);
        accounts::parse(&self.programs.ask(&list).await.unwrap_or_default())
    }

    /// Reads the state that the steps of a removal depend on.
    pub async fn observe_removal(&self, daemon: Daemon) -> Result<Observed> {
        let mut observed = Observed {
            accounts: Accounts {
                users: self.accounts("/Users", "UniqueID").await,
                groups: self.accounts("/Groups", "PrimaryGroupID").await,
            },
            ..Observed::default()
        };
        for installed in Daemon::ALL {
            add_list(&mut observed, daemon, installed, self.installed_list(installed))?;
        }
        for daemon in Daemon::ALL {
            if self.job(daemon).await.is_some() {
                observed.loaded.insert(daemon);
            }
        }
        let shared = [DATA, MODELS].map(Utf8PathBuf::from);
        let paths = daemon::binaries()
            .into_iter()
            .chain(shared)
            .chain([daemon.property_list(), daemon.loaded_list()])
            .chain(daemon.logs())
            .chain(plan::state_dir(daemon, &observed));
        observed.modes = self.files.modes(paths)?;
        Ok(observed)
    }

    /// Executes steps in order. Stops at the first failure, because later steps depend on earlier ones.
    pub async fn apply(&self, steps: &[Step]) -> Result<()> {
        for step in steps {
            match step {
                Step::Directory { path, mode } => self.files.create_directory(path, *mode)?,
                Step::Own {
                    path,
                    user,
                    recursive,
                } => self.own(path, user, *recursive).await?,
                Step::Copy { from, to } => self.files.copy(from, to)?,
                Step::Rename { to } => self.files.rename(to)?,
                Step::Write { daemon, job } => {
                    let (path, text) = (daemon.property_list(), job.text());
                    self.files.write(&path, text.as_bytes(), job.mode())?;
                }
                Step::Delete { path } => self.files.delete(path)?,
                Step::DeleteIfEmpty { path } => self.files.delete_if_empty(path)?,
                Step::Run(command) => self.run(command).await?,
                Step::Unload(daemon) => self.unload(*daemon).await?,
                Step::Load(daemon) => self.load(*daemon).await?,
            }
        }
        Ok(())
    }

    async fn run(&self, command: &Invocation) -> Result<()> {
        let answer = self.programs.run(command).await?;
        if answer.succeeded {
            return Ok(());
        }
        let (command, text) = (command.clone(), answer.text);
        Err(SystemError::Failed { command, text })
    }

    async fn own(&self, path: &Utf8Path, user: &str, recursive: bool) -> Result<()> {
        if !matches!(self.programs, Programs::Native) {
            return self.run(&Invocation::chown(path, user, recursive)).await;
        }
        // An earlier step may have created the user.
        let users = self.accounts("/Users", "UniqueID").await;
        let id = users.get(user).copied();
        let id = id.ok_or_else(|| SystemError::NoUser {
            user: user.to_owned(),
        })?;
        self.files.own(path, id, recursive)
    }

    async fn unload(&self, daemon: Daemon) -> Result<()> {
        let command = Invocation::unload(daemon);
        let answer = self.programs.run(&command).await?;
        let mut polls = 0;
        while self.job(daemon).await.is_some() {
            if polls == UNLOAD_POLLS {
                let text = answer.text;
                return Err(SystemError::StillRuns { command, text });
            }
            polls += 1;
            tokio::time::sleep(POLL).await;
        }
        self.files.delete(&daemon.loaded_list())
    }

    async fn load(&self, daemon: Daemon) -> Result<()> {
        let [enable, bootstrap] = Invocation::load(daemon);
        self.programs.run(&enable).await?;
        let list = self.files.read(&daemon.property_list())?;
        for attempt in 1.. {
            let answer = self.programs.run(&bootstrap).await?;
            // An attempt that is reported as failed can succeed.
            if answer.succeeded || self.job(daemon).await.is_some() {
                return self.keep_loaded(daemon, list);
            }
            if attempt == LOAD_ATTEMPTS {
                let (command, text) = (bootstrap, answer.text);
                return Err(SystemError::Failed { command, text });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Stores the property list with which launchd has started a service.
    fn keep_loaded(&self, daemon: Daemon, list: Option<Vec<u8>>) -> Result<()> {
        match list {
            Some(list) if !matches!(self.programs, Programs::Printed(_)) => {
                self.files.write(&daemon.loaded_list(), &list, 0o600)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Waits until a service has run for a few seconds. Fails if it ends before.
    pub async fn await_start(&self, daemon: Daemon) -> Result<()> {
        if matches!(self.programs, Programs::Printed(_)) {
            return Ok(());
        }
        let (mut process, mut stable) = (None, 0);
        let mut last = Job::default();
        for _ in 0..START_POLLS {
            last = self.job(daemon).await.unwrap_or_default();
            match last.running() {
                Some(pid) if process == Some(pid) => stable += 1,
                running => (process, stable) = (running, 0),
            }
            if stable == STABLE_POLLS {
                return Ok(());
            }
            if process.is_none() && last.failure().is_some() {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        let state = match last.failure() {
            Some(exit) => format!("{}, last exit {exit}", last.state),
            None => last.state,
        };
        let line = self.files.last_line(&daemon.log());
        let line = line.unwrap_or_else(|| "nothing".to_owned());
        Err(SystemError::Ends { daemon, state, line })
    }

    #[cfg(test)]
    pub(crate) fn into_fake(self) -> fake::FakeMac {
        match self.programs {
            Programs::Fake(mac) => mac.into_inner().expect("no test panicked"),
            Programs::Native | Programs::Printed(_) => panic!("the system is real"),
        }
    }

    /// Returns whether an installed file equals a file of this build.
    pub fn is_current(&self, from: &Utf8Path, to: &Utf8Path) -> Result<bool> {
        self.files.equal(from, to)
    }
}
