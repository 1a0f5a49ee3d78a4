//! Choice of a node for one replica: the feasible node with the best score.

use std::fmt;

use super::filter::filter;
use super::preempt::Preemption;
use super::reserve::survives;
use super::score::PlacementScore;
use crate::fleet::Fleet;
use crate::request::{ReplicaKey, ReplicaRequest};
use crate::unschedulable::Unschedulable;
use rooflet_api::v1alpha1::{AntiAffinity, PlacementStrategy};
use rooflet_roofline::admission::Verdict;

/// Maximum number of nodes in a score table, the chosen one included.
const SHOWN_NODES: usize = 3;
/// Maximum number of nodes that are tried if a node-loss reserve is configured.
const TRIED_NODES: usize = 16;

/// Node for a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    node: String,
    /// Verdict of admission; `None` if only the agent can compute it.
    pub needed: Option<Verdict>,
    pub table: ScoreTable,
}

impl Placement {
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns this placement with a table that names the exchange of nodes. `before`: placement of the
    /// same replica before the exchange.
    pub(super) fn exchanged_with(mut self, other: &ReplicaKey, before: &Self) -> Self {
        self.table.exchanged = Some(other.clone());
        self.table.feasible = before.table.feasible;
        self
    }
}

/// Scores of the chosen node and the next best ones. `Display` has a bounded length.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreTable {
    strategy: PlacementStrategy,
    /// Best first; the first one is chosen.
    rows: Vec<(String, PlacementScore)>,
    /// Number of feasible nodes, and of all nodes.
    feasible: usize,
    nodes: usize,
    /// Replica that was placed in the same pass, and whose node was exchanged for this one.
    exchanged: Option<ReplicaKey>,
}

impl ScoreTable {
    /// Returns the score of the chosen node.
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
        write!(f, "{} of {} nodes fit, ", self.feasible, self.nodes)?;
        match &self.exchanged {
            Some(other) => write!(f, "exchanged with {} for a higher total speed: ", other.name)?,
            None => write!(f, "best by {strategy}: ")?,
        }
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|(node, score)| format!("{node} ({})", score.describe()))
            .collect();
        f.write_str(&rows.join("; "))
    }
}

/// Decision for one unscheduled replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub key: ReplicaKey,
    pub outcome: Result<Placement, Unschedulable>,
    /// Preemption for the replica, if no node accepts it.
    pub preemption: Option<Preemption>,
    /// True if the call reached its maximum of preemptions before this replica.
    pub is_deferred: bool,
}

/// Returns the best node for one replica, without reserving it.
pub(crate) fn place(request: &ReplicaRequest, fleet: &mut Fleet) -> Result<Placement, Unschedulable> {
    choose(request, fleet).ok_or_else(|| explain(request, fleet))
}

/// Like [`place`], but without an explanation if no node accepts the replica.
pub(crate) fn choose(request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Placement> {
    if let Some(placement) = place_where_nominated(request, fleet) {
        return Some(placement);
    }
    let reserve = fleet.reserve_node_failures;
    let tried = if reserve > 0 { TRIED_NODES } else { SHOWN_NODES };
    let affinity = request.anti_affinity();
    // With a spread, the ranking belongs to the deployment and already contains its replicas.
    let uses_siblings = affinity != AntiAffinity::Ignored && request.placement.spread.is_none();
    let siblings = if uses_siblings {
        fleet.siblings(request)
    } else {
        Vec::new()
    };
    let exclude_siblings = affinity == AntiAffinity::Required;
    let mut best = fleet.ranked(request, |ranking, _, _| {
        ranking.best(tried, &siblings, exclude_siblings)
    });
    if reserve > 0 {
        best.retain(|score| survives(request, score.at, fleet));
    }
    best.truncate(SHOWN_NODES);
    let chosen = best.first()?;
    fleet.ranked(request, |ranking, nodes, fits| {
        let node = &nodes[chosen.at];
        let requirements = fits[node.machine_id].requirements.as_ref();
        let load = node.load_for(request);
        Some(Placement {
            node: node.name.clone(),
            needed: requirements
                .map(|requirements| node.with_capacity(&load, |supply| requirements.verdict(supply))),
            table: ScoreTable {
                strategy: request.placement.strategy,
                rows: best
                    .iter()
                    .map(|score| (nodes[score.at].name.clone(), *score))
                    .collect(),
                feasible: ranking.feasible(),
                nodes: nodes.len(),
                exchanged: None,
            },
        })
    })
}

/// Returns why no node accepts the replica.
fn explain(request: &ReplicaRequest, fleet: &mut Fleet) -> Unschedulable {
    let reserve = fleet.reserve_node_failures;
    let mut own = Vec::new();
    if request.anti_affinity() == AntiAffinity::Required {
        own.extend(fleet.siblings(request).into_iter().map(|(at, _)| at));
    }
    let nominated = request.nominated.as_deref();
    own.extend(nominated.and_then(|name| fleet.position(name).ok()));
    fleet.ranked(request, |ranking, nodes, fits| {
        ranking.explain(request, &own, reserve, nodes, fits)
    })
}

/// Returns the nominated node of the replica, if it accepts the replica.
fn place_where_nominated(request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Placement> {
    let (placement, score) = placement_on(request, request.nominated.as_deref()?, fleet)?;
    (fleet.reserve_node_failures == 0 || survives(request, score.at, fleet)).then_some(placement)
}

/// Returns the placement on `name` and its score, if the node accepts the replica.
pub(super) fn placement_on(
    request: &ReplicaRequest,
    name: &str,
    fleet: &mut Fleet,
) -> Option<(Placement, PlacementScore)> {
    let at = fleet.position(name).ok()?;
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
            .requirements
            .as_ref()
            .map(|requirements| node.with_capacity(&load, |supply| requirements.verdict(supply))),
        table: ScoreTable {
            strategy: request.placement.strategy,
            rows: vec![(node.name.clone(), score)],
            feasible: 1,
            nodes: nodes.len(),
            exchanged: None,
        },
    };
    Some((placement, score))
}
