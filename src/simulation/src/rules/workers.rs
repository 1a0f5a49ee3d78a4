//! Invariants of worker processes: one process per replica, memory, backoff, and stops.

use std::time::Duration;

use kube::ResourceExt;

use crate::rules::Rules;
use crate::scenario::format_duration;
use crate::world::World;
use rooflet_agent::replica::ReplicaKey;
use rooflet_agent::sync::StopCause;
use rooflet_agent::workers::GRACE;
use rooflet_base::units::Bytes;

impl Rules {
    /// Checks that the workers of a node hold at most its allocatable memory.
    pub(crate) fn check_node(&mut self, world: &World<'_>, node: usize) {
        let state = &world.nodes[node];
        let held: Bytes = state.workers.values().map(|worker| worker.reserved).sum();
        let allocatable = state.machine.class.allocatable;
        if held > allocatable {
            let message = format!("workers of {} hold {held} of {allocatable}", state.machine.name);
            self.report(world.now, "memory is never over-committed", message);
        }
    }

    /// Checks the imminent start of a worker.
    pub(crate) fn check_start(&mut self, world: &World<'_>, node: usize, key: &ReplicaKey, uid: &str) {
        let name = &world.nodes[node].machine.name;
        if world.nodes[node].workers.contains_key(key) {
            let message = format!("a worker of {key} runs on {name} already");
            self.report(world.now, "a replica has one process", message);
        }
        let elsewhere =
            world.nodes.iter().enumerate().find(|(index, other)| {
                *index != node && other.workers.values().any(|worker| worker.uid == uid)
            });
        if let Some((_, other)) = elsewhere {
            let message = format!("a worker of {key} runs on {} already", other.machine.name);
            self.report(world.now, "a replica runs on one node", message);
        }
        if let Some((at, failures)) = self.worker_failures.get(&(node, key.clone())) {
            // The shortest backoff is one second after the first failure, doubled with each further
            // one. If the scenario changes clocks, the agent may measure any time.
            let least = Duration::from_millis(900)
                * if world.has_clock_skew() {
                    0
                } else {
                    1 << failures.saturating_sub(1).min(8)
                };
            let waited = world.now.saturating_sub(*at);
            if waited < least {
                let waited = format_duration(waited);
                let message = format!("the worker of {key} starts {waited} after failure {failures}");
                self.report(world.now, "a failing worker backs off", message);
            }
        }
    }

    /// Checks the imminent stop of a running worker.
    pub(crate) fn check_stop(&mut self, world: &World<'_>, node: usize, key: &ReplicaKey, cause: StopCause) {
        let state = &world.nodes[node];
        let Some(uid) = state.workers.get(key).map(|worker| worker.uid.as_str()) else {
            return;
        };
        let object = world
            .store
            .replicas
            .get(&(Some(key.namespace.clone()), key.name.clone()));
        let desired = object.is_some_and(|object| {
            object.uid().as_deref() == Some(uid)
                && object.metadata.deletion_timestamp.is_none()
                && object.spec.node_name.as_deref() == Some(&state.machine.name)
        });
        // The memory of workers alone causes no pressure; a `memoryTaken` fault is active.
        let yields = cause == StopCause::MemoryPressure && state.memory_taken > 0.0;
        if desired && cause != StopCause::Unresponsive && !yields {
            let message = format!(
                "the worker of {key} on {} is stopped ({cause:?}), and no object requires that",
                state.machine.name
            );
            self.report(world.now, "workers are not restarted without a reason", message);
        }
    }

    /// Checks the age of a request that a requested stop of the worker cut short.
    pub(crate) fn check_cut_short(
        &mut self,
        world: &World<'_>,
        node: usize,
        key: &ReplicaKey,
        arrived: Duration,
        (cause, longest_answer): (Option<StopCause>, Duration),
    ) {
        let age = world.now.saturating_sub(arrived);
        let grace = match cause {
            Some(StopCause::Deleted | StopCause::Replaced) | None => longest_answer,
            Some(StopCause::AgentStopping | StopCause::MemoryPressure | StopCause::Unresponsive) => GRACE,
        };
        // The request may have arrived after the start of the stop.
        if age + Duration::from_secs(10) < grace {
            let name = &world.nodes[node].machine.name;
            let message = format!(
                "the worker of {key} on {name} was stopped during a request of age {}",
                format_duration(age)
            );
            self.report(world.now, "a planned stop does not fail requests", message);
        }
    }
}
