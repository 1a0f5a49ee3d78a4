//! The report as text.

use std::fmt::Write as _;

use super::check::{Check, Status};
use super::{Difference, Report};

/// Width of a line.
const WIDTH: usize = 100;
/// Width of the column with the status, and of the indentation.
const STATUS: usize = 9;

/// Name of the line that lists the checks whose value the machine does not report.
const NOT_REPORTED: &str = "not reported";

/// Formats a report: one paragraph per area, and each remedy below its finding.
pub(super) fn render(report: &Report) -> String {
    let mut text = format!("rooflet {}\n", report.version);
    let longest = report.checks.iter().map(|check| check.name.chars().count()).max();
    let name_width = longest.unwrap_or_default().max(NOT_REPORTED.len());
    for checks in report.checks.chunk_by(|one, next| one.area == next.area) {
        let Some(first) = checks.first() else { continue };
        let _ = write!(text, "\n{}\n", first.area);
        let (silent, shown): (Vec<_>, Vec<_>) = checks.iter().partition(|check| is_silent(check));
        for check in shown {
            write_check(&mut text, check, name_width);
        }
        if !silent.is_empty() {
            let names: Vec<_> = silent.iter().map(|check| check.name.as_str()).collect();
            let all = Check::unknown(NOT_REPORTED, names.join(", "));
            write_check(&mut text, &all, name_width);
        }
    }
    if !report.differences.is_empty() {
        text.push_str("\nDifferent in this session\n");
        for Difference {
            name,
            daemon,
            session,
        } in &report.differences
        {
            let shown = |status: &Option<Status>| {
                status.map_or("not checked".to_owned(), |status| status.to_string())
            };
            let _ = writeln!(
                text,
                "  {name:name_width$}  {} in launchd, {} here",
                shown(daemon),
                shown(session)
            );
        }
    }
    let count = |status| {
        report
            .checks
            .iter()
            .filter(|check| check.status == status)
            .count()
    };
    let _ = writeln!(
        text,
        "\n{} ok, {} warn, {} fail, {} unknown",
        count(Status::Ok),
        count(Status::Warn),
        count(Status::Fail),
        count(Status::Unknown)
    );
    text
}

/// Returns true if the machine does not report the value of a check.
fn is_silent(check: &Check) -> bool {
    check.status == Status::Unknown && check.remedy.is_none() && check.finding == NOT_REPORTED
}

fn write_check(text: &mut String, check: &Check, name_width: usize) {
    let status = check.status.to_string();
    let indentation = 2 + STATUS + name_width + 2;
    let width = WIDTH.saturating_sub(indentation);
    let mut head = format!("  {status:STATUS$}{:name_width$}", check.name);
    let remedy = check.remedy.as_ref().map(|remedy| format!("Remedy: {remedy}"));
    for paragraph in [Some(&check.finding), remedy.as_ref()].into_iter().flatten() {
        for line in wrapped(paragraph, width) {
            let _ = writeln!(text, "{head:indentation$}{line}");
            head.clear();
        }
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
mod tests {
    use super::*;
    use crate::check::Area;

    #[test]
    fn remedies_are_below_their_findings_and_lines_wrap() {
        let report = Report {
            version: "0.1.0".to_owned(),
            checks: vec![
                Check::ok("chip", "Apple M4"),
                Check::warn(
                    "memory",
                    "3.1 GiB of 24.0 GiB available, 2.0 GiB more by compression; the system reports a memory warning: no model starts",
                    "close other programs, or serve smaller models",
                ),
                Check::unknown("heat", "not reported").of(Area::Power),
                Check::ok("power supply", "AC power").of(Area::Power),
                Check::unknown("lid", "not reported").of(Area::Power),
                Check::unknown("hub", "not reached").of(Area::Network),
            ],
            differences: vec![Difference {
                name: "chip".to_owned(),
                daemon: Some(Status::Ok),
                session: None,
            }],
            facts: None,
        };
        let expect = "\
rooflet 0.1.0

Machine
  ok       chip          Apple M4
  warn     memory        3.1 GiB of 24.0 GiB available, 2.0 GiB more by compression; the system
                         reports a memory warning: no model starts
                         Remedy: close other programs, or serve smaller models

Power
  ok       power supply  AC power
  unknown  not reported  heat, lid

Network
  unknown  hub           not reached

Different in this session
  chip          ok in launchd, not checked here

2 ok, 1 warn, 0 fail, 3 unknown
";
        assert_eq!(render(&report), expect);
    }
}
