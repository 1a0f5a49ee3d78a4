//! Arrivals of requests, and their delivery to replicas.

use std::time::Duration;

use crate::random;
use crate::world::World;
use crate::world::event::Event;
use crate::world::gateway_state::Request;
use rooflet_agent::replica::ReplicaKey;
use rooflet_gateway::Assignment;

impl World<'_> {
    /// Schedules the next request of a demand.
    pub(crate) fn next_request(&mut self, demand: usize) {
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
        // Thinning: candidates arrive at the highest rate and are accepted with the ratio of the
        // hour's rate to it.
        let random = &mut self.gateway.arrivals[demand];
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

    pub(crate) fn has_queued_requests(&self) -> bool {
        !self.gateway.waiting.is_empty()
    }

    /// Returns the number of queued requests for a model.
    pub(crate) fn queued_for(&self, model: &str) -> u64 {
        let waiting = self.gateway.waiting.values();
        waiting
            .filter(|(request, _)| self.gateway.models[request.demand] == model)
            .count() as u64
    }

    pub(crate) fn forward(&mut self, node: usize, mut request: Request, assignment: Assignment) {
        let key = ReplicaKey::new(assignment.namespace.clone(), assignment.replica.clone());
        request.assignment = Some(assignment);
        self.accept_request(node, &key, request);
    }

    /// Returns the node of the assigned replica if the replica accepts a request.
    pub(crate) fn accepting_node(&self, assignment: &Assignment) -> Option<usize> {
        let node = self.node_of(assignment)?;
        let key = ReplicaKey::new(assignment.namespace.clone(), assignment.replica.clone());
        (self.nodes[node].is_reachable() && self.accepts_request(node, &key)).then_some(node)
    }

    /// Returns the node of the assigned replica according to the gateway's copy of the object.
    pub(crate) fn node_of(&self, assignment: &Assignment) -> Option<usize> {
        let key = (Some(assignment.namespace.clone()), assignment.replica.clone());
        let replica = self.gateway.view.replica(&key)?;
        self.by_name.get(replica.spec.node_name.as_ref()?).copied()
    }

    pub(crate) fn record_first_token(&mut self, assignment: &Assignment) {
        self.gateway
            .router
            .first_token(assignment, self.origin + self.now);
    }
}
