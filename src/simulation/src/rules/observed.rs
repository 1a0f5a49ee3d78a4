//! Times up to which a reconciler has observed changes.

use std::time::Duration;

use crate::network::Network;
use crate::world::World;
use crate::world::event::Reconciler;

/// Returns the time before which the reconciler had observed all changes when it planned its
/// current writes: the time of its snapshot, less the longest delay of a message.
pub(crate) fn observed_by(world: &World<'_>, network: &Network<'_>, of: Reconciler) -> Duration {
    let snapshot = world.control.observed_until(of);
    let snapshot = snapshot.saturating_sub(network.disorder.lag(snapshot));
    let before = |slow| {
        let message = world.scenario.network.longest.mul_f64(slow);
        snapshot.saturating_sub(message)
    };
    let slower = network
        .slower_until
        .filter(|(slow, until)| before(*slow) <= *until);
    before(slower.map_or(network.slow_network, |(slow, _)| slow.max(network.slow_network)))
}
