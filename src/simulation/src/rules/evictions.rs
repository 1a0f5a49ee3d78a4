//! Invariant: a replica is evicted only for a reason.

use std::time::Duration;

use crate::network::Network;
use crate::rules::Rules;
use crate::rules::bounds::evicts_unconditionally;
use crate::rules::observed::observed_by;
use crate::rules::unreachable::MIN_EVICTION_DELAY;
use crate::world::World;
use crate::world::event::{Reconciler, WriteResponse};
use crate::world::store::Object;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_controller::intent::{Deletion, Intent};
use rooflet_scheduler::condition_taints;

/// Returns true if the controller may evict replicas of the node.
fn may_evict(node: &FleetNode) -> bool {
    node.spec.drain || !node.spec.taints.is_empty() || condition_taints(node).next().is_some()
}

impl Rules {
    /// Records the end of a node's state that permitted evictions.
    pub(super) fn note_evicting_node(&mut self, now: Duration, index: usize, before: &FleetNode) {
        let history = self.node_history.entry(index).or_default();
        if may_evict(before) {
            history.tainted_until = Some(now);
        }
        if evicts_unconditionally(before) {
            history.evicting_until = Some(now);
        }
    }

    /// Checks an executed write of a reconciler: creations of replicas, and evictions.
    pub(crate) fn check_intent(
        &mut self,
        world: &World<'_>,
        network: &Network<'_>,
        intent: &Intent,
        response: &WriteResponse,
    ) {
        let WriteResponse::Done(Object::Replica(replica)) = response else {
            return;
        };
        if let Intent::CreateReplica(_) = intent {
            self.check_created(world, replica);
        }
        if let Intent::DeleteReplica {
            of,
            why: Deletion::Eviction,
        } = intent
            && let Some(node) = &replica.spec.node_name
        {
            self.check_eviction(world, network, &of.name, node);
        }
    }

    fn check_eviction(&mut self, world: &World<'_>, network: &Network<'_>, replica: &str, node: &str) {
        let Some(index) = world.by_name.get(node) else {
            return;
        };
        let state = &world.nodes[*index];
        let silent_for = state
            .unreachable_since
            .map(|since| world.now.saturating_sub(since));
        let object = world.store.nodes.get(&(None, node.to_owned()));
        let tainted = object.is_some_and(|node| may_evict(node)) || state.on_battery > 0;
        let observed = observed_by(world, network, Reconciler::NodeLifecycle);
        let history = self.node_history.get(index).copied().unwrap_or_default();
        let tainted = tainted || history.tainted_until.is_some_and(|at| at >= observed);
        let recently = state
            .reachable_again
            .is_some_and(|at| world.now.saturating_sub(at) < MIN_EVICTION_DELAY);
        let is_excused = world.control.was_recently_stale(world.now) || world.node_was_deleted(node);
        if silent_for.is_none_or(|time| time < MIN_EVICTION_DELAY) && !tainted && !recently && !is_excused {
            let message =
                format!("{replica} is evicted from {node}, which sends heartbeats and has no taint");
            self.report(world.now, "replicas are not moved without a reason", message);
        }
    }
}
