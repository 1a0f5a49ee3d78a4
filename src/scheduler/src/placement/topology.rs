//! Topology spread: numbers of replicas of a revision in each domain of a node label, such as zones
//! or racks.
//!
//! Follows Kubernetes' topology spread constraints with `matchLabelKeys: [pod-template-hash]`: the
//! result of a rollout is spread, in any order of replacement.

use std::collections::BTreeMap;

use super::rejection::Rejection;
use crate::fleet::node::NodeState;
use crate::request::ReplicaRequest;
use rooflet_api::v1alpha1::{TopologySpread, WhenUnsatisfiable};

/// Label that makes every node its own domain, even without the label.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Domains of a request's spread.
#[derive(Debug, Clone)]
pub(crate) struct Domains {
    spread: TopologySpread,
    /// Domain of each node; `None` without the label.
    of: Vec<Option<usize>>,
    names: Vec<String>,
    /// Numbers of replicas of the revision on each node and in each domain.
    copies: Vec<u32>,
    counts: Vec<u32>,
    /// True if the node selector matches a node of the domain. Other domains do not count for the
    /// minimum.
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

    /// Updates the counts after a change of the node at index `at`.
    pub(crate) fn recount(&mut self, at: usize, node: &NodeState, request: &ReplicaRequest) {
        let copies = node.copies_of(request).same;
        let before = std::mem::replace(&mut self.copies[at], copies);
        if let Some(domain) = self.of[at] {
            self.counts[domain] = self.counts[domain] + copies - before;
        }
    }

    /// Returns the number of domains plus one for nodes without a domain.
    pub(crate) fn len(&self) -> usize {
        self.counts.len() + 1
    }

    /// Returns the domain of the node at index `at`; the last one for nodes without a domain.
    pub(crate) fn of(&self, at: usize) -> usize {
        self.of[at].unwrap_or(self.counts.len())
    }

    /// Returns the minimum number of replicas over all eligible domains.
    pub(crate) fn fewest(&self) -> u32 {
        let eligible = self.counts.iter().zip(&self.eligible);
        eligible
            .filter(|(_, eligible)| **eligible)
            .map(|(count, _)| *count)
            .min()
            .unwrap_or(0)
    }

    /// Returns by how much one more replica in the domain would exceed maxSkew; `fewest` is the
    /// minimum over all domains. Returns `None` if the spread forbids the replica.
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

    /// Returns why the spread forbids one more replica on the node at index `at`.
    pub(crate) fn against(&self, at: usize) -> Option<Rejection> {
        self.objection(at, self.fewest())
    }

    pub(crate) fn allows(&self, at: usize) -> bool {
        self.against(at).is_none()
    }

    /// Like [`Domains::against`]. `fewest`: the minimum over all domains.
    pub(crate) fn objection(&self, at: usize, fewest: u32) -> Option<Rejection> {
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

    /// Returns the smallest maxSkew that permits one more replica on the node at index `at`, or
    /// `None` without the label.
    pub(crate) fn skew_with(&self, at: usize) -> Option<u32> {
        let count = self.counts.get(self.of(at))?;
        Some((count + 1).saturating_sub(self.fewest()))
    }
}
