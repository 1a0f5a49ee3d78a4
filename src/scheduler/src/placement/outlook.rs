//! Predicted speed of a deployment's replicas on a node, next to the node's other replicas.

use crate::fleet::node::NodeState;
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_base::units::Bytes;
use rooflet_roofline::admission::{Requirements, Speed};
use rooflet_roofline::predict::Parameters;

impl NodeState {
    /// Returns the speed of the request without other replicas, or `None` if unknown.
    pub fn speed_alone(&self, request: &ReplicaRequest) -> Option<Speed> {
        let model = self.machine.model_of(request)?;
        let served = request.served(model)?;
        let ask = request.ask(model, &served, Bytes::ZERO);
        let machine = &self.machine;
        let parameters = Parameters::built_in();
        Requirements::new(&ask, machine.hardware, &machine.calibrations, parameters).speed
    }

    /// Returns the share of the chip's time for `count` replicas of a deployment while all others
    /// are busy.
    ///
    /// With objectives, the result is the unreserved share. Without, all replicas without
    /// objectives share equally the time that objectives leave.
    pub fn left_to(&self, deployment: &ReplicaKey, has_objectives: bool, count: u32) -> f64 {
        let (mut objectives, mut best_effort, mut others) = (0.0, 0.0, 0);
        for (request, share) in self.reserved_shares() {
            if request.deployment.as_ref() == Some(deployment) {
                continue;
            }
            if request.has_objectives() {
                objectives += share;
            } else {
                best_effort += share;
                others += 1;
            }
        }
        let left = match has_objectives {
            true => 1.0 - objectives - best_effort,
            false => (1.0 - objectives) * f64::from(count) / f64::from((count + others).max(1)),
        };
        left.max(0.0)
    }
}
