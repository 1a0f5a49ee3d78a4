//! Invariants of a run, and the observations that they need between steps.
//!
//! A check reads the state of the [`World`](crate::world::World) and changes only [`Rules`]. It
//! uses the actual state, not the copies that controller, agents and gateway have of it.

pub(crate) mod access;
pub(crate) mod bounds;
mod changes;
mod disruption;
mod evictions;
mod final_state;
pub(crate) mod ledger;
pub(crate) mod observed;
mod reservations;
mod unreachable;
pub(crate) mod violation;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::rules::access::AccessRules;
use crate::rules::bounds::{LostReplica, PreviousBounds};
use crate::rules::ledger::Ledger;
use crate::rules::reservations::NeedKey;
use crate::rules::violation::Violation;
use rooflet_agent::replica::ReplicaKey;
use rooflet_base::units::Bytes;

/// Observations of a run, and the first violated invariant.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) ledger: Ledger,
    pub(crate) access: AccessRules,
    violation: Option<Violation>,
    /// Replicas that the API server created without a response to the controller. The controller
    /// may create each of them a second time.
    pub(crate) unacknowledged_creations: usize,
    /// Time at which an agent admitted a replica that it had rejected before, by replica name.
    readmitted: BTreeMap<String, Duration>,
    /// Time of a worker's last failure, and the number of consecutive failures.
    pub(crate) worker_failures: BTreeMap<(usize, ReplicaKey), (Duration, u32)>,
    /// Newest revision that any process has received.
    observed_revision: u64,
    /// True while a write of a former leader arrives that the leader sent before its pause. No
    /// process can stop such a write.
    pub(crate) by_former_leader: bool,
    /// Replicas that stopped serving.
    lost_replicas: Vec<LostReplica>,
    /// Time at which a replica started to serve, by UID.
    serving_since: BTreeMap<String, Duration>,
    /// Earlier bounds of deployments, by name.
    previous_bounds: BTreeMap<String, Vec<PreviousBounds>>,
    /// UIDs of replicas that the controller deleted and whose deletion it has observed.
    own_deletes: BTreeSet<String>,
    /// Past states of nodes, by index.
    node_history: BTreeMap<usize, NodeHistory>,
    /// Memory and share of chip time that a replica reserves.
    needs: BTreeMap<NeedKey, (Bytes, f64)>,
}

/// Past states of a FleetNode that justify evictions which arrive later.
#[derive(Debug, Clone, Copy, Default)]
struct NodeHistory {
    /// Last time at which the node had a taint or a drain request.
    tainted_until: Option<Duration>,
    /// Last time at which the node evicted replicas regardless of disruption budgets.
    evicting_until: Option<Duration>,
}

impl Rules {
    pub(crate) fn new(ledger: Ledger, access: AccessRules) -> Self {
        Self {
            ledger,
            access,
            violation: None,
            unacknowledged_creations: 0,
            readmitted: BTreeMap::new(),
            worker_failures: BTreeMap::new(),
            observed_revision: 0,
            by_former_leader: false,
            lost_replicas: Vec::new(),
            serving_since: BTreeMap::new(),
            previous_bounds: BTreeMap::new(),
            own_deletes: BTreeSet::new(),
            node_history: BTreeMap::new(),
            needs: BTreeMap::new(),
        }
    }

    /// Records a violation. Only the first one is kept.
    fn report(&mut self, at: Duration, rule: &'static str, message: String) {
        self.violation.get_or_insert(Violation { at, rule, message });
    }

    pub(crate) fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    pub(crate) fn take_violation(&mut self) -> Option<Violation> {
        self.violation.take()
    }

    /// Records that a process has received a revision.
    pub(crate) fn observe_revision(&mut self, revision: u64) {
        self.observed_revision = self.observed_revision.max(revision);
    }
}
