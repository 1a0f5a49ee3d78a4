//! Linear programs with one form of row, and re-solving them under tighter limits. The crate
//! microlp is the solver.

use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, SolveOutcome, Variable};

/// Maximisation of `objective·x` where `x ≥ 0` and every row holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LinearProgram {
    pub(super) objective: Vec<f64>,
    pub(super) rows: Vec<Row>,
}

/// `Σ coefficient·x[variable] ≤ limit`. Each variable occurs at most once.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) terms: Vec<(usize, f64)>,
    pub(super) limit: f64,
}

/// Optimal point of a program, and its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Solution {
    pub(super) value: f64,
    pub(super) x: Vec<f64>,
}

/// Reason why a program has no known optimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoOptimum {
    /// No point meets all rows.
    Infeasible,
    /// The value can grow without limit.
    Unbounded,
    /// The solver failed numerically.
    Unknown,
}

impl LinearProgram {
    /// Adds a variable and returns its index.
    pub(super) fn variable(&mut self, objective: f64) -> usize {
        self.objective.push(objective);
        self.objective.len() - 1
    }

    /// Adds the row `Σ terms ≤ limit`.
    pub(super) fn at_most(&mut self, terms: Vec<(usize, f64)>, limit: f64) {
        self.rows.push(Row { terms, limit });
    }

    /// Adds the row `Σ terms ≥ limit`.
    pub(super) fn at_least(&mut self, terms: Vec<(usize, f64)>, limit: f64) {
        let terms = terms
            .into_iter()
            .map(|(variable, factor)| (variable, -factor))
            .collect();
        self.at_most(terms, -limit);
    }

    pub(super) fn solve(&self) -> Result<Solution, NoOptimum> {
        Ok(solution(&self.optimum()?))
    }

    fn optimum(&self) -> Result<microlp::Solution, NoOptimum> {
        optimal(self.problem().solve())
    }

    /// Builds the solver's problem. Rows with one variable become bounds of that variable.
    fn problem(&self) -> Problem {
        let mut bounds = vec![(0.0_f64, f64::INFINITY); self.objective.len()];
        let mut rows = Vec::new();
        for row in &self.rows {
            match row.terms.as_slice() {
                [(variable, factor)] if *factor > 0.0 => {
                    let upper = &mut bounds[*variable].1;
                    *upper = upper.min(row.limit / factor);
                }
                [(variable, factor)] if *factor < 0.0 => {
                    let lower = &mut bounds[*variable].0;
                    *lower = lower.max(row.limit / factor);
                }
                _ => rows.push(row),
            }
        }
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let variables: Vec<_> = self
            .objective
            .iter()
            .zip(bounds)
            .map(|(objective, bounds)| problem.add_var(*objective, bounds))
            .collect();
        for row in rows {
            problem.add_constraint(row.expression(&variables), ComparisonOp::Le, row.limit);
        }
        problem
    }
}

impl Row {
    fn expression(&self, variables: &[Variable]) -> Vec<(Variable, f64)> {
        self.terms
            .iter()
            .map(|(variable, factor)| (variables[*variable], *factor))
            .collect()
    }
}

/// Program at its optimum. Solving it again under tighter limits starts from this optimum.
#[derive(Debug, Clone)]
pub(super) struct Optimum {
    program: LinearProgram,
    optimum: microlp::Solution,
}

impl Optimum {
    pub(super) fn new(program: LinearProgram) -> Result<Self, NoOptimum> {
        let optimum = program.optimum()?;
        Ok(Self { program, optimum })
    }

    pub(super) fn solution(&self) -> Solution {
        solution(&self.optimum)
    }

    /// Returns the optimum of the same program with other limits of these rows. If a limit grows,
    /// the program is solved from the start.
    pub(super) fn with_limits(
        &self,
        limits: impl IntoIterator<Item = (usize, f64)>,
    ) -> Result<Self, NoOptimum> {
        let mut program = self.program.clone();
        let mut tightened = Vec::new();
        let mut loosened = false;
        for (row, limit) in limits {
            let current = &mut program.rows[row].limit;
            if limit < *current {
                tightened.push(row);
            }
            loosened |= limit > *current;
            *current = limit;
        }
        if loosened {
            return Self::new(program);
        }
        let variables: Vec<Variable> = self.optimum.iter().map(|(variable, _)| variable).collect();
        let mut optimum = self.optimum.clone();
        for row in tightened {
            let row = &program.rows[row];
            let tighter = optimum.add_constraint(row.expression(&variables), ComparisonOp::Le, row.limit);
            optimum = match optimal(tighter) {
                Ok(tighter) => tighter,
                Err(NoOptimum::Infeasible) => return Err(NoOptimum::Infeasible),
                Err(NoOptimum::Unbounded | NoOptimum::Unknown) => return Self::new(program),
            };
        }
        Ok(Self { program, optimum })
    }
}

fn optimal(outcome: Result<SolveOutcome, Error>) -> Result<microlp::Solution, NoOptimum> {
    match outcome {
        // Only a time limit interrupts the solver, and none is set.
        Ok(outcome) => outcome.into_solution().map_err(|_| NoOptimum::Unknown),
        Err(Error::Infeasible) => Err(NoOptimum::Infeasible),
        Err(Error::Unbounded) => Err(NoOptimum::Unbounded),
        Err(_) => Err(NoOptimum::Unknown),
    }
}

/// Converts the solver's solution. Values below 0 are within the solver's tolerance and become 0.
fn solution(optimum: &microlp::Solution) -> Solution {
    Solution {
        value: optimum.objective(),
        x: optimum.iter().map(|(_, value)| value.max(0.0)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(program: &LinearProgram) -> f64 {
        program.solve().unwrap().value
    }

    /// The example of chapter 29.3 in Cormen et al., third edition: the optimum is 28.
    #[test]
    fn solves_textbook_example() {
        let mut program = LinearProgram::default();
        let x: Vec<_> = [3.0, 1.0, 2.0].map(|c| program.variable(c)).to_vec();
        program.at_most(vec![(x[0], 1.0), (x[1], 1.0), (x[2], 3.0)], 30.0);
        program.at_most(vec![(x[0], 2.0), (x[1], 2.0), (x[2], 5.0)], 24.0);
        program.at_most(vec![(x[0], 4.0), (x[1], 1.0), (x[2], 2.0)], 36.0);
        assert!((value(&program) - 28.0).abs() < 1e-9);
    }

    #[test]
    fn reports_infeasible_and_unbounded_programs() {
        let mut program = LinearProgram::default();
        let x = program.variable(1.0);
        assert_eq!(program.solve(), Err(NoOptimum::Unbounded));
        program.at_least(vec![(x, 1.0)], 3.0);
        program.at_most(vec![(x, 1.0)], 2.0);
        assert_eq!(program.solve(), Err(NoOptimum::Infeasible));
    }

    fn programs() -> impl Strategy<Value = LinearProgram> {
        (1usize..6, 1usize..7).prop_flat_map(|(variables, rows)| {
            let row = (prop::collection::vec(coefficient_value(), variables), -6i32..12);
            let objective = prop::collection::vec(coefficient_value(), variables);
            (objective, prop::collection::vec(row, rows)).prop_map(move |(objective, rows)| {
                let mut program = LinearProgram {
                    objective,
                    rows: Vec::new(),
                };
                for (terms, limit) in rows {
                    program.at_most(terms.into_iter().enumerate().collect(), f64::from(limit));
                }
                program
            })
        })
    }

    fn coefficient_value() -> impl Strategy<Value = f64> {
        prop_oneof![2 => Just(0i32), 3 => -3i32..8].prop_map(f64::from)
    }

    proptest! {
        /// A feasible point and a feasible point of the dual program with the same value prove each
        /// other optimal (strong duality).
        #[test]
        fn the_dual_program_proves_the_optimum(program in programs()) {
            if let Ok(solution) = program.solve() {
                let mut dual = LinearProgram::default();
                let mut columns = vec![Vec::new(); program.objective.len()];
                for row in &program.rows {
                    let price = dual.variable(-row.limit);
                    let used: f64 = row.terms.iter().map(|(j, a)| a * solution.x[*j]).sum();
                    prop_assert!(used <= row.limit + 1e-6, "{used} > {}", row.limit);
                    for (j, a) in &row.terms {
                        columns[*j].push((price, *a));
                    }
                }
                for (column, worth) in columns.iter().zip(&program.objective) {
                    dual.at_least(column.clone(), *worth);
                }
                let prices = dual.solve().unwrap();
                for (column, worth) in columns.iter().zip(&program.objective) {
                    let paid: f64 = column.iter().map(|(row, a)| a * prices.x[*row]).sum();
                    prop_assert!(paid >= worth - 1e-6, "{paid} < {worth}");
                }
                let worth: f64 = program.objective.iter().zip(&solution.x).map(|(c, x)| c * x).sum();
                prop_assert!((worth - solution.value).abs() < 1e-6);
                prop_assert!((prices.value + solution.value).abs() < 1e-6, "{} != {}", -prices.value, solution.value);
            }
        }

        /// From an optimum with other limits, the solver reaches the same optimum as from the
        /// start.
        #[test]
        fn resolving_with_other_limits_matches_solving_from_the_start(
            mut program in programs(),
            limits in prop::collection::vec(-6i32..12, 7),
            tighter in any::<bool>(),
        ) {
            let optimum = Optimum::new(program.clone());
            let limits: Vec<f64> = limits[..program.rows.len()].iter().copied().map(f64::from).collect();
            for (row, limit) in program.rows.iter_mut().zip(&limits) {
                row.limit = if tighter { limit.min(row.limit) } else { *limit };
            }
            let limits = program.rows.iter().map(|row| row.limit);
            if let Ok(optimum) = optimum {
                let short = optimum.with_limits(limits.enumerate());
                match (short.map(|short| short.solution()), program.solve()) {
                    (Ok(short), Ok(long)) => {
                        prop_assert!((short.value - long.value).abs() < 1e-6, "{} != {}", short.value, long.value);
                        for row in &program.rows {
                            let used: f64 = row.terms.iter().map(|(j, a)| a * short.x[*j]).sum();
                            prop_assert!(used <= row.limit + 1e-6, "{used} > {}", row.limit);
                        }
                    }
                    (Err(NoOptimum::Infeasible), Err(NoOptimum::Infeasible)) => {}
                    (short, long) => prop_assert!(false, "resolved: {short:?}, from the start: {long:?}"),
                }
            }
        }

        /// For a feasible point, the optimum exists and its value is at least that of the point.
        #[test]
        fn no_point_beats_the_optimum(
            mut program in programs(),
            point in prop::collection::vec(0.0f64..10.0, 6),
            slack in prop::collection::vec(0.0f64..5.0, 7),
        ) {
            for (row, slack) in program.rows.iter_mut().zip(&slack) {
                row.limit = row.terms.iter().map(|(j, a)| a * point[*j]).sum::<f64>() + slack;
            }
            let worth: f64 = program.objective.iter().zip(&point).map(|(c, x)| c * x).sum();
            match program.solve() {
                Ok(solution) => prop_assert!(worth <= solution.value + 1e-6),
                Err(NoOptimum::Unbounded) => {}
                Err(NoOptimum::Infeasible | NoOptimum::Unknown) => prop_assert!(false, "{point:?} is allowed"),
            }
        }
    }
}
