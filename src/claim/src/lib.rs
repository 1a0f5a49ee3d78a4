//! Check of published performance figures.
//!
//! The check compares the figures of a claim with the limits of the machine, the facts of chip and
//! model, the claim's own arithmetic, and its other figures. Only hard limits cause findings: a
//! figure above the prediction is a remark. The input is the spec of a PerformanceClaim, the output
//! an [`Assessment`]. `docs/claims.md` describes both.

mod cell;
mod consistency;
mod description;
mod differences;
mod expression;
mod facts;
mod field;
mod figure_class;
mod lexer;
mod limits;
mod machine;
mod method;
mod model;
mod request_times;
mod sides;
mod stated;
mod statement;
mod unit;

use cell::Cell;
use rooflet_api::v1alpha1::{ClaimCheck, ClaimFinding, ClaimVerdict, PerformanceClaimSpec};
use stated::Measure;
use statement::{Outcome, Statement};

/// Result of checking one claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    pub verdict: ClaimVerdict,
    /// Sorted by severity, most severe first.
    pub findings: Vec<ClaimFinding>,
    /// Checks of every fact, figure and statement, in the order of the claim.
    pub checks: Vec<ClaimCheck>,
}

/// Invalid field of a claim. The message describes the expected value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidClaim {
    pub field: String,
    pub message: String,
}

impl InvalidClaim {
    fn new(field: impl Into<String>, message: impl ToString) -> Self {
        Self {
            field: field.into(),
            message: message.to_string(),
        }
    }
}

impl Assessment {
    /// Checks all facts, figures and statements of a claim.
    ///
    /// Returns an error if a field is invalid or the claim is empty.
    pub fn new(spec: &PerformanceClaimSpec) -> Result<Self, InvalidClaim> {
        if spec.figures.is_empty()
            && spec.statements.is_empty()
            && spec.hardware.is_empty()
            && spec.model.is_empty()
        {
            return Err(InvalidClaim::new(
                "figures",
                "the claim contains no figure, no statement and no fact to check",
            ));
        }
        let mut report = Report::default();
        let whole = Cell::of_claim(spec)?;
        description::check_description(spec, &whole, &mut report)?;
        let mut cells = Vec::new();
        for (index, figure) in spec.figures.iter().enumerate() {
            let cell = Cell::of_figure(spec, figure, &format!("figures[{index}]"))?;
            description::check_memory_of_figure(figure, &cell, &mut report);
            cells.push(cell);
        }
        for cell in &cells {
            report.open(&cell.field, cell.subject());
        }
        for (index, text) in spec.statements.iter().enumerate() {
            let field = format!("statements[{index}]");
            check_statement(text, &field, &mut report);
            // `weightBytes: 12B * 0.5 B = 6 GB` also states a figure.
            cells.extend(Cell::of_statement(spec, text, &field)?);
        }
        consistency::find_single_sequences(&mut cells);
        for cell in &cells {
            limits::check(cell, &mut report);
            facts::check_figure(cell, &mut report);
            method::check_figure(cell, &mut report);
        }
        consistency::check(&cells, &mut report);
        differences::check(&cells, &mut report);
        method::check_together(spec, &cells, &mut report);
        Ok(report.close())
    }
}

fn check_statement(text: &str, field: &str, report: &mut Report) {
    report.open(field, text.to_owned());
    match Statement::new(text).check() {
        Outcome::Holds { working } => report.pass(field, working),
        Outcome::Wrong(wrong_result) => {
            let note = wrong_result
                .note
                .map_or_else(String::new, |note| format!("; {note}"));
            let message = format!(
                "the calculation gives {}, not {}{note}",
                wrong_result.right, wrong_result.claimed
            );
            report.flag(
                field,
                Flag::new(ClaimVerdict::ArithmeticError, message)
                    .instead(wrong_result.claimed, wrong_result.right, wrong_result.right_value)
                    .factor(wrong_result.factor),
            );
        }
        Outcome::NotCalculable(why) => report.remark(field, format!("not checked: {why}")),
    }
}

/// Finding under construction.
#[derive(Debug, Clone)]
struct Flag {
    verdict: ClaimVerdict,
    message: String,
    claimed: Option<String>,
    right: Option<String>,
    right_value: Option<f64>,
    factor: Option<f64>,
}

impl Flag {
    fn new(verdict: ClaimVerdict, message: impl Into<String>) -> Self {
        Self {
            verdict,
            message: message.into(),
            claimed: None,
            right: None,
            right_value: None,
            factor: None,
        }
    }

    fn instead(mut self, claimed: impl Into<String>, right: impl Into<String>, right_value: f64) -> Self {
        self.claimed = Some(claimed.into());
        self.right = Some(right.into());
        self.right_value = Some(right_value).filter(|value| value.is_finite());
        self
    }

    fn factor(mut self, factor: f64) -> Self {
        self.factor = Some(factor).filter(|factor| factor.is_finite());
        self
    }
}

/// Findings and checks collected so far.
#[derive(Debug, Default)]
struct Report {
    findings: Vec<ClaimFinding>,
    checks: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    field: String,
    subject: String,
    /// True if the entry was checked against a limit, a fact or another figure.
    tested: bool,
    remarks: Vec<String>,
}

impl Report {
    /// Adds an entry for a field, if it has none.
    fn open(&mut self, field: &str, subject: String) {
        if !self.checks.iter().any(|entry| entry.field == field) {
            self.checks.push(Entry {
                field: field.to_owned(),
                subject,
                tested: false,
                remarks: Vec::new(),
            });
        }
    }

    fn entry(&mut self, field: &str) -> &mut Entry {
        self.open(field, field.to_owned());
        let at = self.checks.iter().position(|entry| entry.field == field);
        &mut self.checks[at.expect("opened on the line above")]
    }

    /// Records that a check of the field passed.
    fn pass(&mut self, field: &str, remark: impl Into<String>) {
        self.remark(field, remark);
        self.entry(field).tested = true;
    }

    /// Records a remark that is not a finding.
    fn remark(&mut self, field: &str, remark: impl Into<String>) {
        let remark = remark.into();
        let entry = self.entry(field);
        if !remark.is_empty() && !entry.remarks.contains(&remark) {
            entry.remarks.push(remark);
        }
    }

    /// Records a finding.
    fn flag(&mut self, field: &str, flag: Flag) {
        self.entry(field).tested = true;
        self.findings.push(ClaimFinding {
            verdict: flag.verdict,
            field: field.to_owned(),
            message: flag.message,
            claimed: flag.claimed,
            right: flag.right,
            right_value: flag.right_value.map(rounded),
            factor: flag.factor.map(rounded),
        });
    }

    /// Removes and returns a finding, so that a more specific one can replace it.
    fn remove_finding(&mut self, field: &str, verdict: ClaimVerdict) -> Option<ClaimFinding> {
        let matches = |finding: &ClaimFinding| finding.field == field && finding.verdict == verdict;
        let at = self.findings.iter().position(matches)?;
        Some(self.findings.remove(at))
    }

    fn has(&self, field: &str, verdict: ClaimVerdict) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.field == field && finding.verdict == verdict)
    }

    fn close(mut self) -> Assessment {
        self.findings.sort_by_key(|finding| finding.verdict);
        let findings = self.findings;
        let most_severe = |field: &str| {
            let of_field = findings.iter().filter(|finding| finding.field == field);
            of_field.map(|finding| finding.verdict).min()
        };
        let checks: Vec<ClaimCheck> = self
            .checks
            .into_iter()
            .map(|entry| ClaimCheck {
                verdict: most_severe(&entry.field).unwrap_or(if entry.tested {
                    ClaimVerdict::Plausible
                } else {
                    ClaimVerdict::Untestable
                }),
                field: entry.field,
                subject: entry.subject,
                remarks: entry.remarks,
            })
            .collect();
        // An existing chip does not make the claimed numbers plausible.
        let is_number =
            |check: &&ClaimCheck| check.field.starts_with("figures") || check.field.starts_with("statements");
        let has_numbers = checks.iter().any(|check| is_number(&check));
        let verdict = checks
            .iter()
            .filter(|check| check.verdict.is_flag() || !has_numbers || is_number(check))
            .map(|check| check.verdict)
            .min()
            .unwrap_or(ClaimVerdict::Untestable);
        Assessment {
            verdict,
            findings,
            checks,
        }
    }
}

/// Rounds to six significant digits, which hides binary rounding errors.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests;
