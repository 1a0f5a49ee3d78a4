//! Alert rules, runbooks and dashboards: generated files, and their checks with a real Prometheus.

mod alerts;
mod dashboards;
#[cfg(test)]
mod metric_names;
mod prometheus;

use std::{process::Command, time::Duration};

use anyhow::Result;

use self::alerts::ALERTS;
use self::dashboards::DASHBOARDS;
use crate::{
    console::{self, Outcome},
    generate::chart::{CHART, GeneratedFile},
    libtest, setup, web,
};

const RULES: &str = "manifests/monitoring/alerts.yaml";
const RULE_TESTS: &str = "e2e/monitoring/alerts_test.yaml";
const DASHBOARD_DIRECTORY: &str = "manifests/monitoring/dashboards";
const DASHBOARD_TYPES: &str = "e2e/monitoring/dashboard-types";
const RUNBOOKS: &str = "docs/runbooks/README.md";

/// Time limit of the build of Prometheus when it is one of many checks.
const BUILD_LIMIT_OF_CHECK: Duration = Duration::from_mins(6);

/// Returns the rule file, the dashboards, their copies in the chart, and the index of the runbooks.
pub(crate) fn files() -> Vec<GeneratedFile> {
    let rules = alerts::rule_file();
    let mut files = vec![
        GeneratedFile::new(RUNBOOKS, alerts::index()),
        // Helm reads only files of the chart.
        GeneratedFile::new(format!("{CHART}/files/alerts.yaml"), rules.clone()),
        GeneratedFile::new(RULES, rules),
    ];
    for dashboard in &DASHBOARDS {
        let (name, text) = (dashboard.name, dashboard.file());
        files.push(GeneratedFile::new(
            format!("{CHART}/files/dashboards/{name}.json"),
            text.clone(),
        ));
        files.push(GeneratedFile::new(
            format!("{DASHBOARD_DIRECTORY}/{name}.json"),
            text,
        ));
    }
    files
}

/// Builds Prometheus, however long this takes, and checks the rules.
pub(crate) fn run() -> Result<Outcome> {
    run_with(prometheus::prepare(Duration::MAX)?)
}

/// Like [`run`]. Skips the check if Prometheus cannot be built in a short time.
pub(crate) fn check() -> Result<Outcome> {
    match prometheus::prepare(BUILD_LIMIT_OF_CHECK) {
        Ok(found) => run_with(found),
        Err(err) => Ok(Outcome::Skipped(format!("{err:#}"))),
    }
}

fn run_with(found: prometheus::Found) -> Result<Outcome> {
    let directory = match found {
        prometheus::Found::Directory(directory) => directory,
        prometheus::Found::Missing(reason) => return Ok(Outcome::Skipped(reason)),
    };
    for args in [
        ["check", "rules", "--lint=all", "--lint-fatal", RULES].as_slice(),
        &["test", "rules", RULE_TESTS],
    ] {
        let mut promtool = Command::new(directory.join("promtool"));
        console::output(promtool.args(args).current_dir(console::root()))?;
    }
    println!("{} alerts: rules and their tests pass", ALERTS.len());
    check_types()?;
    setup::run()?;
    libtest::run(&["--workspace", "--test", "e2e"], &["monitoring::"], |test| {
        test.env("ROOFLET_PROMETHEUS_DIR", &directory);
    })
}

/// Checks the dashboards against the types of Grafana's schema, if npm is installed and online.
fn check_types() -> Result<()> {
    if web::missing().is_some() {
        println!("types of the dashboards are not checked: npm is not installed");
        return Ok(());
    }
    match web::npm_in(DASHBOARD_TYPES, &["ci", "--no-audit", "--no-fund"]) {
        Err(err) if web::is_offline(&format!("{err:#}")) => {
            println!("types of the dashboards are not checked: npm does not reach its registry");
            return Ok(());
        }
        installed => installed?,
    }
    web::npm_in(DASHBOARD_TYPES, &["test"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_files_of_monitoring_are_up_to_date() {
        for file in files() {
            file.check().expect("up to date");
        }
    }
}
