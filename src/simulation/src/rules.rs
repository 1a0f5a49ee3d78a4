//! Observations of a run: the ledger, and the state that the rules need between steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) mod bounds;
pub(crate) mod ledger;
pub(crate) mod violation;

use crate::rules::bounds::{Before, Missed};
use crate::rules::ledger::Ledger;
use crate::rules::violation::Violation;
use rooflet_agent::replica::ReplicaKey;
use rooflet_base::units::Bytes;

/// What is remembered between steps.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) ledger: Ledger,
    pub(crate) first: Option<Violation>,
    /// Creations that were done and not heard of: each may be done twice.
    pub(crate) creations_lost: usize,
    /// When a node took a replica that it had refused.
    pub(crate) taken_after_all: BTreeMap<String, Duration>,
    /// When a worker failed last, and how often in a row.
    pub(crate) failed: BTreeMap<(usize, ReplicaKey), (Duration, u32)>,
    /// The newest revision that anybody was told of.
    pub(crate) told: u64,
    /// Replicas that stopped to answer, and what deployments asked for before.
    pub(crate) missed: Vec<Missed>,
    /// When replicas began to answer, by uid.
    pub(crate) gained: BTreeMap<String, Duration>,
    /// What is written now was asked for by who led then, before it stood still: nobody can keep
    /// that from arriving.
    pub(crate) by_former_leader: bool,
    pub(crate) specs: BTreeMap<String, Vec<Before>>,
    /// Uids of replicas whose deletion the controller knows of, for it is its own.
    pub(crate) own_deletes: BTreeSet<String>,
    /// Memory and chip time of one replica, by class, model, context and streams.
    pub(crate) needs: BTreeMap<Need, (Bytes, f64)>,
}

pub(crate) type Need = (String, String, u32, u32, Option<u32>, String);

impl Rules {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            first: None,
            creations_lost: 0,
            taken_after_all: BTreeMap::new(),
            failed: BTreeMap::new(),
            told: 0,
            missed: Vec::new(),
            gained: BTreeMap::new(),
            by_former_leader: false,
            specs: BTreeMap::new(),
            own_deletes: BTreeSet::new(),
            needs: BTreeMap::new(),
        }
    }

    pub(crate) fn broke(&mut self, violation: Violation) {
        self.first.get_or_insert(violation);
    }

    pub(crate) fn broken(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn take(&mut self) -> Option<Violation> {
        self.first.take()
    }
}
