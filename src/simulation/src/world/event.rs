//! What happens next: events in the order of the virtual clock, ties in the order in which they
//! were made.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::world::store::Kind;
use crate::world::store::Object;
use crate::world::store::Refusal;
use rooflet_agent::replica::ReplicaKey;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_controller::intent::{Dependency, Intent, PlannedWrite, Version};

/// One reconciler of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loop {
    Deployment,
    Binder,
    NodeLifecycle,
    Autoscaler,
}

impl Loop {
    pub(crate) const ALL: [Self; 4] = [
        Self::Deployment,
        Self::Binder,
        Self::NodeLifecycle,
        Self::Autoscaler,
    ];
}

/// Who keeps a copy of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Controller,
    Gateway,
    Agent(usize),
}

/// Who writes, one write after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actor {
    Loop(Loop),
    /// An agent's reporter of replicas.
    Replicas(usize),
    /// An agent's reporter of its node.
    Node(usize),
}

/// One write on its way.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    Intent(Intent, Dependency),
    Register(Box<FleetNode>),
    /// The agent's: nothing of it runs any more.
    LetGo {
        of: Version,
    },
}

impl Write {
    /// Whether it takes a replica away of which a deployment may miss only so many.
    pub(crate) fn disrupts(&self) -> bool {
        match self {
            Self::Intent(intent, _) => intent.disrupts(),
            Self::Register(_) | Self::LetGo { .. } => false,
        }
    }
}

impl From<PlannedWrite> for Write {
    /// Events are not simulated.
    fn from(planned: PlannedWrite) -> Self {
        Self::Intent(planned.intent, planned.dependency)
    }
}

impl From<Intent> for Write {
    fn from(intent: Intent) -> Self {
        Self::Intent(intent, Dependency::None)
    }
}

/// What became of a write.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Done(Object),
    Refused(Refusal),
    /// Nobody knows whether it was done.
    Lost,
}

/// What a worker process does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerStep {
    Loaded,
    Warm,
    /// SIGTERM arrives: no new requests.
    Terminate,
    /// Its grace is over.
    GraceOver,
    /// It has nothing left to answer.
    Drained,
}

/// See the module.
#[derive(Debug)]
pub(crate) enum Event {
    Deliver {
        to: Reader,
        kind: Kind,
    },
    /// An agent or the controller that has just begun lists what there is.
    List {
        reader: Reader,
        life: u32,
    },
    Pass {
        of: Loop,
        life: u32,
    },
    Sync {
        node: usize,
        life: u32,
    },
    Report {
        actor: Actor,
        life: u32,
    },
    Arrive {
        actor: Actor,
        life: u32,
        write: Box<Write>,
    },
    Answered {
        actor: Actor,
        life: u32,
        /// When the write was at the server.
        arrived: Duration,
        write: Box<Write>,
        answer: Box<Answer>,
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
    Impatient {
        node: usize,
        key: ReplicaKey,
        process: u64,
        request: u64,
    },
    /// A request has waited in the gateway for as long as its client does.
    TurnMissed {
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
    /// Dependents of a deleted deployment go.
    CollectGarbage,
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

/// Events to come.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    made: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: Duration, event: Event) {
        self.made += 1;
        let number = self.made;
        self.heap.push(Reverse(Entry { at, number, event }));
    }

    pub(crate) fn pop(&mut self) -> Option<(Duration, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}
