//! The steps that install or remove a service. Pure.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};

use crate::accounts::Accounts;
use crate::daemon::{self, BINARIES, DATA, Daemon, MODELS, USER, below_data};
use crate::property_list::{PropertyList, argument};
use crate::step::Step;

/// Mode of directories that every user may read.
const SHARED: u32 = 0o755;
/// Mode of directories with keys and prompts.
const PRIVATE: u32 = 0o700;

/// Desired installation of a service.
#[derive(Debug, Clone)]
pub struct Installation {
    pub(crate) daemon: Daemon,
    pub user: String,
    /// Arguments of the service, each as `--NAME=VALUE` or `--NAME`.
    arguments: Vec<String>,
    environment: Option<BTreeMap<String, String>>,
    /// Files to install: source and target.
    pub(crate) files: Vec<(Utf8PathBuf, Utf8PathBuf)>,
}

/// State of the system.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    pub(crate) accounts: Accounts,
    /// Property lists of installed services.
    pub(crate) installed: BTreeMap<Daemon, PropertyList>,
    /// Other installed services, whose property lists this user may not read.
    pub(crate) unreadable: BTreeSet<Daemon>,
    pub(crate) loaded: BTreeSet<Daemon>,
    /// Whether launchd runs the service with an earlier version of its property list.
    pub(crate) is_stale: bool,
    /// Targets of [`Installation::files`] that differ from their sources, or that another user may change.
    pub(crate) outdated: BTreeSet<Utf8PathBuf>,
    /// Existing files and directories, with their modes.
    pub(crate) modes: BTreeMap<Utf8PathBuf, u32>,
    /// Existing files and directories that the user of the service does not own, or that contain such
    /// files.
    pub(crate) foreign: BTreeSet<Utf8PathBuf>,
    /// Whether the machine has joined a control plane; `None` if unknown.
    pub(crate) has_joined: Option<bool>,
}

/// Reason why a service cannot be installed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "--user {user}: this Mac has no such user; create it, or omit --user to create the user `{USER}`"
    )]
    NoSuchUser { user: String },
    #[error("--user {user}: `rooflet {other}` is installed on this Mac and runs as `{theirs}`; pass --user {theirs}", other = .other.verb())]
    OtherUser {
        user: String,
        other: Daemon,
        theirs: String,
    },
    #[error("no id for the user `{USER}` is free; create a user, and pass it with --user")]
    NoFreeId,
    #[error(
        "this machine has not joined a control plane: run `sudo rooflet join URL --token TOKEN --state-dir \
         {state_dir}` first, or pass --kubeconfig or --manifest-dir"
    )]
    NotJoined { state_dir: Utf8PathBuf },
}

impl Observed {
    fn is_installed(&self, daemon: Daemon) -> bool {
        self.installed.contains_key(&daemon) || self.unreadable.contains(&daemon)
    }
}

impl Installation {
    /// `arguments` are the user's arguments of the service. Directories that they omit are those of
    /// [`Daemon::directories`]. `program` and `kernels` are the files of this build.
    pub fn new(
        daemon: Daemon,
        user: String,
        mut arguments: Vec<String>,
        program: Utf8PathBuf,
        kernels: Option<Utf8PathBuf>,
    ) -> Self {
        for (flag, directory) in daemon.directories() {
            if argument(&arguments, flag).is_none() {
                arguments.push(format!("{flag}={directory}"));
            }
        }
        let target = |name: &str| Utf8Path::new(BINARIES).join(name);
        // The kernels first: the new binary uses those beside it.
        let kernels = kernels.map(|path| (path, target("mlx.metallib")));
        let program = (program, target("rooflet"));
        Self {
            daemon,
            user,
            arguments,
            environment: None,
            files: kernels.into_iter().chain([program]).collect(),
        }
    }

    /// Uses the environment variables of an installed service.
    #[must_use]
    pub fn with_environment_of(self, installed: Option<&PropertyList>) -> Self {
        let environment = installed.and_then(|job| job.environment_variables.clone());
        Self { environment, ..self }
    }

    pub fn job(&self) -> PropertyList {
        PropertyList {
            environment_variables: self.environment.clone(),
            ..self.daemon.job(&self.user, &self.arguments)
        }
    }

    /// Returns the directory with the service's state.
    pub fn state_dir(&self) -> &Utf8Path {
        let (flag, _) = self.daemon.state_flag();
        Utf8Path::new(argument(&self.arguments, flag).unwrap_or_default())
    }

    /// Returns the value of an argument of the service.
    pub fn argument(&self, name: &str) -> Option<&str> {
        argument(&self.arguments, name)
    }

    /// Returns the values of an argument that can be repeated.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let values = self
            .arguments
            .iter()
            .filter_map(|argument| argument.strip_prefix(name));
        values.filter_map(|value| value.strip_prefix('=')).collect()
    }

    /// Returns the directories that the service needs, with their modes.
    pub(crate) fn directories(&self) -> Vec<(&Utf8Path, u32)> {
        let models = self.argument("--model-dir").filter(|path| *path == MODELS);
        let shared = [BINARIES, "/usr/local/var", DATA].into_iter().chain(models);
        let shared = shared.map(|path| (Utf8Path::new(path), SHARED));
        shared.chain([(self.state_dir(), PRIVATE)]).collect()
    }

    /// Returns the files and directories that the user of the service must own. Directories elsewhere
    /// belong to the user who created them.
    pub(crate) fn owned(&self) -> Vec<Utf8PathBuf> {
        let [log, earlier] = self.daemon.logs();
        let state_dir = self.state_dir().to_owned();
        let mut owned = vec![DATA.into(), log, earlier];
        if below_data(&state_dir).is_some() {
            owned.push(state_dir);
        }
        owned
    }
}

/// Returns the steps after which the service runs as desired. Without a difference, there are none.
///
/// Services are stopped before their files change, and started when the files are complete. A loaded service
/// therefore uses the files that are observed, and an interrupted installation is completed by the next one.
pub fn install(desired: &Installation, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    check(desired, observed)?;
    let mut steps = Vec::new();
    if !observed.accounts.users.contains_key(&desired.user) {
        let create = observed.accounts.create(&desired.user);
        steps.extend(create.ok_or(PlanError::NoFreeId)?.into_iter().map(Step::Run));
    }
    for (path, mode) in desired.directories() {
        let is_usable = |found: &u32| match mode {
            SHARED => found & 0o555 == 0o555,
            _ => true,
        };
        if !observed.modes.get(path).is_some_and(is_usable) {
            let path = path.to_owned();
            steps.push(Step::Directory { path, mode });
        }
    }
    steps.extend(own(desired, observed));
    let outdated = || {
        let files = desired.files.iter();
        files.filter(|(_, to)| observed.outdated.contains(to)).cloned()
    };
    // While the services run: a copy takes a while, and can fail.
    steps.extend(outdated().map(|(from, to)| Step::Copy { from, to }));
    let job = desired.job();
    let is_changed = is_changed(desired.daemon, &job, observed);
    let is_new_binary = !observed.outdated.is_empty();
    let must_restart = |daemon: Daemon| {
        let is_own = daemon == desired.daemon && (is_changed || observed.is_stale);
        observed.loaded.contains(&daemon) && (is_new_binary || is_own)
    };
    // The agent first: it drains its replicas while the control plane runs.
    let stopped = Daemon::ALL.into_iter().rev();
    steps.extend(stopped.filter(|daemon| must_restart(*daemon)).map(Step::Unload));
    steps.extend(outdated().map(|(_, to)| Step::Rename { to }));
    if is_changed {
        steps.push(Step::Write {
            daemon: desired.daemon,
            job: Box::new(job),
        });
    }
    let must_start = |daemon: &Daemon| {
        let is_installed = *daemon == desired.daemon || observed.is_installed(*daemon);
        must_restart(*daemon) || (is_installed && !observed.loaded.contains(daemon))
    };
    steps.extend(Daemon::ALL.into_iter().filter(must_start).map(Step::Load));
    Ok(steps)
}

/// Returns whether the property list differs from the desired one, or more users may read it.
fn is_changed(daemon: Daemon, job: &PropertyList, observed: &Observed) -> bool {
    let mode = observed.modes.get(&daemon.property_list());
    observed.installed.get(&daemon) != Some(job) || mode.is_some_and(|found| found & !job.mode() != 0)
}

fn check(desired: &Installation, observed: &Observed) -> Result<(), PlanError> {
    let user = desired.user.clone();
    if user != USER && !observed.accounts.users.contains_key(&user) {
        return Err(PlanError::NoSuchUser { user });
    }
    // Both services use the same directory. Root can read all lists.
    for (other, job) in &observed.installed {
        let theirs = job.user_name.clone().unwrap_or_else(|| "root".to_owned());
        if *other != desired.daemon && theirs != user {
            let other = *other;
            return Err(PlanError::OtherUser { user, other, theirs });
        }
    }
    let needs_no_join = ["--kubeconfig", "--manifest-dir"].map(|flag| desired.argument(flag).is_some());
    if desired.daemon == Daemon::Agent && observed.has_joined == Some(false) && needs_no_join == [false; 2] {
        let state_dir = desired.state_dir().to_owned();
        return Err(PlanError::NotJoined { state_dir });
    }
    Ok(())
}

/// Returns the steps after which the user of the service owns its files.
fn own<'a>(desired: &'a Installation, observed: &'a Observed) -> impl Iterator<Item = Step> + use<'a> {
    let state_dir = desired.state_dir();
    let is_new = |path: &Utf8Path| !observed.modes.contains_key(path);
    let mut paths: Vec<Utf8PathBuf> = desired.owned();
    // A directory elsewhere, which this installation creates.
    if !paths.iter().any(|path| path == state_dir) && is_new(state_dir) {
        paths.push(state_dir.to_owned());
    }
    let logs = desired.daemon.logs();
    let must_own =
        move |path: &Utf8PathBuf| observed.foreign.contains(path) || (is_new(path) && !logs.contains(path));
    let own = move |path: Utf8PathBuf| Step::Own {
        recursive: path == state_dir,
        user: desired.user.clone(),
        path,
    };
    paths.into_iter().filter(must_own).map(own)
}

/// Returns the steps after which the service is not installed. `purge` also deletes its data. The
/// binary and the user are deleted with the data of the last service.
pub fn uninstall(daemon: Daemon, purge: bool, observed: &Observed) -> Vec<Step> {
    let mut steps = Vec::new();
    if observed.loaded.contains(&daemon) {
        steps.push(Step::Unload(daemon));
    }
    let exists = |path: &Utf8PathBuf| observed.modes.contains_key(path);
    let delete = |path: Utf8PathBuf| exists(&path).then_some(Step::Delete { path });
    steps.extend(
        [daemon.property_list(), daemon.loaded_list()]
            .into_iter()
            .filter_map(delete),
    );
    if !purge {
        return steps;
    }
    steps.extend(
        [state_dir(daemon, observed)]
            .into_iter()
            .flatten()
            .filter_map(delete),
    );
    steps.extend(daemon.logs().into_iter().filter_map(delete));
    let is_last = |other: &Daemon| *other == daemon || !observed.is_installed(*other);
    if Daemon::ALL.iter().all(is_last) {
        steps.extend(daemon::binaries().into_iter().filter_map(delete));
        let directories = [MODELS, DATA].map(Utf8PathBuf::from);
        let directories = directories.into_iter().filter(exists);
        steps.extend(directories.map(|path| Step::DeleteIfEmpty { path }));
        steps.extend(observed.accounts.delete(USER).into_iter().map(Step::Run));
    }
    steps
}

/// Returns the directory with the service's state if it is below [`DATA`]. Other directories are never
/// deleted.
pub(crate) fn state_dir(daemon: Daemon, observed: &Observed) -> Option<Utf8PathBuf> {
    let (flag, default) = daemon.state_flag();
    let installed = observed.installed.get(&daemon).and_then(|job| job.argument(flag));
    let state_dir = installed.map_or(default, Utf8PathBuf::from);
    let is_inside = below_data(&state_dir).is_some()
        && state_dir != DATA
        && !Utf8Path::new(MODELS).starts_with(&state_dir)
        && !state_dir.starts_with(MODELS);
    is_inside.then_some(state_dir)
}

/// Returns what a removal keeps, as lines for the user.
pub fn kept(daemon: Daemon, purge: bool, observed: &Observed) -> Vec<String> {
    let state_dir = state_dir(daemon, observed);
    let mut lines = Vec::new();
    if !purge && state_dir.is_some_and(|path| observed.modes.contains_key(&path)) {
        let verb = daemon.verb();
        lines.push(format!(
            "data below {DATA} and binaries in {BINARIES} are kept; `rooflet {verb} uninstall --purge` deletes them"
        ));
    }
    let (flag, _) = daemon.state_flag();
    let elsewhere = observed.installed.get(&daemon).and_then(|job| job.argument(flag));
    if let Some(path) = elsewhere.filter(|path| !Utf8Path::new(path).starts_with(DATA)) {
        lines.push(format!("{path} is kept, because it is not below {DATA}"));
    }
    lines
}

#[cfg(test)]
mod tests;
