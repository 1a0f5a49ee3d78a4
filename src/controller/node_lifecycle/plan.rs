//! What has to be done about nodes, as a value.
//!
//! A node whose Lease is not renewed is not ready, and its replicas are not either, so that nothing is routed there.
//! They may still run: the node may only be cut off. So a replica there is given up only where another node can take
//! its place, and even then it keeps its memory on the old node until the agent confirms that it has stopped, or the
//! FleetNode is deleted.
//!
//! A node that is drained, or whose conditions say that it should not serve, is left gently: where another node has
//! room, and no faster than the deployments can spare their replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::budgets::Budgets;
use crate::api::conditions::{Truth, condition_type, is_true, set_condition};
use crate::api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, REPLICA_FINALIZER};
use crate::api::v1alpha1::{
    FleetNode, FleetNodeStatus, ModelDeployment, ModelReplica, ModelReplicaStatus, Taint, TaintEffect,
};
use crate::clock::since;
use crate::controller::deployment::NODE_NOT_READY;
use crate::scheduler::{Fleet, ReplicaKey, ReplicaRequest, bind_all, taints_of_conditions, tolerated};

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
    pub(super) deployments: Vec<&'a ModelDeployment>,
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
    /// How far it is drained.
    NodeDrained {
        node: &'a FleetNode,
        status: Box<FleetNodeStatus>,
        /// It has become so with this plan.
        drained: bool,
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
        let mut budgets = Budgets::new(&observed.deployments, &observed.replicas);
        let mut left: BTreeMap<String, Vec<Left>> = BTreeMap::new();
        for replica in &observed.replicas {
            let node = observed
                .nodes
                .iter()
                .find(|node| replica.spec.node_name.as_deref() == node.metadata.name.as_deref());
            let Some(node) = node else {
                continue;
            };
            let stays = |why: String| Left {
                replica: ReplicaKey::of(*replica).to_string(),
                why,
            };
            if !is_replaceable(replica) {
                if replica.metadata.deletion_timestamp.is_some() {
                    let why = "its worker is stopping".to_owned();
                    left.entry(node.name_any()).or_default().push(stays(why));
                }
                continue;
            }
            match self.eviction(observed, node, replica, &mut fleet, &mut budgets) {
                Eviction::Now(message) => {
                    left.entry(node.name_any())
                        .or_default()
                        .push(stays("its worker is stopping".to_owned()));
                    self.steps.push(Step::Evict { replica, message });
                }
                Eviction::NotYet(why) => left.entry(node.name_any()).or_default().push(stays(why)),
                Eviction::No => {}
            }
        }
        for node in &observed.nodes {
            self.drained(observed, node, left.remove(&node.name_any()).unwrap_or_default());
        }
    }

    /// Whether a replica that can be replaced has to leave its node.
    fn eviction(
        &mut self,
        observed: &Observed<'a>,
        node: &FleetNode,
        replica: &'a ModelReplica,
        fleet: &mut Fleet,
        budgets: &mut Budgets,
    ) -> Eviction {
        let name = node.name_any();
        let expels = |taint: &Taint| {
            taint.effect == TaintEffect::NoExecute && !tolerated(taint, &replica.spec.placement.tolerations)
        };
        if let Some(taint) = node.spec.taints.iter().find(|taint| expels(taint)) {
            return Eviction::Now(format!("{name} has the taint {}:NoExecute", taint.key));
        }
        let cause = if node.spec.drain {
            Some(format!("{name} is being drained"))
        } else {
            let taint = taints_of_conditions(node).find(expels);
            taint.map(|taint| format!("{name} has the taint {}:NoExecute", taint.key))
        };
        let silent_for = silent_for(node, observed.now);
        match (cause, silent_for) {
            (Some(cause), None) => {
                if !budgets.allow(replica) {
                    return Eviction::NotYet(
                        "its deployment has no replica to spare, see spec.strategy.rollingUpdate.maxUnavailable"
                            .to_owned(),
                    );
                }
                match place_elsewhere(replica, fleet) {
                    Ok(elsewhere) => {
                        budgets.spend(replica);
                        Eviction::Now(format!("{cause} and {elsewhere} has room for a replacement"))
                    }
                    Err(why) => Eviction::NotYet(format!("no other node takes it: {why}")),
                }
            }
            (_, Some(silent_for)) if silent_for < EVICT_AFTER => {
                self.look_again(EVICT_AFTER - silent_for);
                Eviction::NotYet(format!("{name} does not report"))
            }
            (_, Some(_)) => match place_elsewhere(replica, fleet) {
                Ok(elsewhere) => Eviction::Now(format!(
                    "{name} does not report and {elsewhere} has room for a replacement"
                )),
                Err(why) => Eviction::NotYet(format!("no other node takes it: {why}")),
            },
            (None, None) => Eviction::No,
        }
    }

    /// Keeps the condition that tells how far a node is drained.
    fn drained(&mut self, observed: &Observed<'a>, node: &'a FleetNode, left: Vec<Left>) {
        let mut status = node.status.clone().unwrap_or_default();
        let is_drained = is_true(&status.conditions, condition_type::DRAINED);
        let changed = if node.spec.drain {
            let (truth, reason, message) = match &left[..] {
                [] => (Truth::True, "Drained", "no replica is left".to_owned()),
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

/// A replica that is still on a node.
struct Left {
    replica: String,
    why: String,
}

/// What is to become of a replica that can be replaced.
enum Eviction {
    /// It goes, for this reason.
    Now(String),
    /// It has to go, and this is in the way.
    NotYet(String),
    No,
}

fn replicas(count: usize) -> String {
    if count == 1 {
        "1 replica".to_owned()
    } else {
        format!("{count} replicas")
    }
}

/// The node that would take another one like it; the place is kept in `fleet`.
fn place_elsewhere(replica: &ModelReplica, fleet: &mut Fleet) -> Result<String, String> {
    let decision = bind_all([&ReplicaRequest::new(replica)], fleet).pop();
    match decision.map(|decision| decision.outcome) {
        Some(Ok(placement)) => Ok(placement.node().to_owned()),
        Some(Err(unschedulable)) => Err(unschedulable.to_string()),
        None => Err("nothing was decided".to_owned()),
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
