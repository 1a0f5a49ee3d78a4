//! The scheduler's hands: the only writer of `spec.nodeName`.
//!
//! Every binding is decided on what the one before has left, and is refused by the server if the replica has changed
//! since it was read.

pub(crate) mod binding;
mod settling;
mod writes;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use kube::ResourceExt;

use super::deployment::refused_recently;
use super::executor::Executor;
use super::intent::{Intent, Snapshot, Version};
use super::node_lifecycle::{left_node, moves_to};
use super::runtime::{PassStatus, Reconciler};
use super::world::World;
use rooflet_api::conditions::{Truth, condition_type, is_true, set_condition};
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, REVISION_LABEL};
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaStatus};
use rooflet_scheduler::{Decision, Fleet, Preemption, ReplicaKey, ReplicaRequest, decide_all, is_waited_for};

/// Replicas that may make others leave in one pass; the next pass goes on.
const MAX_PREEMPTIONS: usize = 16;
/// Bindings that are under way at the same time. What they are is decided before.
const MAX_BINDINGS_IN_FLIGHT: usize = 16;
/// Victims that are named in one message.
const MAX_NAMED: usize = 5;

pub use binding::bound_status;
pub use settling::Settling;
pub use writes::{intents as binding_intents, rival as rival_intents};

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

/// What is to be done for all replicas, in order. `fleet` is as the objects say, and has the placements afterwards.
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
    let moving: Vec<_> = all
        .iter()
        .copied()
        .filter(|replica| moves_to(replica).is_some())
        .collect();
    waiting
        .iter()
        .map(|replica| {
            let mut request = ReplicaRequest {
                refused: refusals(replica, &refused, now),
                ..ReplicaRequest::new(replica)
            };
            for sibling in moving.iter().filter(|one| family(one) == family(replica)) {
                request.refused.extend(left_node(sibling));
                request.nominated = request.nominated.or_else(|| moves_to(sibling).map(str::to_owned));
            }
            request
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
    let status = bound_status(replica, node, now);
    Some(Step::Confirm {
        replica,
        status: Box::new(status),
    })
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

/// See the module.
pub(super) struct Binder {
    world: World,
    settling: Settling,
    /// Replicas whose binding was not confirmed. A replica may hold a node's memory until the binder reads it again.
    unclear: Vec<Version>,
}

impl Binder {
    pub(super) fn new(world: World) -> Self {
        Self {
            world,
            settling: Settling::default(),
            unclear: Vec::new(),
        }
    }
}

/// When what waits for a node is looked at again although nothing has changed.
pub const BINDER_RESYNC: Duration = Duration::from_secs(15);

impl Reconciler for Binder {
    const NAME: &'static str = "binder";
    const RESYNC: Duration = BINDER_RESYNC;

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let world = &self.world;
        while let Some(replica) = self.unclear.last() {
            if pass
                .note(world.read_anew(&world.replicas, replica).await)
                .is_none()
            {
                return pass;
            }
            self.unclear.pop();
        }
        let now = world.clock.now();
        let mut fleet = world.fleet.lock().await;
        let replicas = fleet.replicas().to_vec();
        let deployments = world.deployments.list();
        let instant = world.clock.instant();
        let wait = self.settling.wait(&deployments, &replicas, instant);
        if wait.is_some() {
            pass.requeue(wait);
            return pass;
        }
        let all: Vec<_> = replicas.iter().map(AsRef::as_ref).collect();
        let batches = fleet.trial(|fleet| writes::batches(plan(fleet, &all, now)));
        drop(fleet);
        let snapshot = Snapshot {
            replicas,
            ..Snapshot::default()
        };
        let snapshot = &snapshot;
        let executions: Vec<_> = batches
            .into_iter()
            .map(|batch| {
                let bound = batch.iter().find_map(|write| {
                    let Intent::Bind { of, .. } = &write.intent else {
                        return None;
                    };
                    Some(of.clone())
                });
                let execution = async move { (bound, Executor::new(world, snapshot).run(batch).await) };
                execution.boxed()
            })
            .collect();
        let mut executed = futures::stream::iter(executions).buffer_unordered(MAX_BINDINGS_IN_FLIGHT);
        while let Some((bound, failures)) = executed.next().await {
            if !failures.is_empty() {
                self.unclear.extend(bound);
            }
            pass.note_failures(failures);
        }
        pass
    }
}

#[cfg(test)]
mod tests;
