//! Nodes that replicas of the same revision advise: nodes whose agents rejected a replica, nodes
//! that a replica leaves, and the target of a move.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use super::candidate::{RevisionOf, revision};
use crate::deployment::{refusal_expiry, refused_recently};
use crate::node_lifecycle::{left_node, moves_to};
use rooflet_api::v1alpha1::ModelReplica;
use rooflet_scheduler::ReplicaRequest;

/// Advice of the candidates of one pass, by revision.
pub(super) struct Advice<'a> {
    of: HashMap<RevisionOf<'a>, OfRevision>,
}

#[derive(Default)]
struct OfRevision {
    /// Nodes that must not run a replica, with the reasons.
    refused: BTreeMap<String, String>,
    /// Time at which the first rejection by an agent expires.
    expiry: Option<Timestamp>,
    /// Target of a moving replica.
    target: Option<String>,
}

impl<'a> Advice<'a> {
    pub(super) fn of(replicas: &[&'a ModelReplica], now: Timestamp) -> Self {
        let mut of: HashMap<_, OfRevision> = HashMap::new();
        for replica in replicas {
            if let Some(refusal) = refused_recently(replica, now)
                && let Some(node) = replica.spec.node_name.clone()
            {
                let known = of.entry(revision(replica)).or_default();
                known.refused.insert(node, refusal.message.clone());
                let expiry = refusal_expiry(refusal);
                known.expiry = Some(known.expiry.map_or(expiry, |known| known.min(expiry)));
            }
        }
        for replica in replicas {
            if let Some(target) = moves_to(replica) {
                let known = of.entry(revision(replica)).or_default();
                known.refused.extend(left_node(replica));
                known.target.get_or_insert_with(|| target.to_owned());
            }
        }
        Self { of }
    }

    /// Returns the scheduling request of an unscheduled replica.
    pub(super) fn request(&self, replica: &ModelReplica) -> ReplicaRequest {
        let mut request = ReplicaRequest::new(replica);
        if let Some(advice) = self.of.get(&revision(replica)) {
            request.refused = advice.refused.clone();
            request.nominated = request.nominated.or_else(|| advice.target.clone());
        }
        request
    }

    /// Returns the time at which the first rejection of a node for this replica expires.
    pub(super) fn expiry(&self, replica: &ModelReplica) -> Option<Timestamp> {
        self.of.get(&revision(replica))?.expiry
    }
}
