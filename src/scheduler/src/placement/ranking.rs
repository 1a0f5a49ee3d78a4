//! The nodes for one kind of request, the best first, kept while nodes change.
//!
//! Deployments share it unless they have a spread: the few nodes that hold their own replicas are
//! told when it is asked. A change of one node is one new score. Scores of a node that are no
//! longer its own are left in the heaps until they come up. With a spread there is one heap a
//! domain, so that the bound is judged once a domain, not once a node.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::filter::filter;
use super::score::PlacementScore;
use super::topology::Domains;
use crate::fleet::Changes;
use crate::fleet::machine::Fits;
use crate::fleet::node::{Copies, NodeState};
use crate::request::{ReplicaKey, ReplicaRequest};
use crate::unschedulable::Unschedulable;

/// Entries of all heaps for each node, from which on they are made anew.
const MAX_ENTRIES_PER_NODE: usize = 4;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Ranking {
    like: ReplicaRequest,
    epoch: u64,
    /// Changes that are in it.
    seen: usize,
    /// The score of each node; `None` for one that cannot take the request.
    scores: Vec<Option<PlacementScore>>,
    heaps: Vec<BinaryHeap<Reverse<PlacementScore>>>,
    entries: usize,
    feasible: usize,
    pub(crate) domains: Option<Domains>,
    /// Why there is no node for a deployment, while nothing has changed since that was asked.
    pub(crate) explained: Option<(Option<ReplicaKey>, Unschedulable)>,
}

impl Ranking {
    pub(crate) fn new(
        request: &ReplicaRequest,
        nodes: &[NodeState],
        fits: &Fits<'_>,
        changes: &Changes,
    ) -> Self {
        let mut ranking = Self {
            like: shared(request),
            epoch: changes.epoch,
            seen: changes.nodes.len(),
            scores: vec![None; nodes.len()],
            heaps: Vec::new(),
            entries: 0,
            feasible: 0,
            domains: Domains::new(request, nodes),
            explained: None,
        };
        for (at, node) in nodes.iter().enumerate() {
            ranking.scores[at] = ranking.score(at, node, fits);
        }
        ranking.feasible = ranking.scores.iter().flatten().count();
        ranking.pile_up();
        ranking
    }

    pub(crate) fn is_of(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    pub(crate) fn is_for(&self, request: &ReplicaRequest, epoch: u64) -> bool {
        self.is_of(epoch) && self.like.is_like(&shared(request))
    }

    /// How many nodes can take the request, were it not for the spread.
    pub(crate) fn feasible(&self) -> usize {
        self.feasible
    }

    fn score(&self, at: usize, node: &NodeState, fits: &Fits<'_>) -> Option<PlacementScore> {
        let fit = &fits[node.machine_id];
        let load = node.load_for(&self.like);
        filter(&self.like, node, fit, &load).ok()?;
        Some(PlacementScore::new(&self.like, at, node, fit, &load))
    }

    fn heap_of(&self, at: usize) -> usize {
        self.domains.as_ref().map_or(0, |domains| domains.of(at))
    }

    /// Makes the heaps from the scores.
    fn pile_up(&mut self) {
        let heaps = self.domains.as_ref().map_or(1, Domains::len);
        let mut piles: Vec<Vec<Reverse<PlacementScore>>> = vec![Vec::new(); heaps];
        for score in self.scores.iter().flatten() {
            piles[self.heap_of(score.at)].push(Reverse(*score));
        }
        self.heaps = piles.into_iter().map(BinaryHeap::from).collect();
        self.entries = self.feasible;
    }

    /// Takes in what has changed since the last time.
    pub(crate) fn catch_up(&mut self, nodes: &[NodeState], fits: &Fits<'_>, changes: &Changes) {
        let new = &changes.nodes[self.seen..];
        if !new.is_empty() {
            self.explained = None;
        }
        for &at in new {
            if let Some(domains) = &mut self.domains {
                domains.recount(at, &nodes[at], &self.like);
            }
            let score = self.score(at, &nodes[at], fits);
            let before = std::mem::replace(&mut self.scores[at], score);
            self.feasible = self.feasible + usize::from(score.is_some()) - usize::from(before.is_some());
            if let Some(score) = score.filter(|score| Some(*score) != before) {
                let heap = self.heap_of(at);
                self.heaps[heap].push(Reverse(score));
                self.entries += 1;
            }
        }
        self.seen = changes.nodes.len();
        if self.entries > MAX_ENTRIES_PER_NODE * nodes.len() {
            self.pile_up();
        }
    }

    /// The best nodes in order, so many at most. `held` are the places of nodes with replicas of
    /// the same deployment and their numbers; `apart`: those nodes are not taken.
    pub(crate) fn best(
        &mut self,
        count: usize,
        held: &[(usize, Copies)],
        apart: bool,
    ) -> Vec<PlacementScore> {
        let fewest = self.domains.as_ref().map_or(0, Domains::fewest);
        let holds = |at: usize| held.binary_search_by_key(&at, |(at, _)| *at).is_ok();
        let mut aside: Vec<(PlacementScore, usize)> = Vec::new();
        let mut found = Vec::new();
        while found.len() < count {
            let mut best: Option<(PlacementScore, usize)> = None;
            for heap in 0..self.heaps.len() {
                let excess = match &self.domains {
                    Some(domains) => match domains.excess(heap, fewest) {
                        Some(excess) => excess,
                        None => continue,
                    },
                    None => 0,
                };
                let Some(top) = self.top(heap) else { continue };
                let top = PlacementScore { excess, ..top };
                if best.is_none_or(|(best, _)| top < best) {
                    best = Some((top, heap));
                }
            }
            let Some((score, heap)) = best else { break };
            self.heaps[heap].pop();
            // A score that a node had before and has again is there twice.
            if aside.iter().any(|(known, _)| known.at == score.at) {
                self.entries -= 1;
                continue;
            }
            aside.push((score, heap));
            if !holds(score.at) {
                found.push(score);
            }
        }
        for (score, heap) in aside {
            self.heaps[heap].push(Reverse(PlacementScore { excess: 0, ..score }));
        }
        if !apart {
            let beside = held.iter().filter_map(|(at, copies)| {
                Some(PlacementScore {
                    copies: *copies,
                    ..self.scores[*at]?
                })
            });
            found.extend(beside);
            found.sort_unstable();
            found.truncate(count);
        }
        found
    }

    /// The best of a heap that is still its node's score.
    fn top(&mut self, heap: usize) -> Option<PlacementScore> {
        while let Some(Reverse(score)) = self.heaps[heap].peek() {
            if self.scores[score.at] == Some(*score) {
                return Some(*score);
            }
            self.heaps[heap].pop();
            self.entries -= 1;
        }
        None
    }
}

/// What of a request the order of nodes depends on: of its deployment only where its replicas are
/// spread. It has no name, so that what is kept for any replica counts.
fn shared(request: &ReplicaRequest) -> ReplicaRequest {
    let nobody = ReplicaKey {
        namespace: String::new(),
        name: String::new(),
    };
    let mut shared = ReplicaRequest {
        key: nobody,
        nominated: None,
        ..request.clone()
    };
    if shared.placement.spread.is_none() {
        shared.deployment = None;
        shared.revision = None;
    }
    shared
}
