//! The scheduler's hands: the only writer of `spec.nodeName`.
//!
//! Every binding is decided on what the one before has left, and is refused by the server if the replica has changed
//! since it was read. The fleet is kept between passes and follows the objects that have changed.

mod intents;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use kube::{Resource, ResourceExt};

use super::deployment::refused_recently;
use super::runtime::{PassStatus, Reconciler};
use super::world::World;
use crate::api::conditions::{Truth, condition_type, is_true, set_condition};
use crate::api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, REPLICA_FINALIZER, REVISION_LABEL};
use crate::api::v1alpha1::{FleetNode, ModelReplica, ModelReplicaStatus};
use crate::client::{ApiError, EventType};
use crate::scheduler::{Decision, Fleet, Preemption, ReplicaKey, ReplicaRequest, decide_all, is_waited_for};

/// Replicas that may make others leave in one pass; the next pass goes on.
const MAX_PREEMPTIONS: usize = 16;
/// Bindings that are under way at the same time. What they are is decided before.
const MAX_BINDINGS_IN_FLIGHT: usize = 16;
/// Victims that are named in one message.
const MAX_NAMED: usize = 5;

pub(crate) use intents::{bound as bound_status, intents as binding_intents, rival as rival_intents};

/// One thing to do for one replica.
#[derive(Debug, PartialEq)]
enum Step<'a> {
    Bind {
        replica: &'a ModelReplica,
        node: String,
        message: String,
    },
    /// Others of a lower priority leave the node for it.
    Preempt {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
        victims: Vec<&'a ModelReplica>,
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

/// What is to be done for all replicas, in order. `fleet` is as the objects say, before and after.
fn plan<'a>(fleet: &mut Fleet, replicas: &[&'a ModelReplica], now: Timestamp) -> Vec<Step<'a>> {
    let waiting = waiting(replicas);
    let requests = requests(&waiting, replicas, now);
    let decisions = decide_all(&requests, fleet, MAX_PREEMPTIONS);
    let mut steps = Vec::new();
    for ((replica, request), decision) in waiting.iter().zip(&requests).zip(decisions) {
        if decision.outcome.is_ok() || !is_waited_for(request, fleet) {
            steps.extend(step(replica, decision, replicas, now));
        }
    }
    // What is decided is not done yet, and may fail: the objects will tell.
    for replica in &waiting {
        fleet.set_replica(replica);
    }
    steps.extend(
        replicas
            .iter()
            .copied()
            .filter_map(|replica| confirmation(replica, now)),
    );
    steps
}

/// What those that wait ask for.
fn requests(waiting: &[&ModelReplica], all: &[&ModelReplica], now: Timestamp) -> Vec<ReplicaRequest> {
    let refused: Vec<_> = all
        .iter()
        .copied()
        .filter(|replica| refused_recently(replica, now).is_some())
        .collect();
    waiting
        .iter()
        .map(|replica| ReplicaRequest {
            refused: refusals(replica, &refused, now),
            ..ReplicaRequest::new(replica)
        })
        .collect()
}

/// Replicas without a node in the order in which they are placed: by priority; those of one revision together, as they
/// are placed alike, and the revision with the oldest of them first.
fn waiting<'a>(replicas: &[&'a ModelReplica]) -> Vec<&'a ModelReplica> {
    let mut waiting: Vec<&ModelReplica> = replicas
        .iter()
        .copied()
        .filter(|replica| replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none())
        .collect();
    let mut oldest = BTreeMap::new();
    for replica in &waiting {
        let created = replica.metadata.creation_timestamp.clone();
        let known = oldest.entry(family(replica)).or_insert(created.clone());
        *known = created.min(known.take());
    }
    waiting.sort_by_cached_key(|replica| {
        let family = family(replica);
        (
            Reverse(replica.spec.priority),
            oldest.get(&family).cloned(),
            family,
            replica.metadata.creation_timestamp.clone(),
            replica.name_any(),
        )
    });
    waiting
}

/// The revision that a replica is of.
fn family(replica: &ModelReplica) -> (Option<&str>, Option<&str>, Option<&str>) {
    let label = |name: &str| replica.labels().get(name).map(String::as_str);
    (
        replica.metadata.namespace.as_deref(),
        label(DEPLOYMENT_LABEL),
        label(REVISION_LABEL),
    )
}

fn step<'a>(
    replica: &'a ModelReplica,
    decision: Decision,
    all: &[&'a ModelReplica],
    now: Timestamp,
) -> Option<Step<'a>> {
    let why = match decision.outcome {
        Ok(placement) => {
            let node = placement.node().to_owned();
            let needed = placement
                .needed
                .as_ref()
                .map_or_else(String::new, |needed| format!("needs {needed}; "));
            let message = format!("Assigned to {node}: {needed}{}", placement.table);
            return Some(Step::Bind {
                replica,
                node,
                message,
            });
        }
        Err(why) => why,
    };
    let mut status = replica.status.clone().unwrap_or_default();
    let (mut reason, mut message) = (why.reason(), why.to_string());
    status.nominated_node_name = None;
    let mut victims = Vec::new();
    if let Some(Preemption { node, victims: keys }) = decision.preemption {
        victims = all
            .iter()
            .copied()
            .filter(|replica| keys.contains(&ReplicaKey::of(*replica)))
            .collect();
        reason = "Preempting";
        message = format!(
            "waits for replicas of a lower priority to leave {node}: {}; before: {message}",
            named(&keys)
        );
        status.nominated_node_name = Some(node);
    }
    let nominated = replica
        .status
        .as_ref()
        .and_then(|status| status.nominated_node_name.as_ref());
    let renominated = nominated != status.nominated_node_name.as_ref();
    let changed = set_condition(
        &mut status.conditions,
        condition_type::SCHEDULED,
        Truth::False,
        reason,
        message.clone(),
        replica.metadata.generation,
        now,
    );
    let status = Box::new(status);
    if victims.is_empty() {
        return (changed || renominated).then_some(Step::Report {
            replica,
            status,
            message,
        });
    }
    Some(Step::Preempt {
        replica,
        status,
        victims,
        message,
    })
}

fn named(keys: &[ReplicaKey]) -> String {
    let mut names: Vec<_> = keys.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    if keys.len() > MAX_NAMED {
        names.push(format!("{} more", keys.len() - MAX_NAMED));
    }
    names.join(", ")
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

/// Nodes that refused a sibling of the same revision a short time ago.
fn refusals(replica: &ModelReplica, refused: &[&ModelReplica], now: Timestamp) -> BTreeMap<String, String> {
    let ours = family(replica);
    refused
        .iter()
        .filter(|sibling| family(sibling) == ours)
        .filter_map(|sibling| {
            let refusal = refused_recently(sibling, now)?;
            Some((sibling.spec.node_name.clone()?, refusal.message.clone()))
        })
        .collect()
}

/// The objects of one kind as they were seen last, ordered by namespace and name.
struct Seen<K>(Vec<Arc<K>>);

impl<K: Resource> Seen<K> {
    /// Calls `gone` for what is not in `now` any more and `changed` for what is new there or another version.
    fn follow(&mut self, now: Vec<Arc<K>>, mut gone: impl FnMut(&K), mut changed: impl FnMut(&K)) {
        let name = |object: &K| (object.meta().namespace.clone(), object.meta().name.clone());
        let mut before = std::mem::take(&mut self.0).into_iter().peekable();
        for object in &now {
            if before.next_if(|old| Arc::ptr_eq(old, object)).is_some() {
                continue;
            }
            while let Some(old) = before.next_if(|old| name(old) < name(object)) {
                gone(&old);
            }
            match before.next_if(|old| name(old) == name(object)) {
                Some(old) if Arc::ptr_eq(&old, object) => {}
                Some(_) | None => changed(object),
            }
        }
        before.for_each(|old| gone(&old));
        self.0 = now;
    }
}

/// See the module.
pub(super) struct Binder {
    world: World,
    fleet: Fleet,
    nodes: Seen<FleetNode>,
    replicas: Seen<ModelReplica>,
}

impl Binder {
    /// The replicas of any `reserve_node_failures` nodes are to find room on the others.
    pub(super) fn new(world: World, reserve_node_failures: usize) -> Self {
        Self {
            world,
            fleet: Fleet::default().with_reserve(reserve_node_failures),
            nodes: Seen(Vec::new()),
            replicas: Seen(Vec::new()),
        }
    }
}

async fn bind(world: &World, replica: &ModelReplica, node: &str, message: String) -> Result<(), ApiError> {
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
    let bound = world.patch(&world.replicas, replica, &patch).await?;
    world
        .recorder
        .publish(replica, EventType::Normal, "Scheduled", message);
    let status = scheduled(&bound, node, world.clock.now());
    world.status(&world.replicas, &bound, &status).await?;
    Ok(())
}

/// The nomination is written first: what leaves must not be taken by another.
async fn preempt(
    world: &World,
    replica: &ModelReplica,
    status: &ModelReplicaStatus,
    victims: &[&ModelReplica],
    message: String,
) -> Result<(), ApiError> {
    world.status(&world.replicas, replica, status).await?;
    world
        .recorder
        .publish(replica, EventType::Normal, "Preempting", message);
    for victim in victims {
        world.delete(&world.replicas, *victim).await?;
        let message = format!(
            "Preempted by {} of priority {}, which has no room elsewhere",
            ReplicaKey::of(replica),
            replica.spec.priority
        );
        world
            .recorder
            .publish(*victim, EventType::Warning, "Preempted", message);
    }
    Ok(())
}

async fn apply(world: &World, step: Step<'_>) -> Result<(), ApiError> {
    match step {
        Step::Bind {
            replica,
            node,
            message,
        } => bind(world, replica, &node, message).await,
        Step::Preempt {
            replica,
            status,
            victims,
            message,
        } => preempt(world, replica, &status, &victims, message).await,
        Step::Report {
            replica,
            status,
            message,
        } => {
            if world.status(&world.replicas, replica, &status).await? {
                let recorder = &world.recorder;
                recorder.publish(replica, EventType::Warning, "FailedScheduling", message);
            }
            Ok(())
        }
        Step::Confirm { replica, status } => {
            world.status(&world.replicas, replica, &status).await?;
            Ok(())
        }
    }
}

impl Reconciler for Binder {
    const NAME: &'static str = "binder";
    const RESYNC: Duration = Duration::from_secs(15);

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let Self {
            world,
            fleet,
            nodes,
            replicas,
        } = self;
        let mut gone = Vec::new();
        let mut changed = Vec::new();
        nodes.follow(
            world.nodes.list(),
            |node| gone.push(node.name_any()),
            |node| changed.push(node.clone()),
        );
        gone.iter().for_each(|node| fleet.remove_node(node));
        changed.iter().for_each(|node| fleet.set_node(node));
        let mut gone = Vec::new();
        let mut changed = Vec::new();
        replicas.follow(
            world.replicas.list(),
            |replica| gone.push(ReplicaKey::of(replica)),
            |replica| changed.push(replica.clone()),
        );
        gone.iter().for_each(|key| fleet.remove_replica(key));
        changed.iter().for_each(|replica| fleet.set_replica(replica));
        let all: Vec<_> = replicas.0.iter().map(AsRef::as_ref).collect();
        let steps = plan(fleet, &all, world.clock.now());
        let writes: Vec<_> = steps.into_iter().map(|step| apply(world, step).boxed()).collect();
        let mut outcomes = futures::stream::iter(writes).buffer_unordered(MAX_BINDINGS_IN_FLIGHT);
        while let Some(outcome) = outcomes.next().await {
            pass.note(outcome);
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
        let mut fleet = Fleet::new(nodes, replicas);
        let replicas: Vec<_> = replicas.iter().collect();
        let said: Vec<_> = plan(&mut fleet, &replicas, at(1000))
            .iter()
            .map(|step| match step {
                Step::Bind { replica, node, .. } => format!("{}->{node}", replica.name_any()),
                Step::Preempt { replica, victims, .. } => {
                    let victims: Vec<_> = victims.iter().map(|victim| victim.name_any()).collect();
                    format!("{} instead of {}", replica.name_any(), victims.join("+"))
                }
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
        let mut fleet = Fleet::new(&nodes, all);
        let Some(Step::Report { status, .. }) = plan(&mut fleet, &all, at(1)).pop() else {
            panic!("it does not fit");
        };
        x.status = Some(*status);
        check(&nodes, &[x], "");
    }

    #[test]
    fn a_lower_priority_leaves_once_and_its_room_is_waited_for() {
        let nodes = [node("a", 2)];
        let mut low = replica("low", 1, Some("a"));
        say(&mut low, condition_type::SCHEDULED, Truth::True, "Assigned", 1);
        let mut high = replica("high", 2, None);
        high.spec.priority = 5;
        let all = [&low, &high];
        let mut fleet = Fleet::new(&nodes, all);
        let steps = plan(&mut fleet, &all, at(1000));
        let [
            Step::Preempt {
                status,
                victims,
                message,
                ..
            },
        ] = &steps[..]
        else {
            panic!("{steps:?}");
        };
        assert_eq!(victims.len(), 1);
        assert!(
            message
                .starts_with("waits for replicas of a lower priority to leave a: default/low; before: 0/1"),
            "{message}"
        );
        assert_eq!(status.nominated_node_name.as_deref(), Some("a"));
        high.status = Some(status.as_ref().clone());
        low.metadata.deletion_timestamp = Some(Time(at(1000)));
        // Neither again, nor for another one that would take the room.
        let late = replica("late", 3, None);
        check(&nodes, &[low, high.clone(), late.clone()], "late waits");
        check(&nodes, &[high, late], "high->a, late waits");
    }

    #[test]
    fn what_follows_a_list_sees_each_change_once() {
        let object = |name: &str| Arc::new(replica(name, 1, None));
        let said = |seen: &mut Seen<ModelReplica>, now: Vec<Arc<ModelReplica>>| {
            let words = std::cell::RefCell::new(Vec::new());
            seen.follow(
                now,
                |gone| words.borrow_mut().push(format!("-{}", gone.name_any())),
                |changed| words.borrow_mut().push(format!("~{}", changed.name_any())),
            );
            words.into_inner().join(" ")
        };
        let mut seen = Seen(Vec::new());
        let (b, c, d) = (object("b"), object("c"), object("d"));
        assert_eq!(said(&mut seen, vec![b.clone(), d.clone()]), "~b ~d");
        assert_eq!(said(&mut seen, vec![b.clone(), c.clone(), d.clone()]), "~c");
        assert_eq!(
            said(&mut seen, vec![object("a"), c.clone(), object("d")]),
            "~a -b ~d"
        );
        assert_eq!(said(&mut seen, vec![c.clone()]), "-a -d");
        assert_eq!(said(&mut seen, vec![c]), "");
        assert_eq!(said(&mut seen, Vec::new()), "-c");
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
