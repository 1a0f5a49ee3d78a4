//! What must hold after every step, computed from the truth and not from what the parts believe:
//! the guarantees of the design that state and messages can break.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use crate::rules::bounds::{expels, serves};
use crate::run::Run;
use crate::scenario::show;
use crate::world::controller::is_silent;
use crate::world::event::{Answer, Loop};
use crate::world::store::{Change, Object};
use rooflet_agent::replica::ReplicaKey;
use rooflet_agent::sync::StopCause;
use rooflet_agent::workers::GRACE;
use rooflet_api::conditions::condition_type;
use rooflet_api::meta::{DEPLOYMENT_LABEL, REPLICA_FINALIZER, TEMPLATE_HASH_LABEL};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelDeploymentSpec, ModelReplica};
use rooflet_base::units::Bytes;
use rooflet_controller::intent::{Deletion, Intent, Snapshot};
use rooflet_controller::{FollowedFleet, deployment_intents};
use rooflet_scheduler::condition_taints;

/// A Lease expires after 40 s, a silent node is given up 30 s later; renewals are up to 10 s old
/// when a node falls silent.
const SURELY_NOT_GIVEN_UP: Duration = Duration::from_secs(59);

/// And by then, with two resyncs and retries of writes, everybody has been told.
const SURELY_SILENT: Duration = Duration::from_secs(120);

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
    node.spec.drain || !node.spec.taints.is_empty() || condition_taints(node).next().is_some()
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

impl Run<'_> {
    /// One write has changed an object.
    pub(crate) fn check_change(&mut self, change: &Change) {
        match (&change.object, &change.before) {
            (Object::Replica(replica), before) => {
                let served = matches!(before, Some(Object::Replica(before)) if serves(before));
                if !served && serves(replica) {
                    let uid = replica.uid().unwrap_or_default();
                    self.rules.gained.insert(uid, self.world.now);
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
                let twins = self.world.store.revisions.values().filter(|other| {
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
                if let Some(index) = self.world.by_name.get(&node.name_any()) {
                    let (now, state) = (self.world.now, &mut self.world.nodes[*index]);
                    state.untainted = Some(now).filter(|_| gives_reason(before)).or(state.untainted);
                    state.pardoned = Some(now).filter(|_| expels(before)).or(state.pardoned);
                }
            }
            (Object::Node(_) | Object::Deployment(_), _) => {}
        }
    }

    /// The API server has died, and this takes back what it had not on disk.
    pub(crate) fn check_lost(&mut self, undone: &Change) {
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
        let Some(index) = self.world.by_name.get(name) else {
            return;
        };
        let state = &self.world.nodes[*index];
        let recently = state
            .reachable_again
            .is_some_and(|at| self.world.now.saturating_sub(at) < SURELY_NOT_GIVEN_UP);
        let is_excused =
            recently || self.rules.by_former_leader || self.world.control.was_deaf(self.world.now);
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
                self.rules.taken_after_all.insert(name.clone(), self.world.now);
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

    /// Its finalizer is off: no process of it may be left, unless the node was given up by a
    /// person.
    fn check_release(&mut self, replica: &ModelReplica, node: &str) {
        let Some(index) = self.world.by_name.get(node) else {
            return;
        };
        let uid = replica.uid().unwrap_or_default();
        let runs = self.world.nodes[*index]
            .workers
            .values()
            .any(|worker| worker.uid == uid);
        let given_up = !self.world.store.nodes.contains_key(&(None, node.to_owned()));
        if runs && !given_up {
            let message = format!("{} still runs on {node}", replica.name_any());
            self.break_rule("a finalizer goes only after the worker", message);
        }
    }

    /// What happened before was known to a loop when it decided on what it writes now: all that is
    /// older than a message may be.
    pub(crate) fn known_to(&self, of: Loop) -> Duration {
        let decided = self.world.control.decided(of);
        let decided = decided.saturating_sub(self.network.disorder.lag(decided));
        let before = |slow| {
            let message = self.world.scenario.network.longest.mul_f64(slow);
            decided.saturating_sub(message)
        };
        let slower = self
            .network
            .slower_until
            .filter(|(slow, until)| before(*slow) <= *until);
        before(slower.map_or(self.network.slow_network, |(slow, _)| {
            slow.max(self.network.slow_network)
        }))
    }

    /// Not more replicas than the deployment may have.
    fn check_count(&mut self, replica: &ModelReplica) {
        let Some(name) = replica.labels().get(DEPLOYMENT_LABEL) else {
            return;
        };
        let key = (replica.namespace(), name.clone());
        let Some(deployment) = self.world.store.deployments.get(&key) else {
            return;
        };
        let known = self.known_to(Loop::Deployment);
        // One that its node has taken after all may have been replaced meanwhile.
        let was_refused = |other: &ModelReplica| {
            let taken = self.rules.taken_after_all.get(&other.name_any());
            is_refused(other) || taken.is_some_and(|at| *at >= known)
        };
        let active = self.world.store.replicas.values().filter(|other| {
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
        let deaf = self.world.control.was_deaf(self.world.now);
        if count > most + self.rules.creations_lost && !shrunk && !deaf {
            let message = format!("{name} has {count} replicas and may have {most}");
            self.break_rule("never more replicas than wanted and the surge", message);
        }
    }

    /// What processes hold is not more than the node has.
    pub(crate) fn check_node(&mut self, node: usize) {
        let state = &self.world.nodes[node];
        let held: Bytes = state.workers.values().map(|worker| worker.reserved).sum();
        let allocatable = state.machine.class.allocatable;
        if held > allocatable {
            let message = format!("workers of {} hold {held} of {allocatable}", state.machine.name);
            self.break_rule("memory is never over-committed", message);
        }
    }

    /// A process is about to begin.
    pub(crate) fn check_start(&mut self, node: usize, key: &ReplicaKey, uid: &str) {
        let name = self.world.nodes[node].machine.name.clone();
        if self.world.nodes[node].workers.contains_key(key) {
            let message = format!("{key} runs on {name} already");
            self.break_rule("a replica has one process", message);
        }
        let elsewhere =
            self.world.nodes.iter().enumerate().find(|(index, other)| {
                *index != node && other.workers.values().any(|worker| worker.uid == uid)
            });
        if let Some((_, other)) = elsewhere {
            let message = format!("{key} runs on {} already", other.machine.name);
            self.break_rule("a replica runs on one node", message);
        }
        if let Some((at, failures)) = self.rules.failed.get(&(node, key.clone())) {
            // Clocks may have been set in between; a second after the first failure is what is
            // least.
            let least = Duration::from_millis(900)
                * if self.world.skew_in_play() {
                    0
                } else {
                    1 << failures.saturating_sub(1).min(8)
                };
            if self.world.now.saturating_sub(*at) < least {
                let waited = show(self.world.now.saturating_sub(*at));
                let message = format!("{key} begins again {waited} after its failure {failures}");
                self.break_rule("a worker that fails backs off", message);
            }
        }
    }

    /// A running worker is about to be stopped.
    pub(crate) fn check_stop(&mut self, node: usize, key: &ReplicaKey, cause: StopCause) {
        let state = &self.world.nodes[node];
        let Some(uid) = state.workers.get(key).map(|worker| worker.uid.clone()) else {
            return;
        };
        let object = self
            .world
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
    pub(crate) fn check_cut_short(
        &mut self,
        node: usize,
        key: &ReplicaKey,
        arrived: Duration,
        cause: Option<StopCause>,
        longest_answer: Duration,
    ) {
        let waited = self.world.now.saturating_sub(arrived);
        let grace = match cause {
            Some(StopCause::Deleted | StopCause::Replaced) | None => longest_answer,
            Some(StopCause::AgentStopping | StopCause::MemoryPressure | StopCause::Unresponsive) => GRACE,
        };
        // It may have come after the stop was asked for.
        if waited + Duration::from_secs(10) < grace {
            let name = &self.world.nodes[node].machine.name;
            let message = format!(
                "{key} on {name} was stopped with a request of {} under way",
                show(waited)
            );
            self.break_rule("a planned stop fails no request", message);
        }
    }

    /// A reconciler has written.
    pub(crate) fn check_intent(&mut self, intent: &Intent, answer: &Answer) {
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
        let Some(index) = self.world.by_name.get(node) else {
            return;
        };
        let state = &self.world.nodes[*index];
        let silent_for = state
            .unreachable_since
            .map(|since| self.world.now.saturating_sub(since));
        let object = self.world.store.nodes.get(&(None, node.clone()));
        let tainted = object.is_some_and(|node| gives_reason(node)) || state.on_battery > 0;
        let known = self.known_to(Loop::NodeLifecycle);
        let tainted = tainted || state.untainted.is_some_and(|at| at >= known);
        let recently = state
            .reachable_again
            .is_some_and(|at| self.world.now.saturating_sub(at) < SURELY_NOT_GIVEN_UP);
        let blind = self.world.control.was_deaf(self.world.now) || self.world.skipped_leases(node);
        if silent_for.is_none_or(|time| time < SURELY_NOT_GIVEN_UP) && !tainted && !recently && !blind {
            let message = format!("{} is taken from {node}, which reports", of.name);
            self.break_rule("nothing is moved needlessly", message);
        }
    }

    /// Everything is over and had time to heal.
    pub(crate) fn check_end(&mut self) {
        self.check_silent_nodes();
        let healed = |fault: &crate::scenario::fault::FaultSpec| {
            fault.at + fault.lasts + crate::SETTLED <= self.world.scenario.duration
        };
        let changed = self
            .world
            .scenario
            .changes
            .iter()
            .all(|change| change.at + crate::SETTLED <= self.world.scenario.duration);
        if !self.world.scenario.must_heal || !self.world.faults.iter().all(healed) || !changed {
            return;
        }
        let deployments: Vec<_> = self.world.store.deployments.values().cloned().collect();
        for deployment in &deployments {
            let (name, wanted) = (deployment.name_any(), deployment.spec.replicas.max(0));
            let ours = |replica: &&Arc<ModelReplica>| replica.labels().get(DEPLOYMENT_LABEL) == Some(&name);
            let replicas: Vec<_> = self.world.store.replicas.values().filter(ours).cloned().collect();
            let ready = replicas
                .iter()
                .filter(|replica| self.world.truly_ready(replica))
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

    /// A second reconcile changes nothing.
    fn check_settled(&mut self) {
        let store = &self.world.store;
        let snapshot = Snapshot {
            nodes: store.nodes.values().cloned().collect(),
            deployments: store.deployments.values().cloned().collect(),
            revisions: store.revisions.values().cloned().collect(),
            replicas: store.replicas.values().cloned().collect(),
            ..Snapshot::default()
        };
        let now = self.world.clock();
        let mut fleet = FollowedFleet::default();
        fleet.follow(snapshot.nodes.clone(), snapshot.replicas.clone());
        for (of, intents) in [
            (
                Loop::Deployment,
                deployment_intents(fleet.fleet(), &snapshot, now),
            ),
            (Loop::Binder, self.world.policy.bind(&mut fleet, &snapshot, now)),
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
    pub(crate) fn check_silent_nodes(&mut self) {
        let silent: Vec<_> = self
            .world
            .nodes
            .iter()
            .filter(|node| {
                let silence = node
                    .unreachable_since
                    .map(|since| self.world.now.saturating_sub(since));
                silence.is_some_and(|time| time > SURELY_SILENT)
            })
            .map(|node| node.machine.name.clone())
            .collect();
        if self.network.is_out()
            || self.world.control.was_deaf(self.world.now)
            || self.world.control.was_hindered(self.world.now)
        {
            return;
        }
        for name in silent {
            let node = self.world.store.nodes.get(&(None, name.clone()));
            let unnoticed = node.is_some_and(|node| !is_silent(node));
            let ready = self.world.store.replicas.values().any(|replica| {
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
