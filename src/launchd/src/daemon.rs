//! The services of rooflet that launchd can run, and their places on a Mac.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use serde::Serialize;

use crate::property_list::{KeepAlive, PropertyList};

/// Directory of the binary, and of the Metal kernels beside it.
pub const BINARIES: &str = "/usr/local/bin";
/// Directory of the data of all services.
pub const DATA: &str = "/usr/local/var/rooflet";
/// Directory of local models.
pub(crate) const MODELS: &str = "/usr/local/var/rooflet/models";
/// User that the installation creates. Apple's names of service users start with an underscore, too.
pub const USER: &str = "_rooflet";

/// Time between two starts after failures, in seconds.
const THROTTLE_SECONDS: u32 = 30;
/// Time between SIGTERM and SIGKILL in seconds: longer than the default of `--grace-seconds` (30) and
/// the end of workers that ignore SIGTERM (16 s).
pub(crate) const EXIT_SECONDS: u32 = 60;

/// Returns the binary and its kernels, and the copies of them that an interrupted installation leaves.
pub(crate) fn binaries() -> [Utf8PathBuf; 4] {
    let names = ["rooflet", "mlx.metallib", "rooflet.new", "mlx.metallib.new"];
    names.map(|name| Utf8Path::new(BINARIES).join(name))
}

/// Returns the part of a path below [`DATA`]; `None` if the path is elsewhere.
pub(crate) fn below_data(path: &Utf8Path) -> Option<&Utf8Path> {
    let below = path.strip_prefix(DATA).ok()?;
    let is_parent = |component| component == Utf8Component::ParentDir;
    (!below.components().any(is_parent)).then_some(below)
}

/// Service of rooflet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Daemon {
    /// The control plane. First, because it is upgraded before the agents.
    Server,
    Agent,
}

impl Daemon {
    pub const ALL: [Self; 2] = [Self::Server, Self::Agent];

    /// Returns the verb of the command line.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Agent => "agent",
        }
    }

    pub fn label(self) -> String {
        format!("dev.rooflet.{}", self.verb())
    }

    /// Returns the name of the job for `launchctl`.
    pub(crate) fn target(self) -> String {
        format!("system/{}", self.label())
    }

    pub fn property_list(self) -> Utf8PathBuf {
        format!("/Library/LaunchDaemons/{}.plist", self.label()).into()
    }

    pub fn log(self) -> Utf8PathBuf {
        format!("{DATA}/{}.log", self.verb()).into()
    }

    /// Returns the copy of the property list with which this program last started the service. Only root may
    /// read it. A restart of the Mac keeps it, although launchd then reads the property list again: if the list
    /// was edited before, the next installation restarts the service once more.
    pub(crate) fn loaded_list(self) -> Utf8PathBuf {
        format!("/var/db/{}.loaded.plist", self.label()).into()
    }

    /// Returns the log and the earlier one, into which the service rotates it.
    pub(crate) fn logs(self) -> [Utf8PathBuf; 2] {
        [self.log(), format!("{}.1", self.log()).into()]
    }

    /// Returns the flag of the directory with the service's state, and its default.
    pub fn state_flag(self) -> (&'static str, Utf8PathBuf) {
        match self {
            Self::Server => ("--data-dir", format!("{DATA}/server").into()),
            Self::Agent => ("--state-dir", format!("{DATA}/agent").into()),
        }
    }

    /// Returns the directories that the service uses by default, with their flags.
    pub(crate) fn directories(self) -> Vec<(&'static str, Utf8PathBuf)> {
        let models = match self {
            Self::Server => None,
            Self::Agent => Some(("--model-dir", MODELS.into())),
        };
        models.into_iter().chain([self.state_flag()]).collect()
    }

    /// Returns the property list of the service.
    pub fn job(self, user: &str, arguments: &[String]) -> PropertyList {
        let command = [format!("{BINARIES}/rooflet"), self.verb().to_owned()];
        PropertyList {
            label: self.label(),
            user_name: Some(user.to_owned()),
            program_arguments: command.into_iter().chain(arguments.iter().cloned()).collect(),
            run_at_load: true,
            keep_alive: Some(KeepAlive {
                successful_exit: false,
            }),
            throttle_interval: Some(THROTTLE_SECONDS),
            exit_time_out: Some(EXIT_SECONDS),
            // launchd limits processor and disk of other types.
            process_type: Some("Interactive".to_owned()),
            standard_error_path: Some(self.log().into_string()),
            ..PropertyList::default()
        }
    }
}
