//! From a claim to its status, and what is told about it. Pure.

use jiff::Timestamp;

use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{ClaimVerdict, PerformanceClaim, PerformanceClaimStatus};
use rooflet_claim::{Assessment, InvalidClaim};
use rooflet_client::EventType;

/// The verdict is in the status.
const JUDGED: &str = "Judged";
/// The faults that a message names; the status has all.
const FINDINGS_TOLD: usize = 3;

/// Why a claim has no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unjudged {
    #[error("spec.{0}")]
    Invalid(InvalidClaim),
    #[error("the judge failed over this claim; its log says where, and any change of the claim tries again")]
    Broken,
}

impl Unjudged {
    /// Of the conditions and the event.
    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "InvalidClaim",
            Self::Broken => "JudgeFailed",
        }
    }
}

/// What to write for one claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judgement {
    pub(super) status: PerformanceClaimStatus,
    pub(super) event: EventType,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Judgement {
    pub(super) fn new(
        claim: &PerformanceClaim,
        assessment: Result<Assessment, Unjudged>,
        now: Timestamp,
    ) -> Self {
        let generation = claim.metadata.generation;
        let conditions = claim
            .status
            .as_ref()
            .map_or_else(Vec::new, |status| status.conditions.clone());
        let mut status = PerformanceClaimStatus {
            observed_generation: generation,
            conditions,
            ..PerformanceClaimStatus::default()
        };
        let set =
            |status: &mut PerformanceClaimStatus, kind: &str, truth: Truth, reason: &str, message: &str| {
                set_condition(
                    &mut status.conditions,
                    kind,
                    truth,
                    reason,
                    message,
                    generation,
                    now,
                );
            };
        let assessment = match assessment {
            Ok(assessment) => assessment,
            Err(err) => {
                let (reason, message) = (err.reason(), err.to_string());
                set(&mut status, condition_type::READY, Truth::False, reason, &message);
                set(
                    &mut status,
                    condition_type::PLAUSIBLE,
                    Truth::Unknown,
                    reason,
                    &message,
                );
                return Self {
                    status,
                    event: EventType::Warning,
                    reason,
                    message,
                };
            }
        };
        let verdict = assessment.verdict;
        let message = summary(&assessment);
        let truth = match verdict {
            ClaimVerdict::Plausible => Truth::True,
            ClaimVerdict::Untestable => Truth::Unknown,
            ClaimVerdict::ExceedsRoofline
            | ClaimVerdict::Contradictory
            | ClaimVerdict::ArithmeticError
            | ClaimVerdict::WrongFact
            | ClaimVerdict::MethodUnclear => Truth::False,
        };
        set(
            &mut status,
            condition_type::READY,
            Truth::True,
            JUDGED,
            "the verdict is in the status",
        );
        set(
            &mut status,
            condition_type::PLAUSIBLE,
            truth,
            verdict.as_str(),
            &message,
        );
        let holds = assessment
            .checks
            .iter()
            .filter(|check| !check.verdict.is_flag())
            .count();
        status.verdict = Some(verdict);
        status.figures = Some(format!("{holds}/{}", assessment.checks.len()));
        status.findings = assessment.findings;
        status.checks = assessment.checks;
        let event = if verdict.is_flag() {
            EventType::Warning
        } else {
            EventType::Normal
        };
        Self {
            status,
            event,
            reason: verdict.as_str(),
            message,
        }
    }
}

/// The gravest faults in a sentence each.
fn summary(assessment: &Assessment) -> String {
    let findings = &assessment.findings;
    if findings.is_empty() {
        return if assessment.verdict == ClaimVerdict::Untestable {
            "nothing in it can be checked; status.checks say why".to_owned()
        } else {
            format!("no fault found in {} checks", assessment.checks.len())
        };
    }
    let told: Vec<String> = findings
        .iter()
        .take(FINDINGS_TOLD)
        .map(|finding| format!("spec.{}: {}", finding.field, finding.message))
        .collect();
    let more = findings.len().saturating_sub(FINDINGS_TOLD);
    let more = if more > 0 {
        format!(" (and {more} more)")
    } else {
        String::new()
    };
    format!("{}{more}", told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::conditions::is_true;
    use rooflet_base::yaml;

    fn judge(spec: &str) -> Judgement {
        let spec = yaml::from_str(spec).unwrap();
        let mut claim = PerformanceClaim::new("claim", spec);
        claim.metadata.generation = Some(3);
        judged(&claim, 0)
    }

    fn judged(claim: &PerformanceClaim, second: i64) -> Judgement {
        let assessment = Assessment::new(&claim.spec).map_err(Unjudged::Invalid);
        Judgement::new(claim, assessment, Timestamp::from_second(second).unwrap())
    }

    fn condition<'a>(judgement: &'a Judgement, kind: &str) -> (&'a str, &'a str) {
        let conditions = &judgement.status.conditions;
        let condition = conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .unwrap();
        (&condition.status, &condition.reason)
    }

    #[test]
    fn the_verdict_is_condition_column_and_event() {
        let judgement = judge(
            "{hardware: {chip: M4 Pro}, model: {name: gemma-3-12b-it-4bit}, figures: [{kind: decodeTokensPerSecond, value: 77.7}]}",
        );
        assert_eq!(condition(&judgement, "Ready"), ("True", "Judged"));
        assert_eq!(condition(&judgement, "Plausible"), ("False", "ExceedsRoofline"));
        assert_eq!(judgement.status.figures.as_deref(), Some("2/3"));
        assert_eq!(judgement.status.observed_generation, Some(3));
        assert_eq!(
            (judgement.event, judgement.reason),
            (EventType::Warning, "ExceedsRoofline")
        );
        assert!(
            judgement
                .message
                .starts_with("spec.figures[0]: 77.7 tok/s is impossible"),
            "{}",
            judgement.message
        );

        let judgement = judge("{statements: ['1 + 1 = 2']}");
        assert!(is_true(&judgement.status.conditions, "Plausible"));
        assert_eq!(
            (judgement.event, judgement.reason),
            (EventType::Normal, "Plausible")
        );

        let judgement = judge("{figures: [{kind: other, value: 5}]}");
        assert_eq!(condition(&judgement, "Plausible"), ("Unknown", "Untestable"));
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_field() {
        let judgement = judge("{figures: [{kind: decodeTokensPerSecond, value: fast}]}");
        assert_eq!(condition(&judgement, "Ready"), ("False", "InvalidClaim"));
        assert!(
            judgement.message.starts_with("spec.figures[0].value"),
            "{}",
            judgement.message
        );
        assert_eq!(judgement.status.verdict, None);
    }

    #[test]
    fn a_judge_that_failed_says_so() {
        let claim = PerformanceClaim::new("claim", yaml::from_str("{statements: ['1 + 1 = 2']}").unwrap());
        let judgement = Judgement::new(&claim, Err(Unjudged::Broken), Timestamp::UNIX_EPOCH);
        assert_eq!(condition(&judgement, "Ready"), ("False", "JudgeFailed"));
        assert_eq!(condition(&judgement, "Plausible"), ("Unknown", "JudgeFailed"));
    }

    #[test]
    fn judging_again_changes_nothing() {
        let spec = yaml::from_str("{statements: ['1 + 1 = 3']}").unwrap();
        let mut claim = PerformanceClaim::new("claim", spec);
        let first = judged(&claim, 0);
        claim.status = Some(first.status.clone());
        assert_eq!(judged(&claim, 500), first);
    }
}
