//! Revisions of a deployment's template: which one to have, which one to go back to, and what is made of one.

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

/// What happens to the current template's revision. Replicas are created only after it.
#[derive(Debug, PartialEq)]
pub(super) enum RevisionStep {
    Keep,
    Create(Box<ModelRevision>),
    /// An old template is wanted again: its revision gets a new number.
    Renumber {
        name: String,
        revision: i64,
    },
    /// What the user says of the template has changed.
    ChangeCause {
        name: String,
        cause: String,
    },
}

/// A revision that replicas are made of.
#[derive(Clone)]
pub(super) struct Current<'a> {
    pub(super) name: String,
    pub(super) number: i64,
    pub(super) spec: ModelRevisionSpec,
    pub(super) existing: Option<&'a ModelRevision>,
}

impl<'a> Observed<'a, '_> {
    /// The revision to have, the one replicas should be of, and whether that is what the spec asks for.
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
            // What was served so far goes on being served.
            Admission::Admitted { .. } | Admission::Refused { .. } => {
                (RevisionStep::Keep, latest.map(Current::existing), false)
            }
        }
    }

    /// The revision that was made of a template, or says the same.
    fn revision_of(&self, template: &Template) -> Option<&'a ModelRevision> {
        let hash = template.hash();
        let of_hash = |revision: &&&ModelRevision| revision.labels().get(TEMPLATE_HASH_LABEL) == Some(&hash);
        let same = |revision: &&&ModelRevision| template.is_of(&revision.spec);
        let by_text = || {
            let same = self.revisions.iter().filter(same);
            same.max_by_key(|revision| revision.spec.revision)
        };
        self.revisions.iter().find(of_hash).or_else(by_text).copied()
    }

    /// The model that a hub has to be asked for: that of a template without a revision.
    pub(super) fn unknown_model(&self) -> Option<HubModel> {
        let template = Template::of(self.deployment);
        match template.model.parse() {
            Ok(ModelSource::Hub(model)) if self.revision_of(&template).is_none() => Some(model),
            Ok(_) | Err(_) => None,
        }
    }

    /// Whether no revision can be made of the template by what a hub says.
    pub(super) fn is_refused_with(&self, answer: &HubAnswer) -> bool {
        let admission = admit(&Template::of(self.deployment), self.fleet, Some(answer));
        matches!(admission, Admission::Refused { .. })
    }

    /// What the hub said of a template: when its revision was made, else now. A branch that has moved since then moves no
    /// revision.
    pub(super) fn hub_answer(&self, template: &Template) -> Option<HubAnswer> {
        let known = self.revision_of(template).and_then(|revision| {
            Some(HubAnswer::Artifact {
                commit: revision.spec.model.revision.clone(),
                artifact: Arc::new(revision.spec.artifact.clone()?),
            })
        });
        known.or_else(|| self.hub.clone())
    }

    /// What is said of a template after its revision was made is told of the revision, too. Where nothing is said, what was
    /// said before stays.
    fn change_cause(&self, current: &ModelRevision) -> RevisionStep {
        let said = self.deployment.annotations().get(CHANGE_CAUSE_ANNOTATION);
        match said.filter(|said| current.annotations().get(CHANGE_CAUSE_ANNOTATION) != Some(*said)) {
            Some(cause) => RevisionStep::ChangeCause {
                name: current.name_any(),
                cause: cause.clone(),
            },
            None => RevisionStep::Keep,
        }
    }

    /// Name of a new revision of the template. Names of foreign revisions are taken.
    pub(super) fn revision_name(&self, template: &Template) -> String {
        let deployment = self.deployment.name_any();
        let name = |collisions| format!("{deployment}-{}", template.hash_after(collisions));
        let is_taken = |name: &String| self.foreign.iter().any(|foreign| foreign.name_any() == *name);
        let free = (0..).map(name).find(|name| !is_taken(name));
        free.expect("there are more names than foreign")
    }

    /// The revision that was last rolled out on all replicas, if it still exists.
    pub(super) fn stable(&self) -> Option<Current<'a>> {
        let name = self.rollout()?.stable_revision.as_deref()?;
        let found = self
            .revisions
            .iter()
            .find(|revision| revision.metadata.name.as_deref() == Some(name))?;
        Some(Current::existing(found))
    }

    /// Revisions beyond the limit, the oldest first. One that a replica is still of is never among them.
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
    /// It would replace what nobody can hold against the floor.
    pub(super) fn blind(&self) -> PauseReason {
        PauseReason::ThroughputFloor(format!(
            "revision {} ({}) is held: spec.strategy.rollingUpdate.minThroughput is set, and nobody can predict what the replicas that answer decode; wait until their nodes' probes have ended, or leave minThroughput out",
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

    /// Without a name: the server adds five characters to the prefix.
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
