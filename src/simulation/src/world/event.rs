//! Event queue, in the order of the virtual clock. Simultaneous events keep the order in which they
//! were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::world::access::AccessEvent;
use crate::world::store::Kind;
use crate::world::store::Object;
use crate::world::store::WriteError;
use rooflet_agent::replica::ReplicaKey;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_controller::intent::{Dependency, Intent, PlannedWrite, Version};

/// Reconciler of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reconciler {
    Deployment,
    Binder,
    NodeLifecycle,
    Autoscaler,
}

impl Reconciler {
    pub(crate) const ALL: [Self; 4] = [
        Self::Deployment,
        Self::Binder,
        Self::NodeLifecycle,
        Self::Autoscaler,
    ];
}

/// Process with a copy of the stored objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Controller,
    Gateway,
    Agent(usize),
}

/// Sender of sequential writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actor {
    Reconciler(Reconciler),
    /// Replica reporter of an agent.
    Replicas(usize),
    /// Node reporter of an agent.
    Node(usize),
}

/// Write to the API server.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    Intent(Intent, Dependency),
    Register(Box<FleetNode>),
    /// Removal of a replica's finalizer by the agent, after the worker has exited.
    RemoveFinalizer {
        of: Version,
    },
}

impl Write {
    /// Returns true if the write removes a replica and disruption budgets apply to it.
    pub(crate) fn disrupts(&self) -> bool {
        match self {
            Self::Intent(intent, _) => intent.disrupts(),
            Self::Register(_) | Self::RemoveFinalizer { .. } => false,
        }
    }
}

impl From<PlannedWrite> for Write {
    /// Drops the write's Kubernetes events, which are not simulated.
    fn from(planned: PlannedWrite) -> Self {
        Self::Intent(planned.intent, planned.dependency)
    }
}

impl From<Intent> for Write {
    fn from(intent: Intent) -> Self {
        Self::Intent(intent, Dependency::None)
    }
}

/// Response of the API server to a write.
#[derive(Debug, Clone)]
pub(crate) enum WriteResponse {
    Done(Object),
    Rejected(WriteError),
    /// No response: the write may have been executed.
    Lost,
}

/// Step in the life cycle of a worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerStep {
    Loaded,
    Warm,
    /// The process receives SIGTERM and accepts no new requests.
    Terminate,
    /// The grace period has expired.
    GraceOver,
    /// All requests are answered.
    Drained,
}

/// Event of the simulation.
#[derive(Debug)]
pub(crate) enum Event {
    Deliver {
        to: Reader,
        kind: Kind,
    },
    /// A process lists all objects, after its start or after an interruption.
    List {
        reader: Reader,
        incarnation: u32,
    },
    Pass {
        of: Reconciler,
        incarnation: u32,
    },
    Sync {
        node: usize,
        incarnation: u32,
    },
    Report {
        actor: Actor,
        incarnation: u32,
    },
    Arrive {
        actor: Actor,
        incarnation: u32,
        write: Box<Write>,
    },
    Response {
        actor: Actor,
        incarnation: u32,
        /// Time at which the write arrived at the server.
        arrived: Duration,
        write: Box<Write>,
        response: Box<WriteResponse>,
    },
    Worker {
        node: usize,
        key: ReplicaKey,
        process: u64,
        step: WorkerStep,
    },
    Request {
        demand: usize,
    },
    FirstToken {
        node: usize,
        key: ReplicaKey,
        process: u64,
        request: u64,
    },
    Finish {
        node: usize,
        key: ReplicaKey,
        process: u64,
        request: u64,
    },
    /// A request has waited in a worker for as long as its client waits.
    WorkerQueueTimeout {
        node: usize,
        key: ReplicaKey,
        process: u64,
        request: u64,
    },
    /// A request has waited in the gateway for as long as its client waits.
    GatewayQueueTimeout {
        request: u64,
    },
    FaultBegins {
        index: usize,
    },
    FaultEnds {
        index: usize,
    },
    Change {
        index: usize,
    },
    /// The API server deletes the dependents of deleted deployments.
    CollectGarbage,
    Access(AccessEvent),
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Queue of future events.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    added: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: Duration, event: Event) {
        self.added += 1;
        let number = self.added;
        self.heap.push(Reverse(Entry { at, number, event }));
    }

    pub(crate) fn pop(&mut self) -> Option<(Duration, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}
