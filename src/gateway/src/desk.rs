//! The gateway's decisions without its connections: the real table and the real state, for the simulation. Who asks is a
//! number, and time is a value.

use std::time::{Duration, Instant};

use super::queue::Slip;
use super::state::{Grant, ModelKey, Queued, Refusal, State};
use crate::request::ask::{Ask, Work};
use crate::routing::health::Fault;
use crate::routing::length::Length;
use crate::routing::table::{Model, RoutingTable};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};

/// A replica that a request was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    model: ModelKey,
    pub namespace: String,
    pub replica: String,
    pub id: u64,
    /// `None`: the gateway was not asked.
    flight: Option<u64>,
}

/// A place in a queue.
#[derive(Debug, Clone)]
pub struct Waiting {
    model: ModelKey,
    slip: Slip,
}

/// What a request is told.
#[derive(Debug)]
pub enum Reply {
    Go(Given),
    /// It waits; where the queue was full, another one had to go.
    Wait(Waiting, Option<u64>),
    /// Nothing answers for the model, and nothing is expected to.
    NotReady,
    /// The queue is full, or too long for its patience.
    Busy,
}

/// See the module.
#[derive(Debug)]
pub struct Desk {
    table: RoutingTable,
    state: State<u64>,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new()
    }
}

impl Desk {
    pub fn new() -> Self {
        Self {
            table: RoutingTable::default(),
            state: State::new(),
        }
    }

    /// The fleet has changed. Returns those that wait for what will not come.
    pub fn see<'a>(
        &mut self,
        deployments: impl IntoIterator<Item = &'a ModelDeployment>,
        replicas: impl IntoIterator<Item = &'a ModelReplica>,
        nodes: impl IntoIterator<Item = &'a FleetNode>,
        now: Instant,
    ) -> Vec<u64> {
        self.table = RoutingTable::new(deployments, replicas, nodes);
        let mut orphans = self.state.update(&self.table, now);
        orphans.sort_unstable();
        orphans
    }

    /// A request of so many tokens comes.
    pub fn ask(
        &mut self,
        model: &str,
        request: u64,
        prompt_tokens: u32,
        patience: Duration,
        now: Instant,
    ) -> Reply {
        let Ok(model) = self.table.find(model) else {
            return Reply::NotReady;
        };
        let ask = ask(prompt_tokens, Some(patience));
        if let Some(grant) = self.state.admit(model, &ask, now) {
            return Reply::Go(given(model, &grant));
        }
        let patience = ask.patience(model.routing.queue_timeout);
        match self.state.enqueue(model, &ask, 0, patience, request, now) {
            Queued::Waits(slip, gone) => {
                let model = model.key();
                Reply::Wait(Waiting { model, slip }, gone)
            }
            Queued::Refused(Refusal::NotReady) => Reply::NotReady,
            Queued::Refused(Refusal::QueueFull(_) | Refusal::TooLong(_) | Refusal::Expired(_)) => Reply::Busy,
        }
    }

    /// Another replica than those tried, for a request that has begun nowhere.
    pub fn another(&mut self, prompt_tokens: u32, tried: &[Given], now: Instant) -> Option<Given> {
        let model = self.table.get(&tried.first()?.model)?;
        let tried: Vec<_> = tried.iter().map(|given| given.id).collect();
        let grant = self
            .state
            .another(model, &ask(prompt_tokens, None), &tried, false, now)?;
        Some(given(model, &grant))
    }

    /// The next one that waits and has a replica now.
    pub fn next(&mut self, now: Instant) -> Option<(Given, u64)> {
        self.table.all().find_map(|model| {
            let (grant, request) = self.state.next(model, now)?;
            Some((given(model, &grant), request))
        })
    }

    pub fn leave(&mut self, waiting: Waiting) {
        self.state.leave(&waiting.model, waiting.slip);
    }

    /// All replicas that answer for a model, in a fixed order, for other ways to choose.
    pub fn replicas(&self, model: &str) -> Vec<Given> {
        let Ok(model) = self.table.find(model) else {
            return Vec::new();
        };
        let given = |replica: &crate::routing::table::Replica| Given {
            model: model.key(),
            namespace: replica.target.namespace.clone(),
            replica: replica.target.replica.clone(),
            id: replica.id,
            flight: None,
        };
        let mut all: Vec<_> = model.replicas.iter().map(given).collect();
        all.sort_by(|a, b| (&a.namespace, &a.replica).cmp(&(&b.namespace, &b.replica)));
        all
    }

    pub fn first_token(&mut self, given: &Given, now: Instant) {
        if let Some(flight) = given.flight {
            self.state.first_token(given.id, flight, now);
        }
    }

    pub fn finished(&mut self, given: &Given, tokens: u32, now: Instant) {
        let length = Length::Counted(u64::from(tokens));
        if let Some(flight) = given.flight {
            self.state.finished(&given.model, given.id, flight, length, now);
        }
    }

    pub fn failed(&mut self, given: &Given, reachable: bool, now: Instant) {
        let fault = if reachable {
            Fault::Unable
        } else {
            Fault::Unreachable
        };
        if let Some(flight) = given.flight {
            self.state.failed(given.id, flight, fault, now);
        }
    }
}

fn ask(prompt_tokens: u32, patience: Option<Duration>) -> Ask {
    Ask {
        work: Work::Generate,
        rows: 1,
        prompt_tokens: u64::from(prompt_tokens),
        patience,
        ..Ask::default()
    }
}

fn given(model: &Model, grant: &Grant) -> Given {
    Given {
        model: model.key(),
        namespace: grant.replica.target.namespace.clone(),
        replica: grant.replica.target.replica.clone(),
        id: grant.replica.id,
        flight: Some(grant.flight),
    }
}
