//! Decides for all waiting replicas, one after the other, each on what the ones before have left.

use std::fmt;

use super::filter::filter;
use super::preempt::{Preemption, preempt};
use super::repair::repair;
use super::reserve::survives;
use super::score::PlacementScore;
use crate::fleet::Fleet;
use crate::request::{ReplicaKey, ReplicaRequest};
use crate::unschedulable::{Search, Unschedulable};
use rooflet_api::v1alpha1::{AntiAffinity, PlacementStrategy};
use rooflet_roofline::admission::Verdict;

/// Nodes that are shown beside the one that is chosen.
const SHOWN_NODES: usize = 3;
/// Nodes that are tried while a reserve for failures is kept.
const TRIED_NODES: usize = 16;
/// The most decisions of one call that are looked at once more, and how often they are. One alone
/// knew all there is.
const MAX_POLISHED: usize = 256;
const POLISHING_ROUNDS: usize = 3;

/// Where a replica goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    node: String,
    /// `None` while only the agent can tell.
    pub needed: Option<Verdict>,
    pub table: ScoreTable,
}

impl Placement {
    pub fn node(&self) -> &str {
        &self.node
    }
}

/// How the node compares with the next ones. `Display` is of bounded length.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreTable {
    strategy: PlacementStrategy,
    /// The chosen one first.
    rows: Vec<(String, PlacementScore)>,
    /// How many nodes could take it, and how many there are.
    feasible: usize,
    nodes: usize,
}

impl ScoreTable {
    /// The score of the node that is chosen.
    pub(crate) fn chosen(&self) -> Option<&PlacementScore> {
        self.rows.first().map(|(_, score)| score)
    }
}

impl fmt::Display for ScoreTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let strategy = match self.strategy {
            PlacementStrategy::SloSlack => "SloSlack",
            PlacementStrategy::BinPack => "BinPack",
            PlacementStrategy::Spread => "Spread",
            PlacementStrategy::Fastest => "Fastest",
        };
        write!(
            f,
            "{} of {} nodes fit, best by {strategy}: ",
            self.feasible, self.nodes
        )?;
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|(node, score)| format!("{node} ({})", score.columns()))
            .collect();
        f.write_str(&rows.join("; "))
    }
}

/// What is to become of one waiting replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub key: ReplicaKey,
    pub outcome: Result<Placement, Unschedulable>,
    /// Who leaves for it where there is no room.
    pub preemption: Option<Preemption>,
}

/// The best node for one replica. Nothing is promised.
pub(crate) fn place(request: &ReplicaRequest, fleet: &mut Fleet) -> Result<Placement, Unschedulable> {
    choose(request, fleet).ok_or_else(|| explain(request, fleet))
}

/// [`place`] without a word where there is none.
pub(crate) fn choose(request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Placement> {
    if let Some(placement) = place_where_nominated(request, fleet) {
        return Some(placement);
    }
    let reserve = fleet.reserve_node_failures;
    let tried = if reserve > 0 { TRIED_NODES } else { SHOWN_NODES };
    let affinity = request.anti_affinity();
    // With a spread the ranking is the deployment's own.
    let is_told = affinity != AntiAffinity::Ignored && request.placement.spread.is_none();
    let held = if is_told {
        fleet.siblings(request)
    } else {
        Vec::new()
    };
    let apart = affinity == AntiAffinity::Required;
    let mut best = fleet.ranked(request, |ranking, _, _| ranking.best(tried, &held, apart));
    if reserve > 0 {
        best.retain(|score| survives(request, score.at, fleet));
    }
    best.truncate(SHOWN_NODES);
    let chosen = best.first()?;
    fleet.ranked(request, |ranking, nodes, fits| {
        let node = &nodes[chosen.at];
        let appraisal = fits[node.machine_id].appraisal.as_ref();
        let load = node.load_for(request);
        Some(Placement {
            node: node.name.clone(),
            needed: appraisal.map(|appraisal| node.with_supply(&load, |supply| appraisal.verdict(supply))),
            table: ScoreTable {
                strategy: request.placement.strategy,
                rows: best
                    .iter()
                    .map(|score| (nodes[score.at].name.clone(), *score))
                    .collect(),
                feasible: ranking.feasible(),
                nodes: nodes.len(),
            },
        })
    })
}

/// Why it has no node. Replicas of one deployment that are asked for in a row have the same answer.
fn explain(request: &ReplicaRequest, fleet: &mut Fleet) -> Unschedulable {
    let reserve = fleet.reserve_node_failures;
    fleet.ranked(request, |ranking, nodes, fits| {
        let known = ranking
            .explained
            .take()
            .filter(|(deployment, _)| *deployment == request.deployment);
        let (_, explained) = ranking.explained.insert(known.unwrap_or_else(|| {
            let explained = Unschedulable::new(&Search {
                request,
                nodes,
                fits,
                domains: ranking.domains.as_ref(),
                reserve,
            });
            (request.deployment.clone(), explained)
        }));
        explained.clone()
    })
}

/// The node where others have left for it is taken before any other, if it can.
fn place_where_nominated(request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Placement> {
    let at = fleet.position(request.nominated.as_deref()?).ok()?;
    let (fits, nodes) = fleet.fits(request);
    let node = &nodes[at];
    let fit = &fits[node.machine_id];
    let load = node.load_for(request);
    filter(request, node, fit, &load).ok()?;
    if super::topology::Domains::new(request, nodes)
        .and_then(|domains| domains.against(at))
        .is_some()
    {
        return None;
    }
    let score = PlacementScore::new(request, at, node, fit, &load);
    let placement = Placement {
        node: node.name.clone(),
        needed: fit
            .appraisal
            .as_ref()
            .map(|appraisal| node.with_supply(&load, |supply| appraisal.verdict(supply))),
        table: ScoreTable {
            strategy: request.placement.strategy,
            rows: vec![(node.name.clone(), score)],
            feasible: 1,
            nodes: nodes.len(),
        },
    };
    (fleet.reserve_node_failures == 0 || survives(request, at, fleet)).then_some(placement)
}

/// [`decide_all`] where nothing that is bound leaves.
pub fn bind_all<'a>(
    requests: impl IntoIterator<Item = &'a ReplicaRequest>,
    fleet: &mut Fleet,
) -> Vec<Decision> {
    decide_all(requests, fleet, 0)
}

/// Decides for every request in the order given, and enters each placement into `fleet`. What finds
/// no room may move others of the same call, which are nowhere yet, to other nodes; and so many of
/// them may preempt what is bound, for which they should come in order of priority.
pub fn decide_all<'a>(
    requests: impl IntoIterator<Item = &'a ReplicaRequest>,
    fleet: &mut Fleet,
    mut preemptions: usize,
) -> Vec<Decision> {
    let requests: Vec<_> = requests.into_iter().collect();
    let mut decisions: Vec<_> = requests
        .iter()
        .map(|request| {
            let outcome = place(request, fleet);
            if let Ok(placement) = &outcome {
                fleet.end_nomination(&request.key);
                fleet.promise(request, placement.node());
            }
            let mut preemption = None;
            if outcome.is_err() && preemptions > 0 {
                preemption = preempt(request, fleet);
                preemptions -= usize::from(preemption.is_some());
            }
            Decision {
                key: request.key.clone(),
                outcome,
                preemption,
            }
        })
        .collect();
    repair(&requests, &mut decisions, fleet);
    polish(&requests, &mut decisions, fleet);
    decisions
}

/// Decides once more for each placement, now that all others are known. What is decided in one call
/// begins at the same time, so the first need not have the worst of it.
fn polish(requests: &[&ReplicaRequest], decisions: &mut [Decision], fleet: &mut Fleet) {
    if !(2..=MAX_POLISHED).contains(&decisions.len()) || fleet.reserve_node_failures > 0 {
        return;
    }
    for _ in 0..POLISHING_ROUNDS {
        let mut moved = false;
        for (request, decision) in requests.iter().zip(decisions.iter_mut()) {
            let Ok(placement) = &mut decision.outcome else {
                continue;
            };
            // One of which nobody knows what it takes fills its node: it came where there was least
            // to lose.
            if placement.needed.is_none() {
                continue;
            }
            fleet.take_back(&request.key, None);
            if let Some(better) = choose(request, fleet) {
                moved |= better.node != placement.node;
                *placement = better;
            }
            fleet.promise(request, placement.node());
        }
        if !moved {
            return;
        }
    }
}
