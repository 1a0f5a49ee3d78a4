//! Status of a bound replica.

use jiff::Timestamp;

use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaStatus};

/// Returns the status of a replica that is bound to `node`.
pub fn bound_status(replica: &ModelReplica, node: &str, now: Timestamp) -> ModelReplicaStatus {
    let mut status = replica.status.clone().unwrap_or_default();
    status.nominated_node_name = None;
    set_condition(
        &mut status.conditions,
        condition_type::SCHEDULED,
        Truth::True,
        "Assigned",
        format!("assigned to {node}"),
        replica.metadata.generation,
        now,
    );
    status
}
