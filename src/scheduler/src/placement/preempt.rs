//! Which replicas of a lower priority leave for one that finds no room. Kubernetes' own way: the
//! node where least harm is done, and of the replicas there as few as possible.

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

/// Nodes that are tried while a reserve for failures is kept.
const TRIED_NODES: usize = 16;

/// What makes room for a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    pub node: String,
    /// Those that have to go, and are not going yet.
    pub victims: Vec<ReplicaKey>,
}

/// What is lost. Less is better; fields compare top to bottom.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Damage {
    /// Deployments that are left without a ready replica.
    outages: usize,
    /// The highest priority that has to yield.
    highest: Option<i32>,
    /// Replicas that answer requests now.
    ready: usize,
    /// What has to be loaded again.
    bytes: Bytes,
    at: usize,
}

/// What should leave for the request, which has no node, and where. The room is kept for it from
/// here on.
///
/// `None` where nothing of a lower priority is in the way, and while others are still leaving for
/// it.
pub(crate) fn preempt(request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Preemption> {
    if is_waited_for(request, fleet) {
        return None;
    }
    // Looked at first: a full fleet of one priority is asked this for everything that waits.
    let yields = |node: &NodeState| {
        let lowest = node.lowest_priority;
        lowest.is_some_and(|lowest| lowest < request.priority)
    };
    if !fleet.nodes.iter().any(yields) {
        return None;
    }
    let (fits, nodes) = fleet.fits(request);
    let domains = Domains::new(request, nodes);
    let ready = ready_replicas(nodes);
    let mut candidates: Vec<_> = nodes
        .iter()
        .enumerate()
        .filter(|(at, node)| yields(node) && domains.as_ref().is_none_or(|domains| domains.allows(*at)))
        .filter_map(|(at, node)| {
            let may_go = |resident: &Resident| {
                resident.claim.request.priority < request.priority && resident.claim.replaceable
            };
            let gone = leaving(request, node, &fits[node.machine_id], may_go)?;
            Some((Damage::new(at, node, &gone, &ready), gone))
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
    let keeps_reserve = |(damage, gone): &(Damage, Vec<ReplicaKey>)| {
        fleet.reserve_node_failures == 0 || survives_without(request, damage.at, gone, fleet)
    };
    let (damage, gone) = candidates.into_iter().find(keeps_reserve)?;
    let nodes = &fleet.nodes;
    let node = &nodes[damage.at];
    let victims = gone
        .into_iter()
        .filter(|key| !node.residents[key].claim.ending)
        .collect();
    let name = node.name.clone();
    fleet.nominate(&name, request.key.clone(), Claim::promised(request));
    Some(Preemption { node: name, victims })
}

/// [`survives`] when these have left.
fn survives_without(request: &ReplicaRequest, at: usize, gone: &[ReplicaKey], fleet: &mut Fleet) -> bool {
    let before: Vec<_> = gone.iter().map(|key| fleet.withdraw(key)).collect();
    let survives = survives(request, at, fleet);
    for (key, before) in gone.iter().zip(before) {
        fleet.take_back(key, before);
    }
    survives
}

/// Whether replicas of a lower priority are leaving its node for it already.
pub fn is_waited_for(request: &ReplicaRequest, fleet: &Fleet) -> bool {
    let node = request.nominated.as_deref().and_then(|name| fleet.node(name));
    node.is_some_and(|node| {
        node.residents
            .values()
            .any(|resident| resident.claim.ending && resident.claim.request.priority < request.priority)
    })
}

/// How many replicas of each deployment answer requests.
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

/// The fewest replicas, of those that may go, without which the node could take the request.
/// `None`: not even without all of them, or there are none.
pub(crate) fn leaving(
    request: &ReplicaRequest,
    node: &NodeState,
    fit: &Fit,
    may_go: impl Fn(&Resident) -> bool,
) -> Option<Vec<ReplicaKey>> {
    let mut candidates: Vec<_> = node
        .residents
        .iter()
        .filter(|(_, resident)| may_go(resident))
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
    // Those whose leaving would be the greatest loss are asked first whether they can stay. What is
    // going anyway is none.
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

impl Damage {
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
