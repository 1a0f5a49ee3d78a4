//! Nodes for one kind of request in order of score, updated incrementally.
//!
//! Deployments without a spread share a ranking. The caller passes the few nodes with replicas of
//! the same deployment. A change of a node adds one score; outdated scores stay in the heaps until
//! they reach the top. With a spread, every domain has its own heap, so that the skew is checked
//! once per domain.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::filter::filter;
use super::score::PlacementScore;
use super::topology::Domains;
use crate::fleet::Changes;
use crate::fleet::machine::Fits;
use crate::fleet::node::{Copies, NodeState};
use crate::request::{ReplicaKey, ReplicaRequest};
use crate::unschedulable::index::RejectionIndex;
use crate::unschedulable::{Search, Unschedulable};
use rooflet_api::v1alpha1::AntiAffinity;

/// Maximum heap entries per node before the heaps are rebuilt.
const MAX_ENTRIES_PER_NODE: usize = 4;

/// Ranking of nodes for one kind of request; see the module documentation.
#[derive(Debug, Clone)]
pub(crate) struct Ranking {
    template: ReplicaRequest,
    epoch: u64,
    /// Number of applied changes.
    applied: usize,
    /// Score of each node; `None` if the node rejects the request.
    scores: Vec<Option<PlacementScore>>,
    heaps: Vec<BinaryHeap<Reverse<PlacementScore>>>,
    entries: usize,
    feasible: usize,
    domains: Option<Domains>,
    /// Rejections of all nodes, from the first explanation on. Always `None` with a spread, because one
    /// replica changes the rejections of all nodes of a domain.
    rejections: Option<RejectionIndex>,
    /// Cached explanation if no node is feasible, until the next change. With a required
    /// anti-affinity, for this deployment.
    explained: Option<(Option<ReplicaKey>, Unschedulable)>,
}

impl Ranking {
    /// Creates the ranking of a template, which [`shared`] returned for `request`.
    pub(crate) fn new(
        template: ReplicaRequest,
        request: &ReplicaRequest,
        nodes: &[NodeState],
        fits: &Fits<'_>,
        changes: &Changes,
    ) -> Self {
        let mut ranking = Self {
            template,
            epoch: changes.epoch,
            applied: changes.nodes.len(),
            scores: vec![None; nodes.len()],
            heaps: Vec::new(),
            entries: 0,
            feasible: 0,
            domains: Domains::new(request, nodes),
            rejections: None,
            explained: None,
        };
        for (at, node) in nodes.iter().enumerate() {
            ranking.scores[at] = ranking.score(at, node, fits);
        }
        ranking.feasible = ranking.scores.iter().flatten().count();
        ranking.rebuild_heaps();
        ranking
    }

    pub(crate) fn is_of(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// Returns whether the ranking is for requests of this template, which [`shared`] returned.
    pub(crate) fn is_for(&self, template: &ReplicaRequest, epoch: u64) -> bool {
        self.is_of(epoch) && self.template.is_like(template)
    }

    /// Returns the number of nodes that accept the request, without considering the spread.
    pub(crate) fn feasible(&self) -> usize {
        self.feasible
    }

    fn score(&self, at: usize, node: &NodeState, fits: &Fits<'_>) -> Option<PlacementScore> {
        let fit = &fits[node.machine_id];
        let load = node.load_for(&self.template);
        filter(&self.template, node, fit, &load).ok()?;
        Some(PlacementScore::new(&self.template, at, node, fit, &load))
    }

    fn heap_of(&self, at: usize) -> usize {
        self.domains.as_ref().map_or(0, |domains| domains.of(at))
    }

    /// Builds the heaps from the scores.
    fn rebuild_heaps(&mut self) {
        let heaps = self.domains.as_ref().map_or(1, Domains::len);
        let mut entries_by_heap: Vec<Vec<Reverse<PlacementScore>>> = vec![Vec::new(); heaps];
        for score in self.scores.iter().flatten() {
            entries_by_heap[self.heap_of(score.at)].push(Reverse(*score));
        }
        self.heaps = entries_by_heap.into_iter().map(BinaryHeap::from).collect();
        self.entries = self.feasible;
    }

    /// Applies all changes since the last call.
    pub(crate) fn catch_up(&mut self, nodes: &[NodeState], fits: &Fits<'_>, changes: &Changes) {
        let new = &changes.nodes[self.applied..];
        if !new.is_empty() {
            self.explained = None;
            self.rejections.take_if(|rejections| !rejections.mark(new));
        }
        for &at in new {
            if let Some(domains) = &mut self.domains {
                domains.recount(at, &nodes[at], &self.template);
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
        self.applied = changes.nodes.len();
        if self.entries > MAX_ENTRIES_PER_NODE * nodes.len() {
            self.rebuild_heaps();
        }
    }

    /// Returns up to `count` nodes, best first.
    ///
    /// `held`: indices of nodes with replicas of the same deployment, and the numbers of replicas.
    /// `apart`: excludes those nodes.
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
            // If a node returns to a previous score, the heap contains that score twice.
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

    /// Returns why no node accepts the request. Consecutive requests with the same requirements share the
    /// answer.
    ///
    /// `own`: indices of the nodes on which the answer depends on the deployment or the nomination of this
    /// request. `reserve`: number of node failures that the node-loss reserve covers.
    pub(crate) fn explain(
        &mut self,
        request: &ReplicaRequest,
        own: &[usize],
        reserve: usize,
        nodes: &[NodeState],
        fits: &Fits<'_>,
    ) -> Unschedulable {
        let is_apart = request.anti_affinity() == AntiAffinity::Required;
        let deployment = request.deployment.as_ref().filter(|_| is_apart);
        if let Some((known, explained)) = &self.explained
            && known.as_ref() == deployment
        {
            return explained.clone();
        }
        let search = |request| Search::new(request, nodes, fits, self.domains.as_ref(), reserve);
        let this = search(request);
        let explained = if self.domains.is_some() {
            Unschedulable::new(&this, &RejectionIndex::new(&this))
        } else {
            let shared = search(&self.template);
            let known = self.rejections.take();
            let mut rejections = known.unwrap_or_else(|| RejectionIndex::new(&shared));
            rejections.update(&shared);
            let shared: Vec<_> = own
                .iter()
                .map(|at| (*at, rejections.evaluate_again(&this, *at)))
                .collect();
            let explained = Unschedulable::new(&this, &rejections);
            for (at, findings) in shared.into_iter().rev() {
                rejections.replace(at, findings);
            }
            self.rejections = Some(rejections);
            explained
        };
        self.explained = Some((deployment.cloned(), explained.clone()));
        explained
    }

    /// Returns the best entry of a heap that is still valid, and removes outdated ones.
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

/// Returns the part of a request that determines the ranking. The deployment is included only with
/// a spread. The key is empty, so that nominations of all replicas count.
pub(crate) fn shared(request: &ReplicaRequest) -> ReplicaRequest {
    let no_key = ReplicaKey {
        namespace: String::new(),
        name: String::new(),
    };
    let mut shared = ReplicaRequest {
        key: no_key,
        nominated: None,
        ..request.clone()
    };
    if shared.placement.spread.is_none() {
        shared.deployment = None;
        shared.revision = None;
    }
    shared
}
