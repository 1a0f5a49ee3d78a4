//! What has to be done for one deployment, as a value.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};

use super::admission::{Admission, Template, admit};
use super::conditions::{View, events};
use super::figures::figures;
use super::replica::{REFUSAL_STANDS, is_ending, is_of, is_ready, refusal, refused_recently};
use super::rollout::{DeleteReason, scale};
use crate::api::meta::{
    ADMISSION_ANNOTATION, DEPLOYMENT_LABEL, REVISION_LABEL, TEMPLATE_HASH_LABEL, controller_reference,
};
use crate::api::v1alpha1::{
    ModelDeployment, ModelDeploymentStatus, ModelReplica, ModelReplicaSpec, ModelRevision, ModelRevisionSpec,
};
use crate::client::{EventType, merge_diff};
use crate::clock::since;
use crate::scheduler::Fleet;

/// What one pass does for one deployment. Empty, but for a status equal to the present one, when all is as it should.
#[derive(Debug, PartialEq)]
pub(crate) struct DeploymentPlan<'a> {
    pub(super) revision: RevisionStep,
    /// Old revisions beyond the history limit.
    pub(super) prune: Vec<&'a ModelRevision>,
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
    pub(super) create: Vec<ModelReplica>,
    /// Replicas that follow what may change without a restart, each with its merge patch.
    pub(super) amend: Vec<(&'a ModelReplica, Value)>,
    pub(super) status: ModelDeploymentStatus,
    pub(super) events: Vec<(EventType, String, String)>,
    /// When the plan may change although nothing else does.
    pub(super) look_again_after: Option<Duration>,
}

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
}

/// What a plan is made from. Revisions and replicas are those the deployment controls.
pub(crate) struct Observed<'a> {
    pub(crate) deployment: &'a ModelDeployment,
    pub(crate) revisions: Vec<&'a ModelRevision>,
    pub(crate) replicas: Vec<&'a ModelReplica>,
    pub(crate) fleet: &'a Fleet,
    pub(crate) now: Timestamp,
}

/// The revision replicas should be of.
struct Current<'a> {
    name: String,
    number: i64,
    spec: ModelRevisionSpec,
    existing: Option<&'a ModelRevision>,
}

impl<'a> DeploymentPlan<'a> {
    /// `None` for a deployment that is being deleted: garbage collection does the rest.
    pub(crate) fn new(observed: &Observed<'a>) -> Option<Self> {
        let Observed { deployment, now, .. } = *observed;
        if deployment.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let template = Template::of(deployment);
        let admission = admit(&template, observed.fleet);
        let (revision, current, is_current_wanted) = observed.revision(&template, &admission);

        let here = |replica: &&&ModelReplica| !is_ending(replica);
        let (refused, active): (Vec<_>, Vec<_>) = observed
            .replicas
            .iter()
            .filter(here)
            .copied()
            .partition(|replica| refusal(replica).is_some());
        let current_name = current.as_ref().map(|current| current.name.as_str());
        let is_updated = |replica: &ModelReplica| {
            current_name.is_some_and(|name| is_of(replica, name)) && !observed.is_misplaced(replica)
        };
        let ending_old = observed
            .replicas
            .iter()
            .filter(|replica| is_ending(replica) && !is_updated(replica))
            .count();
        let scaling = scale(
            &deployment.spec,
            current_name.map(|_| is_updated),
            &active,
            ending_old,
        );
        let mut delete = scaling.delete;
        delete.extend(
            observed
                .settled_refusals(&refused, &active, scaling.create)
                .into_iter()
                .map(|replica| (replica, DeleteReason::Refused)),
        );
        let create = match &current {
            Some(current) => vec![current.replica(deployment); scaling.create],
            None => Vec::new(),
        };

        let stays = |replica: &&&ModelReplica| !delete.iter().any(|(gone, _)| std::ptr::eq(*gone, **replica));
        let (updated, old): (Vec<_>, Vec<_>) = active
            .iter()
            .filter(stays)
            .copied()
            .partition(|replica| is_updated(replica));
        let amend = observed.amendments(updated.iter().chain(&old).copied());
        let refused: Vec<_> = refused.iter().filter(stays).copied().collect();
        let view = View {
            deployment,
            admission: &admission,
            current: current
                .as_ref()
                .map(|current| (current.name.as_str(), current.number)),
            is_current_wanted,
            updated: &updated,
            old: &old,
            created: create.len(),
            refused: &refused,
            figures: figures(&[updated.as_slice(), &old].concat()),
            progressed_at: observed.progressed_at(current.as_ref().and_then(|current| current.existing)),
            now,
        };
        let outcome = view.conditions();
        let before = deployment
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        let events = events(before, &outcome.conditions);
        let mut status = counts(&view, &updated, &old);
        status.conditions = outcome.conditions;
        let asked_again = refused.iter().filter_map(|replica| {
            let refusal = refused_recently(replica, now)?;
            Some(REFUSAL_STANDS.saturating_sub(since(now, refusal.last_transition_time.0)))
        });
        Some(Self {
            revision,
            prune: observed.prunable(current_name),
            delete,
            create,
            amend,
            status,
            events,
            look_again_after: asked_again.chain(outcome.look_again_after).min(),
        })
    }
}

impl<'a> Observed<'a> {
    /// The revision to have, the one replicas should be of, and whether that is what the spec asks for.
    fn revision(
        &self,
        template: &Template,
        admission: &Admission,
    ) -> (RevisionStep, Option<Current<'a>>, bool) {
        let hash = template.hash();
        let of_hash = |revision: &&&ModelRevision| revision.labels().get(TEMPLATE_HASH_LABEL) == Some(&hash);
        let latest = self
            .revisions
            .iter()
            .copied()
            .max_by_key(|revision| revision.spec.revision);
        let highest = latest.map_or(0, |latest| latest.spec.revision);
        let existing = |revision: &'a ModelRevision| Current {
            name: revision.name_any(),
            number: revision.spec.revision,
            spec: revision.spec.clone(),
            existing: Some(revision),
        };
        if let Some(found) = self.revisions.iter().find(of_hash).copied() {
            let mut current = existing(found);
            if found.spec.revision == highest {
                return (RevisionStep::Keep, Some(current), true);
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
                let spec = ModelRevisionSpec {
                    revision: highest + 1,
                    model: template.model.clone(),
                    serving: crate::api::v1alpha1::ServingSpec {
                        context_tokens: *context_tokens,
                        ..template.serving.clone()
                    },
                };
                let current = Current {
                    name: format!("{}-{hash}", self.deployment.name_any()),
                    number: spec.revision,
                    spec,
                    existing: None,
                };
                let created = current.revision(self.deployment, &hash);
                (RevisionStep::Create(Box::new(created)), Some(current), true)
            }
            // What was served so far goes on being served.
            Admission::Admitted { .. } | Admission::Refused { .. } => {
                (RevisionStep::Keep, latest.map(existing), false)
            }
        }
    }

    /// Whether the placement was changed so that the replica may not stay where it is. A node whose labels were
    /// changed keeps its replicas, as in Kubernetes.
    fn is_misplaced(&self, replica: &ModelReplica) -> bool {
        let placement = &self.deployment.spec.placement;
        let node = replica.spec.node_name.as_deref();
        replica.spec.placement != *placement
            && node
                .and_then(|name| self.fleet.node(name))
                .is_some_and(|node| !node.is_selected(placement))
    }

    /// Objectives, placement, priority and the override of admission are no part of the template: replicas that run
    /// follow them. One that may not stay where it is keeps its placement, by which it is known.
    fn amendments(&self, replicas: impl Iterator<Item = &'a ModelReplica>) -> Vec<(&'a ModelReplica, Value)> {
        let deployment = self.deployment;
        let value =
            |spec: &ModelReplicaSpec| serde_json::to_value(spec).expect("a spec has only string keys");
        replicas
            .filter_map(|replica| {
                let mut wanted = ModelReplicaSpec {
                    objectives: deployment.spec.objectives.clone(),
                    priority: deployment.spec.priority,
                    ..replica.spec.clone()
                };
                if !self.is_misplaced(replica) {
                    wanted.placement = deployment.spec.placement.clone();
                }
                let mut patch = Map::new();
                if let Some(change) = merge_diff(&value(&replica.spec), &value(&wanted)) {
                    patch.insert("spec".to_owned(), change);
                }
                let annotation = admission_annotation(deployment);
                if admission_annotation(replica) != annotation {
                    // In a merge patch null removes.
                    let annotations = json!({ "annotations": { ADMISSION_ANNOTATION: annotation } });
                    patch.insert("metadata".to_owned(), annotations);
                }
                (!patch.is_empty()).then_some((replica, Value::Object(patch)))
            })
            .collect()
    }

    /// Refused replicas that have served their purpose, to keep the scheduler off their node for a while.
    fn settled_refusals(
        &self,
        refused: &[&'a ModelReplica],
        active: &[&'a ModelReplica],
        created: usize,
    ) -> Vec<&'a ModelReplica> {
        let all_placed = created == 0 && active.iter().all(|replica| replica.spec.node_name.is_some());
        refused
            .iter()
            .filter(|replica| all_placed || refused_recently(replica, self.now).is_none())
            .copied()
            .collect()
    }

    /// The last time anything came forward: a revision or a replica was made, or a replica changed its condition.
    fn progressed_at(&self, revision: Option<&ModelRevision>) -> Option<Timestamp> {
        let created = |meta: &ObjectMeta| meta.creation_timestamp.as_ref().map(|time| time.0);
        let conditions = self
            .replicas
            .iter()
            .filter_map(|replica| replica.status.as_ref())
            .flat_map(|status| &status.conditions)
            .filter(|condition| condition.status == "True")
            .map(|condition| condition.last_transition_time.0);
        self.replicas
            .iter()
            .filter_map(|replica| created(&replica.metadata))
            .chain(revision.and_then(|revision| created(&revision.metadata)))
            .chain(conditions)
            .max()
    }

    /// Revisions beyond the limit, the oldest first. One that a replica is still of is never among them.
    fn prunable(&self, current: Option<&str>) -> Vec<&'a ModelRevision> {
        let in_use = |revision: &ModelRevision| {
            let name = revision.name_any();
            current == Some(name.as_str()) || self.replicas.iter().any(|replica| is_of(replica, &name))
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

impl Current<'_> {
    fn labels(&self, deployment: &ModelDeployment) -> BTreeMap<String, String> {
        BTreeMap::from([(DEPLOYMENT_LABEL.to_owned(), deployment.name_any())])
    }

    fn revision(&self, deployment: &ModelDeployment, hash: &str) -> ModelRevision {
        let mut revision = ModelRevision::new(&self.name, self.spec.clone());
        let mut labels = self.labels(deployment);
        labels.insert(TEMPLATE_HASH_LABEL.to_owned(), hash.to_owned());
        revision.metadata.namespace = deployment.namespace();
        revision.metadata.labels = Some(labels);
        revision.metadata.owner_references = controller_reference(deployment).map(|owner| vec![owner]);
        revision
    }

    /// Without a name: the server adds five characters to the prefix.
    fn replica(&self, deployment: &ModelDeployment) -> ModelReplica {
        let spec = ModelReplicaSpec {
            model: self.spec.model.clone(),
            serving: self.spec.serving.clone(),
            objectives: deployment.spec.objectives.clone(),
            placement: deployment.spec.placement.clone(),
            priority: deployment.spec.priority,
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

fn admission_annotation(object: &impl ResourceExt) -> Option<&str> {
    object.annotations().get(ADMISSION_ANNOTATION).map(String::as_str)
}

/// Short, as a column of `kubectl get` should be.
fn seconds(seconds: f64) -> String {
    if seconds < 0.9995 {
        format!("{:.0}ms", seconds * 1e3)
    } else {
        format!("{seconds:.2}s")
    }
}

fn counts(view: &View<'_>, updated: &[&ModelReplica], old: &[&ModelReplica]) -> ModelDeploymentStatus {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let deployment = view.deployment;
    let ready = updated
        .iter()
        .chain(old)
        .filter(|replica| is_ready(replica))
        .count();
    let wanted = deployment.spec.replicas.max(0);
    let before = deployment.status.clone().unwrap_or_default();
    ModelDeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: number(updated.len() + old.len() + view.created),
        updated_replicas: if view.is_current_wanted {
            number(updated.len() + view.created)
        } else {
            0
        },
        ready_replicas: number(ready),
        available_replicas: number(ready),
        unavailable_replicas: wanted.saturating_sub(number(ready)).max(0),
        ready: Some(format!("{ready}/{wanted}")),
        selector: Some(format!("{DEPLOYMENT_LABEL}={}", deployment.name_any())),
        current_revision: view
            .current
            .map(|(name, _)| name.to_owned())
            .or(before.current_revision),
        traffic: Vec::new(),
        tokens_per_second: Some(view.figures.tokens_per_second.show(|rate| format!("{rate:.1}"))),
        time_to_first_token: Some(view.figures.first_token_seconds.show(seconds)),
        conditions: Vec::new(),
    }
}
