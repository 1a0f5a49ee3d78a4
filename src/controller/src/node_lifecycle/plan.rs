//! Plan of one pass over all nodes and their replicas.
//!
//! A node whose Lease expired is not Ready, and neither are its replicas, so the gateways send them
//! no requests. The replicas may still run, because the node may only be disconnected. Therefore a
//! replica is evicted only if another node has room for a replacement. Its memory on the old node
//! stays reserved until the agent confirms that the worker has exited or the FleetNode is deleted.
//!
//! [`eviction`](super::eviction) selects the evicted replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::ResourceExt;

use super::eviction::{Eviction, Evictions};
use super::observed::Observed;
use super::silence::NODE_SILENT;
use super::skew::{Skew, skew};
use crate::deployment::{NODE_NOT_READY, is_leaving};
use rooflet_api::conditions::{Truth, condition_type, is_true, set_condition};
use rooflet_api::meta::{DEPLOYMENT_LABEL, LEASE_DURATION, MIRROR_ANNOTATION, REPLICA_FINALIZER};
use rooflet_api::v1alpha1::{FleetNode, FleetNodeStatus, ModelReplica, ModelReplicaStatus};
use rooflet_scheduler::ReplicaKey;

/// Time within which a missing FleetNode may be registered again.
pub(crate) const MISSING_GRACE: Duration = Duration::from_secs(10);

/// Planned action.
#[derive(Debug, PartialEq)]
pub(super) enum Step<'a> {
    /// Reports an expired Lease in the node's status.
    NodeSilent {
        node: &'a FleetNode,
        status: Box<FleetNodeStatus>,
        message: String,
    },
    /// Reports a replica of a silent node as not Ready.
    ReplicaNotReady {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
    },
    /// Updates the condition Drained.
    NodeDrained {
        node: &'a FleetNode,
        status: Box<FleetNodeStatus>,
        /// True if the drain is complete since this pass.
        drained: bool,
    },
    /// Updates the condition VersionSkew.
    NodeSkewed {
        node: &'a FleetNode,
        status: Box<FleetNodeStatus>,
        /// Description of the skew, if the versions are incompatible.
        message: Option<String>,
    },
    /// Updates the condition DisruptionTarget, by which the deployment creates a replacement.
    ReplicaLeaving {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
        /// Cause, or `None` if the replica stays.
        cause: Option<String>,
    },
    /// Deletes the replica. Its deployment creates a replacement.
    Evict {
        replica: &'a ModelReplica,
        message: String,
    },
    /// Deletes the replica of a deleted node and removes the agent's finalizer.
    Release {
        replica: &'a ModelReplica,
        message: String,
    },
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct NodePlan<'a> {
    pub(super) steps: Vec<Step<'a>>,
    pub(super) requeue_after: Option<Duration>,
}

impl<'a> NodePlan<'a> {
    pub(super) fn new(observed: &Observed<'a>) -> Self {
        let mut plan = Self::default();
        plan.silent_nodes(observed);
        plan.replicas_of_silent_nodes(observed);
        plan.evictions(observed);
        plan.releases(observed);
        plan.version_skew(observed);
        plan
    }

    fn version_skew(&mut self, observed: &Observed<'a>) {
        for node in &observed.nodes {
            let Some(status) = &node.status else { continue };
            let agent = &status.node_info.agent_version;
            let skew = skew(agent, observed.version);
            let is_reported = is_true(&status.conditions, condition_type::VERSION_SKEW);
            if skew.is_none() && !is_reported {
                continue;
            }
            let own = observed.version;
            let message = skew.map(|skew| {
                let advice = match skew {
                    Skew::Older => "upgrade the agent",
                    Skew::Newer => "upgrade the control plane",
                };
                format!(
                    "the agent has version {agent} and the control plane {own}: versions more than one \
                     minor version apart are not tested, {advice}"
                )
            });
            let reason = match skew {
                Some(Skew::Older) => "AgentTooOld",
                Some(Skew::Newer) => "AgentTooNew",
                None => "VersionsMatch",
            };
            let mut status = status.clone();
            let changed = set_condition(
                &mut status.conditions,
                condition_type::VERSION_SKEW,
                skew.is_some().into(),
                reason,
                message.clone().unwrap_or_default(),
                node.metadata.generation,
                observed.now,
            );
            if changed {
                self.steps.push(Step::NodeSkewed {
                    node,
                    status: Box::new(status),
                    message,
                });
            }
        }
    }

    fn requeue(&mut self, after: Duration) {
        // The margin ensures that the deadline has passed at the next pass.
        let after = after + Duration::from_millis(100);
        self.requeue_after = Some(self.requeue_after.map_or(after, |before| before.min(after)));
    }

    fn silent_nodes(&mut self, observed: &Observed<'a>) {
        for node in &observed.nodes {
            let silence = observed
                .timings
                .silence
                .get(&node.name_any())
                .copied()
                .unwrap_or_default();
            if silence < LEASE_DURATION {
                self.requeue(LEASE_DURATION - silence);
                continue;
            }
            let mut status = node.status.clone().unwrap_or_default();
            let message = format!(
                "the agent has not renewed its Lease for more than {} s: it has stopped or cannot reach the API server",
                LEASE_DURATION.as_secs()
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
            let silence = observed.timings.silence.get(node).copied().unwrap_or_default();
            if silence < LEASE_DURATION {
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
        let nodes: BTreeMap<_, _> = observed
            .nodes
            .iter()
            .filter_map(|node| Some((node.metadata.name.as_deref()?, *node)))
            .collect();
        let mut evictions = Evictions::new(observed);
        let mut left: BTreeMap<&str, Vec<Left>> = BTreeMap::new();
        for replica in &observed.replicas {
            let bound = replica.spec.node_name.as_deref();
            let Some((name, node)) = bound.and_then(|name| nodes.get_key_value(name)) else {
                continue;
            };
            let mut stays = |why: String| {
                left.entry(name).or_default().push(Left {
                    replica: ReplicaKey::of(*replica).to_string(),
                    why,
                });
            };
            if !is_replaceable(replica) {
                if replica.metadata.deletion_timestamp.is_some() {
                    stays("its worker is stopping".to_owned());
                }
                continue;
            }
            match evictions.of(node, replica) {
                Eviction::Now(message) => {
                    stays("its worker is stopping".to_owned());
                    self.steps.push(Step::Evict { replica, message });
                }
                Eviction::Replace { cause, why } => {
                    stays(why);
                    self.leaving(observed, replica, Some(cause));
                }
                Eviction::NotYet(why) => stays(why),
                Eviction::No => self.leaving(observed, replica, None),
            }
        }
        if let Some(after) = evictions.requeue_after {
            self.requeue(after);
        }
        for node in &observed.nodes {
            let left = node.metadata.name.as_deref().and_then(|name| left.remove(name));
            self.drained(observed, node, left.unwrap_or_default());
        }
    }

    /// Updates the condition DisruptionTarget, by which the deployment creates a replacement.
    fn leaving(&mut self, observed: &Observed<'a>, replica: &'a ModelReplica, cause: Option<String>) {
        if cause.is_none() && !is_leaving(replica) {
            return;
        }
        let mut status = replica.status.clone().unwrap_or_default();
        let (truth, reason, message) = match &cause {
            Some(cause) => (
                Truth::True,
                "NodeLeft",
                format!("{cause}; the replica is deleted when its replacement is Ready"),
            ),
            None => (
                Truth::False,
                "NodeServes",
                "the cause of the eviction has ended".to_owned(),
            ),
        };
        let changed = set_condition(
            &mut status.conditions,
            condition_type::DISRUPTION_TARGET,
            truth,
            reason,
            message,
            replica.metadata.generation,
            observed.now,
        );
        if changed {
            self.steps.push(Step::ReplicaLeaving {
                replica,
                status: Box::new(status),
                cause,
            });
        }
    }

    /// Updates the condition Drained, which reports the progress of a drain.
    fn drained(&mut self, observed: &Observed<'a>, node: &'a FleetNode, left: Vec<Left>) {
        let mut status = node.status.clone().unwrap_or_default();
        let is_drained = is_true(&status.conditions, condition_type::DRAINED);
        let changed = if node.spec.drain {
            let (truth, reason, message) = match &left[..] {
                [] => (Truth::True, "Drained", "no replicas left".to_owned()),
                [first, ..] => (
                    Truth::False,
                    "Draining",
                    format!("{} left; {}: {}", replicas(left.len()), first.replica, first.why),
                ),
            };
            set_condition(
                &mut status.conditions,
                condition_type::DRAINED,
                truth,
                reason,
                message,
                node.metadata.generation,
                observed.now,
            )
        } else {
            let before = status.conditions.len();
            status
                .conditions
                .retain(|condition| condition.type_ != condition_type::DRAINED);
            status.conditions.len() != before
        };
        if changed {
            self.steps.push(Step::NodeDrained {
                node,
                drained: node.spec.drain && left.is_empty() && !is_drained,
                status: Box::new(status),
            });
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
            let missing = observed.timings.missing.get(node).copied().unwrap_or_default();
            if missing < MISSING_GRACE {
                self.requeue(MISSING_GRACE - missing);
                continue;
            }
            let has_finalizer = replica.finalizers().iter().any(|name| name == REPLICA_FINALIZER);
            if has_finalizer || replica.metadata.deletion_timestamp.is_none() {
                let message = format!("FleetNode {node} was deleted");
                self.steps.push(Step::Release { replica, message });
            }
        }
    }
}

/// Returns the replicas on the node that its drain does not evict now, with the reasons.
pub(super) fn drain_obstacles(observed: &Observed<'_>, name: &str) -> Vec<(ReplicaKey, String)> {
    let mut nodes = observed.nodes.iter();
    let node = nodes.find(|node| node.metadata.name.as_deref() == Some(name));
    let Some(node) = node.filter(|node| node.spec.drain) else {
        return Vec::new();
    };
    let mut evictions = Evictions::new(observed);
    let replicas = observed.replicas.iter();
    let here = replicas.filter(|replica| replica.spec.node_name.as_deref() == Some(name));
    let obstacles = here.filter_map(|replica| {
        let why = if replica.metadata.deletion_timestamp.is_some() {
            return None;
        } else if replica.annotations().contains_key(MIRROR_ANNOTATION) {
            "it belongs to the manifest directory of the node".to_owned()
        } else if !is_replaceable(replica) {
            "it has no deployment that replaces it".to_owned()
        } else {
            match evictions.of(node, replica) {
                Eviction::Replace { why, .. } | Eviction::NotYet(why) => why,
                Eviction::Now(_) | Eviction::No => return None,
            }
        };
        Some((ReplicaKey::of(*replica), why))
    });
    obstacles.collect()
}

/// Replica that remains on a node, with the reason.
struct Left {
    replica: String,
    why: String,
}

fn replicas(count: usize) -> String {
    if count == 1 {
        "1 replica".to_owned()
    } else {
        format!("{count} replicas")
    }
}

/// Returns whether a deployment replaces the replica after its deletion.
fn is_replaceable(replica: &ModelReplica) -> bool {
    replica.metadata.deletion_timestamp.is_none()
        && replica.labels().contains_key(DEPLOYMENT_LABEL)
        && !replica.annotations().contains_key(MIRROR_ANNOTATION)
}
