//! Exact search for small instances.
//!
//! Every set of models that fits a node is a pattern (Gilmore and Gomory, 1961). Branch and bound
//! over linear programs (Land and Doig, 1960) determines how many nodes of a class use each
//! pattern.

use super::instance::{Group, Instance, MAX_FACTOR, Placement, Share};
use super::linear::{LinearProgram, NoOptimum, Solution};

/// Maximum number of patterns; instances with more are too large.
const MAX_PATTERNS: usize = 64;
/// Maximum number of solved linear programs; after that, the best known answer is used.
const MAX_BRANCHES: usize = 600;
/// Maximum total work. A program of `r` rows and `c` variables counts `r²·c`, approximately its
/// solution time.
const MAX_WORK: usize = 300_000_000;
/// Tolerance for an integer number of nodes.
const WHOLE: f64 = 1e-6;

/// Goal of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    /// Largest multiple of the demand.
    MostDemand,
    /// Complete demand with the fewest replicas, then the lowest utilization.
    FewestReplicas,
    /// Complete demand at the lowest price of used nodes.
    LeastPrice,
}

/// Answer with its bound.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) placement: Placement,
    /// Value of the goal.
    pub(super) value: f64,
    /// Upper bound of the value.
    pub(super) bound: f64,
}

#[cfg(test)]
impl Answer {
    pub(super) fn proven(&self) -> bool {
        self.bound <= self.value + 1e-6 * self.value.abs().max(1.0)
    }
}

/// Result of the search.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Search {
    Found(Answer),
    /// Proven infeasible.
    Impossible,
    /// Too large for this method, or stopped without an answer.
    TooLarge,
}

/// Set of models on a node.
#[derive(Debug, Clone, PartialEq)]
struct Pattern {
    class: usize,
    models: Vec<usize>,
}

/// Returns every useful pattern of each class, or `None` if there are too many. Omits classes
/// without nodes.
fn patterns(instance: &Instance) -> Option<Vec<Pattern>> {
    let mut all = Vec::new();
    for (class, supply) in instance.classes.iter().enumerate() {
        if supply.nodes == 0 {
            continue;
        }
        // Extend patterns by one model at a time. A superset of an infeasible pattern is
        // infeasible.
        let mut open: Vec<Vec<usize>> = vec![Vec::new()];
        let mut done: Vec<Vec<usize>> = Vec::new();
        while let Some(models) = open.pop() {
            let next = models.last().map_or(0, |last| last + 1);
            for model in next..instance.models.len() {
                let mut more = models.clone();
                more.push(model);
                if instance.node_rows(class, &more).is_some() {
                    open.push(more);
                }
            }
            if !models.is_empty() {
                done.push(models);
            }
            if done.len() + open.len() > 8 * MAX_PATTERNS {
                return None;
            }
        }
        let kept = done
            .iter()
            .filter(|models| !can_grow_for_free(instance, class, models))
            .cloned()
            .map(|models| Pattern { class, models });
        all.extend(kept.collect::<Vec<_>>());
        if all.len() > MAX_PATTERNS {
            return None;
        }
    }
    Some(all)
}

/// Returns whether another model fits without reducing the capacity for the others. The smaller
/// pattern is then never better.
fn can_grow_for_free(instance: &Instance, class: usize, models: &[usize]) -> bool {
    let strictest = models
        .iter()
        .filter_map(|model| instance.need(*model, class)?.wait)
        .fold(f64::INFINITY, f64::min);
    (0..instance.models.len())
        .filter(|model| !models.contains(model))
        .any(|model| {
            let Some(need) = instance.need(model, class) else {
                return false;
            };
            let mut more = models.to_vec();
            more.push(model);
            need.objective_share == 0.0
                && need.wait.is_none_or(|wait| wait >= strictest)
                && instance.node_rows(class, &more).is_some()
        })
}

/// Linear program of an instance, with its variables.
struct Model<'a> {
    instance: &'a Instance,
    patterns: Vec<Pattern>,
    goal: Goal,
    /// Variables: number of nodes with each pattern.
    counts: Vec<usize>,
    /// Variables by pattern: load of each model, summed over the nodes.
    loads: Vec<Vec<usize>>,
    program: LinearProgram,
}

impl<'a> Model<'a> {
    fn new(instance: &'a Instance, patterns: Vec<Pattern>, goal: Goal) -> Self {
        let mut program = LinearProgram::default();
        let worth = |pattern: &Pattern| match goal {
            Goal::MostDemand => 0.0,
            Goal::FewestReplicas => -(pattern.models.len() as f64),
            Goal::LeastPrice => -instance.classes[pattern.class].price,
        };
        let counts: Vec<usize> = patterns
            .iter()
            .map(|pattern| program.variable(worth(pattern)))
            .collect();
        // With equally few replicas, prefer lower utilization.
        let busy = |pattern: &Pattern, model: usize| match goal {
            Goal::FewestReplicas => {
                -0.01
                    * instance
                        .need(model, pattern.class)
                        .map_or(0.0, |need| need.service)
                    / f64::from(instance.nodes().max(1))
            }
            Goal::MostDemand | Goal::LeastPrice => 0.0,
        };
        let loads: Vec<Vec<usize>> = patterns
            .iter()
            .map(|pattern| {
                let models = pattern.models.iter();
                models
                    .map(|model| program.variable(busy(pattern, *model)))
                    .collect()
            })
            .collect();
        for (class, supply) in instance.classes.iter().enumerate() {
            let of_class = (0..patterns.len()).filter(|p| patterns[*p].class == class);
            program.at_most(
                of_class.map(|p| (counts[p], 1.0)).collect(),
                f64::from(supply.nodes),
            );
        }
        for (p, pattern) in patterns.iter().enumerate() {
            let rows = instance
                .node_rows(pattern.class, &pattern.models)
                .unwrap_or_default();
            for row in rows {
                let mut terms: Vec<_> = loads[p].iter().copied().zip(row.terms).collect();
                terms.push((counts[p], -row.room));
                program.at_most(terms, 0.0);
            }
        }
        let factor = match goal {
            Goal::MostDemand => {
                let factor = program.variable(1.0);
                program.at_most(vec![(factor, 1.0)], MAX_FACTOR);
                Some(factor)
            }
            Goal::FewestReplicas | Goal::LeastPrice => None,
        };
        for (model, load) in instance.models.iter().enumerate() {
            let with: Vec<(usize, usize)> = patterns
                .iter()
                .enumerate()
                .filter_map(|(p, pattern)| Some((p, pattern.models.iter().position(|m| *m == model)?)))
                .collect();
            if load.rate > 0.0 {
                let mut terms: Vec<_> = with
                    .iter()
                    .map(|(p, k)| (loads[*p][*k], load.rate.recip()))
                    .collect();
                let least = match factor {
                    Some(factor) => {
                        terms.push((factor, -1.0));
                        0.0
                    }
                    None => 1.0,
                };
                program.at_least(terms, least);
            }
            if load.min_replicas > 0 {
                let replicas = with.iter().map(|(p, _)| (counts[*p], 1.0)).collect();
                program.at_least(replicas, f64::from(load.min_replicas));
            }
        }
        Self {
            instance,
            patterns,
            goal,
            counts,
            loads,
            program,
        }
    }

    fn placement(&self, solution: &Solution) -> Placement {
        let groups = self.patterns.iter().enumerate().filter_map(|(p, pattern)| {
            let nodes = solution.x[self.counts[p]].round();
            if nodes < 1.0 {
                return None;
            }
            let share = |(model, load): (&usize, &usize)| Share {
                model: *model,
                rate: solution.x[*load] / nodes,
            };
            Some(Group {
                class: pattern.class,
                nodes: nodes as u32,
                replicas: pattern.models.iter().zip(&self.loads[p]).map(share).collect(),
            })
        });
        Placement {
            groups: groups.collect(),
        }
    }

    /// Returns the count that is farthest from an integer.
    fn fraction(&self, solution: &Solution) -> Option<(usize, f64)> {
        let fraction = |variable: &usize| {
            let value = solution.x[*variable];
            (*variable, value, (value - value.round()).abs())
        };
        let fractions = self.counts.iter().map(fraction);
        fractions
            .filter(|(_, _, off)| *off > WHOLE)
            .max_by(|a, b| a.2.total_cmp(&b.2))
            .map(|(variable, value, _)| (variable, value))
    }
}

/// Open branch of the search tree: bounds of counts, and the value of its parent.
struct Branch {
    bounds: Vec<(usize, f64, bool)>,
    worth: f64,
}

/// Solves `instance` for `goal`. `known` is an already known answer.
pub(super) fn solve(instance: &Instance, goal: Goal, known: Option<(Placement, f64)>) -> Search {
    let Some(patterns) = patterns(instance) else {
        return Search::TooLarge;
    };
    let model = Model::new(instance, patterns, goal);
    let (mut best, mut best_value) = match known {
        Some((placement, value)) => (Some(placement), value),
        None => (None, f64::NEG_INFINITY),
    };
    let mut open = vec![Branch {
        bounds: Vec::new(),
        worth: f64::INFINITY,
    }];
    let rows = model.program.rows.len().max(1);
    let work = rows * rows * model.program.objective.len().max(1);
    let affordable = (MAX_WORK / work).clamp(1, MAX_BRANCHES);
    let mut solved = 0;
    let mut given_up = f64::NEG_INFINITY;
    // Depth first: early answers prune other branches.
    while let Some(branch) = open.pop() {
        let improvement = 1e-6 * best_value.abs().max(1.0);
        if branch.worth <= best_value + improvement {
            continue;
        }
        if solved >= affordable {
            given_up = given_up.max(branch.worth);
            continue;
        }
        solved += 1;
        let mut program = model.program.clone();
        for (variable, bound, upper) in &branch.bounds {
            if *upper {
                program.at_most(vec![(*variable, 1.0)], *bound);
            } else {
                program.at_least(vec![(*variable, 1.0)], *bound);
            }
        }
        let solution = match program.solve() {
            Ok(solution) => solution,
            Err(NoOptimum::Infeasible) => continue,
            Err(NoOptimum::Unbounded | NoOptimum::Unknown) => {
                given_up = given_up.max(branch.worth);
                continue;
            }
        };
        if solution.value <= best_value + improvement {
            continue;
        }
        match model.fraction(&solution) {
            None => {
                let placement = model.placement(&solution);
                if placement.check(instance).is_ok() {
                    best_value = solution.value;
                    best = Some(placement);
                } else {
                    // Numerical error: neither an answer nor a proof of infeasibility.
                    given_up = given_up.max(solution.value);
                }
            }
            Some((variable, value)) => {
                for (bound, upper) in [(value.floor(), true), (value.ceil(), false)] {
                    let mut bounds = branch.bounds.clone();
                    bounds.push((variable, bound, upper));
                    open.push(Branch {
                        bounds,
                        worth: solution.value,
                    });
                }
            }
        }
    }
    match best {
        Some(placement) => Search::Found(Answer {
            placement: drop_idle(placement, model.instance, model.goal).without_idle(model.instance),
            value: best_value,
            bound: best_value.max(given_up),
        }),
        None if given_up == f64::NEG_INFINITY => Search::Impossible,
        None => Search::TooLarge,
    }
}

/// Removes replicas without load that are not required.
fn drop_idle(mut placement: Placement, instance: &Instance, goal: Goal) -> Placement {
    if goal == Goal::LeastPrice {
        return placement;
    }
    let mut spare: Vec<u32> = instance
        .models
        .iter()
        .enumerate()
        .map(|(model, load)| placement.replicas(model).saturating_sub(load.min_replicas.max(1)))
        .collect();
    for group in &mut placement.groups {
        group.replicas.retain(|share| {
            let needed = share.rate > 1e-9 || spare[share.model] < group.nodes;
            if !needed {
                spare[share.model] -= group.nodes;
            }
            needed
        });
    }
    placement.merged()
}
