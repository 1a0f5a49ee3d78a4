//! `rooflet doctor`: checks this machine and prints remedies.

mod check;
mod engine;
mod files;
mod machine;
mod panics;

use std::fs;

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use self::check::{Check, Status};
use super::ui::Table;
use super::ui::output::Output;
use super::{Failure, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
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
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "quick"])]
    recorded: Option<Utf8PathBuf>,
    /// Skip the checks of the engine, which take about 20 seconds.
    #[arg(long)]
    quick: bool,
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
    /// Raw facts; `None` if the machine is no Mac.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    facts: Option<RecordedFacts>,
}

pub(crate) fn run(args: &Args) -> Result<ExitStatus, Failure> {
    let report = match &args.recorded {
        Some(path) => Report::of_recording(path)?,
        None => Report::of_this_machine(args),
    };
    args.output.print(&report, || Ok(render(&report)))?;
    if let Some(path) = &args.save {
        let text = serde_json::to_string_pretty(&report).context("encoding the report")?;
        fs::write(path, text + "\n").with_context(|| format!("--save: writing `{path}`"))?;
        ui::progress(&format!("saved to {path}"));
    }
    let has_failed = report.checks.iter().any(|check| check.status == Status::Fail);
    Ok(match has_failed {
        true => ExitStatus::Failure,
        false => ExitStatus::Success,
    })
}

impl Report {
    fn of_this_machine(args: &Args) -> Self {
        let host = Host::Native;
        let clock = Clock::System;
        let state_dir = args.state_dir.clone();
        let state_dir = state_dir.unwrap_or_else(|| super::default_data_dir().join("agent"));
        let mut checks = machine::checks(&host);
        checks.push(panics::check(&host, clock.now()));
        checks.extend(files::checks(&host, "state directory", &state_dir));
        if let Some(model_dir) = &args.model_dir {
            checks.extend(files::checks(&host, "model directory", model_dir));
        }
        checks.push(files::open_files());
        checks.extend(engine::checks(&host, &clock, args.quick));
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            checks,
            facts: host.facts().map(RecordedFacts::record),
        }
    }

    /// Checks what a recording contains: the machine, not its files and its engine.
    fn of_recording(path: &Utf8Path) -> Result<Self, Failure> {
        let invalid = |err: anyhow::Error| Failure::new(ExitStatus::Config, err);
        let text = fs::read_to_string(path).with_context(|| format!("--recorded: reading `{path}`"));
        let text = text.map_err(invalid)?;
        let saved: Result<Self, _> = serde_json::from_str(&text);
        let (version, facts) = match saved {
            Ok(Self {
                version,
                facts: Some(facts),
                ..
            }) => (version, facts),
            Ok(Self { facts: None, .. }) => {
                let problem = "the report has no facts: it was saved on a machine that is not a Mac";
                return Err(invalid(anyhow::anyhow!("--recorded: `{path}`: {problem}")));
            }
            Err(_) => {
                let facts = RecordedFacts::parse(&text);
                let facts = facts
                    .with_context(|| format!("--recorded: `{path}`"))
                    .map_err(invalid)?;
                (env!("CARGO_PKG_VERSION").to_owned(), facts)
            }
        };
        let host = Host::Recorded(facts.clone().into());
        Ok(Self {
            version,
            checks: machine::checks(&host),
            facts: Some(facts),
        })
    }
}

fn render(report: &Report) -> String {
    let mut table = Table::new(["CHECK", "STATUS", "FINDING"]);
    for check in &report.checks {
        table.add_row([
            check.name.clone(),
            check.status.to_string(),
            check.finding.clone(),
        ]);
    }
    let mut text = format!("rooflet {}\n\n{table}\n", report.version);
    let remedies = report.checks.iter().filter_map(|check| {
        let remedy = check.remedy.as_ref()?;
        Some(format!("{}: {remedy}\n", check.name))
    });
    let remedies: Vec<_> = remedies.collect();
    if !remedies.is_empty() {
        text.push_str("\nRemedies:\n");
        text.extend(remedies.iter().map(|remedy| format!("- {remedy}")));
    }
    let count = |status| {
        report
            .checks
            .iter()
            .filter(|check| check.status == status)
            .count()
    };
    text.push_str(&format!(
        "\n{} ok, {} warn, {} fail, {} unknown\n",
        count(Status::Ok),
        count(Status::Warn),
        count(Status::Fail),
        count(Status::Unknown)
    ));
    text
}
