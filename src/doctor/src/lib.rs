//! Checks of one machine, with remedies, for `rooflet doctor`.
//!
//! The report contains no names of users, no paths, no addresses and no serial numbers, because users
//! attach it to issues. Such details are lines of progress.

mod api_server;
mod binary;
mod certificates;
mod check;
mod daemon;
mod disk_encryption;
mod engine;
mod file_system;
mod files;
#[cfg(test)]
mod fixture;
mod machine;
mod memory;
mod network;
mod panics;
mod ports;
mod power;
mod processes;
pub mod sleep;
mod sleep_settings;
mod system_command;
mod text;

use std::fs;

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use self::check::{Area, Check, Status};
use rooflet_base::clock::Clock;
use rooflet_client::KubeconfigSource;
use rooflet_host::Host;
use rooflet_host::facts::RecordedFacts;

/// Scope and surroundings of the checks.
#[derive(Debug, Clone)]
pub struct Settings {
    /// State directory of the agent.
    pub state_dir: Utf8PathBuf,
    /// Directory of local models.
    pub model_dir: Option<Utf8PathBuf>,
    /// Kubeconfig of the API server. `None`: the one in the state directory, otherwise
    /// `default_kubeconfig`.
    pub kubeconfig: Option<Utf8PathBuf>,
    pub default_kubeconfig: fn() -> KubeconfigSource,
    /// Skips the checks of the engine.
    pub is_quick: bool,
    /// Waits for a sleep of the machine.
    pub with_sleep: bool,
    /// Prints one line of progress.
    pub progress: fn(&str),
}

/// Result of all checks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Version of rooflet.
    version: String,
    checks: Vec<Check>,
    /// Checks whose status in launchd differs from that in the session that started it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    differences: Vec<Difference>,
    /// Raw facts; `None` if the machine is no Mac.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    facts: Option<RecordedFacts>,
}

/// Check whose status depends on where it runs.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Difference {
    name: String,
    /// `None` if the check did not run.
    daemon: Option<Status>,
    session: Option<Status>,
}

/// Returns the energy settings of a Mac that concern nodes, one line each, with remedies.
pub async fn sleep_lines() -> Vec<String> {
    let checks = sleep_settings::checks(Host::Native.power().source).await;
    let line = |check: Check| {
        let remedy = check.remedy.map(|remedy| format!("; {remedy}"));
        format!("{}: {}{}", check.name, check.finding, remedy.unwrap_or_default())
    };
    checks.into_iter().map(line).collect()
}

impl Settings {
    /// Returns the arguments with which a job of launchd checks the same directories.
    fn of_daemon(&self) -> Vec<String> {
        let mut arguments = vec!["--state-dir".to_owned(), self.state_dir.to_string()];
        if let Some(directory) = &self.model_dir {
            arguments.extend(["--model-dir".to_owned(), directory.to_string()]);
        }
        if self.is_quick {
            arguments.push("--quick".to_owned());
        }
        arguments
    }
}

impl Report {
    /// Checks this machine.
    pub async fn of_this_machine(settings: &Settings) -> Self {
        let host = Host::Native;
        let clock = Clock::System;
        let mut checks = Vec::new();
        let mut add = |area, found: Vec<Check>| checks.extend(found.into_iter().map(|check| check.of(area)));
        add(Area::Machine, machine::checks(&host, Some(has_matrix_units())));
        add(
            Area::Machine,
            panics::check(&host, clock.now()).into_iter().collect(),
        );
        add(Area::Power, power::checks(&host));
        add(Area::Power, sleep_settings::checks(host.power().source).await);
        add(Area::Binary, binary::checks().await);
        if !settings.is_quick {
            (settings.progress)("checking the engine, which takes about 20 seconds");
            let mut readings = Vec::new();
            let mut read_heat = || readings.extend(power::HeatReading::of(&host));
            add(Area::Engine, engine::checks(&host, &clock, &mut read_heat));
            read_heat();
            add(
                Area::Power,
                power::heat_under_load(&readings).into_iter().collect(),
            );
        }
        add(Area::Files, files::state_checks(&host, &settings.state_dir));
        add(Area::Files, disk_encryption::check().await.into_iter().collect());
        if let Some(model_dir) = &settings.model_dir {
            add(Area::Files, files::checks(&host, "model directory", model_dir));
        }
        let (process, network) = tokio::join!(processes::check(), network::checks(&clock));
        add(Area::Files, vec![files::open_files(), process]);
        add(Area::Network, network);
        add(Area::Network, vec![ports::check().await]);
        add(
            Area::Network,
            certificates::checks(&settings.state_dir, clock.now()).await,
        );
        let api_server = api_server::check(settings, &clock).await;
        add(Area::Network, api_server.into_iter().collect());
        if settings.with_sleep {
            add(Area::Power, sleep::checks(settings, &clock).await);
        }
        checks.sort_by_key(|check| check.area);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            checks,
            differences: Vec::new(),
            facts: host.facts().map(RecordedFacts::record),
        }
    }

    /// Returns true if a check failed.
    pub fn has_failed(&self) -> bool {
        self.checks.iter().any(|check| check.status == Status::Fail)
    }

    /// Formats the report: one paragraph per area, and each remedy below its finding.
    pub fn text(&self) -> String {
        text::render(self)
    }

    /// Runs the checks in launchd and in this session.
    pub async fn of_daemon(settings: &Settings) -> anyhow::Result<Self> {
        let daemon = daemon::report(&settings.of_daemon()).await?;
        let session = Self::of_this_machine(settings).await;
        Ok(Self {
            differences: differences(&daemon.checks, &session.checks),
            ..daemon
        })
    }

    /// Checks the machine of a recording. A recording contains no files and no engine.
    pub fn of_recording(path: &Utf8Path) -> anyhow::Result<Self> {
        let (version, facts) = read_recording(path)?;
        let host = Host::Recorded(facts.clone().into());
        let machine = machine::checks(&host, None).into_iter();
        let power = power::checks(&host).into_iter();
        let checks = machine.chain(power.map(|check| check.of(Area::Power)));
        Ok(Self {
            version,
            checks: checks.collect(),
            differences: Vec::new(),
            facts: Some(facts),
        })
    }
}

/// Returns the facts of a report or a file with facts, and the version of rooflet that saved them.
pub fn read_recording(path: &Utf8Path) -> anyhow::Result<(String, RecordedFacts)> {
    let text = fs::read_to_string(path).with_context(|| format!("--recorded: reading `{path}`"))?;
    let saved: Result<Report, _> = serde_json::from_str(&text);
    match saved {
        Ok(Report {
            version,
            facts: Some(facts),
            ..
        }) => Ok((version, facts)),
        Ok(Report { facts: None, .. }) => {
            let problem = "the report has no facts: it was saved on a machine that is not a Mac";
            anyhow::bail!("--recorded: `{path}`: {problem}")
        }
        Err(_) => {
            let facts = RecordedFacts::parse(&text);
            let facts = facts.with_context(|| format!("--recorded: `{path}`"))?;
            Ok((env!("CARGO_PKG_VERSION").to_owned(), facts))
        }
    }
}

/// Returns whether the engine in this build has kernels for matrix units.
fn has_matrix_units() -> bool {
    #[cfg(feature = "mlx")]
    return rooflet_mlx::metallib::build().is_some_and(|build| build.has_matrix_units);
    #[cfg(not(feature = "mlx"))]
    return false;
}

fn differences(daemon: &[Check], session: &[Check]) -> Vec<Difference> {
    let status = |checks: &[Check], name: &str| {
        let found = checks.iter().find(|check| check.name == name);
        found.map(|check| check.status)
    };
    let only_here = session
        .iter()
        .filter(|check| status(daemon, &check.name).is_none());
    let names = daemon.iter().chain(only_here).map(|check| check.name.as_str());
    let difference = |name: &str| Difference {
        name: name.to_owned(),
        daemon: status(daemon, name),
        session: status(session, name),
    };
    names
        .map(difference)
        .filter(|difference| difference.daemon != difference.session)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_with_another_status_in_launchd_are_listed() {
        let daemon = [
            Check::unknown("Metal", "no device"),
            Check::ok("memory", "3 GiB"),
            Check::ok("heat", "nominal"),
        ];
        let session = [
            Check::ok("Metal", "Apple M4"),
            Check::ok("memory", "4 GiB"),
            Check::warn("proxy", "set", None),
        ];
        let found = differences(&daemon, &session);
        let shown: Vec<_> = found
            .iter()
            .map(|one| (one.name.as_str(), one.daemon, one.session))
            .collect();
        assert_eq!(
            shown,
            [
                ("Metal", Some(Status::Unknown), Some(Status::Ok)),
                ("heat", Some(Status::Ok), None),
                ("proxy", None, Some(Status::Warn)),
            ]
        );
    }
}
