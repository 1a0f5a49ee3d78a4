//! The scheduler's hands: the only writer of `spec.nodeName`, one replica after the other.
//!
//! Every binding is decided on what the one before has left, and is refused by the server if the replica has changed
//! since it was read.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use super::deployment::refused_recently;
use super::runtime::{PassStatus, Reconciler};
use super::world::World;
use crate::api::conditions::{Truth, condition_type, is_true, set_condition};
use crate::api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, REPLICA_FINALIZER, REVISION_LABEL};
use crate::api::v1alpha1::{FleetNode, ModelReplica, ModelReplicaStatus};
use crate::client::{ApiError, EventType};
use crate::scheduler::{Decision, Fleet, ReplicaRequest, bind_all};

/// One thing to do for one replica.
#[derive(Debug, PartialEq)]
enum Step<'a> {
    Bind {
        replica: &'a ModelReplica,
        node: String,
        message: String,
    },
    /// Say why it waits.
    Report {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
        message: String,
    },
    /// Say that it is bound; a writer of status came in between when it was.
    Confirm {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
    },
}

/// What is to be done for all replicas, in order.
fn plan<'a>(nodes: &[&FleetNode], replicas: &[&'a ModelReplica], now: Timestamp) -> Vec<Step<'a>> {
    let mut fleet = Fleet::new(nodes.iter().copied(), replicas.iter().copied());
    let mut waiting: Vec<&ModelReplica> = replicas
        .iter()
        .copied()
        .filter(|replica| replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none())
        .collect();
    waiting.sort_by_key(|replica| {
        (
            replica.metadata.creation_timestamp.clone(),
            replica.namespace(),
            replica.name_any(),
        )
    });
    let requests: Vec<_> = waiting
        .iter()
        .map(|replica| ReplicaRequest {
            refused: refusals(replica, replicas, now),
            ..ReplicaRequest::new(replica)
        })
        .collect();
    let decisions = bind_all(&requests, &mut fleet);
    let mut steps: Vec<_> = waiting
        .into_iter()
        .zip(decisions)
        .filter_map(|(replica, decision)| step(replica, decision, now))
        .collect();
    steps.extend(
        replicas
            .iter()
            .copied()
            .filter_map(|replica| confirmation(replica, now)),
    );
    steps
}

fn step<'a>(replica: &'a ModelReplica, decision: Decision, now: Timestamp) -> Option<Step<'a>> {
    match decision.outcome {
        Ok(placement) => {
            let node = placement.node().to_owned();
            let needed = placement
                .needed
                .map_or_else(String::new, |needed| format!("needs {needed}, "));
            let message = format!("Assigned to {node}: {needed}{}", placement.score);
            Some(Step::Bind {
                replica,
                node,
                message,
            })
        }
        Err(why) => {
            let (reason, message) = (why.reason(), why.to_string());
            let mut status = replica.status.clone().unwrap_or_default();
            let generation = replica.metadata.generation;
            let changed = set_condition(
                &mut status.conditions,
                condition_type::SCHEDULED,
                Truth::False,
                reason,
                message.clone(),
                generation,
                now,
            );
            changed.then_some(Step::Report {
                replica,
                status: Box::new(status),
                message,
            })
        }
    }
}

fn confirmation(replica: &ModelReplica, now: Timestamp) -> Option<Step<'_>> {
    let node = replica.spec.node_name.as_ref()?;
    if replica.annotations().contains_key(MIRROR_ANNOTATION)
        || replica.metadata.deletion_timestamp.is_some()
        || replica
            .status
            .as_ref()
            .is_some_and(|status| is_true(&status.conditions, condition_type::SCHEDULED))
    {
        return None;
    }
    let status = scheduled(replica, node, now);
    Some(Step::Confirm {
        replica,
        status: Box::new(status),
    })
}

fn scheduled(replica: &ModelReplica, node: &str, now: Timestamp) -> ModelReplicaStatus {
    let mut status = replica.status.clone().unwrap_or_default();
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

/// Nodes that refused a sibling of the same revision a short time ago.
fn refusals(replica: &ModelReplica, all: &[&ModelReplica], now: Timestamp) -> BTreeMap<String, String> {
    let family = |replica: &ModelReplica| {
        let label = |name: &str| replica.labels().get(name).cloned();
        (
            replica.namespace(),
            label(DEPLOYMENT_LABEL),
            label(REVISION_LABEL),
        )
    };
    let ours = family(replica);
    all.iter()
        .filter(|sibling| family(sibling) == ours)
        .filter_map(|sibling| {
            let refusal = refused_recently(sibling, now)?;
            Some((sibling.spec.node_name.clone()?, refusal.message.clone()))
        })
        .collect()
}

/// See the module.
pub(super) struct Binder {
    world: World,
}

impl Binder {
    pub(super) fn new(world: World) -> Self {
        Self { world }
    }

    async fn bind(&self, replica: &ModelReplica, node: &str, message: String) -> Result<(), ApiError> {
        let mut finalizers = replica.finalizers().to_vec();
        if !finalizers.iter().any(|finalizer| finalizer == REPLICA_FINALIZER) {
            finalizers.push(REPLICA_FINALIZER.to_owned());
        }
        // The finalizer comes with the node: from here on only its agent can tell when the memory is free again.
        let patch = serde_json::json!({
            "metadata": {
                "resourceVersion": replica.metadata.resource_version,
                "finalizers": finalizers,
            },
            "spec": { "nodeName": node },
        });
        let bound = self.world.patch(&self.world.replicas, replica, &patch).await?;
        self.world
            .recorder
            .publish(replica, EventType::Normal, "Scheduled", message);
        let status = scheduled(&bound, node, self.world.clock.now());
        self.world.status(&self.world.replicas, &bound, &status).await?;
        Ok(())
    }
}

impl Reconciler for Binder {
    const NAME: &'static str = "binder";
    const RESYNC: Duration = Duration::from_secs(15);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let (nodes, replicas) = (self.world.nodes.list(), self.world.replicas.list());
        let nodes: Vec<_> = nodes.iter().map(AsRef::as_ref).collect();
        let all: Vec<_> = replicas.iter().map(AsRef::as_ref).collect();
        for step in plan(&nodes, &all, self.world.clock.now()) {
            match step {
                Step::Bind {
                    replica,
                    node,
                    message,
                } => drop(pass.note(self.bind(replica, &node, message).await)),
                Step::Report {
                    replica,
                    status,
                    message,
                } => {
                    let written = self.world.status(&self.world.replicas, replica, &status).await;
                    if pass.note(written) == Some(true) {
                        let recorder = &self.world.recorder;
                        recorder.publish(replica, EventType::Warning, "FailedScheduling", message);
                    }
                }
                Step::Confirm { replica, status } => {
                    pass.note(self.world.status(&self.world.replicas, replica, &status).await);
                }
            }
        }
        pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roofline::memory::ServedModel;
    use crate::units::Bytes;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn node(name: &str, gib: u64) -> FleetNode {
        let mut node = FleetNode::new(name, crate::api::v1alpha1::FleetNodeSpec::default());
        let status: crate::api::v1alpha1::FleetNodeStatus = serde_json::from_value(serde_json::json!({
            "allocatable": { "memory": format!("{gib}Gi") },
            "models": [ServedModel::of_size(Bytes::gib(1), 4).publish("guide".to_owned(), "llama".to_owned(), 64)],
            "conditions": [{ "type": "Ready", "status": "True", "reason": "AgentReady", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        }))
        .expect("valid");
        node.status = Some(status);
        node
    }

    fn replica(name: &str, created: i64, node: Option<&str>) -> ModelReplica {
        let spec = serde_json::json!({
            "model": { "source": "local://guide" },
            "serving": { "contextTokens": 16, "maxConcurrency": 1 },
            "nodeName": node,
        });
        let mut replica = ModelReplica::new(name, serde_json::from_value(spec).expect("valid"));
        replica.metadata.namespace = Some("default".to_owned());
        replica.metadata.creation_timestamp = Some(Time(at(created)));
        let labels = [(DEPLOYMENT_LABEL, "guide"), (REVISION_LABEL, "guide-1")];
        replica.metadata.labels = Some(
            labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        );
        replica
    }

    fn say(replica: &mut ModelReplica, kind: &str, truth: Truth, reason: &str, second: i64) {
        let status = replica.status.get_or_insert_default();
        set_condition(
            &mut status.conditions,
            kind,
            truth,
            reason,
            "told",
            None,
            at(second),
        );
    }

    fn check(nodes: &[FleetNode], replicas: &[ModelReplica], expect: &str) {
        let nodes: Vec<_> = nodes.iter().collect();
        let replicas: Vec<_> = replicas.iter().collect();
        let said: Vec<_> = plan(&nodes, &replicas, at(1000))
            .iter()
            .map(|step| match step {
                Step::Bind { replica, node, .. } => format!("{}->{node}", replica.name_any()),
                Step::Report { replica, .. } => format!("{} waits", replica.name_any()),
                Step::Confirm { replica, .. } => format!("{} is bound", replica.name_any()),
            })
            .collect();
        assert_eq!(said.join(", "), expect);
    }

    #[test]
    fn the_oldest_is_placed_first_and_the_rest_is_told_why_not() {
        let nodes = [node("a", 2)];
        let replicas = [
            replica("x", 2, None),
            replica("y", 1, None),
            replica("z", 3, None),
        ];
        check(&nodes, &replicas, "y->a, x waits, z waits");
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let nodes = [node("a", 1)];
        let mut x = replica("x", 1, None);
        let all = [&x];
        let Some(Step::Report { status, .. }) = plan(&[&nodes[0]], &all, at(1)).pop() else {
            panic!("it does not fit");
        };
        x.status = Some(*status);
        check(&nodes, &[x], "");
    }

    #[test]
    fn a_binding_whose_condition_was_lost_is_confirmed() {
        let nodes = [node("a", 8)];
        let mut bound = replica("x", 1, Some("a"));
        check(&nodes, std::slice::from_ref(&bound), "x is bound");
        say(&mut bound, condition_type::SCHEDULED, Truth::True, "Assigned", 1);
        check(&nodes, &[bound], "");
        let mut mirror = replica("m", 1, Some("a"));
        let annotations = [(MIRROR_ANNOTATION.to_owned(), String::new())];
        mirror.metadata.annotations = Some(annotations.into());
        check(&nodes, &[mirror], "");
    }

    #[test]
    fn a_node_that_refused_a_sibling_is_asked_again_only_later() {
        let nodes = [node("a", 8)];
        let mut refused = replica("x", 1, Some("a"));
        say(
            &mut refused,
            condition_type::SCHEDULED,
            Truth::True,
            "Assigned",
            1,
        );
        say(
            &mut refused,
            condition_type::ADMITTED,
            Truth::False,
            "MemoryInUse",
            950,
        );
        let all = [refused.clone(), replica("y", 2, None)];
        check(&nodes, &all, "y waits");
        check(&[node("a", 8), node("b", 8)], &all, "y->b");
        let conditions = &mut refused.status.as_mut().expect("set").conditions;
        for condition in conditions {
            condition.last_transition_time = Time(at(900));
        }
        check(&nodes, &[refused, replica("y", 2, None)], "y->a");
    }
}
