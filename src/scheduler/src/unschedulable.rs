//! Explanation why a replica is unschedulable, aggregated by class of node.

mod remedy;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::ops::ControlFlow;

use super::request::ReplicaRequest;
use crate::fleet::machine::Fits;
use crate::fleet::node::NodeState;
use crate::placement::filter::rejections;
use crate::placement::rejection::Rejection;
use crate::placement::topology::Domains;
use crate::unschedulable::remedy::{Case, Cases, remedies};

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
    /// Number of node failures that the node-loss reserve covers.
    pub(super) reserve: usize,
}

impl Search<'_> {
    /// Calls `report` with every rejection of the node at index `at`. `objection` is the rejection
    /// of the spread.
    pub(super) fn against(&self, at: usize, objection: Option<Rejection>, mut report: impl FnMut(Rejection)) {
        let node = &self.nodes[at];
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
}

/// Groups of one class, by rank and summary.
type Groups = BTreeMap<(u8, Cow<'static, str>), Group>;

/// Groups of all classes. Thousands of nodes have few machines, so the class of a machine is looked
/// up once.
#[derive(Default)]
struct Classes<'a> {
    all: Vec<(&'a str, Groups)>,
    by_name: BTreeMap<&'a str, usize>,
    by_machine: HashMap<usize, usize>,
}

impl<'a> Classes<'a> {
    fn groups_of(&mut self, node: &'a NodeState) -> &mut Groups {
        let known = self.by_machine.get(&node.machine_id).copied();
        let at = match known.filter(|at| self.all[*at].0 == node.class) {
            Some(at) => at,
            None => {
                let at = *self.by_name.entry(&node.class).or_insert_with(|| {
                    self.all.push((&node.class, Groups::new()));
                    self.all.len() - 1
                });
                self.by_machine.insert(node.machine_id, at);
                at
            }
        };
        &mut self.all[at].1
    }

    /// Returns the classes by name.
    fn in_order(mut self) -> impl Iterator<Item = (&'a str, Groups)> {
        self.all.sort_by_key(|(name, _)| *name);
        self.all.into_iter()
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

    /// Evaluates every node.
    pub(super) fn new(search: &Search<'_>) -> Self {
        let mut classes = Classes::default();
        let mut cases = Cases::default();
        let objections = search.domains.map(Domains::objections);
        for (at, node) in search.nodes.iter().enumerate() {
            let objection = objections.as_ref().and_then(|objections| objections(at));
            let mut first: Option<Rejection> = None;
            let mut case = Case::new(node, at, search.request);
            search.against(at, objection, |rejection| {
                case.add(&rejection);
                first.get_or_insert(rejection);
            });
            cases.add_closest(case);
            let Some(rejection) = first else { continue };
            let margin = rejection.margin();
            let groups = classes.groups_of(node);
            match groups.get_mut(&(rejection.rank(), rejection.summary())) {
                None => {
                    let key = (rejection.rank(), rejection.summary());
                    let group = Group {
                        nodes: 1,
                        margin,
                        nearest: (at, rejection),
                    };
                    groups.insert(key, group);
                }
                Some(group) => {
                    group.nodes += 1;
                    if margin > group.margin {
                        (group.margin, group.nearest) = (margin, (at, rejection));
                    }
                }
            }
        }
        let mut classes: Vec<(&str, Vec<Group>)> = classes
            .in_order()
            .map(|(name, groups)| {
                let mut groups: Vec<_> = groups.into_values().collect();
                groups.sort_by(|a, b| nearest_first(a.nearness(), b.nearness()));
                (name, groups)
            })
            .collect();
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
            remedies: remedies(search, &cases),
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
