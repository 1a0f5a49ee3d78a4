//! Arrivals of requests, and the replicas that the gateway can reach.

use std::time::Duration;

use crate::random;
use crate::world::World;
use crate::world::event::Event;
use crate::world::front::Request;
use rooflet_agent::replica::ReplicaKey;
use rooflet_gateway::Assignment;

impl World<'_> {
    /// Plans the next request of a demand.
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

    pub(crate) fn somebody_waits(&self) -> bool {
        !self.front.waiting.is_empty()
    }

    /// Requests for a model that no replica has room for.
    pub(crate) fn waiting_for(&self, model: &str) -> u64 {
        let waiting = self.front.waiting.values();
        waiting
            .filter(|(request, _)| self.front.asked[request.demand] == model)
            .count() as u64
    }

    pub(crate) fn hand_over(&mut self, node: usize, mut request: Request, assignment: Assignment) {
        let key = ReplicaKey::new(assignment.namespace.clone(), assignment.replica.clone());
        request.assignment = Some(assignment);
        self.take_in(node, &key, request);
    }

    /// The node, if the replica is there and takes a request.
    pub(crate) fn takes_at(&self, assignment: &Assignment) -> Option<usize> {
        let node = self.node_of(assignment)?;
        let key = ReplicaKey::new(assignment.namespace.clone(), assignment.replica.clone());
        (self.nodes[node].is_reachable() && self.takes(node, &key)).then_some(node)
    }

    /// The node that the gateway believes the replica to be on.
    pub(crate) fn node_of(&self, assignment: &Assignment) -> Option<usize> {
        let key = (Some(assignment.namespace.clone()), assignment.replica.clone());
        let replica = self.front.view.replica(&key)?;
        self.by_name.get(replica.spec.node_name.as_ref()?).copied()
    }

    /// Its first token has come.
    pub(crate) fn gateway_saw_first_token(&mut self, assignment: &Assignment) {
        self.front.router.first_token(assignment, self.origin + self.now);
    }
}
