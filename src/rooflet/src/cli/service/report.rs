//! The state of an installed service.

use std::fmt::Write as _;

use camino::Utf8PathBuf;
use serde::Serialize;

use rooflet_launchd::{Daemon, Job, PropertyList};

/// State of a service.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    service: Daemon,
    /// Absent if the service is not installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    installation: Option<Installed>,
    /// State in launchd, such as `running`; absent if launchd does not know the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// End of the last process; absent if none has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_exit: Option<String>,
    /// Whether the installed binary is the one that runs this command.
    is_current_binary: bool,
    /// Settings of the Mac that concern sleep.
    sleep: Vec<String>,
}

/// Installed property list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Installed {
    property_list: Utf8PathBuf,
    user: String,
    arguments: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

impl Installed {
    fn of(daemon: Daemon, job: PropertyList) -> Self {
        Self {
            property_list: daemon.property_list(),
            arguments: job.service_arguments().to_vec(),
            user: job.user_name.unwrap_or_else(|| "root".to_owned()),
            log: job.standard_error_path,
        }
    }
}

impl Report {
    /// `is_current_binary` and `sleep` are the fields of the same names.
    pub(super) fn new(
        service: Daemon,
        job: Option<Job>,
        installed: Option<PropertyList>,
        is_current_binary: bool,
        sleep: Vec<String>,
    ) -> Self {
        Self {
            service,
            installation: installed.map(|job| Installed::of(service, job)),
            pid: job.as_ref().and_then(Job::running),
            last_exit: job.as_ref().and_then(|job| job.last_exit.clone()),
            state: job.map(|job| job.state),
            is_current_binary,
            sleep,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.pid.is_some()
    }

    pub(super) fn text(&self) -> String {
        let verb = self.service.verb();
        let mut text = String::new();
        let mut row = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<14}{value}");
        };
        row("service", &self.service.label());
        match &self.installation {
            None => row(
                "installed",
                &format!("no; `sudo rooflet {verb} install` installs it"),
            ),
            Some(installed) => {
                row("installed", installed.property_list.as_str());
                row("user", &installed.user);
                for argument in &installed.arguments {
                    row("argument", argument);
                }
                if let Some(log) = &installed.log {
                    row("log", log);
                }
                let current = match self.is_current_binary {
                    true => "this version".to_owned(),
                    false => {
                        format!("another build than this one; `sudo rooflet {verb} install` replaces it")
                    }
                };
                row("binary", &current);
            }
        }
        let state = self.state.as_deref().unwrap_or("unknown to launchd");
        match self.pid {
            Some(pid) => row("state", &format!("{state}, process {pid}")),
            None => row("state", state),
        }
        if let Some(exit) = &self.last_exit {
            row("last exit", exit);
        }
        for line in &self.sleep {
            row("", line);
        }
        text
    }
}
