//! Explanation why a replica is unschedulable, aggregated by class of node.

pub(crate) mod index;
mod remedy;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::ops::ControlFlow;

use super::request::ReplicaRequest;
use crate::fleet::machine::Fits;
use crate::fleet::node::NodeState;
use crate::placement::filter::rejections;
use crate::placement::rejection::Rejection;
use crate::placement::topology::Domains;
use crate::unschedulable::index::RejectionIndex;
use crate::unschedulable::remedy::{Case, remedies};

/// Maximum number of node classes in a message, and of their reasons in total. Nodes of other
/// classes are only counted.
const MAX_CLASSES: usize = 6;
const MAX_REASONS: usize = 12;
/// Maximum number of shortages with detailed numbers.
const MAX_SHORTAGES: usize = 2;

/// Reasons why no node accepts a replica. `Display` is the message of conditions and events, with a
/// bounded length.
#[derive(Debug, Clone, PartialEq)]
pub struct Unschedulable {
    reason: &'static str,
    nodes: usize,
    /// Sorted by distance to a placement, closest first.
    classes: Vec<Class>,
    /// Numbers of omitted classes and their nodes.
    others: (usize, usize),
    /// Node names and detailed numbers of the closest nodes.
    shortages: Vec<(String, String)>,
    /// Alternative remedies, smallest change first.
    remedies: Vec<String>,
}

/// Nodes of one chip and memory size.
#[derive(Debug, Clone, PartialEq)]
struct Class {
    name: String,
    nodes: usize,
    /// Number of nodes for each reason.
    reasons: Vec<(usize, String)>,
}

/// Unschedulable request, and the nodes that reject it.
pub(super) struct Search<'a> {
    pub(super) request: &'a ReplicaRequest,
    pub(super) nodes: &'a [NodeState],
    pub(super) fits: &'a Fits<'a>,
    pub(super) domains: Option<&'a Domains>,
    /// Minimum number of replicas over all domains.
    fewest: u32,
    /// Number of node failures that the node-loss reserve covers.
    reserve: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        request: &'a ReplicaRequest,
        nodes: &'a [NodeState],
        fits: &'a Fits<'a>,
        domains: Option<&'a Domains>,
        reserve: usize,
    ) -> Self {
        Self {
            request,
            nodes,
            fits,
            domains,
            fewest: domains.map_or(0, Domains::fewest),
            reserve,
        }
    }

    /// Calls `report` with every rejection of the node at index `at`. The rejection of the spread is
    /// the last one.
    fn against(&self, at: usize, mut report: impl FnMut(Rejection)) {
        let node = &self.nodes[at];
        let objection = self
            .domains
            .and_then(|domains| domains.objection(at, self.fewest));
        let load = node.load_for(self.request);
        let mut is_free = true;
        let ControlFlow::Continue(()) = rejections(
            self.request,
            node,
            &self.fits[node.machine_id],
            &load,
            |rejection| {
                is_free = false;
                report(rejection);
                ControlFlow::<Infallible>::Continue(())
            },
        );
        let nodes = self.reserve;
        let last = objection.or(is_free.then_some(Rejection::FailureReserve { nodes }));
        if let Some(rejection) = last {
            report(rejection);
        }
    }

    /// Returns the first rejection of the node at index `at`, and the set of all.
    fn evaluate(&self, at: usize) -> (Option<Rejection>, Case) {
        let mut first: Option<Rejection> = None;
        let mut case = Case::new(&self.nodes[at], at, self.request);
        self.against(at, |rejection| {
            case.add(&rejection);
            first.get_or_insert(rejection);
        });
        (first, case)
    }
}

/// Nodes of one class with the same summary.
struct Group {
    nodes: usize,
    margin: f64,
    /// Index and rejection of the closest node.
    nearest: (usize, Rejection),
}

impl Group {
    fn nearness(&self) -> (u8, f64) {
        (self.nearest.1.rank(), self.margin)
    }

    fn text(&self) -> String {
        let rejection = &self.nearest.1;
        match rejection.at_most() {
            Some(figure) => format!("{} ({figure})", rejection.summary()),
            None => rejection.summary().into_owned(),
        }
    }
}

fn nearest_first(a: (u8, f64), b: (u8, f64)) -> Ordering {
    b.0.cmp(&a.0).then(b.1.total_cmp(&a.1))
}

impl Unschedulable {
    /// Returns the reason of the node that is closest to a placement.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// Explains the rejections in `index`.
    pub(super) fn new(search: &Search<'_>, index: &RejectionIndex) -> Self {
        let mut by_class: BTreeMap<&str, Vec<Group>> = BTreeMap::new();
        for (class, nodes, at, margin) in index.groups() {
            let (Some(rejection), _) = search.evaluate(at) else {
                continue;
            };
            by_class.entry(class).or_default().push(Group {
                nodes,
                margin,
                nearest: (at, rejection),
            });
        }
        let mut classes: Vec<(&str, Vec<Group>)> = by_class.into_iter().collect();
        for (_, groups) in &mut classes {
            groups.sort_by(|a, b| nearest_first(a.nearness(), b.nearness()));
        }
        let nearness = |groups: &[Group]| groups.first().map_or((0, 0.0), Group::nearness);
        classes.sort_by(|(_, a), (_, b)| nearest_first(nearness(a), nearness(b)));
        let nearest = classes.first().and_then(|(_, groups)| groups.first());
        let reason = nearest.map_or("NoNodes", |group| group.nearest.1.reason());
        let shortages = shortages(search, &classes);
        let reasons = MAX_REASONS / classes.len().clamp(1, MAX_CLASSES);
        let mut classes: Vec<_> = classes
            .into_iter()
            .map(|(name, groups)| Class::new(name, &groups, reasons))
            .collect();
        let omitted = classes.split_off(classes.len().min(MAX_CLASSES));
        Self {
            reason,
            nodes: search.nodes.len(),
            classes,
            others: (omitted.len(), omitted.iter().map(|class| class.nodes).sum()),
            shortages,
            remedies: remedies(search, index),
        }
    }
}

impl Class {
    /// Creates a class with at most `most` reasons.
    fn new(name: &str, groups: &[Group], most: usize) -> Self {
        let mut reasons: Vec<_> = groups
            .iter()
            .take(most)
            .map(|group| (group.nodes, group.text()))
            .collect();
        let others: usize = groups.iter().skip(most).map(|group| group.nodes).sum();
        if others > 0 {
            reasons.push((others, "other reasons".to_owned()));
        }
        Self {
            name: name.to_owned(),
            nodes: groups.iter().map(|group| group.nodes).sum(),
            reasons,
        }
    }
}

/// Returns the numbers of the closest node for each kind of shortage.
fn shortages(search: &Search<'_>, classes: &[(&str, Vec<Group>)]) -> Vec<(String, String)> {
    let mut groups: Vec<&Group> = classes.iter().flat_map(|(_, groups)| groups).collect();
    groups.sort_by(|a, b| nearest_first(a.nearness(), b.nearness()));
    groups.dedup_by_key(|group| group.nearest.1.rank());
    let shortages = groups.into_iter().filter_map(|group| {
        let (at, rejection) = &group.nearest;
        let node = &search.nodes[*at];
        let load = node.load_for(search.request);
        let rejection = rejection.clone();
        let text = rejection
            .with_victim(&search.fits[node.machine_id], &load)
            .working()?;
        Some((node.name.clone(), text))
    });
    shortages.take(MAX_SHORTAGES).collect()
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("0/0 nodes are available: no FleetNode has joined");
        }
        write!(f, "0/{} nodes are available: ", self.nodes)?;
        let classes: Vec<_> = self.classes.iter().map(ToString::to_string).collect();
        f.write_str(&classes.join("; "))?;
        if let (classes @ 1.., nodes) = self.others {
            write!(f, "; {nodes} of {classes} other classes")?;
        }
        for (node, working) in &self.shortages {
            write!(f, "; {node}: {working}")?;
        }
        if !self.remedies.is_empty() {
            write!(
                f,
                ". Remedies, smallest change first: {}",
                self.remedies.join("; ")
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.nodes, self.name)?;
        match self.reasons.as_slice() {
            [(_, reason)] => f.write_str(reason),
            reasons => {
                let reasons: Vec<_> = reasons
                    .iter()
                    .map(|(nodes, reason)| format!("{nodes} {reason}"))
                    .collect();
                f.write_str(&reasons.join(", "))
            }
        }
    }
}
