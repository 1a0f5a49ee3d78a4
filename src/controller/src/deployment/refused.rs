//! A template that no node can serve: since when, and how long that is waited for.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::admission::{Admission, Template};
use super::conditions::{DEADLINE_EXCEEDED, Writer};
use super::course::progress_deadline;
use super::plan::Observed;
use super::view::View;
use rooflet_api::conditions::{Truth, condition_type, whole_seconds};
use rooflet_api::v1alpha1::RefusedTemplate;
use rooflet_base::clock::since;

impl Observed<'_, '_> {
    /// The template while it is refused. One that is paused is not even tried.
    pub(super) fn refused(
        &self,
        template: &Template,
        admission: &Admission,
        is_template: bool,
    ) -> Option<RefusedTemplate> {
        let is_refused = matches!(admission, Admission::Refused { .. }) && !is_template;
        if !is_refused || self.deployment.spec.paused {
            return None;
        }
        let revision = self.revision_name(template);
        let before = self.deployment.status.as_ref();
        let known = before.and_then(|status| status.rollout.refused.clone());
        let known = known.filter(|known| known.revision == revision);
        Some(known.unwrap_or_else(|| RefusedTemplate {
            revision,
            since: Time(whole_seconds(self.now)),
        }))
    }

    /// Why a refused template is not waited for any longer, where failures are rolled back.
    pub(super) fn given_up(&self, refused: &RefusedTemplate, admission: &Admission) -> Option<String> {
        let spec = &self.deployment.spec;
        let deadline = progress_deadline(spec);
        match admission {
            Admission::Refused { reason, message }
                if spec.strategy.rolls_back() && since(self.now, refused.since.0) >= deadline =>
            {
                Some(format!(
                    "no progress for {} s; {reason}: {message}",
                    deadline.as_secs()
                ))
            }
            Admission::Refused { .. } | Admission::Admitted { .. } => None,
        }
    }
}

impl View<'_> {
    /// It comes forward as little as a replica that does not start, and has the same deadline.
    pub(super) fn refused_template(
        &self,
        writer: &mut Writer,
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
}
