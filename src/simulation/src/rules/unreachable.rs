//! Invariants of nodes whose heartbeats do not reach the API server.

use std::time::Duration;

use crate::network::Network;
use crate::rules::Rules;
use crate::world::World;
use crate::world::controller::is_silent;

/// Shortest time from the last contact of a node to its eviction. A Lease expires after 40 s, and
/// the eviction follows 30 s later. At the last contact, the last renewal may be 10 s old.
pub(super) const MIN_EVICTION_DELAY: Duration = Duration::from_secs(59);

/// Longest time until all processes have received that a node is silent, with two resyncs and
/// retried writes.
const MAX_DETECTION_TIME: Duration = Duration::from_secs(120);

impl Rules {
    /// Checks a node that the controller has just marked silent.
    pub(super) fn check_silence(&mut self, world: &World<'_>, name: &str) {
        let Some(index) = world.by_name.get(name) else {
            return;
        };
        let state = &world.nodes[*index];
        let recently = state
            .reachable_again
            .is_some_and(|at| world.now.saturating_sub(at) < MIN_EVICTION_DELAY);
        let is_excused = recently || self.by_former_leader || world.control.was_recently_stale(world.now);
        if state.unreachable_since.is_none() && !is_excused {
            let message = format!("{name} is marked silent while its agent sends heartbeats");
            self.report(world.now, "a connected node is never marked silent", message);
        }
    }

    /// Checks that no replica of a node is shown as Ready if the node has been silent for longer
    /// than [`MAX_DETECTION_TIME`].
    pub(crate) fn check_silent_nodes(&mut self, world: &World<'_>, network: &Network<'_>) {
        if network.is_out()
            || world.control.was_recently_stale(world.now)
            || world.control.was_recently_impaired(world.now)
        {
            return;
        }
        let silent = world.nodes.iter().filter(|node| {
            let silence = node
                .unreachable_since
                .map(|since| world.now.saturating_sub(since));
            silence.is_some_and(|time| time > MAX_DETECTION_TIME)
        });
        for name in silent.map(|node| &node.machine.name) {
            let node = world.store.nodes.get(&(None, name.clone()));
            let unnoticed = node.is_some_and(|node| !is_silent(node));
            let ready = world.store.replicas.values().any(|replica| {
                let conditions = replica.status.iter().flat_map(|status| &status.conditions);
                let ready = conditions
                    .into_iter()
                    .any(|one| one.type_ == "Ready" && one.status == "True");
                replica.spec.node_name.as_ref() == Some(name) && ready
            });
            if unnoticed || ready {
                let what = if ready { "its replicas are" } else { "the node is" };
                let message = format!("{name} has been silent for minutes, and {what} still shown as Ready");
                self.report(world.now, "requests are never routed to lost nodes", message);
            }
        }
    }
}
