//! `rooflet doctor`: checks this machine and prints remedies.

mod api_server;
mod binary;
mod check;
mod daemon;
mod engine;
mod file_system;
mod files;
#[cfg(test)]
mod fixture;
mod machine;
mod memory;
mod network;
mod panics;
mod power;
mod processes;
pub(crate) mod sleep;
mod sleep_settings;
mod system_command;
mod text;

use std::fs;

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use self::check::{Area, Check, Status};
use super::ui::output::Output;
use super::{Failure, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_base::file;
use rooflet_host::Host;
use rooflet_host::facts::RecordedFacts;

/// Arguments of `rooflet doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Also write the report to this file, with the raw facts of a Mac. It contains no names, no
    /// paths and no serial numbers.
    #[arg(long, value_name = "FILE")]
    save: Option<Utf8PathBuf>,
    /// Check the machine of a saved report instead of this one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "quick", "as_daemon", "sleep"])]
    recorded: Option<Utf8PathBuf>,
    /// Skip the checks of the engine, which take about 20 seconds.
    #[arg(long)]
    quick: bool,
    /// On a Mac, run the checks in a job of launchd, and list those whose status differs in this
    /// session.
    #[arg(long)]
    as_daemon: bool,
    /// Also wait until you have put this machine to sleep and woken it, and check clocks, network and
    /// the heartbeat of this machine's node afterwards.
    #[arg(long, conflicts_with = "as_daemon")]
    sleep: bool,
    /// Kubeconfig of the API server to check. Default: the kubeconfig in the agent's state directory,
    /// otherwise that of kubectl, otherwise that of `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recorded", "as_daemon"])]
    kubeconfig: Option<Utf8PathBuf>,
    /// Directory of local models.
    #[arg(long, value_name = "DIR", env = "ROOFLET_MODEL_DIR")]
    model_dir: Option<Utf8PathBuf>,
    /// State directory of the agent [default: ~/.rooflet/agent].
    #[arg(long, value_name = "DIR", env = "ROOFLET_STATE_DIR")]
    state_dir: Option<Utf8PathBuf>,
}

/// Result of all checks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
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

pub(crate) async fn run(args: Args) -> Result<ExitStatus, Failure> {
    let report = match &args.recorded {
        Some(path) => Report::of_recording(path)?,
        None if args.as_daemon => Report::of_daemon(&args).await?,
        None => Report::of_this_machine(&args).await,
    };
    args.output.print(&report, || Ok(text::render(&report)))?;
    if let Some(path) = &args.save {
        let text = serde_json::to_string_pretty(&report).context("encoding the report")? + "\n";
        // The file must be complete as soon as it exists: the process that starts a job of launchd
        // waits for the job's report.
        file::replace(path, text.as_bytes()).with_context(|| format!("--save: writing `{path}`"))?;
        ui::progress(&format!("saved to {path}"));
    }
    let has_failed = report.checks.iter().any(|check| check.status == Status::Fail);
    Ok(match has_failed {
        true => ExitStatus::Failure,
        false => ExitStatus::Success,
    })
}

/// Returns the energy settings of a Mac that concern nodes, one line each, with remedies.
pub(super) async fn sleep_lines() -> Vec<String> {
    let checks = sleep_settings::checks(Host::Native.power().source).await;
    let line = |check: Check| {
        let remedy = check.remedy.map(|remedy| format!("; {remedy}"));
        format!("{}: {}{}", check.name, check.finding, remedy.unwrap_or_default())
    };
    checks.into_iter().map(line).collect()
}

impl Args {
    fn state_dir(&self) -> Utf8PathBuf {
        let given = self.state_dir.clone();
        given.unwrap_or_else(|| super::default_data_dir().join("agent"))
    }

    /// Returns the arguments with which a job of launchd checks the same directories.
    fn of_daemon(&self) -> Vec<String> {
        let mut arguments = vec!["--state-dir".to_owned(), self.state_dir().into_string()];
        if let Some(directory) = &self.model_dir {
            arguments.extend(["--model-dir".to_owned(), directory.to_string()]);
        }
        if self.quick {
            arguments.push("--quick".to_owned());
        }
        arguments
    }
}

impl Report {
    async fn of_this_machine(args: &Args) -> Self {
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
        if !args.quick {
            ui::progress("checking the engine, which takes about 20 seconds");
            let mut readings = Vec::new();
            let mut read_heat = || readings.extend(power::HeatReading::of(&host));
            add(Area::Engine, engine::checks(&host, &clock, &mut read_heat));
            read_heat();
            add(
                Area::Power,
                power::heat_under_load(&readings).into_iter().collect(),
            );
        }
        add(Area::Files, files::state_checks(&host, &args.state_dir()));
        if let Some(model_dir) = &args.model_dir {
            add(Area::Files, files::checks(&host, "model directory", model_dir));
        }
        let (process, network) = tokio::join!(processes::check(), network::checks(&clock));
        add(Area::Files, vec![files::open_files(), process]);
        add(Area::Network, network);
        let api_server = api_server::check(args.kubeconfig.clone(), &args.state_dir(), &clock).await;
        add(Area::Network, api_server.into_iter().collect());
        if args.sleep {
            let state_dir = args.state_dir();
            add(
                Area::Power,
                sleep::checks(&clock, &state_dir, args.kubeconfig.clone()).await,
            );
        }
        checks.sort_by_key(|check| check.area);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            checks,
            differences: Vec::new(),
            facts: host.facts().map(RecordedFacts::record),
        }
    }

    /// Runs the checks in launchd and in this session.
    async fn of_daemon(args: &Args) -> Result<Self, Failure> {
        let daemon = daemon::report(&args.of_daemon()).await?;
        let session = Self::of_this_machine(args).await;
        Ok(Self {
            differences: differences(&daemon.checks, &session.checks),
            ..daemon
        })
    }

    /// Checks the machine of a recording. A recording contains no files and no engine.
    fn of_recording(path: &Utf8Path) -> Result<Self, Failure> {
        let (version, facts) = read_recording(path).map_err(|err| Failure::new(ExitStatus::Config, err))?;
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
pub(super) fn read_recording(path: &Utf8Path) -> anyhow::Result<(String, RecordedFacts)> {
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
