//! All that the gateway decides by, and its decisions: who goes where, who waits, and for how long. Synchronous; time
//! comes in as a value; `W` is how one that waits is told of its turn.

mod replica;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use self::replica::{Flight, ReplicaState};
use super::queue::{FairQueue, Pushed, Slip};
use crate::request::ask::Ask;
use crate::routing::affinity::PrefixMemory;
use crate::routing::choice::{Candidate, Shares, Wishes, choose, share_of};
use crate::routing::estimate::Estimate;
use crate::routing::health::{Fault, Standing};
use crate::routing::length::Length;
use crate::routing::starts::{By, Expected, Starts};
use crate::routing::table::{Model, Replica, RoutingTable};
use rooflet_api::v1alpha1::DEFAULT_QUEUED_PER_STREAM;
use rooflet_roofline::predict::Basis;

/// Bytes of request bodies that may wait, of all models together.
const MAX_HELD_BYTES: usize = 256 << 20;
/// Requests that wait for a model while its replicas are fewer than they should be: what a rollout, a drain or a start from
/// zero holds up is not refused.
const MAX_HELD_REQUESTS: usize = 256;
/// Tokens of an answer before any was seen.
const TYPICAL_ANSWER_TOKENS: f64 = 256.0;
/// How long a model may have nothing but replicas that no node was found for, before nothing is expected any more: the
/// scheduler may just not have seen yet that a node has room again.
const UNPLACED_STANDS: Duration = Duration::from_secs(5);
/// The share of the newest answer in what is typical.
const NEWEST: f64 = 0.1;

/// The namespace and the name of a model.
pub(super) type ModelKey = (String, String);

/// A request that was given a replica.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) replica: Replica,
    pub(super) flight: u64,
}

/// One that waits.
#[derive(Debug)]
pub(super) struct Waiter<W> {
    pub(super) wake: W,
    ask: Ask,
    bytes: usize,
}

#[derive(Debug)]
struct ModelState<W> {
    queue: FairQueue<Waiter<W>>,
    /// Whose turn it is, when no replica has the rows for it yet; the most urgent first. Each holds one replica free.
    heads: Vec<(Slip, Waiter<W>)>,
    shares: Shares,
    starts: Starts,
    typical_answer: Option<f64>,
    /// The most that waited since somebody asked.
    peak: usize,
    /// Since when no node takes any of its replicas.
    stuck_since: Option<Instant>,
    /// Whether more may wait than its replicas work off in bearable time, since there were too few.
    has_backlog: bool,
}

impl<W> ModelState<W> {
    fn new() -> Self {
        Self {
            queue: FairQueue::new(),
            heads: Vec::new(),
            shares: Shares::default(),
            starts: Starts::default(),
            typical_answer: None,
            peak: 0,
            stuck_since: None,
            has_backlog: false,
        }
    }

    fn waiting(&self) -> usize {
        self.queue.len() + self.heads.len()
    }

    /// How many of those that wait would go before one that came now.
    fn before(&self, ask: &Ask) -> usize {
        let heads = self.heads.iter();
        let heads = heads
            .filter(|(_, head)| head.ask.priority <= ask.priority)
            .count();
        let cost = ask.cost(self.typical_answer());
        heads + self.queue.before(ask.priority, ask.client, cost)
    }

    /// How many may wait, where the deployment does not say.
    fn max_queued(&mut self, model: &Model) -> usize {
        let rows: u32 = model.replicas.iter().map(|replica| replica.rows).sum();
        let usual = rows.saturating_mul(DEFAULT_QUEUED_PER_STREAM) as usize;
        let is_short = rows == 0 || rows < model.wanted_rows;
        self.has_backlog = is_short || self.has_backlog && self.waiting() >= usual;
        match self.has_backlog {
            true => usual.max(MAX_HELD_REQUESTS),
            false => usual,
        }
    }

    fn typical_answer(&self) -> u64 {
        self.typical_answer.unwrap_or(TYPICAL_ANSWER_TOKENS) as u64
    }
}

/// Why a request may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The queue is full; room is expected then.
    QueueFull(Option<Expected>),
    /// Its turn is not expected before its deadline, but then.
    TooLong(Expected),
    /// Nothing answers for the model, and nothing is expected to.
    NotReady,
    /// Its deadline has passed; a turn is expected then.
    Expired(Option<Expected>),
}

/// What became of a request that could not go at once.
#[derive(Debug)]
pub(super) enum Queued<W> {
    /// It waits; where the queue was full, another one had to go.
    Waits(Slip, Option<W>),
    Refused(Refusal),
}

/// See the module.
#[derive(Debug)]
pub(super) struct State<W> {
    replicas: BTreeMap<u64, ReplicaState>,
    models: BTreeMap<ModelKey, ModelState<W>>,
    prefixes: PrefixMemory,
    held_bytes: usize,
    /// Counts grants; also tells flights apart.
    grants: u64,
}

impl<W> State<W> {
    pub(super) fn new() -> Self {
        Self {
            replicas: BTreeMap::new(),
            models: BTreeMap::new(),
            prefixes: PrefixMemory::default(),
            held_bytes: 0,
            grants: 0,
        }
    }

    /// What is known of the fleet has changed. Returns those that wait for what will not come.
    pub(super) fn update(&mut self, table: &RoutingTable, now: Instant) -> Vec<W> {
        let known: BTreeSet<u64> = table
            .all()
            .flat_map(|model| model.replicas.iter().map(|replica| replica.id))
            .collect();
        self.replicas
            .retain(|id, state| !state.flights.is_empty() || known.contains(id));
        for model in table.all() {
            let state = self.models.entry(model.key()).or_insert_with(ModelState::new);
            state.starts.saw(&model.starting, now);
            let is_stuck = model.replicas.is_empty() && model.is_unplaced && !model.is_coming;
            state.stuck_since = state.stuck_since.filter(|_| is_stuck).or(is_stuck.then_some(now));
            for replica in &model.replicas {
                self.replicas
                    .entry(replica.id)
                    .or_default()
                    .saw_report(replica.reported, now);
            }
        }
        let mut orphans = Vec::new();
        // A trouble on the way may pass; what nobody wants any more does not come.
        let hopeless = |key: &ModelKey| {
            table
                .get(key)
                .is_none_or(|model| model.replicas.is_empty() && !model.is_wanted)
        };
        let stuck = |state: &ModelState<W>| {
            let lasts = |since| now.saturating_duration_since(since) >= UNPLACED_STANDS;
            state.stuck_since.is_some_and(lasts)
        };
        let given_up = |(key, state): &(&ModelKey, &mut ModelState<W>)| hopeless(key) || stuck(state);
        for (_, state) in self.models.iter_mut().filter(given_up) {
            let queued = std::iter::from_fn(|| state.queue.pop());
            let waiters = state.heads.drain(..).chain(queued);
            for (_, waiter) in waiters {
                self.held_bytes -= waiter.bytes;
                orphans.push(waiter.wake);
            }
        }
        self.models.retain(|key, _| table.get(key).is_some());
        orphans
    }

    fn model(&mut self, model: &Model) -> &mut ModelState<W> {
        self.models.entry(model.key()).or_insert_with(ModelState::new)
    }

    /// A replica with room for a request that has just come, if nobody waits before it.
    pub(super) fn admit(&mut self, model: &Model, ask: &Ask, now: Instant) -> Option<Grant> {
        let state = self.model(model);
        if state.waiting() > 0 && ask.rows > 0 {
            return None;
        }
        self.grant_in_turn(model, ask, &in_traffic(model), now)
    }

    /// Another replica for a request that those in `tried` could not answer; it may have to queue there.
    pub(super) fn another(
        &mut self,
        model: &Model,
        ask: &Ask,
        tried: &[u64],
        may_queue: bool,
        now: Instant,
    ) -> Option<Grant> {
        let mut others = in_traffic(model);
        others.retain(|replica| !tried.contains(&replica.id));
        self.grant(model, ask, None, &others, may_queue, now)
    }

    /// The replica of that id, for what no other can answer: whatever its share of the traffic, and however busy it is.
    pub(super) fn keeper(&mut self, model: &Model, ask: &Ask, id: u64, now: Instant) -> Option<Grant> {
        let keeper: Vec<_> = model.replicas.iter().filter(|replica| replica.id == id).collect();
        self.grant(model, ask, None, &keeper, true, now)
    }

    /// A replica, of the revision whose turn it is where that has room. Only who goes takes a turn.
    fn grant_in_turn(&mut self, model: &Model, ask: &Ask, among: &[&Replica], now: Instant) -> Option<Grant> {
        if let Some(session) = ask.session {
            let revision = share_of(session, &model.traffic);
            return self.grant(model, ask, revision, among, false, now);
        }
        let mut shares = self.model(model).shares.clone();
        let revision = shares.next(&model.traffic);
        let grant = self.grant(model, ask, revision, among, false, now)?;
        self.model(model).shares = shares;
        Some(grant)
    }

    fn grant(
        &mut self,
        model: &Model,
        ask: &Ask,
        revision: Option<&str>,
        among: &[&Replica],
        may_queue: bool,
        now: Instant,
    ) -> Option<Grant> {
        let typical = self.model(model).typical_answer();
        let seen = self.prefixes.seen_by(&ask.prefix);
        let (replicas, candidates): (Vec<_>, Vec<_>) = among
            .iter()
            .map(|replica| {
                let state = self.replicas.entry(replica.id).or_default();
                let seen_bytes = seen.get(&replica.id).copied().unwrap_or_default();
                let load = state.load(ask, replica.rows, seen_bytes, typical, now);
                let estimate = Estimate::new(&replica.speed, &state.experience, load);
                let candidate = Candidate {
                    id: replica.id,
                    revision: replica.revision.as_deref(),
                    standing: state.health.standing(now),
                    rows: (state.rows(), replica.rows),
                    others: state.others.at(now),
                    seen_bytes,
                    estimate,
                    last_chosen: state.last_chosen,
                };
                ((replica, load), candidate)
            })
            .unzip();
        let wishes = Wishes {
            rows: ask.rows,
            revision,
            session: ask.session,
            beginning: ask.prefix.first(),
            may_queue,
        };
        let index = choose(&candidates, wishes)?;
        let (replica, load) = replicas[index];
        self.grants += 1;
        let flight = self.grants;
        let state = self.replicas.entry(replica.id).or_default();
        state.last_chosen = flight;
        state.health.began(now);
        state.flights.insert(
            flight,
            Flight {
                rows: ask.rows,
                max_tokens: ask.max_tokens,
                has_logprobs: ask.has_logprobs,
                began: now,
                load,
                experience: state.experience,
                expected: candidates[index].estimate,
                first_token: None,
            },
        );
        self.prefixes.remember(&ask.prefix, replica.id);
        Some(Grant {
            replica: Replica::clone(replica),
            flight,
        })
    }

    /// Lets a request wait, if that may help. `patience` is how long it will.
    pub(super) fn enqueue(
        &mut self,
        model: &Model,
        ask: &Ask,
        bytes: usize,
        patience: Duration,
        wake: W,
        now: Instant,
    ) -> Queued<W> {
        if model.replicas.is_empty() && !model.is_wanted {
            return Queued::Refused(Refusal::NotReady);
        }
        let ahead = self.models.get(&model.key()).map_or(0, |state| state.before(ask));
        let expected = self.expected_behind(ahead, model, now);
        // What was only predicted turns nobody away.
        let is_seen =
            |expected: &Expected| !matches!(expected.by, By::Reading(_) | By::Download(Basis::Nominal));
        if let Some(expected) = expected.filter(|expected| is_seen(expected) && expected.after > patience) {
            return Queued::Refused(Refusal::TooLong(expected));
        }
        if self.held_bytes + bytes > MAX_HELD_BYTES {
            return Queued::Refused(Refusal::QueueFull(expected));
        }
        let state = self.model(model);
        let usual = state.max_queued(model);
        state.queue.set_max(model.routing.max_queued.unwrap_or(usual));
        let cost = ask.cost(state.typical_answer());
        let waiter = Waiter {
            wake,
            ask: ask.clone(),
            bytes,
        };
        match state.queue.push(ask.priority, ask.client, cost, waiter) {
            Pushed::Full(_) => Queued::Refused(Refusal::QueueFull(expected)),
            Pushed::Waits(slip, gone) => {
                self.held_bytes += bytes;
                self.held_bytes -= gone.as_ref().map_or(0, |gone| gone.bytes);
                Queued::Waits(slip, gone.map(|gone| gone.wake))
            }
        }
    }

    /// Takes one out that waits no longer.
    pub(super) fn leave(&mut self, key: &ModelKey, slip: Slip) {
        let Some(state) = self.models.get_mut(key) else {
            return;
        };
        let head = state.heads.iter().position(|(head, _)| *head == slip);
        let left = match head {
            Some(head) => Some(state.heads.remove(head).1),
            None => state.queue.remove(slip),
        };
        self.held_bytes -= left.map_or(0, |waiter| waiter.bytes);
    }

    /// When a request would have its turn that goes after all that wait; `None` where too little is known.
    pub(super) fn expected_wait(&self, model: &Model, now: Instant) -> Option<Expected> {
        let ahead = self.models.get(&model.key())?.waiting();
        self.expected_behind(ahead, model, now)
    }

    fn expected_behind(&self, ahead: usize, model: &Model, now: Instant) -> Option<Expected> {
        let state = self.models.get(&model.key())?;
        if model.replicas.is_empty() {
            return state.starts.next(model, now);
        }
        state.typical_answer?;
        let (mut earliest, mut seconds, mut flights, mut rows) = (f64::INFINITY, 0.0, 0, 0);
        for replica in &model.replicas {
            rows += replica.rows;
            let known = self.replicas.get(&replica.id);
            if known.is_none_or(|known| known.rows() < replica.rows) {
                earliest = 0.0;
            }
            for flight in known.into_iter().flat_map(|known| known.flights.values()) {
                earliest = earliest.min(flight.left(now));
                seconds += flight.expected.finish;
                flights += 1;
            }
        }
        let mean = seconds / f64::from(flights.max(1));
        let after =
            Duration::try_from_secs_f64(earliest + ahead as f64 * mean / f64::from(rows.max(1))).ok()?;
        let by = By::Queue;
        Some(Expected { after, by })
    }

    /// Somebody wants what no replica has room for. Whether that is new since the peaks were taken.
    pub(super) fn note_demand(&mut self, model: &Model) -> bool {
        let state = self.model(model);
        let is_new = state.peak == 0;
        state.peak = state.peak.max(state.waiting()).max(1);
        is_new
    }

    /// The most that waited for each model since the last time.
    pub(super) fn take_peaks(&mut self) -> BTreeMap<ModelKey, u64> {
        let peak = |state: &mut ModelState<W>| std::mem::take(&mut state.peak).max(state.waiting()) as u64;
        let peaks = self
            .models
            .iter_mut()
            .map(|(key, state)| (key.clone(), peak(state)));
        peaks.filter(|(_, peak)| *peak > 0).collect()
    }

    /// When the fleet is to be looked at again although it has not changed: something waits, and a model without a place is
    /// given up by then, or a replica that is left out may be tried.
    pub(super) fn look_again_after(&self, now: Instant) -> Option<Duration> {
        let mut waited_for = self
            .models
            .values()
            .filter(|state| state.waiting() > 0)
            .peekable();
        waited_for.peek()?;
        let left = |since| UNPLACED_STANDS.saturating_sub(now.saturating_duration_since(since));
        let given_up = waited_for.filter_map(|state| state.stuck_since).map(left);
        let pauses = self
            .replicas
            .values()
            .filter_map(|state| state.health.pause_left(now));
        given_up.chain(pauses).min()
    }

    /// How long a request may wait to see whether a node is found for a model's replicas after all; `None` where it is
    /// not that what is missing.
    pub(super) fn unplaced_for(&self, model: &Model, now: Instant) -> Option<Duration> {
        let since = self.models.get(&model.key())?.stuck_since?;
        Some(UNPLACED_STANDS.saturating_sub(now.saturating_duration_since(since)))
    }

    /// A replica's answer told how many requests it has.
    pub(super) fn saw_running(&mut self, replica: u64, running: u64, now: Instant) {
        if let Some(state) = self.replicas.get_mut(&replica) {
            let ours = state.flights.len() as u64;
            state.others.seen = Some((running.saturating_sub(ours), now));
        }
    }

    /// How many wait for each model.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&ModelKey, usize)> {
        self.models.iter().map(|(key, state)| (key, state.waiting()))
    }

    /// The first token of an answer was seen.
    pub(super) fn first_token(&mut self, replica: u64, flight: u64, now: Instant) {
        let Some(state) = self.replicas.get_mut(&replica) else {
            return;
        };
        state.health.succeeded();
        if let Some(flight) = state.flights.get_mut(&flight)
            && flight.first_token.is_none()
        {
            flight.first_token = Some(now);
            let took = now.saturating_duration_since(flight.began).as_secs_f64();
            state
                .experience
                .saw_first_token(&flight.experience, &flight.load, &flight.expected, took);
        }
    }

    /// The answer has ended well.
    pub(super) fn finished(
        &mut self,
        key: &ModelKey,
        replica: u64,
        flight: u64,
        length: Length,
        now: Instant,
    ) {
        let Some(state) = self.replicas.get_mut(&replica) else {
            return;
        };
        state.health.succeeded();
        let Some(flight) = state.land(flight, now) else {
            return;
        };
        let Some(tokens) = flight.row_tokens(length) else {
            return;
        };
        if let Some(first) = flight.first_token {
            let took = now.saturating_duration_since(first).as_secs_f64();
            state
                .experience
                .saw_stream(&flight.experience, &flight.load, &flight.expected, tokens, took);
        }
        if let Some(model) = self.models.get_mut(key).filter(|_| flight.load.answer_tokens > 0) {
            let typical = model.typical_answer.get_or_insert(tokens as f64);
            *typical += NEWEST * (tokens as f64 - *typical);
        }
    }

    /// The answer tells that the replica is well, and nothing of how fast it is.
    pub(super) fn refused(&mut self, replica: u64, flight: u64, now: Instant) {
        if let Some(state) = self.replicas.get_mut(&replica) {
            state.land(flight, now);
            state.health.succeeded();
        }
    }

    pub(super) fn failed(&mut self, replica: u64, flight: u64, fault: Fault, now: Instant) {
        if let Some(state) = self.replicas.get_mut(&replica) {
            state.land(flight, now);
            state.health.failed(fault, now);
        }
    }

    /// The request ended and told nothing of the replica.
    pub(super) fn abandoned(&mut self, replica: u64, flight: u64, now: Instant) {
        if let Some(state) = self.replicas.get_mut(&replica)
            && state.land(flight, now).is_some()
        {
            state.health.abandoned();
        }
    }

    /// Requests at replicas.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.replicas.values().map(|state| state.flights.len()).sum()
    }

    /// Replicas that are left out for now.
    pub(super) fn left_out(&self, now: Instant) -> usize {
        let standings = self.replicas.values().map(|state| state.health.standing(now));
        standings
            .filter(|standing| *standing == Standing::LeftOut)
            .count()
    }
}

/// The replicas that may get requests: those of a revision with no share only when there are no others.
fn in_traffic(model: &Model) -> Vec<&Replica> {
    let no_share = |replica: &&Replica| {
        model
            .traffic
            .iter()
            .any(|(revision, weight)| *weight == 0 && replica.revision.as_ref() == Some(revision))
    };
    let (without, with): (Vec<_>, Vec<_>) = model.replicas.iter().partition(no_share);
    if with.is_empty() { without } else { with }
}

#[cfg(test)]
mod tests;
