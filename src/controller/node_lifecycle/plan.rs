//! What has to be done about nodes, as a value.
//!
//! A node whose Lease is not renewed is not ready, and its replicas are not either, so that nothing is routed there.
//! They may still run: the node may only be cut off. So a replica there is given up only where another node can take
//! its place, and even then it keeps its memory on the old node until the agent confirms that it has stopped, or the
//! FleetNode is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::conditions::{Truth, condition_type, set_condition};
use crate::api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, REPLICA_FINALIZER};
use crate::api::v1alpha1::{FleetNode, FleetNodeStatus, ModelReplica, ModelReplicaStatus, TaintEffect};
use crate::clock::since;
use crate::controller::deployment::NODE_NOT_READY;
use crate::scheduler::{Fleet, ReplicaRequest, bind_all, tolerated};

/// A Lease that is older says that the agent is gone. Agents renew every 10 s.
pub(super) const LEASE_EXPIRES: Duration = Duration::from_secs(40);
/// A node that is not ready may come back within this time before its replicas are replaced.
pub(super) const EVICT_AFTER: Duration = Duration::from_secs(30);
/// A FleetNode that is missing may be registered again within this time.
pub(super) const MISSING_GRACE: Duration = Duration::from_secs(10);
/// Reason of the condition Ready of a node that is silent.
pub(super) const NODE_SILENT: &str = "NodeStatusUnknown";

/// What a plan is made from.
pub(super) struct Observed<'a> {
    pub(super) nodes: Vec<&'a FleetNode>,
    pub(super) replicas: Vec<&'a ModelReplica>,
    /// For how long nothing was heard of each node.
    pub(super) silence: BTreeMap<String, Duration>,
    /// For how long a node that replicas are bound to has not been there.
    pub(super) missing: BTreeMap<String, Duration>,
    pub(super) now: Timestamp,
}

/// One thing to do.
#[derive(Debug, PartialEq)]
pub(super) enum Step<'a> {
    NodeSilent {
        node: &'a FleetNode,
        status: Box<FleetNodeStatus>,
        message: String,
    },
    ReplicaNotReady {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
    },
    /// Delete it; its deployment makes another one.
    Evict {
        replica: &'a ModelReplica,
        message: String,
    },
    /// Its node is gone for good: nobody else will let it go.
    Release {
        replica: &'a ModelReplica,
        message: String,
    },
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct NodePlan<'a> {
    pub(super) steps: Vec<Step<'a>>,
    pub(super) look_again_after: Option<Duration>,
}

impl<'a> NodePlan<'a> {
    pub(super) fn new(observed: &Observed<'a>) -> Self {
        let mut plan = Self::default();
        plan.silent_nodes(observed);
        plan.replicas_of_silent_nodes(observed);
        plan.evictions(observed);
        plan.releases(observed);
        plan
    }

    fn look_again(&mut self, after: Duration) {
        // A little late rather than a little early: then it is time.
        let after = after + Duration::from_millis(100);
        self.look_again_after = Some(self.look_again_after.map_or(after, |before| before.min(after)));
    }

    fn silent_nodes(&mut self, observed: &Observed<'a>) {
        for node in &observed.nodes {
            let silence = observed
                .silence
                .get(&node.name_any())
                .copied()
                .unwrap_or_default();
            if silence < LEASE_EXPIRES {
                self.look_again(LEASE_EXPIRES - silence);
                continue;
            }
            let mut status = node.status.clone().unwrap_or_default();
            let message = format!(
                "its agent has not renewed its lease for more than {} s: it has stopped or cannot reach the API server",
                LEASE_EXPIRES.as_secs()
            );
            let changed = set_condition(
                &mut status.conditions,
                condition_type::READY,
                Truth::Unknown,
                NODE_SILENT,
                message.clone(),
                node.metadata.generation,
                observed.now,
            );
            if changed {
                self.steps.push(Step::NodeSilent {
                    node,
                    status: Box::new(status),
                    message,
                });
            }
        }
    }

    fn replicas_of_silent_nodes(&mut self, observed: &Observed<'a>) {
        for replica in &observed.replicas {
            let Some(node) = &replica.spec.node_name else {
                continue;
            };
            let silence = observed.silence.get(node).copied().unwrap_or_default();
            if silence < LEASE_EXPIRES {
                continue;
            }
            let mut status = replica.status.clone().unwrap_or_default();
            let changed = set_condition(
                &mut status.conditions,
                condition_type::READY,
                Truth::False,
                NODE_NOT_READY,
                format!("the agent of {node} does not report; the replica may still run there"),
                replica.metadata.generation,
                observed.now,
            );
            if changed {
                self.steps.push(Step::ReplicaNotReady {
                    replica,
                    status: Box::new(status),
                });
            }
        }
    }

    fn evictions(&mut self, observed: &Observed<'a>) {
        let mut fleet = Fleet::new(observed.nodes.iter().copied(), observed.replicas.iter().copied());
        // Those that wait already come first.
        let waiting: Vec<_> = observed
            .replicas
            .iter()
            .filter(|replica| {
                replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none()
            })
            .map(|replica| ReplicaRequest::new(replica))
            .collect();
        bind_all(&waiting, &mut fleet);
        for replica in &observed.replicas {
            let node = observed
                .nodes
                .iter()
                .find(|node| replica.spec.node_name.as_deref() == node.metadata.name.as_deref());
            let Some(node) = node.filter(|_| is_replaceable(replica)) else {
                continue;
            };
            let tolerations = &replica.spec.placement.tolerations;
            let expelled = node
                .spec
                .taints
                .iter()
                .find(|taint| taint.effect == TaintEffect::NoExecute && !tolerated(taint, tolerations));
            if let Some(taint) = expelled {
                let message = format!("{} has the taint {}:NoExecute", node.name_any(), taint.key);
                self.steps.push(Step::Evict { replica, message });
                continue;
            }
            let Some(silent_for) = silent_for(node, observed.now) else {
                continue;
            };
            if silent_for < EVICT_AFTER {
                self.look_again(EVICT_AFTER - silent_for);
                continue;
            }
            let request = ReplicaRequest::new(replica);
            let elsewhere = bind_all([&request], &mut fleet).pop();
            if let Some(Ok(placement)) = elsewhere.map(|decision| decision.outcome) {
                let message = format!(
                    "{} does not report and {} has room for a replacement",
                    node.name_any(),
                    placement.node()
                );
                self.steps.push(Step::Evict { replica, message });
            }
        }
    }

    fn releases(&mut self, observed: &Observed<'a>) {
        let nodes: BTreeSet<_> = observed.nodes.iter().map(|node| node.name_any()).collect();
        for replica in &observed.replicas {
            let Some(node) = replica
                .spec
                .node_name
                .as_ref()
                .filter(|node| !nodes.contains(*node))
            else {
                continue;
            };
            let missing = observed.missing.get(node).copied().unwrap_or_default();
            if missing < MISSING_GRACE {
                self.look_again(MISSING_GRACE - missing);
                continue;
            }
            let held = replica.finalizers().iter().any(|name| name == REPLICA_FINALIZER);
            if held || replica.metadata.deletion_timestamp.is_none() {
                let message = format!("FleetNode {node} was deleted");
                self.steps.push(Step::Release { replica, message });
            }
        }
    }
}

/// Whether something makes another one when it is deleted.
fn is_replaceable(replica: &ModelReplica) -> bool {
    replica.metadata.deletion_timestamp.is_none()
        && replica.labels().contains_key(DEPLOYMENT_LABEL)
        && !replica.annotations().contains_key(MIRROR_ANNOTATION)
}

/// For how long the node has been known to be silent.
fn silent_for(node: &FleetNode, now: Timestamp) -> Option<Duration> {
    let conditions = &node.status.as_ref()?.conditions;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == condition_type::READY)?;
    (ready.reason == NODE_SILENT).then(|| since(now, ready.last_transition_time.0))
}
