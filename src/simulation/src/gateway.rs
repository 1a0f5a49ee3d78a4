//! Requests and the gateway's shell, modelled. Who goes where, who waits and for how long is the gateway's own decision.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::{Event, Reader};
use super::policy::Routing;
use super::random::{self, Random};
use super::run::Run;
use super::scenario::Scenario;
use super::view::View;
use rooflet_agent::replica::ReplicaKey;
use rooflet_gateway::{Desk, Given, MAX_TRIES, Reply, Waiting};

/// One request of a client.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) demand: usize,
    pub(super) arrived: Duration,
    pub(super) prompt_tokens: u32,
    pub(super) answer_tokens: u32,
    pub(super) first_token: Option<Duration>,
    /// Where it is now.
    pub(super) given: Option<Given>,
}

/// Why a request was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// No replica was ready, and none was coming.
    NoReplica,
    /// Those there were could not take it.
    Refused,
    /// Its worker died.
    WorkerLost,
    /// Its worker was stopped before it was answered.
    CutShort,
    /// The client waited too long.
    GaveUp,
}

/// Class, model, bits of its KV cache, streams, and the lengths of prompt and context.
type Use = (String, u64, u64, u32, u32, u32);

/// The gateway and its clients.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) view: View,
    pub(super) changed: bool,
    pub(super) stale: u32,
    pub(super) desk: Desk,
    /// Held by the gateway until a replica has room.
    waiting: BTreeMap<u64, (Request, Waiting)>,
    arrivals: Vec<Random>,
    /// The model that each demand asks for.
    asked: Vec<String>,
    choice: Random,
    turn: usize,
    requests: u64,
    /// Predictions that were made before: tokens per second, and seconds to the first token.
    pub(super) speeds: BTreeMap<Use, (f64, f64)>,
}

impl Front {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Self {
        let arrivals = scenario.demand.iter().enumerate();
        Self {
            view: View::default(),
            changed: true,
            stale: 0,
            desk: Desk::new(),
            waiting: BTreeMap::new(),
            arrivals: arrivals
                .map(|(index, _)| Random::stream(seed, &format!("demand {index}")))
                .collect(),
            asked: scenario
                .demand
                .iter()
                .map(|demand| scenario.served_name(&demand.deployment))
                .collect(),
            choice: Random::stream(seed, "routing"),
            turn: 0,
            requests: 0,
            speeds: BTreeMap::new(),
        }
    }
}

impl Run<'_> {
    /// Plans the next request of a demand.
    pub(super) fn next_request(&mut self, demand: usize) {
        let spec = &self.scenario.demand[demand];
        let rate = |at: Duration| {
            let hour = (self.scenario.start + at).as_second().rem_euclid(86_400) / 3600;
            let factor = spec.by_hour.get(hour as usize).copied().unwrap_or(1.0);
            spec.requests_per_second * factor
        };
        let most = (0..24)
            .map(|hour| rate(Duration::from_secs(hour * 3600)))
            .fold(0.0, f64::max);
        if most <= 0.0 {
            return;
        }
        // Thinning: candidates at the highest rate, each taken with its hour's share of it.
        let random = &mut self.front.arrivals[demand];
        let mut at = self.now.max(spec.from);
        loop {
            at += random::seconds(random.exponential(1.0 / most));
            if at > self.scenario.duration {
                return;
            }
            if random.chance(rate(at) / most) {
                self.queue.push(at, Event::Request { demand });
                return;
            }
        }
    }

    pub(super) fn request(&mut self, demand: usize) {
        self.next_request(demand);
        self.gateway_looks();
        let spec = &self.scenario.demand[demand];
        let front = &mut self.front;
        let random = &mut front.arrivals[demand];
        // Prompts of half to one and a half times the mean, answers of exponential length.
        let prompt_tokens = (f64::from(spec.prompt_tokens) * (0.5 + random.unit())).max(1.0) as u32;
        let answer_tokens = random.exponential(f64::from(spec.answer_tokens)).max(1.0) as u32;
        front.requests += 1;
        let request = Request {
            id: front.requests,
            demand,
            arrived: self.now,
            prompt_tokens,
            answer_tokens,
            first_token: None,
            given: None,
        };
        self.ledger.arrived(demand);
        match self.policy.routing {
            Routing::Gateway => {
                let (model, now) = (&self.front.asked[demand], self.origin + self.now);
                match self
                    .front
                    .desk
                    .ask(model, request.id, prompt_tokens, spec.patience, now)
                {
                    Reply::Go(given) => self.deliver_request(request, given),
                    Reply::Wait(waiting, gone) => {
                        let id = request.id;
                        self.front.waiting.insert(id, (request, waiting));
                        self.after(spec.patience, Event::TurnMissed { request: id });
                        if let Some((gone, _)) = gone.and_then(|gone| self.front.waiting.remove(&gone)) {
                            self.lose(gone, Loss::Refused);
                        }
                    }
                    Reply::NotReady => self.lose(request, Loss::NoReplica),
                    Reply::Busy => self.lose(request, Loss::Refused),
                }
            }
            Routing::RoundRobin | Routing::Random => self.route_otherwise(request),
        }
    }

    /// Other ways to choose, to compare with: nobody waits in the gateway.
    fn route_otherwise(&mut self, request: Request) {
        let front = &mut self.front;
        let mut replicas = front.desk.replicas(&front.asked[request.demand]);
        if replicas.is_empty() {
            self.lose(request, Loss::NoReplica);
            return;
        }
        let turn = match self.policy.routing {
            Routing::Random => front.choice.below(replicas.len()),
            Routing::RoundRobin | Routing::Gateway => {
                front.turn += 1;
                front.turn % replicas.len()
            }
        };
        replicas.rotate_left(turn);
        for given in replicas.into_iter().take(MAX_TRIES) {
            if let Some(node) = self.takes_at(&given) {
                self.hand_over(node, request, given);
                return;
            }
        }
        self.lose(request, Loss::Refused);
    }

    /// The gateway's table follows what its watches have shown.
    pub(super) fn gateway_looks(&mut self) {
        if !std::mem::take(&mut self.front.changed) {
            return;
        }
        let snapshot = self.front.view.snapshot();
        let orphans = self.front.desk.see(
            snapshot.deployments.iter().map(AsRef::as_ref),
            snapshot.replicas.iter().map(AsRef::as_ref),
            snapshot.nodes.iter().map(AsRef::as_ref),
            self.origin + self.now,
        );
        for orphan in orphans {
            if let Some((request, _)) = self.front.waiting.remove(&orphan) {
                self.lose(request, Loss::NoReplica);
            }
        }
        self.call_up();
    }

    /// Its watches begin anew.
    pub(super) fn gateway_lists(&mut self) {
        if self.is_out() || self.front.stale > 0 {
            self.relist(Reader::Gateway, 0);
            return;
        }
        let objects = self.listed(Reader::Gateway);
        self.front.view.list_anew(objects);
        self.front.changed = true;
        if self.somebody_waits() {
            self.gateway_looks();
        }
    }

    pub(super) fn somebody_waits(&self) -> bool {
        !self.front.waiting.is_empty()
    }

    /// Requests for a model that no replica has room for.
    pub(super) fn waiting_for(&self, model: &str) -> u64 {
        let waiting = self.front.waiting.values();
        waiting
            .filter(|(request, _)| self.front.asked[request.demand] == model)
            .count() as u64
    }

    /// Those whose turn has come.
    fn call_up(&mut self) {
        while self.somebody_waits() {
            let Some((given, request)) = self.front.desk.next(self.origin + self.now) else {
                return;
            };
            if let Some((request, _)) = self.front.waiting.remove(&request) {
                self.deliver_request(request, given);
            }
        }
    }

    pub(super) fn turn_missed(&mut self, request: u64) {
        if let Some((request, waiting)) = self.front.waiting.remove(&request) {
            self.front.desk.leave(waiting);
            self.lose(request, Loss::GaveUp);
        }
    }

    /// To the replica it was given, and to others if that one cannot take it.
    fn deliver_request(&mut self, request: Request, first: Given) {
        let now = self.origin + self.now;
        let mut tried = vec![first];
        loop {
            let given = tried[tried.len() - 1].clone();
            if let Some(node) = self.takes_at(&given) {
                self.hand_over(node, request, given);
                return;
            }
            let reachable = self
                .place_of(&given)
                .is_some_and(|node| self.nodes[node].is_reachable());
            self.front.desk.failed(&given, reachable, now);
            if tried.len() == MAX_TRIES {
                break;
            }
            match self.front.desk.another(request.prompt_tokens, &tried, now) {
                Some(next) => tried.push(next),
                None => break,
            }
        }
        self.lose(request, Loss::Refused);
    }

    fn hand_over(&mut self, node: usize, mut request: Request, given: Given) {
        let key = ReplicaKey::new(given.namespace.clone(), given.replica.clone());
        request.given = Some(given);
        self.take_in(node, &key, request);
    }

    /// The node, if the replica is there and takes a request.
    fn takes_at(&self, given: &Given) -> Option<usize> {
        let node = self.place_of(given)?;
        let key = ReplicaKey::new(given.namespace.clone(), given.replica.clone());
        (self.nodes[node].is_reachable() && self.takes(node, &key)).then_some(node)
    }

    /// The node that the gateway believes the replica to be on.
    fn place_of(&self, given: &Given) -> Option<usize> {
        let key = (Some(given.namespace.clone()), given.replica.clone());
        let replica = self.front.view.replica(&key)?;
        self.by_name.get(replica.spec.node_name.as_ref()?).copied()
    }

    /// Its first token has come.
    pub(super) fn gateway_saw_first_token(&mut self, given: &Given) {
        self.front.desk.first_token(given, self.origin + self.now);
    }

    pub(super) fn request_answered(&mut self, request: &Request) {
        self.ledger.answered(self.now, request);
        if let Some(given) = &request.given {
            let now = self.origin + self.now;
            self.front.desk.finished(given, request.answer_tokens, now);
        }
        self.call_up();
    }

    pub(super) fn lose(&mut self, request: Request, loss: Loss) {
        self.ledger.lost(request.demand, loss);
        if let Some(given) = &request.given {
            let now = self.origin + self.now;
            self.front.desk.failed(given, true, now);
        }
    }
}
