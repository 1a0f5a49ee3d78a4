//! Upper bound for instances of any size: a linear relaxation that merges all nodes of a class and
//! permits fractional replicas.
//!
//! Dual feasible functions (Lueker, 1983; Fekete and Schepers, 2001) account for memory and disk
//! that packing wastes. For `k = 1, 2, …`, a replica with the share `s` of a node counts
//! `⌊(k+1)·s⌋/k`, or `s` if `(k+1)·s` is an integer. The counts of replicas that fit on a node
//! never exceed 1.

use super::instance::{Instance, MAX_FACTOR};
use super::linear::{LinearProgram, NoOptimum, Optimum};

/// Orders `k` of the dual feasible functions.
const ORDERS: [u32; 5] = [1, 2, 3, 4, 5];

/// Objective of the relaxation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Objective {
    Factor,
    Price,
}

/// Returns an upper bound of the multiple of the demand; 0 if the required replicas do not fit.
/// Returns `None` if the solver fails.
pub(super) fn most_demand(instance: &Instance) -> Option<f64> {
    match relaxed(instance, Objective::Factor).program.solve() {
        Ok(solution) => Some(solution.value),
        Err(NoOptimum::Infeasible) => Some(0.0),
        Err(NoOptimum::Unbounded | NoOptimum::Unknown) => None,
    }
}

/// Lower bound of the price of nodes that carry a demand. Reuses its optimum for other counts and
/// demands.
#[derive(Debug, Clone)]
pub(super) struct LeastPrice {
    optimum: Optimum,
    /// Row with the minimum factor of the demand. The first rows are those of the classes' nodes.
    least_factor: usize,
    classes: usize,
}

impl LeastPrice {
    /// Returns `Infeasible` if all nodes together do not carry the demand.
    pub(super) fn new(instance: &Instance) -> Result<Self, NoOptimum> {
        let Relaxed {
            program,
            factor_limit,
        } = relaxed(instance, Objective::Price);
        Ok(Self {
            optimum: Optimum::new(program)?,
            least_factor: factor_limit,
            classes: instance.classes.len(),
        })
    }

    /// Returns the bound for other counts of available nodes and another multiple of the demand.
    pub(super) fn with(&self, nodes: &[u32], times: f64) -> Result<Self, NoOptimum> {
        let nodes = nodes.iter().map(|nodes| f64::from(*nodes)).enumerate();
        let limits = nodes.chain([(self.least_factor, -times)]);
        Ok(Self {
            optimum: self.optimum.with_limits(limits)?,
            least_factor: self.least_factor,
            classes: self.classes,
        })
    }

    /// Returns the lower bound of the price, and the fractional number of nodes of each class.
    pub(super) fn answer(&self) -> (f64, Vec<f64>) {
        let solution = self.optimum.solution();
        (0.0 - solution.value, solution.x[..self.classes].to_vec())
    }
}

/// Linear program, and the row that limits the factor of the demand.
struct Relaxed {
    program: LinearProgram,
    factor_limit: usize,
}

/// Builds the relaxation. Variables in this order: used nodes of each class; fully busy replicas
/// and idle replicas of each model on each suitable class; the factor.
fn relaxed(instance: &Instance, objective: Objective) -> Relaxed {
    let mut program = LinearProgram::default();
    let nodes: Vec<usize> = instance
        .classes
        .iter()
        .map(|class| match objective {
            Objective::Factor => program.variable(0.0),
            Objective::Price => program.variable(-class.price),
        })
        .collect();
    for (class, supply) in instance.classes.iter().enumerate() {
        program.at_most(vec![(nodes[class], 1.0)], f64::from(supply.nodes));
    }
    let mut device = vec![Vec::new(); instance.classes.len()];
    let mut objectives = vec![Vec::new(); instance.classes.len()];
    let mut reserved = vec![Vec::new(); instance.classes.len()];
    // Rows for memory, then for disk.
    let mut packed = vec![vec![Vec::new(); 2 * (ORDERS.len() + 1)]; instance.classes.len()];
    let mut coverage = vec![Vec::new(); instance.models.len()];
    let mut replicas = vec![Vec::new(); instance.models.len()];
    for (model, load) in instance.models.iter().enumerate() {
        for (class, supply) in instance.classes.iter().enumerate() {
            let alone = instance.alone(model, class);
            let Some(need) = instance.need(model, class).filter(|_| supply.nodes > 0) else {
                continue;
            };
            if instance.node_rows(class, &[model]).is_none() {
                continue;
            }
            let shares = [
                need.memory.share_of(supply.memory),
                supply.disk.map_or(0.0, |free| need.disk.share_of(free)),
            ];
            let busy = alone.is_finite() && alone > 0.0 && load.rate > 0.0;
            let kinds = [(busy, alone), (true, 0.0)];
            for (_, rate) in kinds.into_iter().filter(|(there, _)| *there) {
                let replica = program.variable(0.0);
                replicas[model].push((replica, 1.0));
                let counted = shares.iter().flat_map(|share| {
                    let packed = ORDERS.iter().map(|order| packed_share(*share, *order));
                    std::iter::once(*share).chain(packed)
                });
                for (counted, row) in counted.zip(&mut packed[class]) {
                    row.push((replica, counted));
                }
                reserved[class].push((replica, need.reserved));
                objectives[class].push((replica, need.objective_share + need.prefill * rate));
                if rate > 0.0 {
                    device[class].push((replica, need.service * rate));
                    coverage[model].push((replica, rate / load.rate));
                }
            }
        }
    }
    for (class, supply) in instance.classes.iter().enumerate() {
        let rooms = [
            (&device[class], (instance.utilization - supply.reserved).max(0.0)),
            (&objectives[class], (1.0 - supply.reserved).max(0.0)),
            (&reserved[class], (1.0 - supply.reserved).max(0.0)),
        ];
        for (terms, room) in rooms
            .into_iter()
            .chain(packed[class].iter().map(|terms| (terms, 1.0)))
        {
            let mut terms: Vec<_> = terms
                .iter()
                .copied()
                .filter(|(_, factor)| *factor > 0.0)
                .collect();
            if !terms.is_empty() {
                terms.push((nodes[class], -room));
                program.at_most(terms, 0.0);
            }
        }
    }
    let factor_limit = program.rows.len();
    let factor = match objective {
        Objective::Factor => {
            let factor = program.variable(1.0);
            program.at_most(vec![(factor, 1.0)], MAX_FACTOR);
            factor
        }
        Objective::Price => {
            let factor = program.variable(0.0);
            program.at_least(vec![(factor, 1.0)], 1.0);
            factor
        }
    };
    for (model, load) in instance.models.iter().enumerate() {
        if load.rate > 0.0 {
            let mut terms = std::mem::take(&mut coverage[model]);
            terms.push((factor, -1.0));
            program.at_least(terms, 0.0);
        }
        if load.min_replicas > 0 {
            program.at_least(std::mem::take(&mut replicas[model]), f64::from(load.min_replicas));
        }
    }
    Relaxed {
        program,
        factor_limit,
    }
}

/// Applies the dual feasible function of this order to a share; see the module documentation.
fn packed_share(share: f64, order: u32) -> f64 {
    let parts = f64::from(order + 1) * share;
    if (parts - parts.round()).abs() < 1e-9 {
        share
    } else {
        parts.floor() / f64::from(order)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The counts of shares that fit together never exceed 1.
        #[test]
        fn packed_shares_of_what_fits_do_not_exceed_the_node(
            shares in prop::collection::vec(0.01f64..1.0, 1..12),
            order in 1u32..6,
        ) {
            let mut fitting = Vec::new();
            for share in shares {
                if fitting.iter().sum::<f64>() + share <= 1.0 {
                    fitting.push(share);
                }
            }
            let counted: f64 = fitting.iter().map(|share| packed_share(*share, order)).sum();
            prop_assert!(counted <= 1.0 + 1e-9, "{fitting:?} count {counted} at order {order}");
        }
    }
}
