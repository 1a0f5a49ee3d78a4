//! Replicas that the binder may have to process.

use jiff::Timestamp;
use kube::ResourceExt;

use crate::deployment::refusal;
use crate::node_lifecycle::moves_to;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, REVISION_LABEL};
use rooflet_api::v1alpha1::ModelReplica;
use rooflet_scheduler::ReplicaRequest;

/// Replica that no node accepts.
#[derive(Debug)]
pub(crate) struct Unplaced {
    pub(crate) request: ReplicaRequest,
    pub(crate) created: Option<Timestamp>,
    /// Time at which a reason against a node expires.
    pub(crate) retry_at: Option<Timestamp>,
}

/// Returns whether the binder may have to process the replica: it has no node, its binding is not
/// confirmed, or it determines the node of another replica.
pub(crate) fn is_candidate(replica: &ModelReplica) -> bool {
    is_unscheduled(replica)
        || is_unconfirmed(replica)
        || refusal(replica).is_some()
        || moves_to(replica).is_some()
}

pub(super) fn is_unscheduled(replica: &ModelReplica) -> bool {
    replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none()
}

/// Returns whether the replica has a node and lacks the condition Scheduled.
pub(super) fn is_unconfirmed(replica: &ModelReplica) -> bool {
    let conditions = replica
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    replica.spec.node_name.is_some()
        && replica.metadata.deletion_timestamp.is_none()
        && !is_true(conditions, condition_type::SCHEDULED)
        && !replica.annotations().contains_key(MIRROR_ANNOTATION)
}

/// Namespace, deployment and revision of a replica.
pub(super) type RevisionOf<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a str>);

pub(super) fn revision(replica: &ModelReplica) -> RevisionOf<'_> {
    let label = |name: &str| replica.labels().get(name).map(String::as_str);
    (
        replica.metadata.namespace.as_deref(),
        label(DEPLOYMENT_LABEL),
        label(REVISION_LABEL),
    )
}
