//! State of the controller process, and of paused leaders.

use std::time::Duration;

use crate::world::event::Reconciler;
use crate::world::view::View;
use crate::world::writer::Writer;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_controller::intent::{Snapshot, Version};
use rooflet_controller::{Autoscaling, FollowedFleet, Heartbeats, Settling};

/// Time during which a past fault can affect the controller.
const IMPACT_TIME: Duration = Duration::from_secs(180);

/// State of the controller process.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) view: View,
    pub(crate) incarnation: u32,
    /// True after the first list.
    pub(crate) synced: bool,
    /// Number of active faults that stop the process.
    pub(crate) down: u32,
    /// Number of active faults that hold back watch events.
    pub(crate) stale: u32,
    pub(crate) stale_since: Option<Duration>,
    /// Last time at which watch events were held back.
    pub(crate) last_stale: Option<Duration>,
    /// Last time at which the process was stopped or its writes were lost.
    pub(crate) last_impaired: Option<Duration>,
    pub(crate) deployment: Writer,
    pub(crate) binder: Writer,
    pub(crate) node_lifecycle: Writer,
    pub(crate) autoscaler: Writer,
    pub(crate) autoscaling: Autoscaling,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) fleet: FollowedFleet,
    pub(crate) settling: Settling,
    /// Replicas whose binding was not acknowledged. The binder reads them before its next pass.
    pub(crate) unclear: Vec<Version>,
    pub(crate) passes: u64,
}

impl Control {
    pub(crate) fn writer(&mut self, of: Reconciler) -> &mut Writer {
        match of {
            Reconciler::Deployment => &mut self.deployment,
            Reconciler::Binder => &mut self.binder,
            Reconciler::NodeLifecycle => &mut self.node_lifecycle,
            Reconciler::Autoscaler => &mut self.autoscaler,
        }
    }

    /// Returns the time of the snapshot that a reconciler's current writes are based on.
    pub(crate) fn observed_until(&self, of: Reconciler) -> Duration {
        match of {
            Reconciler::Deployment => self.deployment.observed_until,
            Reconciler::Binder => self.binder.observed_until,
            Reconciler::NodeLifecycle => self.node_lifecycle.observed_until,
            Reconciler::Autoscaler => self.autoscaler.observed_until,
        }
    }

    /// Returns true if watch events were held back recently.
    pub(crate) fn was_recently_stale(&self, now: Duration) -> bool {
        self.stale > 0
            || self
                .last_stale
                .is_some_and(|at| now.saturating_sub(at) < IMPACT_TIME)
    }

    /// Returns true if the process was stopped or its writes were lost recently.
    pub(crate) fn was_recently_impaired(&self, now: Duration) -> bool {
        self.down > 0
            || self
                .last_impaired
                .is_some_and(|at| now.saturating_sub(at) < IMPACT_TIME)
    }

    /// Returns the state of the next leader, without the copies of objects.
    pub(crate) fn successor(&self, now: Duration) -> Self {
        let incarnation = self.incarnation + 1;
        Self {
            incarnation,
            down: self.down,
            stale: self.stale,
            stale_since: self.stale_since,
            last_stale: self.last_stale,
            last_impaired: Some(now).filter(|_| incarnation > 1),
            passes: self.passes,
            ..Self::default()
        }
    }

    /// Returns the time up to which all watch events have been sent to the controller.
    pub(crate) fn delivered_until(&self, now: Duration) -> Duration {
        let interruptions = [self.stale_since, self.view.ended];
        interruptions.into_iter().flatten().fold(now, Duration::min)
    }

    pub(crate) fn mark_impaired(&mut self, now: Duration) {
        self.last_impaired = Some(now);
    }

    /// Updates the fleet to the snapshot.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) -> &mut FollowedFleet {
        self.fleet.follow(&snapshot.nodes, &snapshot.replicas);
        &mut self.fleet
    }

    pub(crate) fn receives_events(&self) -> bool {
        self.down == 0 && self.stale == 0 && self.synced
    }
}

/// Returns true if the controller has marked the node silent.
pub(crate) fn is_silent(node: &FleetNode) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}

/// Paused leader, and the index of the fault that paused it.
#[derive(Debug)]
pub(crate) struct PausedLeader {
    pub(crate) fault: usize,
    pub(crate) control: Control,
}
