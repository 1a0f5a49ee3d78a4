//! Templates that no node can serve, and the deadline for their rollback.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::admission::{Admission, Template};
use super::bounds::progress_deadline;
use super::observed::Observed;
use rooflet_api::conditions::whole_seconds;
use rooflet_api::v1alpha1::RefusedTemplate;
use rooflet_base::clock::since;

impl Observed<'_, '_> {
    /// Returns the refused template and the time of its refusal. A paused deployment has none.
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

    /// Returns the reason for a rollback if a refused template exceeds the progress deadline.
    pub(super) fn refused_past_deadline(
        &self,
        refused: &RefusedTemplate,
        admission: &Admission,
    ) -> Option<String> {
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
