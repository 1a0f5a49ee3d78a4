//! Execution of scheduling decisions. The binder is the only writer of `spec.nodeName`.
//!
//! Each decision accounts for the decisions before it. The server rejects a binding if the replica
//! has changed since the binder read it.

mod advice;
pub(crate) mod binding;
pub(crate) mod candidate;
mod confirmations;
mod settling;
mod writes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use kube::ResourceExt;

use super::executor::{Executor, find};
use super::fleet::{name, object_key};
use super::intent::{Intent, Snapshot, Version};
use super::runtime::{PassStatus, Reconciler};
use super::world::World;
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaStatus};
use rooflet_client::ObjectKey;
use rooflet_scheduler::{Decision, Fleet, Preemption, ReplicaKey, decide_all, is_waited_for};

/// Maximum number of replicas for which one pass preempts others. Later passes handle the rest.
const MAX_PREEMPTIONS: usize = 16;
/// Maximum number of replicas without a node for which one pass decides. Later passes handle the rest.
/// Decisions need the index, so this limits the time for which a change of a user waits.
const MAX_DECISIONS: usize = 128;
/// Maximum number of concurrent binding writes. All decisions are made before the first write.
const MAX_BINDINGS_IN_FLIGHT: usize = 16;
/// Maximum number of victims listed in one message.
const MAX_NAMED: usize = 5;

use advice::Advice;
pub use binding::bound_status;
use candidate::{Unplaced, is_unconfirmed, is_unscheduled, revision};
use confirmations::Confirmations;
pub use settling::Settling;
#[cfg(test)]
pub(crate) use settling::are_replicas_missing;
pub use writes::{intents as binding_intents, rival as rival_intents};

/// Planned action for one replica.
#[derive(Debug, PartialEq)]
enum Step<'a> {
    Bind {
        replica: &'a ModelReplica,
        node: String,
        message: String,
    },
    /// Evicts replicas of a lower priority from the node.
    Preempt {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
        victims: Vec<&'a ModelReplica>,
        message: String,
    },
    /// Reports why the replica is unscheduled.
    Report {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
        message: String,
    },
    /// Sets the condition Scheduled of a bound replica that lacks it. The write after the binding
    /// can fail, for example by a conflict.
    Confirm {
        replica: &'a ModelReplica,
        status: Box<ModelReplicaStatus>,
    },
}

/// Returns the actions for the given candidates, in order, and the replicas that wait for a change
/// of the fleet. `find` returns any replica of the fleet. On return, `fleet` contains the
/// placements.
fn plan<'a>(
    fleet: &mut Fleet,
    replicas: &[&'a ModelReplica],
    find: impl Fn(&ReplicaKey) -> Option<&'a ModelReplica>,
    now: Timestamp,
) -> (Vec<Step<'a>>, Vec<Unplaced>) {
    let unscheduled = unscheduled(replicas);
    let advice = Advice::of(replicas, now);
    let requests: Vec<_> = unscheduled
        .iter()
        .map(|replica| advice.request(replica))
        .collect();
    let decisions = decide_all(&requests, fleet, MAX_PREEMPTIONS);
    let (mut steps, mut unplaced) = (Vec::new(), Vec::new());
    for ((replica, request), decision) in unscheduled.iter().zip(requests).zip(decisions) {
        if decision.outcome.is_err() && decision.preemption.is_none() && !decision.is_deferred {
            unplaced.push(Unplaced {
                request: request.clone(),
                created: replica.metadata.creation_timestamp.as_ref().map(|time| time.0),
                retry_at: advice.expiry(replica),
            });
        }
        if decision.outcome.is_ok() || !is_waited_for(&request, fleet) {
            steps.extend(step(replica, decision, &find, now));
        }
    }
    steps.extend(
        replicas
            .iter()
            .copied()
            .filter_map(|replica| confirmation(replica, now)),
    );
    (steps, unplaced)
}

/// Returns the replicas without a node in scheduling order: by priority, then by revision. The
/// revision with the oldest replica is first. Replicas of one revision have the same requirements,
/// so they are placed together.
fn unscheduled<'a>(replicas: &[&'a ModelReplica]) -> Vec<&'a ModelReplica> {
    let mut unscheduled: Vec<&ModelReplica> = replicas
        .iter()
        .copied()
        .filter(|replica| is_unscheduled(replica))
        .collect();
    let mut oldest = BTreeMap::new();
    for replica in &unscheduled {
        let created = replica.metadata.creation_timestamp.clone();
        let known = oldest.entry(revision(replica)).or_insert(created.clone());
        *known = created.min(known.take());
    }
    unscheduled.sort_by_cached_key(|replica| {
        let revision = revision(replica);
        (
            Reverse(replica.spec.priority),
            oldest.get(&revision).cloned(),
            revision,
            replica.metadata.creation_timestamp.clone(),
            replica.name_any(),
        )
    });
    unscheduled
}

/// Returns the candidates of one pass: of those without a node, the first [`MAX_DECISIONS`] in scheduling
/// order. Also returns whether others are left.
fn of_one_pass(candidates: Vec<Arc<ModelReplica>>) -> (Vec<Arc<ModelReplica>>, bool) {
    let references: Vec<_> = candidates.iter().map(AsRef::as_ref).collect();
    let order = unscheduled(&references);
    let Some(rest) = order.get(MAX_DECISIONS..).filter(|rest| !rest.is_empty()) else {
        return (candidates, false);
    };
    let later: HashSet<_> = rest.iter().map(|replica| name(*replica)).collect();
    let is_now = |replica: &&Arc<ModelReplica>| !later.contains(&name(replica.as_ref()));
    (candidates.iter().filter(is_now).cloned().collect(), true)
}

fn step<'a>(
    replica: &'a ModelReplica,
    decision: Decision,
    find: impl Fn(&ReplicaKey) -> Option<&'a ModelReplica>,
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
        victims = keys.iter().filter_map(find).collect();
        victims.sort_by_key(|victim| ReplicaKey::of(*victim));
        reason = "Preempting";
        message = format!(
            "preempting replicas of lower priority on {node}: {}; before: {message}",
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
    let node = replica
        .spec
        .node_name
        .as_ref()
        .filter(|_| is_unconfirmed(replica))?;
    let status = bound_status(replica, node, now);
    Some(Step::Confirm {
        replica,
        status: Box::new(status),
    })
}

/// Reconciler that binds replicas to nodes.
pub(super) struct Binder {
    world: World,
    settling: Settling,
    /// Replicas whose binding write failed. The server may have executed the write, so the binder
    /// reads these replicas before its next decisions.
    unclear: Vec<Version>,
    confirmations: Confirmations,
}

impl Binder {
    pub(super) fn new(world: World) -> Self {
        Self {
            world,
            settling: Settling::default(),
            unclear: Vec::new(),
            confirmations: Confirmations::default(),
        }
    }
}

/// Maximum time between two scheduling attempts for an unscheduled replica.
pub const BINDER_RESYNC: Duration = Duration::from_secs(15);

impl Reconciler for Binder {
    const NAME: &'static str = "binder";
    const RESYNC: Duration = BINDER_RESYNC;

    async fn reconcile(&mut self) -> PassStatus {
        let mut pass = PassStatus::default();
        let world = &self.world;
        while let Some(replica) = self.unclear.last() {
            if pass
                .record(world.refresh(&world.replicas, replica).await)
                .is_none()
            {
                return pass;
            }
            self.unclear.pop();
        }
        let now = world.clock.now();
        let mut index = world.index.lock().await;
        let candidates = index.fleet.candidates(now);
        let is_any_unplaced = candidates.iter().any(|replica| replica.spec.node_name.is_none());
        let is_unsettled = is_any_unplaced && index.deployments.are_replicas_missing();
        let wait = self.settling.delay(is_unsettled, world.clock.instant());
        if wait.is_some() {
            pass.requeue(wait);
            return pass;
        }
        let instant = world.clock.instant();
        let is_late = |of: &Version| {
            let key = ObjectKey::new(of.namespace.as_deref(), &of.name);
            let replica = index.fleet.replicas().get(&key);
            replica.is_some_and(|replica| {
                replica.uid().as_deref() == Some(of.uid.as_str()) && is_unconfirmed(replica)
            })
        };
        let due = self.confirmations.take_due(instant, is_late);
        pass.requeue(self.confirmations.next_due(instant));
        let candidates: Vec<_> = {
            let due = due.iter().filter_map(|write| {
                let Intent::ConfirmBinding { of, .. } = &write.intent else {
                    return None;
                };
                Some(of.uid.as_str())
            });
            let due: HashSet<_> = due.collect();
            let is_due = |replica: &ModelReplica| {
                let uid = replica.metadata.uid.as_deref();
                uid.is_some_and(|uid| due.contains(uid))
            };
            let is_planned = |replica: &ModelReplica| {
                !is_unconfirmed(replica) || !is_due(replica) && !self.confirmations.contains(replica)
            };
            candidates
                .into_iter()
                .filter(|replica| is_planned(replica))
                .collect()
        };
        if candidates.is_empty() && due.is_empty() {
            return pass;
        }
        let (candidates, is_any_left) = of_one_pass(candidates);
        pass.requeue(is_any_left.then_some(Duration::ZERO));
        let replicas: Vec<_> = candidates.iter().map(AsRef::as_ref).collect();
        let (mut batches, unplaced) = index.fleet.trial(|fleet, objects| {
            let find = |key: &ReplicaKey| objects.get(&object_key(key)).map(AsRef::as_ref);
            let (steps, unplaced) = plan(fleet, &replicas, find, now);
            (writes::batches(steps), unplaced)
        });
        batches.extend(due.into_iter().map(|write| vec![write]));
        index.fleet.set_unschedulable(unplaced, now);
        let victims = batches.iter().flatten().filter_map(|write| {
            let Intent::DeleteReplica { of, .. } = &write.intent else {
                return None;
            };
            let key = ObjectKey::new(of.namespace.as_deref(), &of.name);
            index.fleet.replicas().get(&key).cloned()
        });
        let mut replicas: Vec<_> = candidates.iter().cloned().chain(victims).collect();
        drop(index);
        replicas.sort_by(|a, b| name(a.as_ref()).cmp(&name(b.as_ref())));
        let snapshot = Snapshot {
            replicas,
            ..Snapshot::default()
        };
        let snapshot = &snapshot;
        let executions: Vec<_> = batches
            .into_iter()
            .map(|mut batch| {
                let (mut bound, mut reported) = (None, None);
                for write in &batch {
                    if let Intent::Bind { of, .. } = &write.intent {
                        bound = Some(of.clone());
                    }
                    if let Intent::ReplicaStatus { of, .. } = &write.intent {
                        reported = Some(ObjectKey::new(of.namespace.as_deref(), &of.name));
                    }
                }
                let replica = bound.as_ref().and_then(|of| find(&snapshot.replicas, of));
                let confirmation = confirmations::split(&mut batch, replica);
                let execution = async move {
                    let failures = Executor::new(world, snapshot).run(batch).await;
                    (bound, reported, confirmation, failures)
                };
                execution.boxed()
            })
            .collect();
        let mut executed = futures::stream::iter(executions).buffer_unordered(MAX_BINDINGS_IN_FLIGHT);
        let mut unreported = Vec::new();
        while let Some((bound, reported, confirmation, failures)) = executed.next().await {
            if failures.is_empty() {
                if let Some((of, write)) = bound.zip(confirmation) {
                    self.confirmations.add(of, write, world.clock.instant());
                }
            } else {
                self.unclear.extend(bound);
                unreported.extend(reported);
            }
            pass.record_failures(failures);
        }
        pass.requeue(self.confirmations.next_due(world.clock.instant()));
        if !unreported.is_empty() {
            let mut index = world.index.lock().await;
            for key in unreported {
                index.fleet.report_again(&key);
            }
        }
        pass
    }
}

#[cfg(test)]
mod tests;
