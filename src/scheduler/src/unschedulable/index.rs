//! Rejections of one kind of request by all nodes, updated incrementally.
//!
//! An explanation needs the number of nodes with each reason and the closest of them, so its cost
//! depends on the number of reasons and not on the number of nodes.

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use crate::placement::rejection::Rejection;
use crate::unschedulable::Search;
use rooflet_base::units::Bytes;

/// Number of noted changes for which an index of any size is kept.
const MIN_STALE: usize = 64;

/// Distance within one kind of rejection; higher is closer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Margin(f64);

impl Eq for Margin {}

impl PartialOrd for Margin {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Margin {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Indices of nodes by distance to a placement. The last one is the closest; of equal nodes, the
/// first by name.
type Members = BTreeSet<(Margin, Reverse<usize>)>;

/// Class of the nodes, rank and summary of their first rejection.
type GroupKey = (String, u8, Cow<'static, str>);

/// Properties of one node that an explanation needs.
#[derive(Debug, Clone)]
pub(crate) struct Findings {
    /// Class, and first rejection if there is any.
    group: Option<(usize, Margin)>,
    /// Set of rejection kinds.
    case: (u32, Margin),
    has_copy: bool,
    is_selected: bool,
    size: Size,
}

/// Whether a node could run the request without other replicas.
#[derive(Debug, Clone, Copy)]
enum Size {
    Sufficient,
    Insufficient,
    /// The requirements on this node are unknown. Contains its memory for replicas.
    Unknown(Bytes),
}

/// Rejections of one kind of request; see the module documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct RejectionIndex {
    nodes: Vec<Findings>,
    /// Nodes of one class with the same summary.
    groups: Vec<Members>,
    by_key: BTreeMap<GroupKey, usize>,
    cases: BTreeMap<u32, Members>,
    /// Nodes with a servable copy of the model.
    copies: BTreeSet<usize>,
    /// Number of nodes that match the node selector.
    selected: usize,
    /// Number of nodes that could run the request without other replicas.
    sufficient: usize,
    /// Number of nodes with unknown requirements, by memory.
    unknown: BTreeMap<Bytes, usize>,
    /// Changed nodes that are not evaluated yet.
    stale: Vec<usize>,
}

impl RejectionIndex {
    /// Evaluates every node.
    pub(crate) fn new(search: &Search<'_>) -> Self {
        let mut index = Self {
            nodes: Vec::with_capacity(search.nodes.len()),
            ..Self::default()
        };
        for at in 0..search.nodes.len() {
            let findings = index.evaluate(search, at);
            index.add(at, &findings);
            index.nodes.push(findings);
        }
        index
    }

    /// Notes changed nodes. Returns false if an index of all nodes would cost less than the update.
    pub(crate) fn mark(&mut self, changed: &[usize]) -> bool {
        self.stale.extend_from_slice(changed);
        self.stale.len() <= self.nodes.len().max(MIN_STALE)
    }

    /// Evaluates the nodes that changed since the last call.
    pub(crate) fn update(&mut self, search: &Search<'_>) {
        let mut stale = std::mem::take(&mut self.stale);
        stale.sort_unstable();
        stale.dedup();
        for at in stale {
            self.evaluate_again(search, at);
        }
    }

    /// Evaluates one node, and returns the earlier findings.
    pub(crate) fn evaluate_again(&mut self, search: &Search<'_>, at: usize) -> Findings {
        let findings = self.evaluate(search, at);
        self.replace(at, findings)
    }

    /// Replaces the findings of one node, and returns the earlier ones.
    pub(crate) fn replace(&mut self, at: usize, findings: Findings) -> Findings {
        let before = self.nodes[at].clone();
        self.remove(at, &before);
        self.add(at, &findings);
        self.nodes[at] = findings;
        before
    }

    fn evaluate(&mut self, search: &Search<'_>, at: usize) -> Findings {
        let (first, case) = search.evaluate(at);
        let node = &search.nodes[at];
        let group =
            first.map(|rejection| (self.group_of(&node.class, &rejection), Margin(rejection.margin())));
        let request = search.request;
        let requirements = search.fits[node.machine_id].requirements.as_ref();
        let size = match requirements {
            Some(requirements) if requirements.fits_empty_node(node.allocatable) => Size::Sufficient,
            Some(_) => Size::Insufficient,
            None => Size::Unknown(node.allocatable),
        };
        // Requirements are computed from a servable copy.
        let has_copy = requirements.is_some()
            || (node.machine.model_of(request)).is_some_and(|model| request.served(model).is_some());
        Findings {
            group,
            case: (case.kinds, Margin(case.margin)),
            has_copy,
            is_selected: node.is_selected(&request.placement),
            size,
        }
    }

    fn group_of(&mut self, class: &str, rejection: &Rejection) -> usize {
        let key = (class.to_owned(), rejection.rank(), rejection.summary());
        *self.by_key.entry(key).or_insert_with(|| {
            self.groups.push(Members::new());
            self.groups.len() - 1
        })
    }

    fn add(&mut self, at: usize, findings: &Findings) {
        if let Some((group, margin)) = findings.group {
            self.groups[group].insert((margin, Reverse(at)));
        }
        let (kinds, margin) = findings.case;
        self.cases.entry(kinds).or_default().insert((margin, Reverse(at)));
        if findings.has_copy {
            self.copies.insert(at);
        }
        self.selected += usize::from(findings.is_selected);
        match findings.size {
            Size::Sufficient => self.sufficient += 1,
            Size::Insufficient => {}
            Size::Unknown(memory) => *self.unknown.entry(memory).or_default() += 1,
        }
    }

    fn remove(&mut self, at: usize, findings: &Findings) {
        if let Some((group, margin)) = findings.group {
            self.groups[group].remove(&(margin, Reverse(at)));
        }
        let (kinds, margin) = findings.case;
        if let Some(members) = self.cases.get_mut(&kinds) {
            members.remove(&(margin, Reverse(at)));
        }
        self.copies.remove(&at);
        self.selected -= usize::from(findings.is_selected);
        match findings.size {
            Size::Sufficient => self.sufficient -= 1,
            Size::Insufficient => {}
            Size::Unknown(memory) => {
                let count = self.unknown.entry(memory).or_default();
                *count -= 1;
                if *count == 0 {
                    self.unknown.remove(&memory);
                }
            }
        }
    }

    /// Returns the groups, ordered by class, rank and summary: the class, the number of nodes, and the
    /// closest node with its margin.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&str, usize, usize, f64)> {
        self.by_key.iter().filter_map(|((class, ..), group)| {
            let members = &self.groups[*group];
            let (margin, Reverse(at)) = members.last()?;
            Some((class.as_str(), members.len(), *at, margin.0))
        })
    }

    /// Returns the closest node of each set of rejection kinds.
    pub(super) fn cases(&self) -> impl Iterator<Item = usize> {
        self.cases
            .values()
            .filter_map(|members| Some(members.last()?.1.0))
    }

    /// Returns the first node with a servable copy of the model.
    pub(super) fn copy(&self) -> Option<usize> {
        self.copies.first().copied()
    }

    pub(super) fn is_any_selected(&self) -> bool {
        self.selected > 0
    }

    /// Returns whether a node could run the request without other replicas. `needed`: memory on nodes
    /// with unknown requirements, if known.
    pub(super) fn could_ever_hold(&self, needed: Option<Bytes>) -> bool {
        let largest = self.unknown.keys().next_back();
        self.sufficient > 0 || largest.is_some_and(|largest| needed.is_none_or(|needed| needed <= *largest))
    }
}
