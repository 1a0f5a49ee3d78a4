//! Inputs of an agent's sync plan: observed and desired state of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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
use rooflet_api::v1alpha1::ModelSource;
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::{Held, NodeMemory};

/// Time from a change to the sync pass that processes it.
const SYNC_DELAY: Duration = Duration::from_millis(20);

impl World<'_> {
    pub(crate) fn renews(node: &Node) -> bool {
        node.renewing_since.is_some()
    }

    pub(crate) fn wake_agent(&mut self, node: usize) {
        self.wake_agent_after(node, SYNC_DELAY);
    }

    pub(crate) fn wake_agent_after(&mut self, node: usize, wait: Duration) {
        let at = self.now + wait;
        let state = &mut self.nodes[node];
        if state.agent_runs() && state.sync_due.is_none_or(|due| at < due) {
            state.sync_due = Some(at);
            let incarnation = state.incarnation;
            self.queue.push(at, Event::Sync { node, incarnation });
        }
    }

    /// Returns the observed state of the node.
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
                reserved_share: record.reserved_share(),
                has_objectives: record.terms.has_objectives(),
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
            stopped_recently: state.memory_watch.headroom_for(self.origin + self.now).is_some(),
        }
    }

    /// Returns the desired state of the node.
    pub(crate) fn desired(&self, node: usize) -> Desired {
        let state = &self.nodes[node];
        let models = &state.machine.class.models;
        let resolve = |replica: DesiredReplica| {
            let model = match replica.spec.source() {
                Ok(ModelSource::Local(name)) => models.get(&name).cloned().ok_or(name),
                Ok(source @ (ModelSource::File(_) | ModelSource::Hub(_))) => Err(source.to_string()),
                Err(err) => Err(err.to_string()),
            };
            let model =
                model.map_err(|name| ModelProblem::permanent("ModelNotFound", format!("{name} not found")));
            let model = model.map(|model| model.with_kv_bits(replica.spec.kv_bits()));
            ResolvedReplica { replica, model }
        };
        let replicas = if state.synced || self.planted.has(Bug::ActsBeforeListing) {
            state
                .view
                .replicas()
                .iter()
                .filter(|replica| replica.spec.node_name.as_deref() == Some(&state.machine.name))
                .map(|replica| (ReplicaKey::of(replica), resolve(DesiredReplica::of(replica))))
                .collect()
        } else {
            // Before the first list, the records hold the last desired state.
            state
                .records
                .values()
                .map(|record| (record.key.clone(), resolve(record.desired())))
                .collect()
        };
        Desired {
            replicas,
            ..Desired::default()
        }
    }
}
