//! Observed state of the nodes: the input of a plan.

use jiff::Timestamp;

use super::heartbeats::Timings;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::LEASE_DURATION;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, TaintEffect};
use rooflet_scheduler::taints_of;

/// Minimum number of silent nodes, and their minimum share of all nodes in percent, in a disrupted
/// fleet. The values are those of Kubernetes.
const DISRUPTION_NODES: usize = 3;
const DISRUPTION_PERCENT: usize = 55;

/// Input of a plan.
pub(super) struct Observed<'a> {
    pub(super) nodes: Vec<&'a FleetNode>,
    pub(super) replicas: Vec<&'a ModelReplica>,
    pub(super) deployments: Vec<&'a ModelDeployment>,
    pub(super) timings: Timings,
    /// Number of simultaneous node failures for which the scheduler keeps capacity free.
    pub(super) reserve_node_failures: usize,
    /// Version of this control plane.
    pub(super) version: &'a str,
    pub(super) now: Timestamp,
}

impl Observed<'_> {
    /// Returns whether most nodes are silent.
    pub(super) fn is_disrupted(&self) -> bool {
        let silence = self.timings.silence.values();
        let silent = silence.filter(|silence| **silence >= LEASE_DURATION).count();
        silent >= DISRUPTION_NODES && silent * 100 >= self.nodes.len() * DISRUPTION_PERCENT
    }
}

/// Returns whether the node's state can require a step for the node or for its replicas: it is not
/// Ready, it is drained or was, or it evicts replicas.
pub(crate) fn concerns_lifecycle(node: &FleetNode) -> bool {
    let conditions = node.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let mut taints = taints_of(node).into_iter();
    node.spec.drain
        || !is_true(conditions, condition_type::READY)
        || conditions
            .iter()
            .any(|condition| condition.type_ == condition_type::DRAINED)
        || taints.any(|taint| taint.effect == TaintEffect::NoExecute)
}
