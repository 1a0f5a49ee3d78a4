//! Revisions of a deployment: selection, creation, rollback and history.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::admission::admission_annotation;
use super::admission::{Admission, HubAnswer, Template, admit};
use super::observed::Observed;
use super::pause_reason::PauseReason;
use super::replica::is_of;
use rooflet_api::meta::{
    ADMISSION_ANNOTATION, CHANGE_CAUSE_ANNOTATION, DEPLOYMENT_LABEL, REVISION_LABEL, TEMPLATE_HASH_LABEL,
    controller_reference,
};
use rooflet_api::v1alpha1::{
    ArtifactSpec, HubModel, ModelDeployment, ModelReplica, ModelReplicaSpec, ModelRevision,
    ModelRevisionSpec, ModelSource, ModelSpec, ServingSpec,
};

/// Write of the current template's revision. Replicas are created after it.
#[derive(Debug, PartialEq)]
pub(super) enum RevisionStep {
    Keep,
    Create(Box<ModelRevision>),
    /// The deployment returns to an old template, so its revision gets the highest number.
    Renumber {
        name: String,
        revision: i64,
    },
    /// The deployment's change-cause annotation has changed.
    ChangeCause {
        name: String,
        cause: String,
    },
}

/// Revision from which replicas are created.
#[derive(Clone)]
pub(super) struct Current<'a> {
    pub(super) name: String,
    pub(super) number: i64,
    pub(super) spec: ModelRevisionSpec,
    pub(super) existing: Option<&'a ModelRevision>,
}

impl<'a> Observed<'a, '_> {
    /// Returns the write of the revision, the revision for the replicas, and whether that revision
    /// has the deployment's template.
    pub(super) fn revision(
        &self,
        template: &Template,
        admission: &Admission,
        hub: Option<&HubAnswer>,
    ) -> (RevisionStep, Option<Current<'a>>, bool) {
        let latest = self
            .revisions
            .iter()
            .copied()
            .max_by_key(|revision| revision.spec.revision);
        let highest = latest.map_or(0, |latest| latest.spec.revision);
        if let Some(found) = self.revision_of(template) {
            let mut current = Current::existing(found);
            if found.spec.revision == highest {
                return (self.change_cause(found), Some(current), true);
            }
            if !self.deployment.spec.paused {
                let name = current.name.clone();
                let revision = highest + 1;
                current.number = revision;
                return (RevisionStep::Renumber { name, revision }, Some(current), true);
            }
        }
        match admission {
            Admission::Admitted { context_tokens } if !self.deployment.spec.paused => {
                let (commit, artifact) = match hub {
                    Some(HubAnswer::Artifact { commit, artifact }) => {
                        (commit.clone(), Some(ArtifactSpec::clone(artifact)))
                    }
                    Some(HubAnswer::Unknown { .. }) | None => (None, None),
                };
                let spec = ModelRevisionSpec {
                    revision: highest + 1,
                    model: ModelSpec {
                        revision: commit.or_else(|| template.model.revision.clone()),
                        ..template.model.clone()
                    },
                    artifact,
                    serving: ServingSpec {
                        context_tokens: *context_tokens,
                        ..template.serving.clone()
                    },
                    restarted_at: template.restarted_at.clone(),
                };
                let current = Current {
                    name: self.revision_name(template),
                    number: spec.revision,
                    spec,
                    existing: None,
                };
                let created = current.revision(self.deployment, &template.hash());
                (RevisionStep::Create(Box::new(created)), Some(current), true)
            }
            // Without a new revision, the latest one stays in use.
            Admission::Admitted { .. } | Admission::Refused { .. } => {
                (RevisionStep::Keep, latest.map(Current::existing), false)
            }
        }
    }

    /// Returns the revision of the template, by hash or by content.
    fn revision_of(&self, template: &Template) -> Option<&'a ModelRevision> {
        let hash = template.hash();
        let has_hash = |revision: &&&ModelRevision| revision.labels().get(TEMPLATE_HASH_LABEL) == Some(&hash);
        let has_content = |revision: &&&ModelRevision| template.is_of(&revision.spec);
        let by_content = || {
            let same = self.revisions.iter().filter(has_content);
            same.max_by_key(|revision| revision.spec.revision)
        };
        self.revisions.iter().find(has_hash).or_else(by_content).copied()
    }

    /// Returns the model of which the hub must be queried: the model of a template without a
    /// revision.
    pub(super) fn unknown_model(&self) -> Option<HubModel> {
        let template = Template::of(self.deployment);
        match template.model.parse() {
            Ok(ModelSource::Hub(model)) if self.revision_of(&template).is_none() => Some(model),
            Ok(_) | Err(_) => None,
        }
    }

    /// Returns whether the template is refused with this answer of the hub.
    pub(super) fn is_refused_with(&self, answer: &HubAnswer) -> bool {
        let admission = admit(&Template::of(self.deployment), self.fleet, Some(answer));
        matches!(admission, Admission::Refused { .. })
    }

    /// Returns the hub's answer that the template's revision stores, or the current answer if there
    /// is no revision. A moved branch does not change an existing revision.
    pub(super) fn hub_answer(&self, template: &Template) -> Option<HubAnswer> {
        let known = self.revision_of(template).and_then(|revision| {
            Some(HubAnswer::Artifact {
                commit: revision.spec.model.revision.clone(),
                artifact: Arc::new(revision.spec.artifact.clone()?),
            })
        });
        known.or_else(|| self.hub.clone())
    }

    /// Copies a changed change-cause annotation of the deployment to the revision. Without the
    /// annotation, the revision keeps its cause.
    fn change_cause(&self, current: &ModelRevision) -> RevisionStep {
        let cause = self.deployment.annotations().get(CHANGE_CAUSE_ANNOTATION);
        let known = current.annotations().get(CHANGE_CAUSE_ANNOTATION);
        match cause.filter(|cause| known != Some(*cause)) {
            Some(cause) => RevisionStep::ChangeCause {
                name: current.name_any(),
                cause: cause.clone(),
            },
            None => RevisionStep::Keep,
        }
    }

    /// Returns the name of a new revision of the template, without collision with foreign
    /// revisions.
    pub(super) fn revision_name(&self, template: &Template) -> String {
        let deployment = self.deployment.name_any();
        let name = |collisions| format!("{deployment}-{}", template.hash_after(collisions));
        let is_taken = |name: &String| self.foreign.iter().any(|foreign| foreign.name_any() == *name);
        let free = (0..).map(name).find(|name| !is_taken(name));
        free.expect("the number of foreign revisions is finite")
    }

    /// Returns the revision of the last complete rollout, if it still exists.
    pub(super) fn stable(&self) -> Option<Current<'a>> {
        let name = self.rollout()?.stable_revision.as_deref()?;
        let found = self
            .revisions
            .iter()
            .find(|revision| revision.metadata.name.as_deref() == Some(name))?;
        Some(Current::existing(found))
    }

    /// Returns the unused revisions beyond the history limit, oldest first.
    pub(super) fn prunable(&self, keep: &[&str]) -> Vec<&'a ModelRevision> {
        let in_use = |revision: &ModelRevision| {
            let name = revision.name_any();
            keep.contains(&name.as_str()) || self.replicas.iter().any(|replica| is_of(replica, &name))
        };
        let mut unused: Vec<_> = self
            .revisions
            .iter()
            .copied()
            .filter(|revision| revision.metadata.deletion_timestamp.is_none() && !in_use(revision))
            .collect();
        unused.sort_by_key(|revision| revision.spec.revision);
        let kept = usize::try_from(self.deployment.spec.revision_history_limit).unwrap_or(0);
        unused.truncate(unused.len().saturating_sub(kept));
        unused
    }
}

impl<'a> Current<'a> {
    /// Returns the pause for a rollout whose throughput cannot be predicted.
    pub(super) fn unpredictable(&self) -> PauseReason {
        PauseReason::ThroughputFloor(format!(
            "revision {} ({}) is not rolled out: spec.strategy.rollingUpdate.minThroughput is set, but the speed of the Ready replicas cannot be predicted; wait until the probes of their nodes are complete, or remove minThroughput",
            self.number, self.name
        ))
    }

    fn existing(revision: &'a ModelRevision) -> Self {
        Self {
            name: revision.name_any(),
            number: revision.spec.revision,
            spec: revision.spec.clone(),
            existing: Some(revision),
        }
    }

    fn labels(&self, deployment: &ModelDeployment) -> BTreeMap<String, String> {
        BTreeMap::from([(DEPLOYMENT_LABEL.to_owned(), deployment.name_any())])
    }

    fn revision(&self, deployment: &ModelDeployment, hash: &str) -> ModelRevision {
        let mut revision = ModelRevision::new(&self.name, self.spec.clone());
        let mut labels = self.labels(deployment);
        labels.insert(TEMPLATE_HASH_LABEL.to_owned(), hash.to_owned());
        revision.metadata.namespace = deployment.namespace();
        revision.metadata.labels = Some(labels);
        let cause = deployment.annotations().get(CHANGE_CAUSE_ANNOTATION);
        revision.metadata.annotations =
            cause.map(|cause| BTreeMap::from([(CHANGE_CAUSE_ANNOTATION.to_owned(), cause.clone())]));
        revision.metadata.owner_references = controller_reference(deployment).map(|owner| vec![owner]);
        revision
    }

    /// Returns a replica of the revision. The server adds five characters to `generateName`.
    pub(super) fn replica(&self, deployment: &ModelDeployment) -> ModelReplica {
        let spec = ModelReplicaSpec {
            model: self.spec.model.clone(),
            artifact: self.spec.artifact.clone(),
            serving: self.spec.serving.clone(),
            objectives: deployment.spec.objectives.clone(),
            placement: deployment.spec.placement.clone(),
            priority: deployment.spec.priority,
            golden_prompts: deployment.spec.strategy.golden_prompts.clone(),
            node_name: None,
        };
        let mut replica = ModelReplica::new("", spec);
        let mut labels = self.labels(deployment);
        labels.insert(REVISION_LABEL.to_owned(), self.name.clone());
        replica.metadata = ObjectMeta {
            generate_name: Some(format!("{}-", self.name)),
            namespace: deployment.namespace(),
            labels: Some(labels),
            annotations: admission_annotation(deployment)
                .map(|value| BTreeMap::from([(ADMISSION_ANNOTATION.to_owned(), value.to_owned())])),
            owner_references: controller_reference(deployment).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        replica
    }
}
