//! Zones, racks, or whatever a label of the nodes names: how many replicas of a deployment's
//! revision each has, and how many it may have. The rules of Kubernetes' topology spread
//! constraints with `matchLabelKeys: [pod-template-hash]`: what a rollout leaves is spread, in
//! whatever order it replaces.

use std::collections::BTreeMap;

use super::rejection::Rejection;
use crate::fleet::node::NodeState;
use crate::request::ReplicaRequest;
use rooflet_api::v1alpha1::{TopologySpread, WhenUnsatisfiable};

/// The label that makes every node a domain of its own, whether it carries it or not.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The domains of one request's spread.
#[derive(Debug, Clone)]
pub(crate) struct Domains {
    spread: TopologySpread,
    /// The domain of each node; `None` for one without the label.
    of: Vec<Option<usize>>,
    names: Vec<String>,
    /// Replicas of the revision on each node, and in each domain.
    copies: Vec<u32>,
    counts: Vec<u32>,
    /// Whether a node of the domain is one that the placement asks for: only then its number
    /// counts.
    eligible: Vec<bool>,
}

impl Domains {
    pub(crate) fn new(request: &ReplicaRequest, nodes: &[NodeState]) -> Option<Self> {
        let spread = request.placement.spread.clone()?;
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        let mut domains = Self {
            of: Vec::with_capacity(nodes.len()),
            names: Vec::new(),
            copies: Vec::with_capacity(nodes.len()),
            counts: Vec::new(),
            eligible: Vec::new(),
            spread,
        };
        for node in nodes {
            let label = node.labels.get(&domains.spread.topology_key);
            let value = match label {
                Some(value) => Some(value.as_str()),
                None if domains.spread.topology_key == HOSTNAME => Some(node.name.as_str()),
                None => None,
            };
            let copies = node.copies_of(request).same;
            let domain = value.map(|value| {
                *known.entry(value).or_insert_with(|| {
                    domains.names.push(value.to_owned());
                    domains.counts.push(0);
                    domains.eligible.push(false);
                    domains.counts.len() - 1
                })
            });
            if let Some(domain) = domain {
                domains.counts[domain] += copies;
                domains.eligible[domain] |= node.is_selected(&request.placement);
            }
            domains.of.push(domain);
            domains.copies.push(copies);
        }
        Some(domains)
    }

    /// What the node at this place has has changed.
    pub(crate) fn recount(&mut self, at: usize, node: &NodeState, request: &ReplicaRequest) {
        let copies = node.copies_of(request).same;
        let before = std::mem::replace(&mut self.copies[at], copies);
        if let Some(domain) = self.of[at] {
            self.counts[domain] = self.counts[domain] + copies - before;
        }
    }

    /// The number of domains, and one for nodes in none.
    pub(crate) fn len(&self) -> usize {
        self.counts.len() + 1
    }

    /// The domain of the node at this place; the last for one in none.
    pub(crate) fn of(&self, at: usize) -> usize {
        self.of[at].unwrap_or(self.counts.len())
    }

    /// The fewest replicas that a domain has.
    pub(crate) fn fewest(&self) -> u32 {
        let eligible = self.counts.iter().zip(&self.eligible);
        eligible
            .filter(|(_, eligible)| **eligible)
            .map(|(count, _)| *count)
            .min()
            .unwrap_or(0)
    }

    /// By how much one more replica in the domain would exceed the bound, where the domain with the
    /// fewest has `fewest`. `None`: it may not be there.
    pub(crate) fn excess(&self, domain: usize, fewest: u32) -> Option<u32> {
        let binds = match self.spread.when_unsatisfiable {
            WhenUnsatisfiable::DoNotSchedule => true,
            WhenUnsatisfiable::ScheduleAnyway => false,
        };
        let excess = match self.counts.get(domain) {
            Some(count) => {
                let skew = (count + 1).saturating_sub(fewest);
                skew.saturating_sub(u32::try_from(self.spread.max_skew).unwrap_or(0))
            }
            None => u32::MAX,
        };
        (excess == 0 || !binds).then_some(excess)
    }

    /// Why the node at this place may not have one more, if it may not.
    pub(crate) fn against(&self, at: usize) -> Option<Rejection> {
        self.objections()(at)
    }

    pub(crate) fn allows(&self, at: usize) -> bool {
        self.against(at).is_none()
    }

    /// [`Domains::against`] for many places.
    pub(crate) fn objections(&self) -> impl Fn(usize) -> Option<Rejection> {
        let fewest = self.fewest();
        move |at| {
            let domain = self.of(at);
            if self.excess(domain, fewest).is_some() {
                return None;
            }
            let key = &self.spread.topology_key;
            Some(match self.names.get(domain) {
                Some(name) => Rejection::Skew {
                    domain: format!("{key}={name}"),
                },
                None => Rejection::TopologyKeyMissing { key: key.clone() },
            })
        }
    }

    /// The least bound with which the node at this place might have one more; `None` for one
    /// without the label.
    pub(crate) fn skew_with(&self, at: usize) -> Option<u32> {
        let count = self.counts.get(self.of(at))?;
        Some((count + 1).saturating_sub(self.fewest()))
    }
}
