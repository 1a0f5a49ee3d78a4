//! Status and event of an assessed PerformanceClaim. Pure.

use jiff::Timestamp;

use crate::intent::{EmitOn, Intent, PlannedEvent, PlannedWrite, Regarding, Version};
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{ClaimVerdict, PerformanceClaim, PerformanceClaimStatus};
use rooflet_claim::{Assessment, InvalidClaim};
use rooflet_client::EventType;

/// Reason of the condition Ready if the claim has a verdict.
const JUDGED: &str = "Judged";
/// Maximum number of findings in a message. The status contains all of them.
const MAX_FINDINGS_IN_MESSAGE: usize = 3;

/// Error that prevents a verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CheckError {
    #[error("spec.{0}")]
    Invalid(InvalidClaim),
    #[error(
        "internal error while checking the claim; see the controller's log for the cause, and change the \
         claim to retry"
    )]
    Internal,
}

impl CheckError {
    /// Returns the reason of the conditions and the event.
    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "InvalidClaim",
            Self::Internal => "JudgeFailed",
        }
    }
}

/// Returns the write of the status. The write emits an event if it changes the status.
pub(super) fn status_write(
    claim: &PerformanceClaim,
    assessment: Result<Assessment, CheckError>,
    now: Timestamp,
) -> PlannedWrite {
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
    let mut set = |kind: &str, truth: Truth, reason: &str, message: &str| {
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
    let (kind, reason, message) = match assessment {
        Ok(assessment) => {
            let (verdict, message) = (assessment.verdict, summary(&assessment));
            set(condition_type::READY, Truth::True, JUDGED, "see status.verdict");
            let reason = verdict.as_str();
            set(condition_type::PLAUSIBLE, truth(verdict), reason, &message);
            let checks = assessment.checks.iter();
            let passed = checks.filter(|check| !check.verdict.is_flag()).count();
            status.verdict = Some(verdict);
            status.figures = Some(format!("{passed}/{}", assessment.checks.len()));
            status.findings = assessment.findings;
            status.checks = assessment.checks;
            let kind = match verdict.is_flag() {
                true => EventType::Warning,
                false => EventType::Normal,
            };
            (kind, reason, message)
        }
        Err(err) => {
            let (reason, message) = (err.reason(), err.to_string());
            set(condition_type::READY, Truth::False, reason, &message);
            set(condition_type::PLAUSIBLE, Truth::Unknown, reason, &message);
            (EventType::Warning, reason, message)
        }
    };
    let of = Version::of(claim);
    let event = PlannedEvent {
        regarding: Regarding::Claim(of.clone()),
        kind,
        reason: reason.to_owned(),
        message,
        on: EmitOn::Change,
    };
    let status = Box::new(status);
    PlannedWrite::from(Intent::ClaimStatus { of, status }).with_event(event)
}

/// Returns the status of the condition Plausible.
fn truth(verdict: ClaimVerdict) -> Truth {
    match verdict {
        ClaimVerdict::Plausible => Truth::True,
        ClaimVerdict::Untestable => Truth::Unknown,
        ClaimVerdict::ExceedsRoofline
        | ClaimVerdict::Contradictory
        | ClaimVerdict::ArithmeticError
        | ClaimVerdict::WrongFact
        | ClaimVerdict::MethodUnclear => Truth::False,
    }
}

/// Returns the message with the most severe findings, one clause each.
fn summary(assessment: &Assessment) -> String {
    let findings = &assessment.findings;
    if findings.is_empty() {
        return if assessment.verdict == ClaimVerdict::Untestable {
            "the claim contains nothing that can be checked; see status.checks".to_owned()
        } else {
            format!("no fault found in {} checks", assessment.checks.len())
        };
    }
    let clauses: Vec<String> = findings
        .iter()
        .take(MAX_FINDINGS_IN_MESSAGE)
        .map(|finding| format!("spec.{}: {}", finding.field, finding.message))
        .collect();
    let more = findings.len().saturating_sub(MAX_FINDINGS_IN_MESSAGE);
    let more = if more > 0 {
        format!(" (and {more} more)")
    } else {
        String::new()
    };
    format!("{}{more}", clauses.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::conditions::is_true;
    use rooflet_base::yaml;

    /// Status and event of a claim.
    #[derive(Debug, PartialEq)]
    struct Written {
        status: PerformanceClaimStatus,
        event: PlannedEvent,
    }

    impl Written {
        fn of(spec: &str) -> Self {
            let spec = yaml::from_str(spec).unwrap();
            let mut claim = PerformanceClaim::new("claim", spec);
            claim.metadata.generation = Some(3);
            Self::at(&claim, 0)
        }

        fn at(claim: &PerformanceClaim, second: i64) -> Self {
            let assessment = Assessment::new(&claim.spec).map_err(CheckError::Invalid);
            let now = Timestamp::from_second(second).unwrap();
            Self::new(status_write(claim, assessment, now))
        }

        #[track_caller]
        fn new(mut write: PlannedWrite) -> Self {
            let Intent::ClaimStatus { status, .. } = write.intent else {
                panic!("{write:?}");
            };
            Self {
                status: *status,
                event: write.events.remove(0),
            }
        }

        fn condition(&self, kind: &str) -> (&str, &str) {
            let mut conditions = self.status.conditions.iter();
            let condition = conditions.find(|condition| condition.type_ == kind).unwrap();
            (&condition.status, &condition.reason)
        }
    }

    #[test]
    fn verdict_is_in_status_conditions_and_event() {
        let written = Written::of(
            "{hardware: {chip: M4 Pro}, model: {name: gemma-3-12b-it-4bit}, figures: [{kind: decodeTokensPerSecond, value: 77.7}]}",
        );
        assert_eq!(written.condition("Ready"), ("True", "Judged"));
        assert_eq!(written.condition("Plausible"), ("False", "ExceedsRoofline"));
        assert_eq!(written.status.figures.as_deref(), Some("2/3"));
        assert_eq!(written.status.observed_generation, Some(3));
        let event = written.event;
        assert_eq!(
            (event.kind, event.reason.as_str()),
            (EventType::Warning, "ExceedsRoofline")
        );
        let expect = "spec.figures[0]: 77.7 tok/s is impossible";
        assert!(event.message.starts_with(expect), "{}", event.message);

        let written = Written::of("{statements: ['1 + 1 = 2']}");
        assert!(is_true(&written.status.conditions, "Plausible"));
        let event = written.event;
        assert_eq!(
            (event.kind, event.reason.as_str()),
            (EventType::Normal, "Plausible")
        );

        let written = Written::of("{figures: [{kind: other, value: 5}]}");
        assert_eq!(written.condition("Plausible"), ("Unknown", "Untestable"));
    }

    #[test]
    fn invalid_figure_is_reported_with_its_field() {
        let written = Written::of("{figures: [{kind: decodeTokensPerSecond, value: fast}]}");
        assert_eq!(written.condition("Ready"), ("False", "InvalidClaim"));
        let message = &written.event.message;
        assert!(message.starts_with("spec.figures[0].value"), "{message}");
        assert_eq!(written.status.verdict, None);
    }

    #[test]
    fn internal_error_is_reported_in_the_conditions() {
        let claim = PerformanceClaim::new("claim", yaml::from_str("{statements: ['1 + 1 = 2']}").unwrap());
        let write = status_write(&claim, Err(CheckError::Internal), Timestamp::UNIX_EPOCH);
        let written = Written::new(write);
        assert_eq!(written.condition("Ready"), ("False", "JudgeFailed"));
        assert_eq!(written.condition("Plausible"), ("Unknown", "JudgeFailed"));
    }

    #[test]
    fn second_check_of_the_same_spec_changes_nothing() {
        let spec = yaml::from_str("{statements: ['1 + 1 = 3']}").unwrap();
        let mut claim = PerformanceClaim::new("claim", spec);
        let first = Written::at(&claim, 0);
        claim.status = Some(first.status.clone());
        assert_eq!(Written::at(&claim, 500), first);
    }
}
