//! Planted bugs, which show that the invariants detect faults. Only tests can plant a bug.

use crate::world::event::Reconciler;
use rooflet_api::v1alpha1::{CountOrPercent, RollingUpdateSpec};

/// Plausible bug in controller, agent, gateway or API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The binder ignores the bindings that it planned earlier in the same pass.
    PassPlacementsIgnored,
    /// The binder ignores the reservations of replicas that are being deleted.
    ReservationReleasedOnDelete,
    /// The binder ignores the reservations on silent nodes.
    UnreachableNotCounted,
    /// Statuses are written without a version.
    StatusUnguarded,
    /// The cache ignores responses to own writes.
    OwnWritesDiscarded,
    /// The controller removes finalizers on silent nodes, not only on deleted ones, and does not
    /// confirm that a node is deleted.
    SilentNodeReleased,
    /// A FleetNode that the watch has not delivered counts as deleted, without a read from the
    /// server.
    MissingImmediately,
    /// The silence of a node is the age of its Lease according to the agent's clock.
    SilenceByAgentClock,
    /// Replicas of a silent node are evicted immediately.
    EvictedImmediately,
    /// Replicas of a silent node stay Ready.
    SilentStaysReady,
    /// The agent removes a replica's finalizer while its worker drains.
    ReleasedWhileDraining,
    /// A restarted agent does not adopt its workers.
    WorkersNotAdopted,
    /// An agent stops all workers before its first list.
    ActsBeforeListing,
    /// A failed worker is restarted immediately.
    NoBackoff,
    /// Workers are killed without draining.
    KilledInsteadOfDrained,
    /// A new worker starts before the old one has exited.
    ReplacedBeforeStopped,
    /// A binding without a response is repeated for another node, without a version.
    DoubleBind,
    /// An agent writes the status of an outdated generation.
    GenerationUnchecked,
    /// The cache applies outdated watch events.
    OlderEventApplied,
    /// The API server responds before the write is on disk.
    AcknowledgedBeforeSync,
    /// A leader that has lost its Lease executes its planned writes and another pass.
    WritesWithoutLease,
    /// A rollout ignores `minThroughput`.
    FloorIgnored,
    /// A drain ignores `minThroughput`.
    DrainIgnoresFloor,
    /// A rollout ignores `maxUnavailable`.
    UnavailableIgnored,
    /// A rollout creates one replica more than `maxSurge`.
    SurgeIgnored,
    /// A gateway keeps deleted keys.
    KeyDeletionIgnored,
    /// A gateway does not count the use through other gateways.
    OtherGatewaysIgnored,
    /// A gateway reports no use.
    UseNotReported,
    /// Machines do not receive revocations.
    RevocationNotPublished,
    /// Machines do not renew their certificates.
    CertificateNotRenewed,
}

/// Planted bug of a run, if any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planted {
    #[cfg(test)]
    pub(crate) bug: Option<Bug>,
}

impl Planted {
    /// Returns a change of the rolling-update parameters that the reconciler reads.
    pub(crate) fn bounds(self, of: Reconciler) -> Option<fn(&mut RollingUpdateSpec)> {
        let ignores_floor = match of {
            Reconciler::Deployment => self.has(Bug::FloorIgnored),
            Reconciler::NodeLifecycle => self.has(Bug::DrainIgnoresFloor),
            Reconciler::Binder | Reconciler::Autoscaler => false,
        };
        if ignores_floor {
            Some(|rolling| rolling.min_throughput = None)
        } else if self.has(Bug::UnavailableIgnored) {
            Some(|rolling| rolling.max_unavailable = CountOrPercent::Percent(100))
        } else if self.has(Bug::SurgeIgnored) {
            Some(|rolling| rolling.max_surge = CountOrPercent::Count(2))
        } else {
            None
        }
    }

    pub(crate) fn has(self, bug: Bug) -> bool {
        #[cfg(test)]
        return self.bug == Some(bug);
        #[cfg(not(test))]
        {
            let _ = bug;
            false
        }
    }
}
