//! Preemption: eviction of replicas with lower priority for an unschedulable replica. As in
//! Kubernetes, it selects the node with the lowest cost, and as few victims as possible.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::filter::filter;
use super::reserve::survives;
use super::topology::Domains;
use crate::fleet::Fleet;
use crate::fleet::machine::Fit;
use crate::fleet::node::{Claim, Load, NodeState, Resident};
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_base::units::Bytes;

/// Maximum number of nodes that are tried if a node-loss reserve is configured.
const TRIED_NODES: usize = 16;

/// Node and victims of a preemption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    pub node: String,
    /// Replicas to evict that are not terminating yet.
    pub victims: Vec<ReplicaKey>,
}

/// Cost of a preemption. Lower is better; fields compare from top to bottom.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PreemptionCost {
    /// Deployments that lose their last ready replica.
    outages: usize,
    /// Highest priority of a victim.
    highest: Option<i32>,
    /// Ready victims.
    ready: usize,
    /// Bytes to load again elsewhere.
    bytes: Bytes,
    at: usize,
}

/// Returns the victims for an unschedulable request, and nominates their node for it.
///
/// Returns `None` if no eviction of lower priorities helps, and while earlier victims still
/// terminate.
pub(crate) fn preempt(request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Preemption> {
    if is_waited_for(request, fleet) {
        return None;
    }
    // Check this first: in a full fleet of one priority, it applies to every unscheduled replica.
    let may_yield = |node: &NodeState| {
        let lowest = node.lowest_priority;
        lowest.is_some_and(|lowest| lowest < request.priority)
    };
    if fleet
        .lowest_priority()
        .is_none_or(|lowest| lowest >= request.priority)
    {
        return None;
    }
    let (fits, nodes) = fleet.fits(request);
    let domains = Domains::new(request, nodes);
    let ready = ready_replicas(nodes);
    let mut candidates: Vec<_> = nodes
        .iter()
        .enumerate()
        .filter(|(at, node)| may_yield(node) && domains.as_ref().is_none_or(|domains| domains.allows(*at)))
        .filter_map(|(at, node)| {
            let is_evictable = |resident: &Resident| {
                resident.claim.request.priority < request.priority && resident.claim.replaceable
            };
            let gone = leaving(request, node, &fits[node.machine_id], is_evictable)?;
            Some((PreemptionCost::new(at, node, &gone, &ready), gone))
        })
        .collect();
    let tried = if fleet.reserve_node_failures > 0 {
        TRIED_NODES
    } else {
        1
    };
    if candidates.len() > tried {
        candidates.select_nth_unstable(tried);
        candidates.truncate(tried);
    }
    candidates.sort_unstable();
    let keeps_reserve = |(cost, gone): &(PreemptionCost, Vec<ReplicaKey>)| {
        fleet.reserve_node_failures == 0 || survives_without(request, cost.at, gone, fleet)
    };
    let (cost, gone) = candidates.into_iter().find(keeps_reserve)?;
    let nodes = &fleet.nodes;
    let node = &nodes[cost.at];
    let victims = gone
        .into_iter()
        .filter(|key| !node.residents[key].claim.ending)
        .collect();
    let name = node.name.clone();
    fleet.nominate(&name, request.key.clone(), Claim::planned(request));
    Some(Preemption { node: name, victims })
}

/// Like [`survives`], without the replicas in `gone`.
fn survives_without(request: &ReplicaRequest, at: usize, gone: &[ReplicaKey], fleet: &mut Fleet) -> bool {
    let before: Vec<_> = gone.iter().map(|key| fleet.unbind(key)).collect();
    let survives = survives(request, at, fleet);
    for (key, before) in gone.iter().zip(before) {
        fleet.undo(key, before);
    }
    survives
}

/// Returns whether replicas of lower priority are already terminating on the request's nominated
/// node. A node that is not Ready confirms no end, so another node is chosen.
pub fn is_waited_for(request: &ReplicaRequest, fleet: &Fleet) -> bool {
    let node = request.nominated.as_deref().and_then(|name| fleet.node(name));
    node.filter(|node| node.not_ready.is_none()).is_some_and(|node| {
        node.residents
            .values()
            .any(|resident| resident.claim.ending && resident.claim.request.priority < request.priority)
    })
}

/// Returns the number of ready replicas of each deployment.
fn ready_replicas(nodes: &[NodeState]) -> BTreeMap<ReplicaKey, usize> {
    let mut ready = BTreeMap::new();
    for resident in nodes.iter().flat_map(|node| node.residents.values()) {
        if let Some(deployment) = &resident.claim.request.deployment
            && resident.claim.ready
            && !resident.claim.ending
        {
            *ready.entry(deployment.clone()).or_default() += 1;
        }
    }
    ready
}

/// Returns a minimal set of evictable replicas without which the node accepts the request. Returns
/// `None` if no such set exists.
pub(crate) fn leaving(
    request: &ReplicaRequest,
    node: &NodeState,
    fit: &Fit,
    is_evictable: impl Fn(&Resident) -> bool,
) -> Option<Vec<ReplicaKey>> {
    let mut candidates: Vec<_> = node
        .residents
        .iter()
        .filter(|(_, resident)| is_evictable(resident))
        .collect();
    if candidates.is_empty() {
        return None;
    }
    let mut gone: BTreeSet<&ReplicaKey> = candidates.iter().map(|(key, _)| *key).collect();
    let fits_without = |gone: &BTreeSet<&ReplicaKey>| {
        let stays = node.residents.iter().filter(|(key, _)| !gone.contains(key));
        let nominees = node.nominees.iter().filter(|(key, nominee)| {
            **key != request.key && nominee.claim.request.priority >= request.priority
        });
        let load = Load::of(stays.chain(nominees));
        filter(request, node, fit, &load).is_ok()
    };
    if !fits_without(&gone) {
        return None;
    }
    // Try to keep the most expensive victims first. Terminating replicas cost nothing.
    candidates.sort_by_key(|(key, resident)| {
        let claim = &resident.claim;
        (
            claim.ending,
            Reverse((claim.request.priority, claim.ready, resident.bytes())),
            *key,
        )
    });
    for (key, _) in candidates {
        gone.remove(key);
        if !fits_without(&gone) {
            gone.insert(key);
        }
    }
    (!gone.is_empty()).then(|| gone.into_iter().cloned().collect())
}

impl PreemptionCost {
    fn new(at: usize, node: &NodeState, gone: &[ReplicaKey], ready: &BTreeMap<ReplicaKey, usize>) -> Self {
        let mut lost: BTreeMap<&ReplicaKey, usize> = BTreeMap::new();
        let going = gone
            .iter()
            .map(|key| &node.residents[key])
            .filter(|resident| !resident.claim.ending);
        let (mut highest, mut bytes) = (None, Bytes::ZERO);
        for resident in going {
            highest = highest.max(Some(resident.claim.request.priority));
            bytes += resident.bytes();
            if let Some(deployment) = resident
                .claim
                .request
                .deployment
                .as_ref()
                .filter(|_| resident.claim.ready)
            {
                *lost.entry(deployment).or_default() += 1;
            }
        }
        Self {
            outages: lost
                .iter()
                .filter(|(deployment, lost)| ready.get(*deployment) == Some(lost))
                .count(),
            highest,
            ready: lost.values().sum(),
            bytes,
            at,
        }
    }
}
