//! Whether a published number can be true: a claim's figures against the limits of the machine, the
//! facts of chip and model, its own arithmetic and its other figures.
//!
//! Limits are hard: what is merely faster than predicted is never flagged. Input is the spec of a
//! PerformanceClaim, output an [`Assessment`]; `docs/claims.md` describes both for people.

mod cell;
mod consistency;
mod description;
mod expression;
mod facts;
mod field;
mod figure_class;
mod lexer;
mod limits;
mod machine;
mod method;
mod model;
mod sides;
mod stated;
mod statement;
mod unit;

use cell::Cell;
use rooflet_api::v1alpha1::{ClaimCheck, ClaimFinding, ClaimVerdict, PerformanceClaimSpec};
use stated::Measure;
use statement::{Outcome, Statement};

/// The outcome of checking one claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    pub verdict: ClaimVerdict,
    /// The gravest first.
    pub findings: Vec<ClaimFinding>,
    /// Every fact, figure and statement, in the order of the claim.
    pub checks: Vec<ClaimCheck>,
}

/// What keeps a claim from being read: the field, and what to write instead.
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
    /// Checks everything that a claim says.
    pub fn new(spec: &PerformanceClaimSpec) -> Result<Self, InvalidClaim> {
        if spec.figures.is_empty()
            && spec.statements.is_empty()
            && spec.hardware.is_empty()
            && spec.model.is_empty()
        {
            return Err(InvalidClaim::new(
                "figures",
                "the claim holds no figure, no statement and no fact to check",
            ));
        }
        let mut report = Report::default();
        let whole = Cell::of_claim(spec)?;
        description::check_description(spec, &whole, &mut report)?;
        let mut cells = Vec::new();
        for (index, figure) in spec.figures.iter().enumerate() {
            cells.push(Cell::of_figure(spec, figure, &format!("figures[{index}]"))?);
        }
        for cell in &cells {
            report.open(&cell.field, cell.subject());
        }
        for (index, text) in spec.statements.iter().enumerate() {
            let field = format!("statements[{index}]");
            check_statement(text, &field, &mut report);
            // `weightBytes: 12B * 0.5 B = 6 GB` states a figure, too.
            cells.extend(Cell::of_statement(spec, text, &field)?);
        }
        for cell in &cells {
            limits::check(cell, &mut report);
            facts::check_figure(cell, &mut report);
            method::check_figure(cell, &mut report);
        }
        consistency::check(&cells, &mut report);
        method::check_together(spec, &cells, &mut report);
        Ok(report.close())
    }
}

fn check_statement(text: &str, field: &str, report: &mut Report) {
    report.open(field, text.to_owned());
    match Statement::new(text).check() {
        Outcome::Holds { working } => report.pass(field, working),
        Outcome::Wrong(mistake) => {
            let note = mistake.note.map_or_else(String::new, |note| format!("; {note}"));
            let message = format!(
                "the calculation gives {}, not {}{note}",
                mistake.right, mistake.claimed
            );
            report.flag(
                field,
                Flag::new(ClaimVerdict::ArithmeticError, message)
                    .instead(mistake.claimed, mistake.right, mistake.right_value)
                    .factor(mistake.factor),
            );
        }
        Outcome::Unreadable(why) => report.remark(field, format!("not checked: {why}")),
    }
}

/// One fault, on its way into the report.
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

/// What was found so far.
#[derive(Debug, Default)]
struct Report {
    findings: Vec<ClaimFinding>,
    checks: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    field: String,
    subject: String,
    /// Something could be said of it.
    tested: bool,
    remarks: Vec<String>,
}

impl Report {
    /// Begins to speak of a field.
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

    /// It was checked and holds.
    fn pass(&mut self, field: &str, remark: impl Into<String>) {
        self.remark(field, remark);
        self.entry(field).tested = true;
    }

    fn remark(&mut self, field: &str, remark: impl Into<String>) {
        let remark = remark.into();
        let entry = self.entry(field);
        if !remark.is_empty() && !entry.remarks.contains(&remark) {
            entry.remarks.push(remark);
        }
    }

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

    /// Takes back a finding: another one of the same figure says more.
    fn withdraw(&mut self, field: &str, verdict: ClaimVerdict) -> Option<ClaimFinding> {
        let is_it = |finding: &ClaimFinding| finding.field == field && finding.verdict == verdict;
        let at = self.findings.iter().position(is_it)?;
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
        let gravest = |field: &str| {
            let of_field = findings.iter().filter(|finding| finding.field == field);
            of_field.map(|finding| finding.verdict).min()
        };
        let checks: Vec<ClaimCheck> = self
            .checks
            .into_iter()
            .map(|entry| ClaimCheck {
                verdict: gravest(&entry.field).unwrap_or(if entry.tested {
                    ClaimVerdict::Plausible
                } else {
                    ClaimVerdict::Untestable
                }),
                field: entry.field,
                subject: entry.subject,
                remarks: entry.remarks,
            })
            .collect();
        // That the chip exists says nothing of what is claimed for it.
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

/// Six significant digits: more would only show how binary fractions end.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests;
