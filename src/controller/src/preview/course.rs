//! Difference of the replicas before and after a change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use kube::ResourceExt;
use serde::Serialize;

use crate::intent::Snapshot;
use rooflet_api::conditions::condition_type;
use rooflet_api::meta::REVISION_LABEL;
use rooflet_api::v1alpha1::{ModelReplica, ModelRevision};
use rooflet_client::ObjectKey;
use rooflet_scheduler::{ReplicaKey, deployment_of};

/// Consequence of a change for one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaPreview {
    /// Namespace and name of a replica that exists now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// Namespace and name of its deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// Number of its revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    #[serde(flatten)]
    pub course: Course,
    /// Time from the change to the course, if the replica tolerates a taint until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<u64>,
    /// The same as a sentence.
    pub message: String,
}

/// Course of a replica after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "course", rename_all_fields = "camelCase")]
pub enum Course {
    /// The replica stops, and a replacement starts on another node or with another revision.
    Moves {
        from: String,
        to: String,
        /// Revision of the replacement.
        to_revision: Option<i64>,
    },
    /// A new replica starts, or a replica without a node receives one.
    Starts {
        to: String,
    },
    Stops {
        from: Option<String>,
    },
    /// The replica, or its replacement, receives no node.
    Pending {
        from: Option<String>,
        why: String,
    },
    /// The replica stays on a node that is drained.
    Stays {
        from: String,
        why: String,
    },
}

impl fmt::Display for ReplicaPreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let new = || {
            format!(
                "a new replica of {}",
                self.deployment.as_deref().unwrap_or("no deployment")
            )
        };
        let replica = self.replica.clone().unwrap_or_else(new);
        let of = |revision: &Option<i64>| {
            revision.map_or_else(String::new, |number| format!(" (revision {number})"))
        };
        if let Some(seconds) = self.after_seconds {
            write!(f, "after {seconds} s, ")?;
        }
        match &self.course {
            Course::Moves {
                from,
                to,
                to_revision,
            } if *to_revision == self.revision => {
                write!(f, "{replica} moves from {from} to {to}")
            }
            Course::Moves {
                from,
                to,
                to_revision,
            } => {
                let (old, new) = (of(&self.revision), of(to_revision));
                write!(
                    f,
                    "{replica}{old} on {from} is replaced by a replica{new} on {to}"
                )
            }
            Course::Starts { to } => write!(f, "{replica}{} starts on {to}", of(&self.revision)),
            Course::Stops { from: Some(from) } => write!(f, "{replica} on {from} stops"),
            Course::Stops { from: None } => write!(f, "{replica}, which has no node, is deleted"),
            Course::Pending {
                from: Some(from),
                why,
            } => {
                write!(
                    f,
                    "{replica} on {from} stops, and no node accepts its replacement: {why}"
                )
            }
            Course::Pending { from: None, why } => write!(f, "{replica} stays without a node: {why}"),
            Course::Stays { from, why } => write!(f, "{replica} stays on {from}: {why}"),
        }
    }
}

/// Returns the courses of all replicas that change. `obstacles` has the replicas that a drain leaves, and `delays`
/// those that are evicted later.
pub(super) fn courses(
    before: &Snapshot,
    after: &Snapshot,
    obstacles: &[(ReplicaKey, String)],
    delays: &BTreeMap<ReplicaKey, Duration>,
) -> Vec<ReplicaPreview> {
    let revisions = Revisions::of(before, after);
    let is_live = |replica: &&ModelReplica| replica.metadata.deletion_timestamp.is_none();
    let live = |snapshot: &'_ Snapshot| -> BTreeMap<ReplicaKey, ModelReplica> {
        let replicas = snapshot.replicas.iter().map(AsRef::as_ref).filter(is_live);
        replicas
            .map(|replica| (ReplicaKey::of(replica), replica.clone()))
            .collect()
    };
    let (was, is) = (live(before), live(after));
    let gone: Vec<_> = was
        .iter()
        .filter(|(key, _)| !is.contains_key(*key))
        .map(|(_, replica)| replica)
        .collect();
    let mut new: Vec<_> = is
        .iter()
        .filter(|(key, _)| !was.contains_key(*key))
        .map(|(_, replica)| replica)
        .collect();
    // A replacement with the same revision is a move, so these pairs come first. Replacements with a node come
    // before those that wait.
    new.sort_by_key(|replica| replica.spec.node_name.is_none());
    let mut replacements: Vec<Option<&ModelReplica>> = vec![None; gone.len()];
    for same_revision in [true, false] {
        for (old, replacement) in gone.iter().zip(&mut replacements) {
            if replacement.is_some() {
                continue;
            }
            let fits = |new: &&ModelReplica| {
                deployment_of(new).is_some()
                    && deployment_of(new) == deployment_of(old)
                    && (!same_revision || revision(new) == revision(old))
            };
            *replacement = new.iter().position(fits).map(|at| new.remove(at));
        }
    }
    let mut previews = Vec::new();
    for (old, replacement) in gone.iter().zip(replacements) {
        let from = old.spec.node_name.clone();
        let course = match (replacement, &from) {
            (None, _) => Course::Stops { from },
            (Some(new), Some(from)) => match &new.spec.node_name {
                Some(to) => Course::Moves {
                    from: from.clone(),
                    to: to.clone(),
                    to_revision: revisions.number(new),
                },
                None => Course::Pending {
                    from: Some(from.clone()),
                    why: why_unscheduled(new),
                },
            },
            (Some(new), None) => match &new.spec.node_name {
                Some(to) => Course::Starts { to: to.clone() },
                None => Course::Pending {
                    from: None,
                    why: why_unscheduled(new),
                },
            },
        };
        let mut preview = revisions.preview(Some(old), old, course);
        if let Some(delay) = delays.get(&ReplicaKey::of(*old)) {
            preview.after_seconds = Some(delay.as_secs());
            preview.message = preview.to_string();
        }
        previews.push(preview);
    }
    for new in new {
        let course = match &new.spec.node_name {
            Some(to) => Course::Starts { to: to.clone() },
            None => Course::Pending {
                from: None,
                why: why_unscheduled(new),
            },
        };
        previews.push(revisions.preview(None, new, course));
    }
    for (key, old) in &was {
        let Some(now) = is.get(key) else { continue };
        let obstacle = obstacles.iter().find(|(left, _)| left == key);
        let course = match (&old.spec.node_name, &now.spec.node_name, obstacle) {
            (None, Some(to), _) => Course::Starts { to: to.clone() },
            (Some(from), Some(_), Some((_, why))) => Course::Stays {
                from: from.clone(),
                why: why.clone(),
            },
            (None | Some(_), None, _) | (Some(_), Some(_), None) => continue,
        };
        previews.push(revisions.preview(Some(old), old, course));
    }
    previews
}

fn revision(replica: &ModelReplica) -> Option<&str> {
    replica.labels().get(REVISION_LABEL).map(String::as_str)
}

/// Returns the scheduler's message about a replica without a node.
fn why_unscheduled(replica: &ModelReplica) -> String {
    let conditions = replica
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let scheduled = conditions
        .iter()
        .find(|condition| condition.type_ == condition_type::SCHEDULED);
    scheduled.map_or_else(
        || "it is not scheduled yet".to_owned(),
        |scheduled| scheduled.message.clone(),
    )
}

/// Numbers of the revisions.
struct Revisions(BTreeMap<ObjectKey, i64>);

impl Revisions {
    /// A revision that is reused receives a new number, so the numbers before the change win.
    fn of(before: &Snapshot, after: &Snapshot) -> Self {
        let number = |revision: &ModelRevision| (ObjectKey::of(revision), revision.spec.revision);
        let all = after.revisions.iter().chain(&before.revisions);
        Self(all.map(|revision| number(revision)).collect())
    }

    fn number(&self, replica: &ModelReplica) -> Option<i64> {
        let key = ObjectKey::new(replica.metadata.namespace.as_deref(), revision(replica)?);
        self.0.get(&key).copied()
    }

    fn preview(&self, replica: Option<&ModelReplica>, of: &ModelReplica, course: Course) -> ReplicaPreview {
        let mut preview = ReplicaPreview {
            replica: replica.map(|replica| ReplicaKey::of(replica).to_string()),
            deployment: deployment_of(of).map(|key| key.to_string()),
            revision: self.number(of),
            course,
            after_seconds: None,
            message: String::new(),
        };
        preview.message = preview.to_string();
        preview
    }
}

/// Returns the reason why the deployment is not admitted, with the text of its condition Admitted.
pub(super) fn rejection(snapshot: &Snapshot, key: &ObjectKey) -> Option<String> {
    let mut deployments = snapshot.deployments.iter();
    let deployment = deployments.find(|deployment| ObjectKey::of(deployment.as_ref()) == *key)?;
    let conditions = &deployment.status.as_ref()?.conditions;
    let admitted = conditions
        .iter()
        .find(|condition| condition.type_ == condition_type::ADMITTED && condition.status != "True")?;
    Some(format!(
        "{} is not admitted: {}: {}",
        ReplicaKey::of(deployment.as_ref()),
        admitted.reason,
        admitted.message
    ))
}

/// Returns the rollouts that wait, of the deployments in `planned`, with the messages of their condition
/// Progressing.
pub(super) fn waiting(snapshot: &Snapshot, planned: &BTreeSet<ObjectKey>) -> Vec<String> {
    let planned = snapshot
        .deployments
        .iter()
        .filter(|deployment| planned.contains(&ObjectKey::of(deployment.as_ref())));
    let waits = planned.filter_map(|deployment| {
        let status = deployment.status.as_ref()?;
        let rollout = &status.rollout;
        let in_progress = rollout.aborted.is_none()
            && rollout.stable_revision.is_some()
            && rollout.stable_revision != rollout.revision;
        let progressing = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == condition_type::PROGRESSING)?;
        in_progress.then(|| {
            format!(
                "the rollout of {} waits: {}",
                ReplicaKey::of(deployment.as_ref()),
                progressing.message
            )
        })
    });
    waits.collect()
}
