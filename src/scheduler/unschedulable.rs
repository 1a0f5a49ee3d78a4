//! Why a replica has no node, told for all nodes together.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::filter::{Rejection, filter};
use super::machine::Fits;
use super::node::NodeState;
use super::request::ReplicaRequest;
use super::topology::Domains;
use crate::api::v1alpha1::ModelSource;
use crate::roofline::admission::suggestions;
use crate::roofline::predict::Parameters;

/// Kinds of shortage whose numbers are told.
const MAX_TOLD: usize = 3;
/// Kinds of reasons that are told, those that are nearest to a placement; nodes of the others are counted together.
const MAX_WORDS: usize = 12;

/// What stands against a replica. `Display` is the message of conditions and events.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unschedulable {
    reason: &'static str,
    nodes: usize,
    /// How many nodes have each reason.
    counted: Vec<(String, usize)>,
    /// Numbers of nodes that come near, and what would help there.
    told: Vec<(String, String)>,
}

/// Nodes with the same words.
struct Group {
    count: usize,
    least: f64,
    most: f64,
    /// The place of the node that comes nearest, and its reason.
    nearest: (usize, Rejection),
}

impl Unschedulable {
    /// The reason that is nearest to a placement: what one more change would have to be about.
    pub(crate) fn reason(&self) -> &'static str {
        self.reason
    }

    /// Looks at every node. `reserve` holds nodes that would do, were they not kept for the failure of so many others.
    pub(super) fn new(
        request: &ReplicaRequest,
        nodes: &[NodeState],
        fits: &Fits<'_>,
        domains: Option<&Domains>,
        reserve: usize,
    ) -> Self {
        let mut groups: BTreeMap<(u8, Cow<'static, str>), Group> = BTreeMap::new();
        for (at, node) in nodes.iter().enumerate() {
            let load = node.load_for(request);
            let rejection = match filter(request, node, &fits[node.machine_id], &load) {
                Err(rejection) => rejection,
                Ok(()) => match domains.and_then(|domains| domains.against(at)) {
                    Some(rejection) => rejection,
                    None => Rejection::FailureReserve { nodes: reserve },
                },
            };
            let margin = rejection.margin();
            let key = (rejection.rank(), rejection.words());
            match groups.get_mut(&key) {
                None => {
                    let group = Group {
                        count: 1,
                        least: margin,
                        most: margin,
                        nearest: (at, rejection),
                    };
                    groups.insert(key, group);
                }
                Some(group) => {
                    group.count += 1;
                    group.least = group.least.min(margin);
                    if margin >= group.most {
                        (group.most, group.nearest) = (margin, (at, rejection));
                    }
                }
            }
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        let reason = groups
            .last()
            .map_or("NoNodes", |(_, group)| group.nearest.1.reason());
        groups.sort_by(|((rank, _), a), ((other, _), b)| rank.cmp(other).then(a.most.total_cmp(&b.most)));
        let told = groups
            .iter()
            .rev()
            .filter_map(|(_, group)| {
                let (at, rejection) = &group.nearest;
                let node = &nodes[*at];
                let (fit, load) = (&fits[node.machine_id], node.load_for(request));
                let mut text = rejection.clone().with_victim(fit, &load).working()?;
                text.push_str(&help(request, node));
                Some((node.name.clone(), text))
            })
            .take(MAX_TOLD)
            .collect();
        groups.sort_by(|((rank, _), a), ((other, _), b)| rank.cmp(other).then(a.least.total_cmp(&b.least)));
        let untold = groups.len().saturating_sub(MAX_WORDS);
        let others: usize = groups.drain(..untold).map(|(_, group)| group.count).sum();
        let mut counted: Vec<_> = groups
            .into_iter()
            .map(|((_, words), group)| (words.into_owned(), group.count))
            .collect();
        if others > 0 {
            counted.insert(0, ("had other reasons".to_owned(), others));
        }
        Self {
            reason,
            nodes: nodes.len(),
            counted,
            told,
        }
    }
}

/// Changes of which each alone would admit the replica on the node.
fn help(request: &ReplicaRequest, node: &NodeState) -> String {
    let model = match &request.source {
        Some(ModelSource::Local(name)) => node.machine.model(name),
        Some(ModelSource::File(_)) | None => None,
    };
    let Some((model, served)) = model.and_then(|model| Some((model, request.served(model)?))) else {
        return String::new();
    };
    let ask = request.ask(model, &served);
    let load = node.load_for(request);
    let found = node.with_supply(&load, |supply| suggestions(&ask, supply, Parameters::built_in()));
    if found.is_empty() {
        return String::new();
    }
    let changes: Vec<_> = found.iter().map(ToString::to_string).collect();
    format!("; {} would fit", changes.join(" or "))
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("0/0 nodes are available: no FleetNode has joined");
        }
        write!(f, "0/{} nodes are available: ", self.nodes)?;
        let parts: Vec<_> = self
            .counted
            .iter()
            .map(|(words, count)| format!("{count} {words}"))
            .collect();
        f.write_str(&parts.join(", "))?;
        for (node, working) in &self.told {
            write!(f, "; {node}: {working}")?;
        }
        Ok(())
    }
}
