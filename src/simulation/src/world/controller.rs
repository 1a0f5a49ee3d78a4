//! State of the controller process, and of leaders that are paused.

use std::time::Duration;

use crate::world::event::Loop;
use crate::world::view::View;
use crate::world::writer::Writer;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_controller::intent::{Snapshot, Version};
use rooflet_controller::{Autoscaling, FollowedFleet, Heartbeats, Settling};

/// What a fault does to it shows for so long.
const AFTERMATH: Duration = Duration::from_secs(180);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) view: View,
    pub(crate) life: u32,
    /// It has listed everything.
    pub(crate) synced: bool,
    /// Faults that keep it away, and from hearing.
    pub(crate) down: u32,
    pub(crate) stale: u32,
    pub(crate) stale_since: Option<Duration>,
    /// When it last could not hear, and last could not act, for the rules.
    pub(crate) deaf: Option<Duration>,
    pub(crate) hindered: Option<Duration>,
    pub(crate) deployment: Writer,
    pub(crate) binder: Writer,
    pub(crate) node_lifecycle: Writer,
    pub(crate) autoscaler: Writer,
    pub(crate) autoscaling: Autoscaling,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) fleet: FollowedFleet,
    pub(crate) settling: Settling,
    /// Bindings that were not answered, to be read before anything is bound.
    pub(crate) unclear: Vec<Version>,
    pub(crate) passes: u64,
}

impl Control {
    pub(crate) fn writer(&mut self, of: Loop) -> &mut Writer {
        match of {
            Loop::Deployment => &mut self.deployment,
            Loop::Binder => &mut self.binder,
            Loop::NodeLifecycle => &mut self.node_lifecycle,
            Loop::Autoscaler => &mut self.autoscaler,
        }
    }

    /// Until when a loop knew what happened, when it decided on what it writes now.
    pub(crate) fn decided(&self, of: Loop) -> Duration {
        match of {
            Loop::Deployment => self.deployment.decided,
            Loop::Binder => self.binder.decided,
            Loop::NodeLifecycle => self.node_lifecycle.decided,
            Loop::Autoscaler => self.autoscaler.decided,
        }
    }

    /// It heard nothing for a while, not long ago.
    pub(crate) fn was_deaf(&self, now: Duration) -> bool {
        self.stale > 0 || self.deaf.is_some_and(|at| now.saturating_sub(at) < AFTERMATH)
    }

    /// It was not there, or its writes were lost, not long ago.
    pub(crate) fn was_hindered(&self, now: Duration) -> bool {
        self.down > 0 || self.hindered.is_some_and(|at| now.saturating_sub(at) < AFTERMATH)
    }

    /// Its successor, which knows nothing that it knew.
    pub(crate) fn succeed(&self, now: Duration) -> Self {
        let life = self.life + 1;
        Self {
            life,
            down: self.down,
            stale: self.stale,
            stale_since: self.stale_since,
            deaf: self.deaf,
            hindered: Some(now).filter(|_| life > 1),
            passes: self.passes,
            ..Self::default()
        }
    }

    /// All that happened until then has reached it, but for what is on its way.
    pub(crate) fn knows(&self, now: Duration) -> Duration {
        let deaf = [self.stale_since, self.view.ended];
        deaf.into_iter().flatten().fold(now, Duration::min)
    }

    pub(crate) fn hinder(&mut self, now: Duration) {
        self.hindered = Some(now);
    }

    /// The fleet as the snapshot has it.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) -> &mut FollowedFleet {
        self.fleet
            .follow(snapshot.nodes.clone(), snapshot.replicas.clone());
        &mut self.fleet
    }

    pub(crate) fn hears(&self) -> bool {
        self.down == 0 && self.stale == 0 && self.synced
    }
}

/// Whether the controller has noticed that nothing comes from the node.
pub(crate) fn is_silent(node: &FleetNode) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}

/// A leader that stands still, by the fault that keeps it.
#[derive(Debug)]
pub(crate) struct Paused {
    pub(crate) fault: usize,
    pub(crate) control: Control,
}
