//! Requests and the gateway's network side, simulated. Assignments and queueing are the decisions of
//! the gateway's [`RequestRouter`](rooflet_gateway::RequestRouter).

use crate::run::Run;
use crate::scenario::policy::Routing;
use crate::world::event::{Event, Reader};
use crate::world::front::{Loss, Request};
use rooflet_gateway::{Assignment, Decision, MAX_TRIES};

impl Run<'_> {
    pub(crate) fn request(&mut self, demand: usize) {
        self.world.next_request(demand);
        self.gateway_looks();
        let spec = &self.world.scenario.demand[demand];
        let front = &mut self.world.front;
        let random = &mut front.arrivals[demand];
        // Prompts of half to one and a half times the mean, answers of exponential length.
        let prompt_tokens = (f64::from(spec.prompt_tokens) * (0.5 + random.unit())).max(1.0) as u32;
        let answer_tokens = random.exponential(f64::from(spec.answer_tokens)).max(1.0) as u32;
        front.requests += 1;
        let request = Request {
            id: front.requests,
            demand,
            arrived: self.world.now,
            prompt_tokens,
            answer_tokens,
            first_token: None,
            assignment: None,
        };
        self.rules.ledger.arrived(demand);
        match self.world.policy.routing {
            Routing::Gateway => {
                let (model, now) = (
                    &self.world.front.asked[demand],
                    self.world.origin + self.world.now,
                );
                match self
                    .world
                    .front
                    .router
                    .route(model, request.id, prompt_tokens, spec.patience, now)
                {
                    Decision::Assigned(assignment) => self.deliver_request(request, assignment),
                    Decision::Queued(waiting, evicted) => {
                        let id = request.id;
                        self.world.front.waiting.insert(id, (request, waiting));
                        self.world.after(spec.patience, Event::TurnMissed { request: id });
                        if let Some((evicted, _)) =
                            evicted.and_then(|evicted| self.world.front.waiting.remove(&evicted))
                        {
                            self.lose(evicted, Loss::Refused);
                        }
                    }
                    Decision::NotReady => self.lose(request, Loss::NoReplica),
                    Decision::Busy => self.lose(request, Loss::Refused),
                }
            }
            Routing::RoundRobin | Routing::Random => self.route_otherwise(request),
        }
    }

    /// Other ways to choose, to compare with: nobody waits in the gateway.
    fn route_otherwise(&mut self, request: Request) {
        let front = &mut self.world.front;
        let mut replicas = front.router.replicas(&front.asked[request.demand]);
        if replicas.is_empty() {
            self.lose(request, Loss::NoReplica);
            return;
        }
        let turn = match self.world.policy.routing {
            Routing::Random => front.choice.below(replicas.len()),
            Routing::RoundRobin | Routing::Gateway => {
                front.turn += 1;
                front.turn % replicas.len()
            }
        };
        replicas.rotate_left(turn);
        for assignment in replicas.into_iter().take(MAX_TRIES) {
            if let Some(node) = self.world.takes_at(&assignment) {
                self.world.hand_over(node, request, assignment);
                return;
            }
        }
        self.lose(request, Loss::Refused);
    }

    /// The gateway's table follows what its watches have shown.
    pub(crate) fn gateway_looks(&mut self) {
        if !std::mem::take(&mut self.world.front.changed) {
            return;
        }
        let snapshot = self.world.front.view.snapshot();
        let orphans = self.world.front.router.update(
            snapshot.deployments.iter().map(AsRef::as_ref),
            snapshot.replicas.iter().map(AsRef::as_ref),
            snapshot.nodes.iter().map(AsRef::as_ref),
            self.world.origin + self.world.now,
        );
        for orphan in orphans {
            if let Some((request, _)) = self.world.front.waiting.remove(&orphan) {
                self.lose(request, Loss::NoReplica);
            }
        }
        self.call_up();
    }

    /// Its watches begin anew.
    pub(crate) fn gateway_lists(&mut self) {
        if self.network.is_out() || self.world.front.stale > 0 {
            self.relist(Reader::Gateway, 0);
            return;
        }
        let objects = self.listed(Reader::Gateway);
        self.world.front.view.list_anew(objects);
        self.world.front.changed = true;
        if self.world.somebody_waits() {
            self.gateway_looks();
        }
    }

    /// Those whose turn has come.
    fn call_up(&mut self) {
        while self.world.somebody_waits() {
            let Some((assignment, request)) =
                self.world.front.router.next(self.world.origin + self.world.now)
            else {
                return;
            };
            if let Some((request, _)) = self.world.front.waiting.remove(&request) {
                self.deliver_request(request, assignment);
            }
        }
    }

    pub(crate) fn turn_missed(&mut self, request: u64) {
        if let Some((request, waiting)) = self.world.front.waiting.remove(&request) {
            self.world.front.router.remove_queued(waiting);
            self.lose(request, Loss::GaveUp);
        }
    }

    /// Sends a request to its assigned replica, and retries on others if that one rejects it.
    fn deliver_request(&mut self, request: Request, first: Assignment) {
        let now = self.world.origin + self.world.now;
        let mut tried = vec![first];
        loop {
            let assignment = tried[tried.len() - 1].clone();
            if let Some(node) = self.world.takes_at(&assignment) {
                self.world.hand_over(node, request, assignment);
                return;
            }
            let reachable = self
                .world
                .node_of(&assignment)
                .is_some_and(|node| self.world.nodes[node].is_reachable());
            self.world.front.router.failed(&assignment, reachable, now);
            if tried.len() == MAX_TRIES {
                break;
            }
            match self.world.front.router.retry(request.prompt_tokens, &tried, now) {
                Some(next) => tried.push(next),
                None => break,
            }
        }
        self.lose(request, Loss::Refused);
    }

    pub(crate) fn request_answered(&mut self, request: &Request) {
        self.rules.ledger.answered(self.world.now, request);
        if let Some(assignment) = &request.assignment {
            let now = self.world.origin + self.world.now;
            self.world
                .front
                .router
                .finished(assignment, request.answer_tokens, now);
        }
        self.call_up();
    }

    pub(crate) fn lose(&mut self, request: Request, loss: Loss) {
        self.rules.ledger.lost(request.demand, loss);
        if let Some(assignment) = &request.assignment {
            let now = self.world.origin + self.world.now;
            self.world.front.router.failed(assignment, true, now);
        }
    }
}
