//! Simulated world: scenario, stored objects, nodes, controller process, gateway, clock and event
//! queue.

pub(crate) mod access;
mod agent;
mod autoscaling;
pub(crate) mod controller;
pub(crate) mod event;
mod faults;
mod gateway;
pub(crate) mod gateway_state;
pub(crate) mod node;
mod reconcilers;
pub(crate) mod report;
mod serving;
pub(crate) mod store;
pub(crate) mod view;
pub(crate) mod worker;
pub(crate) mod writer;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;

use crate::options::RunOptions;
use crate::scenario::fault::FaultSpec;
use crate::scenario::machine::machines;
use crate::scenario::planted::Planted;
use crate::scenario::policy::Policy;
use crate::scenario::{Scenario, ScenarioError};
use crate::world::access::AccessState;
use crate::world::controller::{Control, PausedLeader};
use crate::world::event::{Actor, Event, Queue};
use crate::world::gateway_state::GatewayState;
use crate::world::node::Node;
use crate::world::store::Store;
use crate::world::writer::Writer;
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{FleetNode, ModelReplica, ModelRevision};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_controller::intent::Version;

/// State of the simulated world.
pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) policy: Policy,
    pub(crate) planted: Planted,
    pub(crate) now: Duration,
    /// Monotonic time at the start. Only differences are used.
    pub(crate) origin: Instant,
    pub(crate) queue: Queue,
    pub(crate) store: Store,
    pub(crate) control: Control,
    pub(crate) paused: Vec<PausedLeader>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) by_name: BTreeMap<String, usize>,
    pub(crate) gateway: GatewayState,
    /// `None` if the scenario has no API keys and certificates.
    pub(crate) access: Option<AccessState>,
    pub(crate) faults: Vec<FaultSpec>,
    /// Indexes into `faults` of the faults that are active.
    pub(crate) active: Vec<usize>,
    processes: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario, options: &RunOptions) -> Result<Self, ScenarioError> {
        let machines = machines(scenario)?;
        let names: Vec<_> = machines.iter().map(|machine| machine.name.clone()).collect();
        let faults = options.faults.clone().unwrap_or_else(|| {
            let mut faults = scenario.planned_faults();
            let random = scenario.random_faults.as_ref();
            faults.extend(
                random
                    .map(|random| random.draw(options.seed, &names))
                    .into_iter()
                    .flatten(),
            );
            faults
        });
        let access = scenario
            .access
            .as_ref()
            .map(|access| AccessState::new(access, scenario.start, &names, options.seed))
            .transpose()
            .map_err(|err| ScenarioError::new("access", Chain(&err)))?;
        Ok(Self {
            scenario,
            policy: options.policy,
            planted: options.planted,
            now: Duration::ZERO,
            origin: Clock::System.instant(),
            queue: Queue::default(),
            store: Store::new(options.seed),
            control: Control::default(),
            paused: Vec::new(),
            by_name: names
                .into_iter()
                .enumerate()
                .map(|(index, name)| (name, index))
                .collect(),
            nodes: machines.into_iter().map(Node::new).collect(),
            gateway: GatewayState::new(scenario, options.seed),
            access,
            faults,
            active: Vec::new(),
            processes: 0,
        })
    }
}

impl World<'_> {
    /// Removes the owner references of the deployment's revisions and replicas.
    pub(crate) fn orphan(&mut self, deployment: &str) {
        let has_label = |labels: &BTreeMap<String, String>| {
            labels.get(DEPLOYMENT_LABEL).map(String::as_str) == Some(deployment)
        };
        let revisions: Vec<_> = self.store.revisions.values().cloned().collect();
        for revision in revisions.iter().filter(|one| has_label(one.labels())) {
            let of = Version::of(revision.as_ref());
            drop(self.store.update::<ModelRevision>(&of, false, |found| {
                found.metadata.owner_references = None;
            }));
        }
        let replicas: Vec<_> = self.store.replicas.values().cloned().collect();
        for replica in replicas.iter().filter(|one| has_label(one.labels())) {
            let of = Version::of(replica.as_ref());
            drop(self.store.update::<ModelReplica>(&of, false, |found| {
                found.metadata.owner_references = None;
            }));
        }
    }

    pub(crate) fn change_node(&mut self, name: &str, change: impl FnOnce(&mut FleetNode)) {
        if let Some(found) = self.store.nodes.get(&(None, name.to_owned())).cloned() {
            drop(
                self.store
                    .update::<FleetNode>(&Version::of(found.as_ref()), false, change),
            );
        }
    }

    /// Returns the correct wall-clock time.
    pub(crate) fn clock(&self) -> Timestamp {
        self.scenario.start + self.now
    }

    pub(crate) fn after(&mut self, wait: Duration, event: Event) {
        self.queue.push(self.now + wait, event);
    }

    pub(crate) fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    pub(crate) fn incarnation(&self, actor: Actor) -> u32 {
        match actor {
            Actor::Reconciler(_) => self.control.incarnation,
            Actor::Replicas(node) | Actor::Node(node) => self.nodes[node].incarnation,
        }
    }

    pub(crate) fn writer(&mut self, actor: Actor) -> &mut Writer {
        match actor {
            Actor::Reconciler(of) => self.control.writer(of),
            Actor::Replicas(node) => &mut self.nodes[node].replica_writer,
            Actor::Node(node) => &mut self.nodes[node].node_writer,
        }
    }

    pub(crate) fn pass_ends(&mut self, actor: Actor, incarnation: u32) {
        let writer = self.writer(actor);
        writer.busy = false;
        writer.disrupts = false;
        let wait = if std::mem::take(&mut writer.failed) {
            writer.dirty = true;
            Some(writer.backoff())
        } else {
            writer.failures = 0;
            writer.dirty.then_some(Duration::from_millis(1))
        };
        if let Some(wait) = wait {
            match actor {
                Actor::Reconciler(of) => self.wake_reconciler(of, wait),
                Actor::Replicas(_) | Actor::Node(_) => self.after(wait, Event::Report { actor, incarnation }),
            }
        }
    }
}
