//! Objects for the tests of several reconcilers.

use serde_json::json;

use rooflet_api::v1alpha1::{FleetNode, FleetNodeSpec};
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::ServedModel;

/// Returns a Ready node that has `gib` GiB of memory for models and the model `guide` of 1 GiB.
pub(super) fn node(name: &str, gib: u64) -> FleetNode {
    let model = ServedModel::of_size(Bytes::gib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 64);
    let status = json!({
        "allocatable": { "memory": format!("{gib}Gi") },
        "models": [model],
        "conditions": [{ "type": "Ready", "status": "True", "reason": "AgentReady", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }],
    });
    let mut node = FleetNode::new(name, FleetNodeSpec::default());
    node.status = Some(serde_json::from_value(status).expect("valid"));
    node
}
