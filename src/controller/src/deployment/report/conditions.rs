//! Conditions of a deployment. `kubectl describe mdep` must explain a pending or failed model
//! without further commands.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::condition_writer::ConditionWriter;
use super::figures::{Comparison, Figures};
use super::view::View;
use crate::deployment::admission::{Admission, named};
use crate::deployment::bounds::{Bounds, progress_deadline};
use crate::deployment::reasons::{
    ADMITTED_DESPITE_PREDICTION, ASKING_HUB, DEADLINE_EXCEEDED, NO_REPLICAS, NOT_YET_SCHEDULED, PAUSED,
    ROLLED_BACK, ROLLOUT_COMPLETE, SLOWER_THAN_PREDICTED,
};
use crate::deployment::replica::{Problem, condition, problem};
use crate::deployment::served_names::served_name;
use rooflet_api::conditions::{SIMULATED_CHIP, Truth, condition_type};
use rooflet_api::v1alpha1::{ModelReplica, ObjectivesSpec, RolloutAbort};
use rooflet_base::clock::since;
use rooflet_base::quantity;

/// Maximum number of different problems in one message.
const MAX_PROBLEMS: usize = 3;
/// Conditions of the autoscaler, removed when the deployment has no autoscaling.
const AUTOSCALING_CONDITIONS: [&str; 3] = [
    condition_type::ABLE_TO_SCALE,
    condition_type::SCALING_ACTIVE,
    condition_type::SCALING_LIMITED,
];

/// Reasons of Progressing with which only a change of the spec continues the rollout.
const STALLED_REASONS: [&str; 2] = [DEADLINE_EXCEEDED, ROLLED_BACK];

/// Conditions, and the time after which they change although no object changes.
pub(super) struct Outcome {
    pub(super) conditions: Vec<Condition>,
    pub(super) requeue_after: Option<Duration>,
}

impl View<'_> {
    pub(super) fn conditions(&self) -> Outcome {
        let status = self.deployment.status.clone().unwrap_or_default();
        let mut writer = ConditionWriter {
            conditions: status.conditions,
            generation: self.deployment.metadata.generation,
            now: self.now,
        };
        if self.deployment.spec.autoscaling.is_none() {
            writer
                .conditions
                .retain(|condition| !AUTOSCALING_CONDITIONS.contains(&condition.type_.as_str()));
        }
        self.admitted(&mut writer);
        self.scheduled(&mut writer);
        self.artifacts_ready(&mut writer);
        let requeue_after = self.progressing(&mut writer);
        stalled(&mut writer);
        self.available(&mut writer);
        self.is_ready(&mut writer);
        self.objectives_met(&mut writer);
        self.prediction_accurate(&mut writer);
        self.degraded(&mut writer);
        self.name_shared(&mut writer);
        Outcome {
            conditions: writer.conditions,
            requeue_after,
        }
    }

    fn admitted(&self, writer: &mut ConditionWriter) {
        if let Admission::Refused { reason, message } = self.admission {
            let truth = match *reason {
                ASKING_HUB | PAUSED => Truth::Unknown,
                _ => Truth::False,
            };
            writer.set(condition_type::ADMITTED, truth, reason, message.clone());
            return;
        }
        let refusal = self
            .refused
            .iter()
            .chain(self.updated)
            .filter_map(|replica| Some((replica, condition(replica, condition_type::ADMITTED)?)))
            .find(|(_, admitted)| admitted.status == "False");
        match refusal {
            Some((replica, refusal)) if self.ready() < self.bounds().desired => {
                let message = format!("{}: {}", placed(replica), refusal.message);
                writer.set(condition_type::ADMITTED, Truth::False, &refusal.reason, message);
            }
            Some(_) | None => {
                let exception = self.staying().find_map(|replica| {
                    let admitted = condition(replica, condition_type::ADMITTED)?;
                    ADMITTED_DESPITE_PREDICTION
                        .contains(&admitted.reason.as_str())
                        .then_some((replica, admitted))
                });
                let (reason, message) = match exception {
                    Some((replica, admitted)) => (
                        admitted.reason.as_str(),
                        format!("{}: {}", placed(replica), admitted.message),
                    ),
                    None => ("Servable", "the model can be served".to_owned()),
                };
                writer.set(condition_type::ADMITTED, Truth::True, reason, message);
            }
        }
    }

    fn scheduled(&self, writer: &mut ConditionWriter) {
        let unplaced: Vec<_> = self
            .staying()
            .filter(|replica| replica.spec.node_name.is_none())
            .collect();
        let refusal = unplaced
            .iter()
            .filter_map(|replica| problem(replica))
            .find(|problem| problem.reason != NOT_YET_SCHEDULED);
        let waiting = unplaced.len() + self.created + self.created_stable;
        let kind = condition_type::SCHEDULED;
        match refusal {
            Some(refusal) => writer.set(kind, Truth::False, &refusal.reason, refusal.message),
            None if waiting > 0 => writer.set(
                kind,
                Truth::False,
                NOT_YET_SCHEDULED,
                format!("{} for the scheduler", replicas(waiting, "wait", "waits")),
            ),
            None if self.total() == 0 && self.bounds().desired > 0 => {
                writer.set(kind, Truth::False, NO_REPLICAS, "no replica has been created yet");
            }
            None => writer.set(kind, Truth::True, "Placed", "every replica has a node"),
        }
    }

    fn artifacts_ready(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::ARTIFACTS_READY;
        let reports: Vec<_> = self
            .staying()
            .filter_map(|replica| Some((replica, condition(replica, kind)?)))
            .collect();
        if let Some((replica, missing)) = reports.iter().find(|(_, report)| report.status == "False") {
            let message = format!("{}: {}", placed(replica), missing.message);
            writer.set(kind, Truth::False, &missing.reason, message);
        } else if reports.len() < self.total()
            || self.total() < self.bounds().desired
            || reports.iter().any(|(_, report)| report.status != "True")
        {
            writer.set(
                kind,
                Truth::Unknown,
                "NotYetReported",
                "not every node has checked the model's files yet",
            );
        } else {
            let message = "the model's files are complete on every node with a replica";
            writer.set(kind, Truth::True, "Verified", message);
        }
    }

    fn progressing(&self, writer: &mut ConditionWriter) -> Option<Duration> {
        let kind = condition_type::PROGRESSING;
        let before = writer
            .get(kind)
            .map(|before| (before.reason.clone(), before.message.clone()));
        let (before, known_message) = before.unwrap_or_default();
        let spec = &self.deployment.spec;
        let Some((revision, number)) = self.current else {
            let (reason, message) = match self.admission {
                Admission::Refused { reason, message } => {
                    return self.refused_template(writer, reason, message);
                }
                Admission::Admitted { .. } if spec.paused => {
                    (PAUSED, "spec.paused is true: no revision exists yet".to_owned())
                }
                Admission::Admitted { .. } => {
                    ("NoRevision", "the first revision is being created".to_owned())
                }
            };
            writer.set(kind, Truth::False, reason, message);
            return None;
        };
        if let Some(aborted) = self.aborted {
            let message = format!(
                "back to revision {number} ({revision}): {}",
                abort_message(aborted)
            );
            writer.set(kind, Truth::False, ROLLED_BACK, message);
            return None;
        }
        if let (Admission::Refused { reason, message }, false) = (self.admission, self.matches_spec)
            && *reason != PAUSED
        {
            let message = format!("revision {number} stays, because the new template is refused: {message}");
            return self.refused_template(writer, reason, &message);
        }
        if let Some(pause_reason) = self.pause_reason {
            let mut message = pause_reason.message(&self.deployment.name_any());
            let surge = self.total().saturating_sub(self.bounds().desired + self.leaving);
            if surge > 0 {
                let stay = replicas(
                    surge,
                    "more than spec.replicas remain",
                    "more than spec.replicas remains",
                );
                message.push_str(&format!("; {stay} until the rollout continues or is undone"));
            }
            writer.set(kind, pause_reason.truth(), pause_reason.reason(), message);
            return None;
        }
        let done = format!("revision {number} ({revision}) is rolled out");
        // A complete rollout stays complete if a replica fails later.
        let was_complete = before == ROLLOUT_COMPLETE && known_message == done && self.old.is_empty();
        if self.rollout_is_complete() || was_complete {
            writer.set(kind, Truth::True, ROLLOUT_COMPLETE, done);
            return None;
        }
        let state = format!(
            "revision {number} ({revision}): {} of {} updated, {} ready, {} of an older revision",
            self.updated.len() + self.created,
            self.bounds().desired,
            self.ready(),
            self.of_others()
        );
        let deadline = progress_deadline(spec);
        let idle = self
            .progressed_at
            .map_or(Duration::ZERO, |at| since(self.now, at));
        if idle >= deadline {
            let mut message = format!("no progress for {} s; {state}", deadline.as_secs());
            if let Some(problems) = self.problems_message() {
                message.push_str(": ");
                message.push_str(&problems);
            }
            writer.set(kind, Truth::False, DEADLINE_EXCEEDED, message);
            return None;
        }
        writer.set(kind, Truth::True, "RollingOut", state);
        Some(deadline - idle)
    }

    fn available(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::AVAILABLE;
        let Bounds {
            desired,
            min_available,
            ..
        } = self.bounds();
        // At least one replica must be Ready, even if all may be unavailable.
        let needed = min_available.max(1).min(desired);
        let ready = self.ready();
        if ready >= needed {
            let message = format!("{ready} of {desired} replicas answer requests");
            writer.set(kind, Truth::True, "MinimumReplicasAvailable", message);
        } else {
            let mut message =
                format!("{ready} of {desired} replicas answer requests; the minimum is {needed}");
            // The condition Ready contains the messages.
            let reasons = self.problem_reasons();
            if !reasons.is_empty() {
                message.push_str(&format!(": {reasons}"));
            }
            writer.set(kind, Truth::False, "MinimumReplicasUnavailable", message);
        }
    }

    fn is_ready(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::READY;
        let desired = self.bounds().desired;
        let ready = self.ready();
        if let Some(aborted) = self.aborted {
            let message = format!(
                "{ready} of {desired} replicas ready, but not of the current template: {}",
                abort_message(aborted)
            );
            writer.set(kind, Truth::False, ROLLED_BACK, message);
            return;
        }
        if let (Admission::Refused { reason, message }, false) = (self.admission, self.matches_spec) {
            writer.set(kind, Truth::False, reason, message.clone());
            return;
        }
        if self.rollout_is_complete() {
            let (reason, message) = match desired {
                0 => ("NoReplicasWanted", "spec.replicas is 0".to_owned()),
                _ => (
                    "AllReplicasReady",
                    format!("all {desired} replicas answer requests"),
                ),
            };
            writer.set(kind, Truth::True, reason, message);
            return;
        }
        let problems = self.problems();
        let fault = problems.iter().find(|(_, problem)| problem.is_fault);
        let reason = fault.map_or("ReplicasNotReady", |(_, fault)| fault.reason.as_str());
        let mut message = format!("{ready} of {desired} replicas ready");
        if self.of_others() > 0 {
            message.push_str(&format!(", {} of them of an older revision", self.of_others()));
        }
        if let Some(problems) = self.problems_message() {
            message.push_str(": ");
            message.push_str(&problems);
        }
        writer.set(kind, Truth::False, reason, message);
    }

    fn objectives_met(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::OBJECTIVES_MET;
        let objectives = &self.deployment.spec.objectives;
        if objectives.is_empty() {
            writer.conditions.retain(|condition| condition.type_ != kind);
            return;
        }
        if self.figures.tokens_per_second.measured.is_none() {
            writer.set(
                kind,
                Truth::Unknown,
                "NotMeasured",
                "no replica has completed enough requests",
            );
            return;
        }
        let (truth, reason, message) = compare(objectives, &self.figures);
        writer.set(kind, truth, reason, message);
    }

    fn prediction_accurate(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::PREDICTION_ACCURATE;
        let compared: Vec<_> = self
            .staying()
            .flat_map(|replica| Comparison::all(replica).map(move |comparison| (replica, comparison)))
            .collect();
        let Some((replica, comparison)) = compared
            .iter()
            .find(|(_, comparison)| !comparison.is_accurate())
            .or(compared.first())
        else {
            if let Some(replica) = self.on_simulated {
                let message = format!(
                    "{}: the node's chip is simulated, so its measurements are not the speed of that chip",
                    placed(replica)
                );
                writer.set(kind, Truth::Unknown, SIMULATED_CHIP, message);
                return;
            }
            // The condition is not created without a measurement, but an existing one is updated.
            if writer.get(kind).is_some() {
                let message = "no replica has completed enough requests";
                writer.set(kind, Truth::Unknown, "NotMeasured", message);
            }
            return;
        };
        let message = format!("{}: {comparison}", placed(replica));
        if comparison.is_accurate() {
            writer.set(kind, Truth::True, "AsPredicted", message);
        } else if comparison.is_slower() {
            writer.set(kind, Truth::False, SLOWER_THAN_PREDICTED, message);
        } else {
            writer.set(kind, Truth::False, "FasterThanPredicted", message);
        }
    }

    fn degraded(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::DEGRADED;
        let fault = self.problems().into_iter().find(|(_, problem)| problem.is_fault);
        match fault {
            Some((replica, fault)) => {
                let message = format!("{}: {}", placed(replica), fault.message);
                writer.set(kind, Truth::True, &fault.reason, message);
            }
            None => writer.set(kind, Truth::False, "AsExpected", "no replica has a problem"),
        }
    }

    /// Reports a refused template, and returns the remaining time until its deadline. The deadline
    /// is that of a replica that does not start.
    fn refused_template(
        &self,
        writer: &mut ConditionWriter,
        reason: &str,
        message: &str,
    ) -> Option<Duration> {
        let kind = condition_type::PROGRESSING;
        let deadline = progress_deadline(&self.deployment.spec);
        let left = self
            .refused_since
            .map(|at| deadline.saturating_sub(since(self.now, at)));
        if left == Some(Duration::ZERO) {
            let message = format!("no progress for {} s; {reason}: {message}", deadline.as_secs());
            writer.set(kind, Truth::False, DEADLINE_EXCEEDED, message);
            return None;
        }
        writer.set(kind, Truth::False, reason, message);
        left
    }

    fn name_shared(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::NAME_SHARED;
        let Some(older) = self.namesake else {
            writer.conditions.retain(|condition| condition.type_ != kind);
            return;
        };
        let message = format!(
            "the older deployment {older} has the same served name `{}`: gateways send its requests to replicas of both; set spec.serving.name of {} to another name",
            served_name(self.deployment),
            self.deployment.name_any()
        );
        writer.set(kind, Truth::True, "ServedNameShared", message);
    }

    /// Returns the number of replicas per reason.
    fn problem_reasons(&self) -> String {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for (_, Problem { reason, .. }) in self.problems() {
            if reason == NOT_YET_SCHEDULED {
                continue;
            }
            match counts.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, count)) => *count += 1,
                None => counts.push((reason, 1)),
            }
        }
        let texts: Vec<_> = counts
            .into_iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        texts.join(", ")
    }

    fn problems_message(&self) -> Option<String> {
        // Replicas with the same problem share a clause. Unscheduled replicas with the same reason
        // share one too, although the figures in their messages may differ.
        let mut clauses: Vec<Clause> = Vec::new();
        for (replica, problem) in self.problems() {
            if problem.reason == NOT_YET_SCHEDULED {
                continue;
            }
            let Problem { reason, message, .. } = problem;
            let text = match message.as_str() {
                "" => reason.clone(),
                message => format!("{reason}: {message}"),
            };
            let unplaced = replica.spec.node_name.is_none().then(|| reason.clone());
            let is_same = |known: &&mut Clause| {
                known.text == text || (unplaced.is_some() && known.unplaced == unplaced)
            };
            match clauses.iter_mut().find(is_same) {
                Some(known) => known.names.push(placed(replica)),
                None => clauses.push(Clause {
                    text,
                    unplaced,
                    names: vec![placed(replica)],
                }),
            }
        }
        let more = clauses.len().saturating_sub(MAX_PROBLEMS);
        let mut texts: Vec<_> = clauses
            .into_iter()
            .take(MAX_PROBLEMS)
            .map(|Clause { text, names, .. }| format!("{}: {text}", named(names)))
            .collect();
        if more > 0 {
            texts.push(format!("and {more} more"));
        }
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// Sets or removes the condition that tools read as the failure of a deployment.
fn stalled(writer: &mut ConditionWriter) {
    let progressing = writer.get(condition_type::PROGRESSING);
    let failure = progressing.filter(|condition| STALLED_REASONS.contains(&condition.reason.as_str()));
    match failure.cloned() {
        Some(failure) => {
            writer.set(
                condition_type::STALLED,
                Truth::True,
                &failure.reason,
                failure.message,
            );
        }
        None => writer
            .conditions
            .retain(|condition| condition.type_ != condition_type::STALLED),
    }
}

/// Problem and the replicas that have it.
struct Clause {
    text: String,
    /// Reason, if no node accepts the replica.
    unplaced: Option<String>,
    names: Vec<String>,
}

/// Compares the measured figures with the objectives.
fn compare(objectives: &ObjectivesSpec, figures: &Figures) -> (Truth, &'static str, String) {
    let mut missed = Vec::new();
    let mut held = Vec::new();
    let mut unknown = false;
    if let (Some(desired), Some(rate)) = (
        objectives.decode_tokens_per_second,
        figures.tokens_per_second.measured,
    ) {
        let text = format!("{rate:.1} tokens/s measured, spec.objectives.decodeTokensPerSecond is {desired}");
        if rate < desired {
            missed.push(text);
        } else {
            held.push(text);
        }
    }
    if let Some(objective) = &objectives.time_to_first_token {
        match (
            figures.first_token_seconds.measured,
            quantity::parse_duration(&objective.max),
        ) {
            (Some(seconds), Some(longest)) => {
                let text = format!(
                    "first token after {seconds:.2} s, spec.objectives.timeToFirstToken.max is {}",
                    objective.max
                );
                if seconds > longest.as_secs_f64() {
                    missed.push(text);
                } else {
                    held.push(text);
                }
            }
            (None, _) | (_, None) => unknown = true,
        }
    }
    if !missed.is_empty() {
        (Truth::False, "ObjectivesMissed", missed.join("; "))
    } else if unknown {
        let message = "the time to the first token is not measured yet";
        (Truth::Unknown, "NotMeasured", message.to_owned())
    } else {
        (Truth::True, "ObjectivesMet", held.join("; "))
    }
}

fn abort_message(aborted: &RolloutAbort) -> String {
    format!(
        "the rollout of the new revision was aborted ({}: {})",
        aborted.reason, aborted.message
    )
}

fn placed(replica: &ModelReplica) -> String {
    match &replica.spec.node_name {
        Some(node) => format!("{} on {node}", replica.name_any()),
        None => replica.name_any(),
    }
}

fn replicas(count: usize, plural: &str, singular: &str) -> String {
    match count {
        1 => format!("1 replica {singular}"),
        _ => format!("{count} replicas {plural}"),
    }
}
