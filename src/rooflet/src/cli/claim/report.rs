//! Plain text of a checked claim.

use super::CheckedClaim;
use rooflet_api::v1alpha1::{ClaimFinding, ClaimVerdict};

pub(super) fn text(checked: &CheckedClaim) -> String {
    let mut text = format!("{}: {}\n", checked.claim, checked.verdict);
    if let Some(source) = &checked.source {
        line(&mut text, 2, &format!("source: {source}"));
    }
    for check in &checked.checks {
        let mark = match check.verdict {
            ClaimVerdict::Plausible => "ok",
            ClaimVerdict::Untestable => "--",
            ClaimVerdict::ExceedsRoofline
            | ClaimVerdict::Contradictory
            | ClaimVerdict::ArithmeticError
            | ClaimVerdict::WrongFact
            | ClaimVerdict::MethodUnclear => "!!",
        };
        let place = if check.subject.starts_with(&check.field) {
            check.subject.clone()
        } else {
            format!("{}  {}", check.field, check.subject)
        };
        line(&mut text, 2, &format!("{mark} {place}"));
        for finding in checked
            .findings
            .iter()
            .filter(|finding| finding.field == check.field)
        {
            line(
                &mut text,
                5,
                &format!("{}: {}{}", finding.verdict, finding.message, correction(finding)),
            );
        }
        for remark in &check.remarks {
            line(&mut text, 5, remark);
        }
    }
    text
}

/// Returns the correct value, unless the message already contains it.
fn correction(finding: &ClaimFinding) -> String {
    match (&finding.claimed, &finding.right) {
        (Some(claimed), Some(right)) if !finding.message.contains(right.as_str()) => {
            format!(" [claimed: {claimed}; right: {right}]")
        }
        (Some(_) | None, Some(_) | None) => String::new(),
    }
}

fn line(text: &mut String, indent: usize, words: &str) {
    text.push_str(&format!(
        "{:indent$}{words}
",
        ""
    ));
}
