//! Requests and the gateway's network side, simulated. Assignments and queueing are the decisions of
//! the gateway's [`RequestRouter`](rooflet_gateway::RequestRouter).

use crate::run::Run;
use crate::scenario::policy::Routing;
use crate::world::event::{Event, Reader};
use crate::world::gateway_state::{DropReason, Request};
use rooflet_gateway::{Assignment, Decision, MAX_TRIES};

impl Run<'_> {
    pub(crate) fn request(&mut self, demand: usize) {
        self.world.next_request(demand);
        self.update_routing_table();
        let spec = &self.world.scenario.demand[demand];
        let gateway = &mut self.world.gateway;
        let random = &mut gateway.arrivals[demand];
        // Prompt lengths are uniform between 0.5 and 1.5 times the mean; answer lengths are
        // exponential.
        let prompt_tokens = (f64::from(spec.prompt_tokens) * (0.5 + random.unit())).max(1.0) as u32;
        let answer_tokens = random.exponential(f64::from(spec.answer_tokens)).max(1.0) as u32;
        gateway.requests += 1;
        let request = Request {
            id: gateway.requests,
            demand,
            arrived: self.world.now,
            prompt_tokens,
            answer_tokens,
            first_token: None,
            assignment: None,
            permit: None,
        };
        self.rules.ledger.request_arrived(demand);
        let Some(request) = self.permitted(request) else {
            return;
        };
        match self.world.policy.routing {
            Routing::Gateway => {
                let (model, now) = (
                    &self.world.gateway.models[demand],
                    self.world.origin + self.world.now,
                );
                match self
                    .world
                    .gateway
                    .router
                    .route(model, request.id, prompt_tokens, spec.patience, now)
                {
                    Decision::Assigned(assignment) => self.send_request(request, assignment),
                    Decision::Queued(waiting, evicted) => {
                        let id = request.id;
                        self.world.gateway.waiting.insert(id, (request, waiting));
                        self.world
                            .after(spec.patience, Event::GatewayQueueTimeout { request: id });
                        if let Some((evicted, _)) =
                            evicted.and_then(|evicted| self.world.gateway.waiting.remove(&evicted))
                        {
                            self.drop_request(evicted, DropReason::NoCapacity);
                        }
                    }
                    Decision::NotReady => self.drop_request(request, DropReason::NoReplica),
                    Decision::Busy => self.drop_request(request, DropReason::NoCapacity),
                }
            }
            Routing::RoundRobin | Routing::Random => self.route_by_policy(request),
        }
    }

    /// Routes a request by another policy, for comparisons. There is no request queue.
    fn route_by_policy(&mut self, request: Request) {
        let gateway = &mut self.world.gateway;
        let mut replicas = gateway.router.replicas(&gateway.models[request.demand]);
        if replicas.is_empty() {
            self.drop_request(request, DropReason::NoReplica);
            return;
        }
        let first = match self.world.policy.routing {
            Routing::Random => gateway.random.below(replicas.len()),
            Routing::RoundRobin | Routing::Gateway => {
                gateway.round_robin_index += 1;
                gateway.round_robin_index % replicas.len()
            }
        };
        replicas.rotate_left(first);
        for assignment in replicas.into_iter().take(MAX_TRIES) {
            if let Some(node) = self.world.accepting_node(&assignment) {
                self.world.forward(node, request, assignment);
                return;
            }
        }
        self.drop_request(request, DropReason::NoCapacity);
    }

    /// Updates the routing table from the gateway's copy of the objects.
    pub(crate) fn update_routing_table(&mut self) {
        if !std::mem::take(&mut self.world.gateway.changed) {
            return;
        }
        let snapshot = self.world.gateway.view.snapshot();
        let orphans = self.world.gateway.router.update(
            snapshot.deployments.iter().map(AsRef::as_ref),
            snapshot.replicas.iter().map(AsRef::as_ref),
            snapshot.nodes.iter().map(AsRef::as_ref),
            self.world.origin + self.world.now,
        );
        for orphan in orphans {
            if let Some((request, _)) = self.world.gateway.waiting.remove(&orphan) {
                self.drop_request(request, DropReason::NoReplica);
            }
        }
        self.dispatch_queued();
    }

    /// Restarts the watches with a list.
    pub(crate) fn gateway_lists(&mut self) {
        if self.network.is_out() || self.world.gateway.stale > 0 {
            self.relist(Reader::Gateway, 0);
            return;
        }
        let objects = self.listed(Reader::Gateway);
        self.world.gateway.view.replace(objects);
        self.world.gateway.changed = true;
        if self.world.has_queued_requests() {
            self.update_routing_table();
        }
    }

    /// Sends queued requests to replicas with capacity.
    fn dispatch_queued(&mut self) {
        while self.world.has_queued_requests() {
            let Some((assignment, request)) =
                self.world.gateway.router.next(self.world.origin + self.world.now)
            else {
                return;
            };
            if let Some((request, _)) = self.world.gateway.waiting.remove(&request) {
                self.send_request(request, assignment);
            }
        }
    }

    pub(crate) fn gateway_queue_timeout(&mut self, request: u64) {
        if let Some((request, waiting)) = self.world.gateway.waiting.remove(&request) {
            self.world.gateway.router.remove_queued(waiting);
            self.drop_request(request, DropReason::GaveUp);
        }
    }

    /// Sends a request to its assigned replica, and retries on others if that one rejects it.
    fn send_request(&mut self, request: Request, first: Assignment) {
        let now = self.world.origin + self.world.now;
        let mut tried = vec![first];
        loop {
            let assignment = tried[tried.len() - 1].clone();
            let node = self.world.node_of(&assignment);
            let reachable = node.is_some_and(|node| self.reaches(&request, node));
            if let Some(node) = self.world.accepting_node(&assignment).filter(|_| reachable) {
                self.world.forward(node, request, assignment);
                return;
            }
            self.world.gateway.router.failed(&assignment, reachable, now);
            if tried.len() == MAX_TRIES {
                break;
            }
            match self
                .world
                .gateway
                .router
                .retry(request.prompt_tokens, &tried, now)
            {
                Some(next) => tried.push(next),
                None => break,
            }
        }
        self.drop_request(request, DropReason::NoCapacity);
    }

    pub(crate) fn request_completed(&mut self, request: &Request) {
        self.end_permit(request, Some(u64::from(request.answer_tokens)));
        self.rules.ledger.request_completed(self.world.now, request);
        if let Some(assignment) = &request.assignment {
            let now = self.world.origin + self.world.now;
            self.world
                .gateway
                .router
                .finished(assignment, request.answer_tokens, now);
        }
        self.dispatch_queued();
    }

    pub(crate) fn drop_request(&mut self, request: Request, reason: DropReason) {
        self.end_permit(&request, None);
        self.rules.ledger.request_dropped(request.demand, reason);
        if let Some(assignment) = &request.assignment {
            let now = self.world.origin + self.world.now;
            self.world.gateway.router.failed(assignment, true, now);
        }
    }
}
