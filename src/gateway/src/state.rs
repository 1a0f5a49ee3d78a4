//! State and decisions of the gateway: which replica a request gets, which requests are queued, and
//! for how long.
//!
//! Synchronous: callers pass the time. `W` is the notifier of a queued request.

mod next_request;
mod replica;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use self::replica::{InFlightRequest, ReplicaState};
use super::queue::{FairQueue, PushResult, QueueTicket};
use crate::request::info::RequestInfo;
use crate::routing::affinity::PrefixMemory;
use crate::routing::choice::{Candidate, Preferences, WeightedRoundRobin, choose, session_revision};
use crate::routing::estimate::Estimate;
use crate::routing::health::{Fault, HealthState};
use crate::routing::length::Length;
use crate::routing::starts::{EstimateSource, ExpectedStart, Starts};
pub(super) use crate::routing::table::ModelKey;
use crate::routing::table::{Model, Replica, RoutingTable};
use rooflet_api::v1alpha1::DEFAULT_QUEUED_PER_STREAM;
use rooflet_roofline::predict::Basis;

/// Maximum bytes of queued request bodies, over all models.
const MAX_HELD_BYTES: usize = 256 << 20;
/// Minimum queue length of a model with fewer ready replicas than desired. A rollout, a drain or a
/// scale from zero then queues requests instead of rejecting them.
const MAX_HELD_REQUESTS: usize = 256;
/// Assumed tokens of a response before the first response is recorded.
const TYPICAL_ANSWER_TOKENS: f64 = 256.0;
/// Time after which the gateway rejects the requests of a model that has only unschedulable
/// replicas. The scheduler may not have processed newly released capacity yet.
const UNPLACED_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Weight of the newest response in the moving average of response lengths.
const NEWEST: f64 = 0.1;

/// Replica of an admitted request, with the id of the in-flight request.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) replica: Replica,
    pub(super) request_id: u64,
}

/// Queued request.
#[derive(Debug)]
pub(super) struct Waiter<W> {
    pub(super) notifier: W,
    info: RequestInfo,
    bytes: usize,
}

#[derive(Debug)]
struct ModelState<W> {
    queue: FairQueue<Waiter<W>>,
    /// Requests whose turn has come but that need more rows than any replica has free; highest
    /// priority first. Each reserves one replica.
    heads: Vec<(QueueTicket, Waiter<W>)>,
    round_robin: WeightedRoundRobin,
    starts: Starts,
    typical_answer: Option<f64>,
    /// Maximum number of queued requests since the last [`State::take_peaks`].
    peak: usize,
    /// Time since which all replicas of the model are unschedulable.
    unplaced_since: Option<Instant>,
    /// True if the longer queue limit applies because the model had too few replicas.
    has_backlog: bool,
    /// Ready replicas in the last routing table.
    replicas: Vec<u64>,
}

impl<W> ModelState<W> {
    fn new() -> Self {
        Self {
            queue: FairQueue::new(),
            heads: Vec::new(),
            round_robin: WeightedRoundRobin::default(),
            starts: Starts::default(),
            typical_answer: None,
            peak: 0,
            unplaced_since: None,
            has_backlog: false,
            replicas: Vec::new(),
        }
    }

    fn queued(&self) -> usize {
        self.queue.len() + self.heads.len()
    }

    /// Returns how many queued requests would be served before a new request.
    fn count_ahead(&self, info: &RequestInfo) -> usize {
        let heads = self.heads.iter();
        let heads = heads
            .filter(|(_, head)| head.info.priority <= info.priority)
            .count();
        let cost = info.cost(self.typical_answer());
        heads + self.queue.count_ahead(info.priority, info.client, cost)
    }

    /// Returns the queue limit for a deployment that sets none.
    fn default_max_queued(&mut self, model: &Model) -> usize {
        let rows: u32 = model.replicas.iter().map(|replica| replica.rows).sum();
        let usual = rows.saturating_mul(DEFAULT_QUEUED_PER_STREAM) as usize;
        let is_short = rows == 0 || rows < model.wanted_rows;
        self.has_backlog = is_short || self.has_backlog && self.queued() >= usual;
        match self.has_backlog {
            true => usual.max(MAX_HELD_REQUESTS),
            false => usual,
        }
    }

    fn typical_answer(&self) -> u64 {
        self.typical_answer.unwrap_or(TYPICAL_ANSWER_TOKENS) as u64
    }
}

/// Reason for rejecting a request before a replica gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The queue is full. The field is the expected start of a new request, if known.
    QueueFull(Option<ExpectedStart>),
    /// The expected start is after the request's deadline.
    TooLong(ExpectedStart),
    /// The model has no ready replica, and none is expected.
    NotReady,
    /// The deadline of the queued request has passed. The field is the expected start, if known.
    Expired(Option<ExpectedStart>),
}

/// Result of [`State::enqueue`].
#[derive(Debug)]
pub(super) enum EnqueueResult<W> {
    /// The request is queued. If the queue was full, the second field notifies the evicted request.
    Queued(QueueTicket, Option<W>),
    Rejected(Refusal),
}

/// State of all models and replicas; see the module documentation.
#[derive(Debug)]
pub(super) struct State<W> {
    replicas: BTreeMap<u64, ReplicaState>,
    models: BTreeMap<ModelKey, ModelState<W>>,
    /// Number of queued requests of each model that has any.
    queued: BTreeMap<ModelKey, usize>,
    /// Replicas that failed since their last success.
    failing: BTreeSet<u64>,
    prefixes: PrefixMemory,
    held_bytes: usize,
    /// Number of grants; also the id of the last granted request.
    grants: u64,
}

impl<W> State<W> {
    pub(super) fn new() -> Self {
        Self {
            replicas: BTreeMap::new(),
            models: BTreeMap::new(),
            queued: BTreeMap::new(),
            failing: BTreeSet::new(),
            prefixes: PrefixMemory::default(),
            held_bytes: 0,
            grants: 0,
        }
    }

    /// Applies a new routing table, in which the models in `changed` differ from the last one.
    /// Returns the notifiers of queued requests that no replica will serve.
    pub(super) fn update(
        &mut self,
        table: &RoutingTable,
        changed: &BTreeSet<ModelKey>,
        now: Instant,
    ) -> Vec<W> {
        let mut removed = Vec::new();
        for key in changed {
            if let Some(state) = self.models.get_mut(key) {
                removed.append(&mut state.replicas);
            }
        }
        for id in &removed {
            if let Some(replica) = self.replicas.get_mut(id) {
                replica.is_removed = true;
            }
        }
        for model in changed.iter().filter_map(|key| table.get(key)) {
            let state = self.models.entry(model.key()).or_insert_with(ModelState::new);
            state.starts.record(&model.starting, now);
            let is_unplaced = model.replicas.is_empty() && model.is_unplaced && !model.may_become_ready;
            state.unplaced_since = state
                .unplaced_since
                .filter(|_| is_unplaced)
                .or(is_unplaced.then_some(now));
            state.replicas = model.replicas.iter().map(|replica| replica.id).collect();
            for replica in &model.replicas {
                let state = self.replicas.entry(replica.id).or_default();
                state.is_removed = false;
                state.record_report(replica.reported, now);
            }
        }
        for id in removed {
            self.forget_if_removed(id);
        }
        let orphans = self.take_orphans(table, now);
        for key in changed.iter().filter(|key| table.get(key).is_none()) {
            self.models.remove(key);
        }
        orphans
    }

    /// Removes the queued requests that no replica will serve, and returns their notifiers.
    fn take_orphans(&mut self, table: &RoutingTable, now: Instant) -> Vec<W> {
        // A replica that fails to start may recover. A model without desired replicas never starts.
        let is_unwanted = |key: &ModelKey| {
            table
                .get(key)
                .is_none_or(|model| model.replicas.is_empty() && !model.has_desired_replicas)
        };
        let mut orphans = Vec::new();
        let with_queue: Vec<_> = self.queued.keys().cloned().collect();
        for key in with_queue {
            let Some(state) = self.models.get_mut(&key) else {
                continue;
            };
            let is_over = |since| now.saturating_duration_since(since) >= UNPLACED_GRACE_PERIOD;
            if !is_unwanted(&key) && !state.unplaced_since.is_some_and(is_over) {
                continue;
            }
            let queued = std::iter::from_fn(|| state.queue.pop());
            for (_, waiter) in state.heads.drain(..).chain(queued) {
                self.held_bytes -= waiter.bytes;
                orphans.push(waiter.notifier);
            }
            self.recount(&key);
        }
        orphans
    }

    /// Removes the state of a replica that no model has any more, after its last request.
    fn forget_if_removed(&mut self, id: u64) {
        if self
            .replicas
            .get(&id)
            .is_some_and(|replica| replica.is_removed && replica.in_flight.is_empty())
        {
            self.replicas.remove(&id);
            self.failing.remove(&id);
        }
    }

    /// Updates the number of queued requests of a model, after its queue changed.
    fn recount(&mut self, key: &ModelKey) {
        match self.models.get(key).map_or(0, ModelState::queued) {
            0 => drop(self.queued.remove(key)),
            queued => drop(self.queued.insert(key.clone(), queued)),
        }
    }

    fn model(&mut self, model: &Model) -> &mut ModelState<W> {
        self.models.entry(model.key()).or_insert_with(ModelState::new)
    }

    /// Assigns a new request to a replica with capacity. Returns `None` if requests are queued or
    /// all replicas are full.
    pub(super) fn admit(&mut self, model: &Model, info: &RequestInfo, now: Instant) -> Option<Grant> {
        let state = self.model(model);
        if state.queued() > 0 && info.rows > 0 {
            return None;
        }
        self.grant_by_weight(model, info, &in_traffic(model), now)
    }

    /// Assigns a request to a replica outside `tried`. With `may_queue`, the replica may be full.
    pub(super) fn retry(
        &mut self,
        model: &Model,
        info: &RequestInfo,
        tried: &[u64],
        may_queue: bool,
        now: Instant,
    ) -> Option<Grant> {
        let mut untried = in_traffic(model);
        untried.retain(|replica| !tried.contains(&replica.id));
        self.grant(model, info, None, &untried, may_queue, now)
    }

    /// Assigns a request to replica `id`, which owns the stored response that the request
    /// continues. Ignores traffic weights and free rows.
    pub(super) fn assign_to_owner(
        &mut self,
        model: &Model,
        info: &RequestInfo,
        id: u64,
        now: Instant,
    ) -> Option<Grant> {
        let owner: Vec<_> = model.replicas.iter().filter(|replica| replica.id == id).collect();
        self.grant(model, info, None, &owner, true, now)
    }

    /// Grants a replica of the next revision by traffic weight, or of another revision if that one
    /// is full. Only a granted request advances the weighted round robin.
    fn grant_by_weight(
        &mut self,
        model: &Model,
        info: &RequestInfo,
        among: &[&Replica],
        now: Instant,
    ) -> Option<Grant> {
        if let Some(session) = info.session {
            let revision = session_revision(session, &model.traffic);
            return self.grant(model, info, revision, among, false, now);
        }
        let mut round_robin = self.model(model).round_robin.clone();
        let revision = round_robin.next(&model.traffic);
        let grant = self.grant(model, info, revision, among, false, now)?;
        self.model(model).round_robin = round_robin;
        Some(grant)
    }

    fn grant(
        &mut self,
        model: &Model,
        info: &RequestInfo,
        revision: Option<&str>,
        among: &[&Replica],
        may_queue: bool,
        now: Instant,
    ) -> Option<Grant> {
        let typical = self.model(model).typical_answer();
        let cached = self.prefixes.cached_bytes(&info.prefix);
        let (replicas, candidates): (Vec<_>, Vec<_>) = among
            .iter()
            .map(|replica| {
                let state = self.replicas.entry(replica.id).or_default();
                let cached_bytes = cached.get(&replica.id).copied().unwrap_or_default();
                let load = state.load(info, replica.rows, cached_bytes, typical, now);
                let estimate = Estimate::new(&replica.speed, &state.correction, load);
                let candidate = Candidate {
                    id: replica.id,
                    revision: replica.revision.as_deref(),
                    health: state.health.state(now),
                    rows: (state.rows(), replica.rows),
                    external: state.external.at(now),
                    cached_bytes,
                    estimate,
                    last_chosen: state.last_chosen,
                };
                ((replica, load), candidate)
            })
            .unzip();
        let preferences = Preferences {
            rows: info.rows,
            revision,
            session: info.session,
            prompt_start: info.prefix.first(),
            may_queue,
        };
        let index = choose(&candidates, preferences)?;
        let (replica, load) = replicas[index];
        self.grants += 1;
        let request_id = self.grants;
        let state = self.replicas.entry(replica.id).or_default();
        state.last_chosen = request_id;
        state.health.request_sent(now);
        state.in_flight.insert(
            request_id,
            InFlightRequest {
                rows: info.rows,
                max_tokens: info.max_tokens,
                has_logprobs: info.has_logprobs,
                began: now,
                load,
                correction: state.correction,
                estimate: candidates[index].estimate,
                first_token: None,
            },
        );
        self.prefixes.record(&info.prefix, replica.id);
        Some(Grant {
            replica: Replica::clone(replica),
            request_id,
        })
    }

    /// Queues a request for at most `max_wait`, or rejects it if it cannot be served in time.
    pub(super) fn enqueue(
        &mut self,
        model: &Model,
        info: &RequestInfo,
        bytes: usize,
        max_wait: Duration,
        notifier: W,
        now: Instant,
    ) -> EnqueueResult<W> {
        if model.replicas.is_empty() && !model.has_desired_replicas {
            return EnqueueResult::Rejected(Refusal::NotReady);
        }
        let ahead = self
            .models
            .get(&model.key())
            .map_or(0, |state| state.count_ahead(info));
        let expected = self.expected_behind(ahead, model, now);
        // A predicted start time never causes a rejection; only an observed one does.
        let is_observed = |expected: &ExpectedStart| {
            !matches!(
                expected.source,
                EstimateSource::Reading(_) | EstimateSource::Download(Basis::Nominal)
            )
        };
        if let Some(expected) = expected.filter(|expected| is_observed(expected) && expected.after > max_wait)
        {
            return EnqueueResult::Rejected(Refusal::TooLong(expected));
        }
        if self.held_bytes + bytes > MAX_HELD_BYTES {
            return EnqueueResult::Rejected(Refusal::QueueFull(expected));
        }
        let state = self.model(model);
        let default = state.default_max_queued(model);
        state.queue.set_max(model.routing.max_queued.unwrap_or(default));
        let cost = info.cost(state.typical_answer());
        let waiter = Waiter {
            notifier,
            info: info.clone(),
            bytes,
        };
        match state.queue.push(info.priority, info.client, cost, waiter) {
            PushResult::Full(_) => EnqueueResult::Rejected(Refusal::QueueFull(expected)),
            PushResult::Queued(ticket, evicted) => {
                self.held_bytes += bytes;
                self.held_bytes -= evicted.as_ref().map_or(0, |evicted| evicted.bytes);
                self.recount(&model.key());
                EnqueueResult::Queued(ticket, evicted.map(|evicted| evicted.notifier))
            }
        }
    }

    /// Removes a queued request.
    pub(super) fn remove_queued(&mut self, key: &ModelKey, ticket: QueueTicket) {
        let Some(state) = self.models.get_mut(key) else {
            return;
        };
        let head = state.heads.iter().position(|(head, _)| *head == ticket);
        let removed = match head {
            Some(head) => Some(state.heads.remove(head).1),
            None => state.queue.remove(ticket),
        };
        self.held_bytes -= removed.map_or(0, |waiter| waiter.bytes);
        self.recount(key);
    }

    /// Returns the expected start of a request behind all queued requests, or `None` if unknown.
    pub(super) fn expected_wait(&self, model: &Model, now: Instant) -> Option<ExpectedStart> {
        let ahead = self.models.get(&model.key())?.queued();
        self.expected_behind(ahead, model, now)
    }

    fn expected_behind(&self, ahead: usize, model: &Model, now: Instant) -> Option<ExpectedStart> {
        let state = self.models.get(&model.key())?;
        if model.replicas.is_empty() {
            return state.starts.next(model, now);
        }
        state.typical_answer?;
        let (mut earliest, mut seconds, mut in_flight, mut rows) = (f64::INFINITY, 0.0, 0, 0);
        for replica in &model.replicas {
            rows += replica.rows;
            let known = self.replicas.get(&replica.id);
            if known.is_none_or(|known| known.rows() < replica.rows) {
                earliest = 0.0;
            }
            for request in known.into_iter().flat_map(|known| known.in_flight.values()) {
                earliest = earliest.min(request.left(now));
                seconds += request.estimate.finish;
                in_flight += 1;
            }
        }
        let mean = seconds / f64::from(in_flight.max(1));
        let after =
            Duration::try_from_secs_f64(earliest + ahead as f64 * mean / f64::from(rows.max(1))).ok()?;
        let source = EstimateSource::Queue;
        Some(ExpectedStart { after, source })
    }

    /// Records unserved demand for the model. Returns whether it is the first since the last
    /// [`Self::take_peaks`].
    pub(super) fn note_demand(&mut self, model: &Model) -> bool {
        let state = self.model(model);
        let is_new = state.peak == 0;
        state.peak = state.peak.max(state.queued()).max(1);
        is_new
    }

    /// Returns and resets the maximum number of queued requests of each model.
    pub(super) fn take_peaks(&mut self) -> BTreeMap<ModelKey, u64> {
        let peak = |state: &mut ModelState<W>| std::mem::take(&mut state.peak).max(state.queued()) as u64;
        let peaks = self
            .models
            .iter_mut()
            .map(|(key, state)| (key.clone(), peak(state)));
        peaks.filter(|(_, peak)| *peak > 0).collect()
    }

    /// Returns the time until the queues must be processed again without a change of the fleet.
    ///
    /// That is the end of an unplaced model's grace period or of a replica's ejection. Returns
    /// `None` if no request is queued or no such time exists.
    pub(super) fn requeue_after(&self, now: Instant) -> Option<Duration> {
        if self.queued.is_empty() {
            return None;
        }
        let with_queue = self.queued.keys().filter_map(|key| self.models.get(key));
        let left = |since| UNPLACED_GRACE_PERIOD.saturating_sub(now.saturating_duration_since(since));
        let grace_periods = with_queue.filter_map(|state| state.unplaced_since).map(left);
        let failing = self.failing.iter().filter_map(|id| self.replicas.get(id));
        let ejections = failing.filter_map(|state| state.health.ejected_for(now));
        grace_periods.chain(ejections).min()
    }

    /// Returns the remaining grace period of a model whose replicas are all unschedulable, else
    /// `None`.
    pub(super) fn grace_period_left(&self, model: &Model, now: Instant) -> Option<Duration> {
        let since = self.models.get(&model.key())?.unplaced_since?;
        Some(UNPLACED_GRACE_PERIOD.saturating_sub(now.saturating_duration_since(since)))
    }

    /// Records the number of requests that a replica reported in its response.
    pub(super) fn record_running(&mut self, replica: u64, running: u64, now: Instant) {
        if let Some(state) = self.replicas.get_mut(&replica) {
            let ours = state.in_flight.len() as u64;
            state.external.observed = Some((running.saturating_sub(ours), now));
        }
    }

    /// Returns the number of queued requests of each model that has any.
    pub(super) fn queued(&self) -> impl Iterator<Item = (&ModelKey, usize)> {
        self.queued.iter().map(|(key, queued)| (key, *queued))
    }

    /// Records the first token of a response.
    pub(super) fn first_token(&mut self, replica: u64, request_id: u64, now: Instant) {
        let Some(state) = self.replicas.get_mut(&replica) else {
            return;
        };
        state.health.succeeded();
        self.failing.remove(&replica);
        if let Some(request) = state.in_flight.get_mut(&request_id)
            && request.first_token.is_none()
        {
            request.first_token = Some(now);
            let took = now.saturating_duration_since(request.began).as_secs_f64();
            state
                .correction
                .record_first_token(&request.correction, &request.load, &request.estimate, took);
        }
    }

    /// Records the end of a successful response.
    pub(super) fn finished(
        &mut self,
        key: &ModelKey,
        replica: u64,
        request_id: u64,
        length: Length,
        now: Instant,
    ) {
        self.record_response(key, replica, request_id, length, now);
        self.forget_if_removed(replica);
    }

    fn record_response(
        &mut self,
        key: &ModelKey,
        replica: u64,
        request_id: u64,
        length: Length,
        now: Instant,
    ) {
        let Some(state) = self.replicas.get_mut(&replica) else {
            return;
        };
        state.health.succeeded();
        self.failing.remove(&replica);
        let Some(request) = state.remove_in_flight(request_id, now) else {
            return;
        };
        let Some(tokens) = request.row_tokens(length) else {
            return;
        };
        if let Some(first) = request.first_token {
            let took = now.saturating_duration_since(first).as_secs_f64();
            state.correction.record_decode(
                &request.correction,
                &request.load,
                &request.estimate,
                tokens,
                took,
            );
        }
        if let Some(model) = self
            .models
            .get_mut(key)
            .filter(|_| request.load.answer_tokens > 0)
        {
            let typical = model.typical_answer.get_or_insert(tokens as f64);
            *typical += NEWEST * (tokens as f64 - *typical);
        }
    }

    /// Records an error response that shows a healthy replica and nothing about its speed.
    pub(super) fn rejected(&mut self, replica: u64, request_id: u64, now: Instant) {
        if let Some(state) = self.replicas.get_mut(&replica) {
            state.remove_in_flight(request_id, now);
            state.health.succeeded();
            self.failing.remove(&replica);
        }
        self.forget_if_removed(replica);
    }

    /// Records a failure of the replica.
    pub(super) fn failed(&mut self, replica: u64, request_id: u64, fault: Fault, now: Instant) {
        if let Some(state) = self.replicas.get_mut(&replica) {
            state.remove_in_flight(request_id, now);
            state.health.failed(fault, now);
            self.failing.insert(replica);
        }
        self.forget_if_removed(replica);
    }

    /// Records the end of a request that shows nothing about the replica's health.
    pub(super) fn abandoned(&mut self, replica: u64, request_id: u64, now: Instant) {
        if let Some(state) = self.replicas.get_mut(&replica)
            && state.remove_in_flight(request_id, now).is_some()
        {
            state.health.abandoned();
        }
        self.forget_if_removed(replica);
    }

    /// Returns the number of in-flight requests.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.replicas.values().map(|state| state.in_flight.len()).sum()
    }

    /// Returns the number of ejected replicas.
    pub(super) fn ejected(&self, now: Instant) -> usize {
        let failing = self.failing.iter().filter_map(|id| self.replicas.get(id));
        let states = failing.map(|state| state.health.state(now));
        states.filter(|health| *health == HealthState::Ejected).count()
    }
}

/// Returns the replicas that may get requests. Replicas of a revision with weight 0 are included
/// only if the model has no others.
fn in_traffic(model: &Model) -> Vec<&Replica> {
    let has_no_weight = |replica: &&Replica| {
        model
            .traffic
            .iter()
            .any(|(revision, weight)| *weight == 0 && replica.revision.as_ref() == Some(revision))
    };
    let (without, with): (Vec<_>, Vec<_>) = model.replicas.iter().partition(has_no_weight);
    if with.is_empty() { without } else { with }
}

#[cfg(test)]
mod tests;
