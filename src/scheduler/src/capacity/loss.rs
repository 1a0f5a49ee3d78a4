//! Effect of the loss of one node, after its replicas have moved to other nodes.

use super::search::{self, Remaining};
use super::working::Working;
use rooflet_api::v1alpha1::PlanNodeLoss;

/// Returns the effect of the loss of one node of each class, for a feasible plan. `bound` is the
/// upper bound of the demand that all nodes carry. `compared`: the plan compared several limits of
/// streams. With another limit, the plan may survive the loss, so a failure is not proven.
pub(super) fn node_losses(working: &Working<'_>, bound: f64, compared: bool) -> Vec<PlanNodeLoss> {
    let judged = working.judged;
    let of_class = |(class, supply): (usize, &super::instance::ClassSupply)| {
        let groups = working
            .placement
            .groups
            .iter()
            .filter(|group| group.class == class);
        let used: u32 = groups.clone().map(|group| group.nodes).sum();
        // An unused node of the same class replaces the lost one.
        let remaining = if used < supply.nodes {
            Remaining::All
        } else {
            search::without_one(&judged.instance, class, bound)
        };
        let (survives, proven, demand_factor) = match remaining {
            Remaining::All => (true, true, None),
            Remaining::Part { factor, proven } => (false, proven && !compared, Some(factor)),
        };
        let only_replica = |model: &usize| {
            working.placement.replicas(*model) == 1
                && groups
                    .clone()
                    .any(|group| group.replicas.iter().any(|share| share.model == *model))
        };
        PlanNodeLoss {
            class: judged.classes[class].name.clone(),
            survives,
            proven,
            demand_factor,
            interrupted: (0..judged.models.len())
                .filter(only_replica)
                .map(|model| working.name(model))
                .collect(),
        }
    };
    let classes = judged.instance.classes.iter().enumerate();
    classes
        .filter(|(_, supply)| supply.nodes > 0)
        .map(of_class)
        .collect()
}
