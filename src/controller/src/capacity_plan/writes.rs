//! Status and event of an answered CapacityPlan. Pure.

use std::collections::HashSet;

use jiff::Timestamp;

use crate::intent::{EmitOn, Intent, PlannedEvent, PlannedWrite, Regarding, Version};
use rooflet_api::conditions::condition_type::{FEASIBLE, READY};
use rooflet_api::conditions::{Truth, set_condition};
use rooflet_api::v1alpha1::{CapacityPlan, CapacityPlanStatus, PlanReplica, PlanVerdict};
use rooflet_client::EventType;
use rooflet_scheduler::capacity::PlanError;

/// Maximum number of pairs of model and node class in a status. The size of a pair is about 500
/// bytes.
const MAX_FITS: usize = 600;

/// Reason if the machines satisfy the demand.
const CARRIED: &str = "DemandCarried";
/// Reason if the machines do not satisfy the demand.
const NOT_CARRIED: &str = "DemandNotCarried";

/// Error that prevents a verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error(transparent)]
    Invalid(PlanError),
    #[error(
        "internal error while answering the plan; see the controller's log for the cause, and change the \
         plan to retry"
    )]
    Internal,
}

impl AnswerError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(err) => err.reason(),
            Self::Internal => "PlannerFailed",
        }
    }
}

/// Returns the write of the status. The write emits an event if it changes the condition Feasible.
pub(super) fn status_write(
    plan: &CapacityPlan,
    verdict: Result<PlanVerdict, AnswerError>,
    now: Timestamp,
) -> PlannedWrite {
    let (status, reason, message) = status(plan, verdict, now);
    let has_changed = feasibility(plan.status.as_ref()) != feasibility(Some(&status));
    let of = Version::of(plan);
    let event = PlannedEvent {
        regarding: Regarding::CapacityPlan(of.clone()),
        kind: match reason {
            CARRIED => EventType::Normal,
            _ => EventType::Warning,
        },
        reason: reason.to_owned(),
        message,
        on: EmitOn::Change,
    };
    let status = Box::new(status);
    let write = PlannedWrite::from(Intent::CapacityPlanStatus { of, status });
    match has_changed {
        true => write.with_event(event),
        false => write,
    }
}

/// Returns status and reason of the condition Feasible.
fn feasibility(status: Option<&CapacityPlanStatus>) -> Option<(&str, &str)> {
    let mut conditions = status?.conditions.iter();
    let condition = conditions.find(|condition| condition.type_ == FEASIBLE)?;
    Some((&condition.status, &condition.reason))
}

/// Reduces the verdict to the size limit of an object, which is 1.5 MB on a typical cluster.
///
/// If the verdict has more than [`MAX_FITS`] fits, each model keeps its fits on the node classes
/// that run it. A model without a placement keeps its first fit.
pub(super) fn shorten(mut verdict: PlanVerdict) -> PlanVerdict {
    let fits: usize = verdict.models.iter().map(|model| model.fits.len()).sum();
    if fits <= MAX_FITS {
        return verdict;
    }
    let runs: HashSet<(String, String)> = verdict
        .placements
        .iter()
        .flat_map(|placement| {
            let pair = |replica: &PlanReplica| (placement.class.clone(), replica.model.clone());
            placement.replicas.iter().map(pair)
        })
        .collect();
    for model in &mut verdict.models {
        let first = model.fits.first().cloned();
        let name = &model.name;
        model
            .fits
            .retain(|fit| runs.contains(&(fit.class.clone(), name.clone())));
        if model.fits.is_empty() {
            model.fits.extend(first);
        }
    }
    verdict
}

/// Returns the status, and reason and message of the condition Feasible.
fn status(
    plan: &CapacityPlan,
    verdict: Result<PlanVerdict, AnswerError>,
    now: Timestamp,
) -> (CapacityPlanStatus, &'static str, String) {
    let generation = plan.metadata.generation;
    let mut conditions = plan
        .status
        .as_ref()
        .map(|status| status.conditions.clone())
        .unwrap_or_default();
    let mut set = |kind, truth, reason, message: &str| {
        set_condition(&mut conditions, kind, truth, reason, message, generation, now);
    };
    let (verdict, reason, message) = match verdict {
        Ok(verdict) => {
            set(
                READY,
                Truth::True,
                "Answered",
                "the plan is valid and has a verdict",
            );
            let reason = if verdict.feasible { CARRIED } else { NOT_CARRIED };
            set(FEASIBLE, verdict.feasible.into(), reason, &verdict.summary);
            let summary = verdict.summary.clone();
            (Some(verdict), reason, summary)
        }
        Err(err) => {
            let message = err.to_string();
            set(READY, Truth::False, err.reason(), &message);
            set(FEASIBLE, Truth::Unknown, err.reason(), &message);
            (None, err.reason(), message)
        }
    };
    let status = CapacityPlanStatus {
        observed_generation: generation,
        binding: verdict.as_ref().and_then(|verdict| {
            Some(format!(
                "{} at x{:.2}",
                verdict.binding.as_ref()?,
                verdict.demand_factor
            ))
        }),
        nodes: verdict
            .as_ref()
            .map(|verdict| format!("{}/{}", verdict.nodes_used, verdict.nodes)),
        verdict,
        conditions,
    };
    (status, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::yaml;
    use rooflet_scheduler::capacity;

    fn plan(macs: &str, model: &str) -> CapacityPlan {
        let text = format!(
            "demand: [{{model: {model}, quantization: mlx4, requestsPerSecond: 0.01, promptTokens: 900, answerTokens: 300}}]\n\
             fleet: {{macs: [{macs}]}}"
        );
        CapacityPlan::new("p", yaml::from_str(&text).unwrap())
    }

    fn verdict(plan: &CapacityPlan) -> Result<PlanVerdict, AnswerError> {
        let question = capacity::question(&plan.spec, Vec::new(), &[], &|_| None);
        let verdict = question.map(|question| shorten(capacity::answer(&question)));
        verdict.map_err(AnswerError::Invalid)
    }

    fn answered(plan: &CapacityPlan, now: Timestamp) -> CapacityPlanStatus {
        status(plan, verdict(plan), now).0
    }

    /// The API server returns the status as JSON. A status that differed after the round trip would
    /// be written in every pass.
    #[test]
    fn second_answer_has_the_same_status_and_no_event() {
        let mut plan = plan("{chip: M4 Pro, memory: 24Gi, count: 3}", "qwen3-8b");
        let write = status_write(&plan, verdict(&plan), Timestamp::UNIX_EPOCH);
        assert_eq!(write.events.len(), 1);
        let first = answered(&plan, Timestamp::UNIX_EPOCH);
        let text = serde_json::to_string(&first).unwrap();
        plan.status = serde_json::from_str(&text).unwrap();
        let write = status_write(&plan, verdict(&plan), Timestamp::MAX);
        let status = Box::new(first);
        let of = Version::of(&plan);
        assert_eq!(write, Intent::CapacityPlanStatus { of, status }.into());
    }

    #[test]
    fn large_verdict_keeps_the_fits_of_placed_models() {
        let plan = plan("{chip: M4 Pro, memory: 24Gi, count: 3}", "qwen3-8b");
        let verdict = answered(&plan, Timestamp::UNIX_EPOCH).verdict.unwrap();
        let mut large = verdict.clone();
        let fit = verdict.models[0].fits[0].clone();
        for index in 0..MAX_FITS {
            let mut other = fit.clone();
            other.class = format!("unused-{index}");
            large.models[0].fits.push(other);
        }
        assert_eq!(shorten(large), verdict);
    }

    fn conditions(plan: &CapacityPlan) -> Vec<(String, String, String)> {
        let status = answered(plan, Timestamp::UNIX_EPOCH);
        let triple = |one: k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
            (one.type_, one.status, one.reason)
        };
        status.conditions.into_iter().map(triple).collect()
    }

    fn triple(kind: &str, status: &str, reason: &str) -> (String, String, String) {
        (kind.to_owned(), status.to_owned(), reason.to_owned())
    }

    #[test]
    fn conditions_report_validity_and_feasibility() {
        let ready = triple("Ready", "True", "Answered");
        let large = plan("{chip: M4 Max, memory: 64Gi}", "qwen3-8b");
        assert_eq!(
            conditions(&large),
            [ready.clone(), triple("Feasible", "True", "DemandCarried")]
        );
        let small = plan("{chip: M1, memory: 8Gi}", "qwen3-32b");
        assert_eq!(
            conditions(&small),
            [ready, triple("Feasible", "False", "DemandNotCarried")]
        );
        let unknown = plan("{chip: M4, memory: 16Gi}", "qwen99");
        assert_eq!(
            conditions(&unknown),
            [
                triple("Ready", "False", "InvalidPlan"),
                triple("Feasible", "Unknown", "InvalidPlan")
            ]
        );
    }
}
