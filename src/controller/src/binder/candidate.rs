//! Replicas that the binder may have to process.

use kube::ResourceExt;

use crate::deployment::refusal;
use crate::node_lifecycle::moves_to;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::MIRROR_ANNOTATION;
use rooflet_api::v1alpha1::ModelReplica;

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
