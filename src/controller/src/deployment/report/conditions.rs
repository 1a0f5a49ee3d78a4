//! The deployment's conditions: enough for `kubectl describe mdep` alone to explain a pending or failed model.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::condition_writer::ConditionWriter;
use super::figures::{Comparison, Figures};
use super::view::View;
use crate::deployment::admission::{Admission, named};
use crate::deployment::bounds::{Bounds, progress_deadline};
use crate::deployment::reasons::{
    ASKING_HUB, DEADLINE_EXCEEDED, DESPITE_THE_NUMBERS, NO_REPLICAS, NOT_YET_SCHEDULED, PAUSED, ROLLED_BACK,
    ROLLOUT_COMPLETE, SLOWER_THAN_PREDICTED,
};
use crate::deployment::replica::{Trouble, condition, trouble};
use crate::deployment::served_names::served_name;
use rooflet_api::conditions::{SIMULATED_CHIP, Truth, condition_type};
use rooflet_api::v1alpha1::{ModelReplica, ObjectivesSpec, RolloutAbort};
use rooflet_base::clock::since;
use rooflet_base::quantity;

/// Replicas whose troubles one message tells.
const MAX_TOLD: usize = 3;
/// What the autoscaler writes, and nobody keeps up to date without it.
const OF_AUTOSCALING: [&str; 3] = [
    condition_type::ABLE_TO_SCALE,
    condition_type::SCALING_ACTIVE,
    condition_type::SCALING_LIMITED,
];

/// The conditions, and when they have to be looked at again if nothing happens.
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
            let of_autoscaling = |kind: &str| OF_AUTOSCALING.contains(&kind);
            writer
                .conditions
                .retain(|condition| !of_autoscaling(&condition.type_));
        }
        self.admitted(&mut writer);
        self.scheduled(&mut writer);
        self.artifacts_ready(&mut writer);
        let requeue_after = self.progressing(&mut writer);
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
            Some((replica, refusal)) if self.ready() < self.bounds().wanted => {
                let message = format!("{}: {}", placed(replica), refusal.message);
                writer.set(condition_type::ADMITTED, Truth::False, &refusal.reason, message);
            }
            Some(_) | None => {
                let despite_the_numbers = self.staying().find_map(|replica| {
                    let admitted = condition(replica, condition_type::ADMITTED)?;
                    DESPITE_THE_NUMBERS
                        .contains(&admitted.reason.as_str())
                        .then_some((replica, admitted))
                });
                let (reason, message) = match despite_the_numbers {
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
            .filter_map(|replica| trouble(replica))
            .find(|trouble| trouble.reason != NOT_YET_SCHEDULED);
        let waiting = unplaced.len() + self.created + self.created_stable;
        let kind = condition_type::SCHEDULED;
        match refusal {
            Some(refusal) => writer.set(kind, Truth::False, &refusal.reason, refusal.message),
            None if waiting > 0 => writer.set(
                kind,
                Truth::False,
                NOT_YET_SCHEDULED,
                format!("{} to be placed on a node", replicas(waiting, "wait", "waits")),
            ),
            None if self.total() == 0 && self.bounds().wanted > 0 => {
                writer.set(
                    kind,
                    Truth::False,
                    NO_REPLICAS,
                    "there is no replica to place yet",
                );
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
            || self.total() < self.bounds().wanted
            || reports.iter().any(|(_, report)| report.status != "True")
        {
            writer.set(
                kind,
                Truth::Unknown,
                "NotYetReported",
                "not every node has checked the model's files yet",
            );
        } else {
            let message = "the model's files are whole on every node that serves it";
            writer.set(kind, Truth::True, "Verified", message);
        }
    }

    fn progressing(&self, writer: &mut ConditionWriter) -> Option<Duration> {
        let kind = condition_type::PROGRESSING;
        let before = writer
            .get(kind)
            .map(|before| (before.reason.clone(), before.message.clone()));
        let (before, said) = before.unwrap_or_default();
        let spec = &self.deployment.spec;
        let Some((revision, number)) = self.current else {
            let (reason, message) = match self.admission {
                Admission::Refused { reason, message } => {
                    return self.refused_template(writer, reason, message);
                }
                Admission::Admitted { .. } if spec.paused => {
                    (PAUSED, "paused before its first revision".to_owned())
                }
                Admission::Admitted { .. } => ("NoRevision", "its first revision is being made".to_owned()),
            };
            writer.set(kind, Truth::False, reason, message);
            return None;
        };
        if let Some(aborted) = self.aborted {
            let message = format!("back to revision {number} ({revision}): {}", told_abort(aborted));
            writer.set(kind, Truth::False, ROLLED_BACK, message);
            return None;
        }
        if let (Admission::Refused { reason, message }, false) = (self.admission, self.is_current_wanted)
            && *reason != PAUSED
        {
            let message = format!("revision {number} stays, because the new template is refused: {message}");
            return self.refused_template(writer, reason, &message);
        }
        if let Some(pause_reason) = self.pause_reason {
            let mut message = pause_reason.message(&self.deployment.name_any());
            let surge = self.total().saturating_sub(self.bounds().wanted + self.leaving);
            if surge > 0 {
                let stay = replicas(
                    surge,
                    "more than spec.replicas stay",
                    "more than spec.replicas stays",
                );
                message.push_str(&format!("; {stay} until it goes on or is taken back"));
            }
            writer.set(kind, pause_reason.truth(), pause_reason.reason(), message);
            return None;
        }
        let done = format!("revision {number} ({revision}) is rolled out");
        // Once rolled out, a replica that falters is no rollout again.
        let was_complete = before == ROLLOUT_COMPLETE && said == done && self.old.is_empty();
        if self.rollout_is_complete() || was_complete {
            writer.set(kind, Truth::True, ROLLOUT_COMPLETE, done);
            return None;
        }
        let state = format!(
            "revision {number} ({revision}): {} of {} updated, {} ready, {} of an older revision",
            self.updated.len() + self.created,
            self.bounds().wanted,
            self.ready(),
            self.of_others()
        );
        let deadline = progress_deadline(spec);
        let idle = self
            .progressed_at
            .filter(|_| self.created == 0)
            .map_or(Duration::ZERO, |at| since(self.now, at));
        if idle >= deadline {
            let mut message = format!("no progress for {} s; {state}", deadline.as_secs());
            if let Some(troubles) = self.told_troubles() {
                message.push_str(": ");
                message.push_str(&troubles);
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
            wanted,
            min_available,
            ..
        } = self.bounds();
        // Nothing is available of a model that nobody answers for, however many may be missing.
        let needed = min_available.max(1).min(wanted);
        let ready = self.ready();
        if ready >= needed {
            let message = format!("{ready} of {wanted} replicas answer requests");
            writer.set(kind, Truth::True, "MinimumReplicasAvailable", message);
        } else {
            let mut message =
                format!("{ready} of {wanted} replicas answer requests; at least {needed} should");
            // Why, in full, is what Ready tells.
            let reasons = self.trouble_reasons();
            if !reasons.is_empty() {
                message.push_str(&format!(": {reasons}"));
            }
            writer.set(kind, Truth::False, "MinimumReplicasUnavailable", message);
        }
    }

    fn is_ready(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::READY;
        let wanted = self.bounds().wanted;
        let ready = self.ready();
        if let Some(aborted) = self.aborted {
            let message = format!(
                "{ready} of {wanted} replicas ready, and not of the template: {}",
                told_abort(aborted)
            );
            writer.set(kind, Truth::False, ROLLED_BACK, message);
            return;
        }
        if let (Admission::Refused { reason, message }, false) = (self.admission, self.is_current_wanted) {
            writer.set(kind, Truth::False, reason, message.clone());
            return;
        }
        if self.rollout_is_complete() {
            let (reason, message) = match wanted {
                0 => ("NoReplicasWanted", "spec.replicas is 0".to_owned()),
                _ => (
                    "AllReplicasReady",
                    format!("all {wanted} replicas answer requests"),
                ),
            };
            writer.set(kind, Truth::True, reason, message);
            return;
        }
        let troubles = self.troubles();
        let fault = troubles.iter().find(|(_, trouble)| trouble.is_fault);
        let reason = fault.map_or("ReplicasNotReady", |(_, fault)| fault.reason.as_str());
        let mut message = format!("{ready} of {wanted} replicas ready");
        if self.of_others() > 0 {
            message.push_str(&format!(", {} of them of an older revision", self.of_others()));
        }
        if let Some(troubles) = self.told_troubles() {
            message.push_str(": ");
            message.push_str(&troubles);
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
                "no replica has answered enough requests to tell",
            );
            return;
        }
        let (truth, reason, message) = judge(objectives, &self.figures);
        writer.set(kind, truth, reason, message);
    }

    fn prediction_accurate(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::PREDICTION_ACCURATE;
        let compared: Vec<_> = self
            .staying()
            .flat_map(|replica| Comparison::all(replica).map(move |comparison| (replica, comparison)))
            .collect();
        let Some((replica, told)) = compared
            .iter()
            .find(|(_, comparison)| !comparison.is_accurate())
            .or(compared.first())
        else {
            if let Some(replica) = self.on_simulated {
                let message = format!(
                    "{}: the node's chip is simulated, and what its requests are measured to get is not that chip's speed",
                    placed(replica)
                );
                writer.set(kind, Truth::Unknown, SIMULATED_CHIP, message);
                return;
            }
            // Nothing is said where there is nothing to say, but what was said is not left rollout_state.
            if writer.get(kind).is_some() {
                let message = "no replica has answered enough requests to tell";
                writer.set(kind, Truth::Unknown, "NotMeasured", message);
            }
            return;
        };
        let message = format!("{}: {told}", placed(replica));
        if told.is_accurate() {
            writer.set(kind, Truth::True, "AsPredicted", message);
        } else if told.is_slower() {
            writer.set(kind, Truth::False, SLOWER_THAN_PREDICTED, message);
        } else {
            writer.set(kind, Truth::False, "FasterThanPredicted", message);
        }
    }

    fn degraded(&self, writer: &mut ConditionWriter) {
        let kind = condition_type::DEGRADED;
        let fault = self.troubles().into_iter().find(|(_, trouble)| trouble.is_fault);
        match fault {
            Some((replica, fault)) => {
                let message = format!("{}: {}", placed(replica), fault.message);
                writer.set(kind, Truth::True, &fault.reason, message);
            }
            None => writer.set(kind, Truth::False, "AsExpected", "no replica is in trouble"),
        }
    }

    /// Reports a refused template. It has the same deadline as a replica that does not start.
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
            "the older deployment {older} is served as `{}`, too: gateways give requests for it to replicas of either; set spec.serving.name of {} to another name",
            served_name(self.deployment),
            self.deployment.name_any()
        );
        writer.set(kind, Truth::True, "ServedNameShared", message);
    }
    /// How many replicas have which trouble.
    fn trouble_reasons(&self) -> String {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for (_, Trouble { reason, .. }) in self.troubles() {
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

    fn told_troubles(&self) -> Option<String> {
        // One reason that several share is told once. Those without a node wait for the same thing, though each was
        // looked at in another moment and with other numbers.
        let mut told: Vec<Told> = Vec::new();
        for (replica, trouble) in self.troubles() {
            if trouble.reason == NOT_YET_SCHEDULED {
                continue;
            }
            let Trouble { reason, message, .. } = trouble;
            let text = match message.as_str() {
                "" => reason.clone(),
                message => format!("{reason}: {message}"),
            };
            let unplaced = replica.spec.node_name.is_none().then(|| reason.clone());
            let is_same =
                |known: &&mut Told| known.text == text || (unplaced.is_some() && known.unplaced == unplaced);
            match told.iter_mut().find(is_same) {
                Some(known) => known.names.push(placed(replica)),
                None => told.push(Told {
                    text,
                    unplaced,
                    names: vec![placed(replica)],
                }),
            }
        }
        let more = told.len().saturating_sub(MAX_TOLD);
        let mut texts: Vec<_> = told
            .into_iter()
            .take(MAX_TOLD)
            .map(|Told { text, names, .. }| format!("{}: {text}", named(names)))
            .collect();
        if more > 0 {
            texts.push(format!("and {more} more"));
        }
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// One trouble and all replicas that have it.
struct Told {
    text: String,
    /// The reason, where it is that no node takes the replica.
    unplaced: Option<String>,
    names: Vec<String>,
}

fn judge(objectives: &ObjectivesSpec, figures: &Figures) -> (Truth, &'static str, String) {
    let mut missed = Vec::new();
    let mut held = Vec::new();
    let mut unknown = false;
    if let (Some(wanted), Some(rate)) = (
        objectives.decode_tokens_per_second,
        figures.tokens_per_second.measured,
    ) {
        let text =
            format!("{rate:.1} tokens/s measured, spec.objectives.decodeTokensPerSecond asks for {wanted}");
        if rate < wanted {
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

fn told_abort(aborted: &RolloutAbort) -> String {
    format!(
        "the newer one was given up ({}: {})",
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
