//! What must hold after every step, computed from the truth and not from what the parts believe: the guarantees of the
//! design that state and messages can break.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use serde::Serialize;

use super::control::is_silent;
use super::disruption::{Before, Missed, expels, serves};
use super::event::{Answer, Loop};
use super::fault::Fault;
use super::run::Run;
use super::scenario::{duration_text, show};
use super::store::{Change, Object};
use rooflet_agent::replica::ReplicaKey;
use rooflet_agent::sync::StopCause;
use rooflet_agent::workers::GRACE;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::meta::{DEPLOYMENT_LABEL, REPLICA_FINALIZER, TEMPLATE_HASH_LABEL};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelDeploymentSpec, ModelReplica};
use rooflet_base::units::Bytes;
use rooflet_controller::intent::{Deletion, Intent, Snapshot};
use rooflet_controller::{FollowedFleet, deployment_intents};
use rooflet_scheduler::taints_of_conditions;

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    #[serde(with = "duration_text")]
    pub at: Duration,
    pub rule: &'static str,
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {}: {}: {}", show(self.at), self.rule, self.message)
    }
}

/// A Lease expires after 40 s, a silent node is given up 30 s later; renewals are up to 10 s old when a node falls silent.
const SURELY_NOT_GIVEN_UP: Duration = Duration::from_secs(59);
/// And by then, with two resyncs and retries of writes, everybody has been told.
const SURELY_SILENT: Duration = Duration::from_secs(120);

/// What is remembered between steps.
#[derive(Debug, Default)]
pub(super) struct Rules {
    first: Option<Violation>,
    /// Creations that were done and not heard of: each may be done twice.
    pub(super) creations_lost: usize,
    /// When a node took a replica that it had refused.
    taken_after_all: BTreeMap<String, Duration>,
    /// When a worker failed last, and how often in a row.
    pub(super) failed: BTreeMap<(usize, ReplicaKey), (Duration, u32)>,
    /// The newest revision that anybody was told of.
    pub(super) told: u64,
    /// Replicas that stopped to answer, and what deployments asked for before.
    pub(super) missed: Vec<Missed>,
    /// When replicas began to answer, by uid.
    pub(super) gained: BTreeMap<String, Duration>,
    /// What is written now was asked for by who led then, before it stood still: nobody can keep that from arriving.
    pub(super) by_former_leader: bool,
    pub(super) specs: BTreeMap<String, Vec<Before>>,
    /// Uids of replicas whose deletion the controller knows of, for it is its own.
    pub(super) own_deletes: BTreeSet<String>,
    /// Memory and chip time of one replica, by class, model, context and streams.
    pub(super) needs: BTreeMap<Need, (Bytes, f64)>,
}

type Need = (String, String, u32, u32, Option<u32>, String);

impl Rules {
    pub(super) fn broke(&mut self, violation: Violation) {
        self.first.get_or_insert(violation);
    }

    pub(super) fn broken(&self) -> bool {
        self.first.is_some()
    }

    pub(super) fn take(&mut self) -> Option<Violation> {
        self.first.take()
    }
}

impl Run<'_> {
    /// One write has changed an object.
    pub(super) fn check_change(&mut self, change: &Change) {
        match (&change.object, &change.before) {
            (Object::Replica(replica), before) => {
                let served = matches!(before, Some(Object::Replica(before)) if serves(before));
                if !served && serves(replica) {
                    let uid = replica.uid().unwrap_or_default();
                    self.rules.gained.insert(uid, self.now);
                }
                if let Some(Object::Replica(before)) = before
                    && serves(before)
                    && (change.gone || !serves(replica))
                    && !self
                        .rules
                        .own_deletes
                        .contains(&replica.uid().unwrap_or_default())
                {
                    self.note_missed(before);
                }
                let before = match before {
                    Some(Object::Replica(before)) => Some(before.clone()),
                    Some(_) | None => None,
                };
                self.check_replica(replica, before.as_deref(), change.gone);
            }
            (Object::Deployment(deployment), Some(Object::Deployment(before))) => {
                let seen = |deployment: &ModelDeployment| {
                    deployment
                        .status
                        .as_ref()
                        .and_then(|status| status.observed_generation)
                };
                self.check_generations(&deployment.name_any(), seen(before), seen(deployment));
                self.note_spec(before, deployment);
            }
            (Object::Revision(revision), before) => {
                let hash = |name: &str| revision.labels().get(name).cloned();
                let twins = self.store.revisions.values().filter(|other| {
                    other.name_any() != revision.name_any()
                        && other.labels().get(DEPLOYMENT_LABEL) == hash(DEPLOYMENT_LABEL).as_ref()
                        && (other.spec.revision == revision.spec.revision
                            || other.labels().get(TEMPLATE_HASH_LABEL) == hash(TEMPLATE_HASH_LABEL).as_ref())
                });
                if before.is_none() && !change.gone && twins.count() > 0 {
                    let message = format!(
                        "{} has the number or the template of another",
                        revision.name_any()
                    );
                    self.break_rule("a revision is made once", message);
                }
            }
            (Object::Node(node), Some(Object::Node(before))) => {
                if is_silent(node) && !is_silent(before) {
                    self.check_silence(&node.name_any());
                }
                if let Some(index) = self.by_name.get(&node.name_any()) {
                    let (now, state) = (self.now, &mut self.nodes[*index]);
                    state.untainted = Some(now).filter(|_| gives_reason(before)).or(state.untainted);
                    state.pardoned = Some(now).filter(|_| expels(before)).or(state.pardoned);
                }
            }
            (Object::Node(_) | Object::Deployment(_), _) => {}
        }
    }

    /// The API server has died, and this takes back what it had not on disk.
    pub(super) fn check_lost(&mut self, undone: &Change) {
        let told = self.rules.told;
        let Some(revision) = undone.before.as_ref().map(Object::version) else {
            return;
        };
        if revision <= told {
            let message = format!("revision {revision} is lost, and somebody was told of {told}");
            self.break_rule("what was answered is never lost", message);
        }
    }

    /// A node is taken for lost.
    fn check_silence(&mut self, name: &str) {
        let Some(index) = self.by_name.get(name) else {
            return;
        };
        let state = &self.nodes[*index];
        let recently = state
            .reachable_again
            .is_some_and(|at| self.now.saturating_sub(at) < SURELY_NOT_GIVEN_UP);
        let is_excused = recently || self.rules.by_former_leader || self.control.was_deaf(self.now);
        if state.unreachable_since.is_none() && !is_excused {
            let message = format!("{name} is shown as silent, and it reports");
            self.break_rule("a node that reports is not taken for lost", message);
        }
    }

    fn check_generations(&mut self, name: &str, before: Option<i64>, after: Option<i64>) {
        if after < before {
            let message = format!("{name} went from generation {before:?} back to {after:?}");
            self.break_rule("a lower generation never undoes a higher one", message);
        }
    }

    fn check_replica(&mut self, replica: &Arc<ModelReplica>, before: Option<&ModelReplica>, gone: bool) {
        let name = replica.name_any();
        let node = replica.spec.node_name.as_deref();
        if let Some(before) = before {
            let was = before.spec.node_name.as_deref();
            if was.is_some() && was != node {
                let message = format!(
                    "{name} was on {} and is on {}",
                    was.unwrap_or("none"),
                    node.unwrap_or("none")
                );
                self.break_rule("spec.nodeName is written once", message);
            }
            let seen = |replica: &ModelReplica| {
                replica
                    .status
                    .as_ref()
                    .and_then(|status| status.observed_generation)
            };
            self.check_generations(&name, seen(before), seen(replica));
            if is_refused(before) && !is_refused(replica) {
                self.rules.taken_after_all.insert(name.clone(), self.now);
            }
            if was.is_none() && node.is_some() {
                self.check_promises(node.unwrap_or_default());
            }
            let held =
                |replica: &ModelReplica| replica.finalizers().iter().any(|name| name == REPLICA_FINALIZER);
            if (held(before) && !held(replica) || gone)
                && let Some(node) = was
            {
                self.check_release(replica, node);
            }
        } else {
            self.check_count(replica);
        }
    }

    /// Its finalizer is off: no process of it may be left, unless the node was given up by a person.
    fn check_release(&mut self, replica: &ModelReplica, node: &str) {
        let Some(index) = self.by_name.get(node) else {
            return;
        };
        let uid = replica.uid().unwrap_or_default();
        let runs = self.nodes[*index]
            .workers
            .values()
            .any(|worker| worker.uid == uid);
        let given_up = !self.store.nodes.contains_key(&(None, node.to_owned()));
        if runs && !given_up {
            let message = format!("{} still runs on {node}", replica.name_any());
            self.break_rule("a finalizer goes only after the worker", message);
        }
    }

    /// What happened before was known to a loop when it decided on what it writes now: all that is older than a message
    /// may be.
    pub(super) fn known_to(&self, of: Loop) -> Duration {
        let decided = self.control.decided(of);
        let decided = decided.saturating_sub(self.disorder.lag(decided));
        let before = |slow| {
            let message = self.scenario.network.longest.mul_f64(slow);
            decided.saturating_sub(message)
        };
        let slower = self.slower_until.filter(|(slow, until)| before(*slow) <= *until);
        before(slower.map_or(self.slow_network, |(slow, _)| slow.max(self.slow_network)))
    }

    /// Not more replicas than the deployment may have.
    fn check_count(&mut self, replica: &ModelReplica) {
        let Some(name) = replica.labels().get(DEPLOYMENT_LABEL) else {
            return;
        };
        let key = (replica.namespace(), name.clone());
        let Some(deployment) = self.store.deployments.get(&key) else {
            return;
        };
        let known = self.known_to(Loop::Deployment);
        // One that its node has taken after all may have been replaced meanwhile.
        let was_refused = |other: &ModelReplica| {
            let taken = self.rules.taken_after_all.get(&other.name_any());
            is_refused(other) || taken.is_some_and(|at| *at >= known)
        };
        let active = self.store.replicas.values().filter(|other| {
            other.labels().get(DEPLOYMENT_LABEL) == Some(name)
                && other.metadata.deletion_timestamp.is_none()
                && !was_refused(other)
        });
        let (count, most) = (active.count(), most_replicas(&deployment.spec));
        // The plan may have been made for a spec that has just become smaller.
        let shrunk = deployment.metadata.generation
            != deployment
                .status
                .as_ref()
                .and_then(|status| status.observed_generation);
        let deaf = self.control.was_deaf(self.now);
        if count > most + self.rules.creations_lost && !shrunk && !deaf {
            let message = format!("{name} has {count} replicas and may have {most}");
            self.break_rule("never more replicas than wanted and the surge", message);
        }
    }

    /// What processes hold is not more than the node has.
    pub(super) fn check_node(&mut self, node: usize) {
        let state = &self.nodes[node];
        let held: Bytes = state.workers.values().map(|worker| worker.reserved).sum();
        let allocatable = state.machine.class.allocatable;
        if held > allocatable {
            let message = format!("workers of {} hold {held} of {allocatable}", state.machine.name);
            self.break_rule("memory is never over-committed", message);
        }
    }

    /// A process is about to begin.
    pub(super) fn check_start(&mut self, node: usize, key: &ReplicaKey, uid: &str) {
        let name = self.nodes[node].machine.name.clone();
        if self.nodes[node].workers.contains_key(key) {
            let message = format!("{key} runs on {name} already");
            self.break_rule("a replica has one process", message);
        }
        let elsewhere =
            self.nodes.iter().enumerate().find(|(index, other)| {
                *index != node && other.workers.values().any(|worker| worker.uid == uid)
            });
        if let Some((_, other)) = elsewhere {
            let message = format!("{key} runs on {} already", other.machine.name);
            self.break_rule("a replica runs on one node", message);
        }
        if let Some((at, failures)) = self.rules.failed.get(&(node, key.clone())) {
            // Clocks may have been set in between; a second after the first failure is what is least.
            let least = Duration::from_millis(900)
                * if self.skew_in_play() {
                    0
                } else {
                    1 << failures.saturating_sub(1).min(8)
                };
            if self.now.saturating_sub(*at) < least {
                let waited = show(self.now.saturating_sub(*at));
                let message = format!("{key} begins again {waited} after its failure {failures}");
                self.break_rule("a worker that fails backs off", message);
            }
        }
    }

    fn skew_in_play(&self) -> bool {
        self.faults
            .iter()
            .any(|fault| matches!(fault.what, Fault::ClockSkew { .. }))
    }

    /// A running worker is about to be stopped.
    pub(super) fn check_stop(&mut self, node: usize, key: &ReplicaKey, cause: StopCause) {
        let state = &self.nodes[node];
        let Some(uid) = state.workers.get(key).map(|worker| worker.uid.clone()) else {
            return;
        };
        let object = self
            .store
            .replicas
            .get(&(Some(key.namespace.clone()), key.name.clone()));
        let wanted = object.is_some_and(|object| {
            object.uid().as_deref() == Some(uid.as_str())
                && object.metadata.deletion_timestamp.is_none()
                && object.spec.node_name.as_deref() == Some(&state.machine.name)
        });
        // Its own memory is no reason for pressure: something else takes it.
        let gives_way = cause == StopCause::MemoryPressure && state.memory_taken > 0.0;
        if wanted && cause != StopCause::Unresponsive && !gives_way {
            let message = format!(
                "{key} is stopped on {} ({cause:?}), and nothing asks for that",
                state.machine.name
            );
            self.break_rule("nothing is restarted needlessly", message);
        }
    }

    /// A request was cut short by a stop that was asked for.
    pub(super) fn check_cut_short(
        &mut self,
        node: usize,
        key: &ReplicaKey,
        arrived: Duration,
        cause: Option<StopCause>,
        longest_answer: Duration,
    ) {
        let waited = self.now.saturating_sub(arrived);
        let grace = match cause {
            Some(StopCause::Deleted | StopCause::Replaced) | None => longest_answer,
            Some(StopCause::AgentStopping | StopCause::MemoryPressure | StopCause::Unresponsive) => GRACE,
        };
        // It may have come after the stop was asked for.
        if waited + Duration::from_secs(10) < grace {
            let name = &self.nodes[node].machine.name;
            let message = format!(
                "{key} on {name} was stopped with a request of {} under way",
                show(waited)
            );
            self.break_rule("a planned stop fails no request", message);
        }
    }

    /// A reconciler has written.
    pub(super) fn check_intent(&mut self, intent: &Intent, answer: &Answer) {
        if let (Intent::CreateReplica(_), Answer::Done(Object::Replica(replica))) = (intent, answer) {
            self.check_created(replica);
        }
        let (
            Intent::DeleteReplica {
                of,
                why: Deletion::Eviction,
            },
            Answer::Done(Object::Replica(replica)),
        ) = (intent, answer)
        else {
            return;
        };
        let Some(node) = &replica.spec.node_name else {
            return;
        };
        let Some(index) = self.by_name.get(node) else {
            return;
        };
        let state = &self.nodes[*index];
        let silent_for = state
            .unreachable_since
            .map(|since| self.now.saturating_sub(since));
        let object = self.store.nodes.get(&(None, node.clone()));
        let tainted = object.is_some_and(|node| gives_reason(node)) || state.on_battery > 0;
        let known = self.known_to(Loop::NodeLifecycle);
        let tainted = tainted || state.untainted.is_some_and(|at| at >= known);
        let recently = state
            .reachable_again
            .is_some_and(|at| self.now.saturating_sub(at) < SURELY_NOT_GIVEN_UP);
        let blind = self.control.was_deaf(self.now) || self.skipped_leases(node);
        if silent_for.is_none_or(|time| time < SURELY_NOT_GIVEN_UP) && !tainted && !recently && !blind {
            let message = format!("{} is taken from {node}, which reports", of.name);
            self.break_rule("nothing is moved needlessly", message);
        }
    }

    /// A FleetNode that was deleted has no Lease until its agent has registered again.
    fn skipped_leases(&self, node: &str) -> bool {
        self.faults.iter().any(|fault| {
            matches!(&fault.what, Fault::DeleteNode { node: deleted } if deleted == node)
                && fault.at <= self.now
        })
    }

    /// Everything is over and had time to heal.
    pub(super) fn check_end(&mut self) {
        self.check_silent_nodes();
        let healed = |fault: &super::fault::FaultSpec| {
            fault.at + fault.lasts + super::SETTLED <= self.scenario.duration
        };
        let changed = self
            .scenario
            .changes
            .iter()
            .all(|change| change.at + super::SETTLED <= self.scenario.duration);
        if !self.scenario.must_heal || !self.faults.iter().all(healed) || !changed {
            return;
        }
        let deployments: Vec<_> = self.store.deployments.values().cloned().collect();
        for deployment in &deployments {
            let (name, wanted) = (deployment.name_any(), deployment.spec.replicas.max(0));
            let ours = |replica: &&Arc<ModelReplica>| replica.labels().get(DEPLOYMENT_LABEL) == Some(&name);
            let replicas: Vec<_> = self.store.replicas.values().filter(ours).cloned().collect();
            let ready = replicas
                .iter()
                .filter(|replica| self.truly_ready(replica))
                .count();
            // What the floor holds is told, and waits for a person.
            let held = deployment.status.iter().flat_map(|status| &status.conditions);
            let mut held = held.filter(|condition| condition.reason == "ThroughputFloor");
            let most = match held.next() {
                Some(_) => most_replicas(&deployment.spec),
                None => wanted as usize,
            };
            if !(wanted as usize..=most).contains(&ready) || replicas.len() != ready {
                let message = format!(
                    "{name} has {} replicas, {ready} of them ready, and wants {wanted}: {}",
                    replicas.len(),
                    progressing(deployment)
                );
                self.break_rule("it heals without a person", message);
            }
        }
        self.check_change_causes();
        self.check_settled();
    }

    /// The object says so, and the process is there.
    fn truly_ready(&self, replica: &ModelReplica) -> bool {
        let says = replica
            .status
            .as_ref()
            .is_some_and(|status| is_true(&status.conditions, condition_type::READY));
        let index = replica
            .spec
            .node_name
            .as_ref()
            .and_then(|node| self.by_name.get(node));
        let key = ReplicaKey::of(replica);
        says && index.is_some_and(|index| self.takes(*index, &key))
    }

    /// A second reconcile changes nothing.
    fn check_settled(&mut self) {
        let store = &self.store;
        let snapshot = Snapshot {
            nodes: store.nodes.values().cloned().collect(),
            deployments: store.deployments.values().cloned().collect(),
            revisions: store.revisions.values().cloned().collect(),
            replicas: store.replicas.values().cloned().collect(),
        };
        let now = self.clock();
        let mut fleet = FollowedFleet::default();
        fleet.follow(snapshot.nodes.clone(), snapshot.replicas.clone());
        for (of, intents) in [
            (
                Loop::Deployment,
                deployment_intents(fleet.fleet(), &snapshot, now),
            ),
            (Loop::Binder, self.policy.bind(&mut fleet, &snapshot, now)),
        ] {
            if let Some(write) = intents.writes.first() {
                let message = format!("{of:?} would still write {:?}", write.intent);
                self.break_rule(
                    "a second reconcile changes nothing",
                    message.chars().take(400).collect(),
                );
            }
        }
    }

    /// Replicas of nodes that have been silent for long enough are ready to nobody.
    pub(super) fn check_silent_nodes(&mut self) {
        let silent: Vec<_> = self
            .nodes
            .iter()
            .filter(|node| {
                let silence = node.unreachable_since.map(|since| self.now.saturating_sub(since));
                silence.is_some_and(|time| time > SURELY_SILENT)
            })
            .map(|node| node.machine.name.clone())
            .collect();
        if self.is_out() || self.control.was_deaf(self.now) || self.control.was_hindered(self.now) {
            return;
        }
        for name in silent {
            let node = self.store.nodes.get(&(None, name.clone()));
            let unnoticed = node.is_some_and(|node| !is_silent(node));
            let ready = self.store.replicas.values().any(|replica| {
                let conditions = replica.status.iter().flat_map(|status| &status.conditions);
                let ready = conditions
                    .into_iter()
                    .any(|one| one.type_ == "Ready" && one.status == "True");
                replica.spec.node_name.as_ref() == Some(&name) && ready
            });
            if unnoticed || ready {
                let what = if ready { "replicas are" } else { "it is" };
                let message = format!("{name} has been silent for minutes and {what} still shown as ready");
                self.break_rule("nothing is routed to a node that is lost", message);
            }
        }
    }
}

/// What is said of its rollout.
fn progressing(deployment: &ModelDeployment) -> String {
    let conditions = deployment.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.filter(|condition| condition.type_ == "Progressing");
    conditions.next().map_or_else(String::new, |condition| {
        format!("{}: {}", condition.reason, condition.message)
    })
}

/// Its replicas may have to leave.
fn gives_reason(node: &FleetNode) -> bool {
    node.spec.drain || !node.spec.taints.is_empty() || taints_of_conditions(node).next().is_some()
}

/// Those that are wanted, and the surge of a rolling update.
fn most_replicas(spec: &ModelDeploymentSpec) -> usize {
    let wanted = usize::try_from(spec.replicas).unwrap_or(0);
    let strategy = serde_json::to_value(&spec.strategy).unwrap_or_default();
    let surge = &strategy["rollingUpdate"]["maxSurge"];
    let percent = surge
        .as_str()
        .and_then(|text| text.strip_suffix('%')?.parse::<usize>().ok());
    let surge = match percent {
        Some(percent) => (wanted * percent).div_ceil(100),
        None => surge
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(0),
    };
    wanted + surge
}

/// Its node's agent has refused it; its deployment has made another one.
fn is_refused(replica: &ModelReplica) -> bool {
    let conditions = replica.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == condition_type::ADMITTED && condition.status == "False")
}
