//! Inputs of an agent's sync plan: observed and desired state of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::rules::bounds::expels;
use crate::scenario::planted::Bug;
use crate::world::World;
use crate::world::event::Event;
use crate::world::node::{DISK, Node};
use rooflet_agent::models::ModelProblem;
use rooflet_agent::node::pressure;
use rooflet_agent::node::pressure::Pressure;
use rooflet_agent::replica::{DesiredReplica, ReplicaKey};
use rooflet_agent::state::Record;
use rooflet_agent::sync::{Desired, Observed, ObservedReplica, ResolvedReplica, WorkerState};
use rooflet_api::v1alpha1::{ModelReplica, ModelSource};
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::{Held, NodeMemory};

/// Between a change and the pass that sees it.
const NOTICE: Duration = Duration::from_millis(20);

impl World<'_> {
    /// Its node lets it stay until its deployment can spare it: as far as is `known` no person has
    /// expelled it, and somebody hears of it.
    pub(crate) fn is_spared(&self, replica: &ModelReplica, known: Duration) -> bool {
        let name = replica.spec.node_name.clone().unwrap_or_default();
        let state = self.by_name.get(&name).map(|index| &self.nodes[*index]);
        let pardoned = state.is_some_and(|state| state.pardoned.is_some_and(|at| at >= known));
        let node = self.store.nodes.get(&(None, name));
        !pardoned && node.is_some_and(|node| !expels(node))
    }

    pub(crate) fn renews(node: &Node) -> bool {
        node.renews_since.is_some()
    }

    pub(crate) fn wake_agent(&mut self, node: usize) {
        self.wake_agent_after(node, NOTICE);
    }

    pub(crate) fn wake_agent_after(&mut self, node: usize, wait: Duration) {
        let at = self.now + wait;
        let state = &mut self.nodes[node];
        if state.agent_runs() && state.sync_due.is_none_or(|due| at < due) {
            state.sync_due = Some(at);
            let life = state.life;
            self.queue.push(at, Event::Sync { node, life });
        }
    }

    pub(crate) fn observe(&self, node: usize, pressure: Pressure) -> Observed {
        let state = &self.nodes[node];
        let memory = state.memory();
        let seen = |(key, record): (&ReplicaKey, &Record)| {
            let worker = state.workers.get(key);
            let reserved = Bytes(record.worker.as_ref().map_or(0, |worker| worker.reserved_bytes));
            let state = match worker {
                _ if record.worker.is_none() => WorkerState::None,
                None => WorkerState::None,
                Some(worker) if worker.stopping.is_some() => WorkerState::Stopping,
                Some(_) => WorkerState::Running,
            };
            let state = match state == WorkerState::Stopping && self.planted.has(Bug::ReplacedBeforeStopped) {
                true => WorkerState::None,
                false => state,
            };
            let seen = ObservedReplica {
                uid: record.uid.clone(),
                generation: record.generation,
                spec: record.spec.clone(),
                worker: state,
                held: Held {
                    reserved,
                    resident: worker.map_or(Bytes::ZERO, |worker| worker.resident).min(reserved),
                },
                requests: worker.map_or(0, |worker| {
                    let requests = worker.status().requests;
                    requests.running + requests.queued
                }),
                stopped_for_memory: record.stopped_for_memory,
                backoff_until: record.backoff_until.filter(|_| !self.planted.has(Bug::NoBackoff)),
                bad_model: record.bad_model.clone(),
            };
            (key.clone(), seen)
        };
        Observed {
            replicas: state.records.iter().map(seen).collect(),
            memory: NodeMemory {
                allocatable: state.machine.class.allocatable,
                available: memory.obtainable() - pressure::margin(memory.total),
            },
            disk_limit: DISK.free,
            hardware: Some(state.machine.class.hardware),
            calibrations: Vec::new(),
            quarantined: BTreeMap::new(),
            held_back: BTreeSet::new(),
            watchdog_panics: 0,
            leaked: None,
            probing: false,
            pressure,
            shortfall: pressure::shortfall(&memory),
            restart_headroom: pressure::restart_headroom(memory.total),
        }
    }

    pub(crate) fn desired(&self, node: usize) -> Desired {
        let state = &self.nodes[node];
        let models = &state.machine.class.models;
        let wanted = |replica: DesiredReplica| {
            let model = match replica.spec.source() {
                Ok(ModelSource::Local(name)) => models.get(&name).cloned().ok_or(name),
                Ok(source @ (ModelSource::File(_) | ModelSource::Hub(_))) => Err(source.to_string()),
                Err(err) => Err(err.to_string()),
            };
            let model = model
                .map_err(|name| ModelProblem::permanent("ModelNotFound", format!("{name} is not there")));
            let model = model.map(|model| model.with_kv_bits(replica.spec.kv_bits()));
            ResolvedReplica { replica, model }
        };
        let replicas = if state.synced || self.planted.has(Bug::ActsBeforeListing) {
            state
                .view
                .replicas()
                .iter()
                .filter(|replica| replica.spec.node_name.as_deref() == Some(&state.machine.name))
                .map(|replica| (ReplicaKey::of(replica), wanted(DesiredReplica::of(replica))))
                .collect()
        } else {
            // The server has not been heard yet: what it last wanted stands.
            state
                .records
                .values()
                .map(|record| (record.key.clone(), wanted(record.desired())))
                .collect()
        };
        Desired {
            replicas,
            stopping: false,
        }
    }
}
