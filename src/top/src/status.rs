//! Summary of the fleet for `rooflet status`: problems first. The module is pure.

mod problem;

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Serialize;

use self::problem::{Finding, findings};
use crate::age::age;
use crate::table::{Cell, Column, Row, Table};
use crate::view::format::{bandwidth, memory, rate};
use crate::view::{DeploymentRow, MacRow, Totals, Usage, View};

/// Width of wrapped messages, in characters.
const WIDTH: usize = 100;
/// Maximum number of printed rows of a table. The fleet's problems are printed in any case.
const MAX_ROWS: usize = 20;

const DEPLOYMENTS: [Column; 6] = [
    Column::text("DEPLOYMENT", 0),
    Column::number("READY", 0),
    Column::text("STATE", 0),
    Column::text("MODEL", 0),
    Column::number("TOK/S PRED", 0),
    Column::number("TOK/S MEAS", 0),
];
const MACS: [Column; 6] = [
    Column::text("MAC", 0),
    Column::text("STATUS", 0),
    Column::text("CHIP", 0),
    Column::number("MEMORY", 0),
    Column::number("BANDWIDTH", 0),
    Column::number("REPLICAS", 0),
];

/// Summary of the fleet.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetStatus<'a> {
    time: Timestamp,
    /// Most severe first.
    problems: Vec<Finding>,
    totals: &'a Totals,
    deployments: &'a [DeploymentRow],
    macs: &'a [MacRow],
}

impl<'a> FleetStatus<'a> {
    pub fn new(view: &'a View) -> Self {
        Self {
            time: view.time,
            problems: findings(view),
            totals: &view.totals,
            deployments: &view.deployments,
            macs: &view.macs,
        }
    }

    /// Returns the summary as text: problems, totals, deployments, Macs.
    pub fn text(&self) -> String {
        let mut text = String::new();
        match self.problems.len() {
            0 => text.push_str("No problems.\n"),
            1 => text.push_str("1 problem:\n"),
            count => _ = writeln!(text, "{count} problems:"),
        }
        for problem in &self.problems {
            self.write_problem(&mut text, problem);
        }
        text.push('\n');
        self.write_totals(&mut text);
        let deployments = self.deployments.iter().map(DeploymentRow::short_row);
        write_table(&mut text, &DEPLOYMENTS, deployments.collect());
        write_table(
            &mut text,
            &MACS,
            self.macs.iter().map(MacRow::short_row).collect(),
        );
        text
    }

    fn write_problem(&self, text: &mut String, problem: &Finding) {
        let since = problem
            .since
            .map(|since| format!(" for {}", age(since, self.time)));
        let _ = writeln!(
            text,
            "  {} {}: {}{}",
            problem.severity,
            problem.objects(),
            problem.reason,
            since.unwrap_or_default()
        );
        for line in wrapped(&problem.message, WIDTH - 6) {
            let _ = writeln!(text, "      {line}");
        }
    }

    fn write_totals(&self, text: &mut String) {
        let totals = self.totals;
        let mut line = format!(
            "{} of {} Macs ready, {} of {} replicas ready",
            totals.ready_macs, totals.macs, totals.ready_replicas, totals.replicas
        );
        let used = |usage: Option<Usage>, show: fn(Usage) -> String, what: &str| {
            usage.map_or_else(String::new, |usage| format!(", {} {what} reserved", show(usage)))
        };
        line.push_str(&used(totals.memory, memory, "memory"));
        line.push_str(&used(totals.bandwidth, bandwidth, "bandwidth"));
        if let Some(requests) = totals.requests {
            line.push_str(&format!(
                ", {} requests running, {} waiting",
                requests.running, requests.waiting
            ));
        }
        for line in wrapped(&line, WIDTH) {
            text.push_str(&line);
            text.push('\n');
        }
    }
}

impl DeploymentRow {
    fn short_row(&self) -> Row {
        let speed = &self.tokens_per_second;
        Row {
            id: self.id(),
            cells: vec![
                Cell::text(self.id()),
                Cell::text(format!("{}/{}", self.ready_replicas, self.desired_replicas)),
                self.state(),
                Cell::text(&self.model),
                Cell::number(speed.predicted, rate),
                Cell::number(speed.measured, rate),
            ],
        }
    }
}

impl MacRow {
    fn short_row(&self) -> Row {
        let show = |usage: Option<Usage>, show: fn(Usage) -> String| {
            usage.map_or_else(Cell::unknown, |usage| Cell::text(show(usage)))
        };
        Row {
            id: self.name.clone(),
            cells: vec![
                Cell::text(&self.name),
                Cell::text(self.status()),
                Cell::text(self.chip().trim()),
                show(self.memory, memory),
                show(self.bandwidth, bandwidth),
                Cell::count(Some(self.replicas)),
            ],
        }
    }
}

fn write_table(text: &mut String, columns: &'static [Column], mut rows: Vec<Row>) {
    let hidden = rows.len().saturating_sub(MAX_ROWS);
    rows.truncate(MAX_ROWS);
    if let Some(table) = (Table { columns, rows }).text() {
        let _ = write!(text, "\n{table}");
    }
    if hidden > 0 {
        let _ = writeln!(text, "... and {hidden} more; `rooflet top --once` prints all");
    }
}

/// Breaks a text into lines. Longer words have a line of their own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests;
