//! The Ready condition of a node whose agent does not renew its Lease.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::since;

/// Reason of the condition Ready of a silent node.
pub(super) const NODE_SILENT: &str = "NodeStatusUnknown";

/// Time since the condition Ready reports the node as silent.
pub(super) fn known_silent_for(node: &FleetNode, now: Timestamp) -> Option<Duration> {
    let ready = ready(node).filter(|ready| ready.reason == NODE_SILENT)?;
    Some(since(now, ready.last_transition_time.0))
}

/// Whether the condition Ready reports the node as silent.
pub(super) fn is_known_silent(node: &FleetNode) -> bool {
    ready(node).is_some_and(|ready| ready.reason == NODE_SILENT)
}

fn ready(node: &FleetNode) -> Option<&Condition> {
    let conditions = &node.status.as_ref()?.conditions;
    conditions
        .iter()
        .find(|condition| condition.type_ == condition_type::READY)
}
