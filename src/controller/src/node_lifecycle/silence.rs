//! Condition Ready of nodes whose agents do not renew their Leases.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::since;

/// Reason of the condition Ready of a silent node.
pub(super) const NODE_SILENT: &str = "NodeStatusUnknown";

/// Returns the time since the condition Ready reports the node as silent.
pub(super) fn reported_silent_for(node: &FleetNode, now: Timestamp) -> Option<Duration> {
    let ready = ready(node).filter(|ready| ready.reason == NODE_SILENT)?;
    Some(since(now, ready.last_transition_time.0))
}

/// Returns whether the condition Ready reports the node as silent.
pub(super) fn is_reported_silent(node: &FleetNode) -> bool {
    ready(node).is_some_and(|ready| ready.reason == NODE_SILENT)
}

fn ready(node: &FleetNode) -> Option<&Condition> {
    let conditions = &node.status.as_ref()?.conditions;
    conditions
        .iter()
        .find(|condition| condition.type_ == condition_type::READY)
}
