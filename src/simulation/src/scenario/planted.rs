//! Bugs that can be planted into the model of the shells, to prove that the rules find them. A
//! built program has none: only tests can plant one.

use crate::world::event::Loop;
use rooflet_api::v1alpha1::{CountOrPercent, RollingUpdateSpec};

/// One bug, each of which somebody could write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Placements of one pass do not count for the next ones of the same pass.
    PromisesForgotten,
    /// A replica that is being deleted counts no more on its node.
    ReservationReleasedOnDelete,
    /// Replicas of a silent node count no more there.
    UnreachableNotCounted,
    /// A status is written over whatever is there.
    StatusUnguarded,
    /// What the server answered to own writes is not kept over the watch's copy.
    OwnWritesForgotten,
    /// Finalizers of silent nodes are removed, not only those of deleted ones, and nobody asks
    /// whether a node is there.
    SilentNodeReleased,
    /// A FleetNode that a watch has not shown yet counts as deleted, and nobody asks the server for
    /// it.
    MissingAtOnce,
    /// Silence is the age of the Lease by its sender's clock.
    SilenceBySendersClock,
    /// A silent node's replicas are given up at once.
    EvictedAtOnce,
    /// Replicas of a silent node stay ready.
    SilentStaysReady,
    /// The agent lets an object go while its worker still drains.
    ReleasedWhileDraining,
    /// An agent that comes back does not take its workers over.
    WorkersNotAdopted,
    /// An agent that has not heard the server yet stops what it does not see.
    ActsBeforeListing,
    /// A worker that failed is started again at once.
    NoBackoff,
    /// Workers are killed without a chance to finish their requests.
    KilledInsteadOfDrained,
    /// A new process begins although the old one still runs.
    ReplacedBeforeStopped,
    /// A binding that was not answered is done again for another node, whatever has been written
    /// since.
    DoubleBind,
    /// An agent writes what it has to say of a generation that others have gone beyond.
    GenerationUnchecked,
    /// A watch's copy takes in what is older than what it has.
    OlderEventApplied,
    /// The API server answers before what it wrote is on disk.
    AnsweredBeforeSynced,
    /// A leader whose Lease has gone writes what it had decided, and decides once more.
    WritesWithoutLease,
    /// A rollout takes away what `minThroughput` holds.
    FloorIgnored,
    /// A drain takes away what `minThroughput` holds.
    DrainIgnoresFloor,
    /// A rollout takes away more than `maxUnavailable` at a time.
    UnavailableIgnored,
    /// A rollout makes one more than `maxSurge`.
    SurgeIgnored,
}

/// The bug of a run, if any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planted {
    #[cfg(test)]
    pub(crate) bug: Option<Bug>,
}

impl Planted {
    /// How a loop of the controller misreads the bounds of rolling updates.
    pub(crate) fn bounds(self, of: Loop) -> Option<fn(&mut RollingUpdateSpec)> {
        let ignores_floor = match of {
            Loop::Deployment => self.has(Bug::FloorIgnored),
            Loop::NodeLifecycle => self.has(Bug::DrainIgnoresFloor),
            Loop::Binder | Loop::Autoscaler => false,
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
