//! Routing decisions without network connections, for the simulation.
//!
//! Uses the gateway's own routing table and state. Requests are numbers, and the caller passes the
//! time.

use std::time::{Duration, Instant};

use super::queue::QueueTicket;
use super::state::{EnqueueResult, Grant, ModelKey, Refusal, State};
use crate::request::info::{RequestInfo, Work};
use crate::routing::health::Fault;
use crate::routing::index::RouteIndex;
use crate::routing::length::Length;
use crate::routing::table::{Model, RoutingTable};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};

/// Replica that a request is assigned to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    model: ModelKey,
    pub namespace: String,
    pub replica: String,
    pub id: u64,
    /// `None` if the caller chose the replica itself; see [`RequestRouter::replicas`].
    request_id: Option<u64>,
}

/// Request in the queue of a model.
#[derive(Debug, Clone)]
pub struct QueuedRequest {
    model: ModelKey,
    ticket: QueueTicket,
}

/// Routing decision for a request.
#[derive(Debug)]
pub enum Decision {
    Assigned(Assignment),
    /// The request is queued. If the queue was full, the second field is the evicted request.
    Queued(QueuedRequest, Option<u64>),
    /// The model has no ready replica, and none is expected.
    NotReady,
    /// The queue is full, or its expected wait exceeds the maximum wait of the request.
    Busy,
}

/// Router of requests to replicas; see the module documentation.
#[derive(Debug)]
pub struct RequestRouter {
    table: RoutingTable,
    state: State<u64>,
}

impl Default for RequestRouter {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestRouter {
    /// Creates a router with an empty routing table.
    pub fn new() -> Self {
        Self {
            table: RoutingTable::default(),
            state: State::new(),
        }
    }

    /// Rebuilds the routing table. Returns the queued requests whose model has no expected replica.
    pub fn update<'a>(
        &mut self,
        deployments: impl IntoIterator<Item = &'a ModelDeployment>,
        replicas: impl IntoIterator<Item = &'a ModelReplica>,
        nodes: impl IntoIterator<Item = &'a FleetNode>,
        now: Instant,
    ) -> Vec<u64> {
        let mut index = RouteIndex::of(deployments, replicas, nodes);
        index.update();
        let changed = index.table().changed_since(&self.table);
        self.table = index.table().clone();
        let mut orphans = self.state.update(&self.table, &changed, now);
        orphans.sort_unstable();
        orphans
    }

    /// Assigns, queues or rejects a new request for the served name `model`.
    pub fn route(
        &mut self,
        model: &str,
        request: u64,
        prompt_tokens: u32,
        max_wait: Duration,
        now: Instant,
    ) -> Decision {
        let Ok(model) = self.table.find(model) else {
            return Decision::NotReady;
        };
        let info = request_info(prompt_tokens, Some(max_wait));
        if let Some(grant) = self.state.admit(model, &info, now) {
            return Decision::Assigned(assignment(model, &grant));
        }
        let max_wait = info.max_wait(model.routing.queue_timeout);
        match self.state.enqueue(model, &info, 0, max_wait, request, now) {
            EnqueueResult::Queued(ticket, evicted) => {
                let model = model.key();
                Decision::Queued(QueuedRequest { model, ticket }, evicted)
            }
            EnqueueResult::Rejected(Refusal::NotReady) => Decision::NotReady,
            EnqueueResult::Rejected(Refusal::QueueFull(_) | Refusal::TooLong(_) | Refusal::Expired(_)) => {
                Decision::Busy
            }
        }
    }

    /// Assigns a request that no replica has started to a replica that is not in `tried`.
    pub fn retry(&mut self, prompt_tokens: u32, tried: &[Assignment], now: Instant) -> Option<Assignment> {
        let model = self.table.get(&tried.first()?.model)?;
        let tried: Vec<_> = tried.iter().map(|assignment| assignment.id).collect();
        let grant = self
            .state
            .retry(model, &request_info(prompt_tokens, None), &tried, false, now)?;
        Some(assignment(model, &grant))
    }

    /// Assigns the next queued request, if a replica has capacity. Returns its number.
    pub fn next(&mut self, now: Instant) -> Option<(Assignment, u64)> {
        let with_queue: Vec<_> = self.state.queued().map(|(key, _)| key.clone()).collect();
        with_queue.iter().find_map(|key| {
            let model = self.table.get(key)?;
            let (grant, request) = self.state.next(model, now)?;
            Some((assignment(model, &grant), request))
        })
    }

    /// Removes a request from its queue.
    pub fn remove_queued(&mut self, queued: QueuedRequest) {
        self.state.remove_queued(&queued.model, queued.ticket);
    }

    /// Returns all ready replicas of the served name `model`, sorted by namespace and name.
    ///
    /// For comparison with other routing policies: these assignments do not change the state.
    pub fn replicas(&self, model: &str) -> Vec<Assignment> {
        let Ok(model) = self.table.find(model) else {
            return Vec::new();
        };
        let assignment = |replica: &crate::routing::table::Replica| Assignment {
            model: model.key(),
            namespace: replica.target.namespace.clone(),
            replica: replica.target.replica.clone(),
            id: replica.id,
            request_id: None,
        };
        let mut all: Vec<_> = model.replicas.iter().map(assignment).collect();
        all.sort_by(|a, b| (&a.namespace, &a.replica).cmp(&(&b.namespace, &b.replica)));
        all
    }

    /// Records the first token of the response.
    pub fn first_token(&mut self, assignment: &Assignment, now: Instant) {
        if let Some(request_id) = assignment.request_id {
            self.state.first_token(assignment.id, request_id, now);
        }
    }

    /// Records the end of a response of `tokens` tokens.
    pub fn finished(&mut self, assignment: &Assignment, tokens: u32, now: Instant) {
        let length = Length::Counted(u64::from(tokens));
        if let Some(request_id) = assignment.request_id {
            self.state
                .finished(&assignment.model, assignment.id, request_id, length, now);
        }
    }

    /// Records a failure of the replica.
    pub fn failed(&mut self, assignment: &Assignment, reachable: bool, now: Instant) {
        let fault = if reachable {
            Fault::Unable
        } else {
            Fault::Unreachable
        };
        if let Some(request_id) = assignment.request_id {
            self.state.failed(assignment.id, request_id, fault, now);
        }
    }
}

fn request_info(prompt_tokens: u32, max_wait: Option<Duration>) -> RequestInfo {
    RequestInfo {
        work: Work::Generate,
        rows: 1,
        prompt_tokens: u64::from(prompt_tokens),
        max_wait,
        ..RequestInfo::default()
    }
}

fn assignment(model: &Model, grant: &Grant) -> Assignment {
    Assignment {
        model: model.key(),
        namespace: grant.replica.target.namespace.clone(),
        replica: grant.replica.target.replica.clone(),
        id: grant.replica.id,
        request_id: Some(grant.request_id),
    }
}
