//! Linear programs, solved exactly enough: the simplex method in two phases, with the inverse of the basis (Dantzig and
//! Orchard-Hays, 1954): of hundreds of rows and thousands of variables, most factors are nothing and stay so.
//!
//! After Dantzig (1947) with Bland's rule (1977) against cycling; the form with one auxiliary variable is that of Cormen
//! et al., *Introduction to Algorithms*, chapter 29. Each optimum comes with its dual, which proves it. From one optimum
//! to that of the same program with other limits leads the dual simplex method (Lemke, 1954), mostly in few steps.

use std::sync::Arc;

/// Numbers nearer to zero than this are zero.
const EPSILON: f64 = 1e-9;
/// Pivots without progress after which Bland's rule takes over.
const STALLED: u32 = 40;
/// Pivots after which a program is given up; far above what programs of our size take.
const MAX_PIVOTS: u32 = 50_000;
/// Pivots after which the way from one optimum to another counts as no shorter than that from nothing: where most variables
/// cost nothing the dual method has nothing to tell them apart by, and may go about in circles for long.
const MAX_RESTORING_PIVOTS: u32 = 500;

/// `maximise objective·x` where `x ≥ 0` and every row holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LinearProgram {
    pub(super) objective: Vec<f64>,
    pub(super) rows: Vec<Row>,
}

/// `Σ coefficient·x[variable] ≤ limit`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) terms: Vec<(usize, f64)>,
    pub(super) limit: f64,
}

/// What became of a program.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Optimal(Solution),
    Infeasible,
    Unbounded,
    /// Given up: see [`MAX_PIVOTS`].
    Unfinished,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Solution {
    pub(super) value: f64,
    pub(super) x: Vec<f64>,
    /// By how much the value would grow per unit of each row's limit.
    pub(super) duals: Vec<f64>,
}

impl LinearProgram {
    /// Adds a variable and returns its index.
    pub(super) fn variable(&mut self, objective: f64) -> usize {
        self.objective.push(objective);
        self.objective.len() - 1
    }

    pub(super) fn at_most(&mut self, terms: Vec<(usize, f64)>, limit: f64) {
        self.rows.push(Row { terms, limit });
    }

    pub(super) fn at_least(&mut self, terms: Vec<(usize, f64)>, limit: f64) {
        let terms = terms
            .into_iter()
            .map(|(variable, factor)| (variable, -factor))
            .collect();
        self.at_most(terms, -limit);
    }

    pub(super) fn solve(&self) -> Outcome {
        let mut simplex = Simplex::new(self);
        match simplex.solve() {
            Ended::Optimal => Outcome::Optimal(simplex.solution()),
            Ended::Infeasible => Outcome::Infeasible,
            Ended::Unbounded => Outcome::Unbounded,
            Ended::Unfinished => Outcome::Unfinished,
        }
    }
}

/// A program at its optimum, to be asked again with other limits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Optimum(Simplex);

impl Optimum {
    pub(super) fn new(program: &LinearProgram) -> Result<Self, NoOptimum> {
        Self::of(Simplex::new(program))
    }

    fn of(mut simplex: Simplex) -> Result<Self, NoOptimum> {
        match simplex.solve() {
            Ended::Optimal => Ok(Self(simplex)),
            Ended::Infeasible => Err(NoOptimum::Infeasible),
            Ended::Unbounded | Ended::Unfinished => Err(NoOptimum::Unknown),
        }
    }

    pub(super) fn solution(&self) -> Solution {
        self.0.solution()
    }

    /// The same program with the limits of these rows moved.
    pub(super) fn with_limits(
        &self,
        limits: impl IntoIterator<Item = (usize, f64)>,
    ) -> Result<Self, NoOptimum> {
        let mut moved = self.0.clone();
        for (row, limit) in limits {
            moved.limits[row] = limit;
        }
        moved.level = moved.times_inverse(&moved.limits);
        match moved.restore() {
            Ended::Optimal => Ok(Self(moved)),
            Ended::Infeasible => Err(NoOptimum::Infeasible),
            // The short way was none.
            Ended::Unbounded | Ended::Unfinished => Self::of(moved.anew()),
        }
    }
}

/// Why there is no optimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoOptimum {
    /// Nothing does what the rows ask.
    Infeasible,
    /// There is none, or the program was given up.
    Unknown,
}

/// How a search for an optimum ended.
enum Ended {
    Optimal,
    Infeasible,
    Unbounded,
    Unfinished,
}

/// What the rows say of each variable, and what it is worth.
#[derive(Debug, PartialEq)]
struct Columns {
    objective: Vec<f64>,
    /// Of each variable, its rows and its factors there.
    terms: Vec<Vec<(usize, f64)>>,
}

/// Rows as equations, each with a slack, and a basis: as many variables as there are rows, all others zero. Variables count
/// from 0, then the slacks of the rows, then the auxiliary one, which is -1 in every row.
#[derive(Debug, Clone, PartialEq)]
struct Simplex {
    columns: Arc<Columns>,
    limits: Vec<f64>,
    basic: Vec<usize>,
    is_basic: Vec<bool>,
    /// Of the basis, row by row.
    inverse: Vec<Vec<f64>>,
    /// What the basic variables are.
    level: Vec<f64>,
    /// Whether the auxiliary variable is all that counts, and as a loss.
    is_first_phase: bool,
    /// By how much the value would grow per unit of each row's limit.
    duals: Vec<f64>,
    value: f64,
}

impl Simplex {
    fn new(program: &LinearProgram) -> Self {
        let mut terms = vec![Vec::new(); program.objective.len()];
        for (row, Row { terms: of_row, .. }) in program.rows.iter().enumerate() {
            for (variable, factor) in of_row {
                terms[*variable].push((row, *factor));
            }
        }
        let objective = program.objective.clone();
        Self::start(
            Arc::new(Columns { objective, terms }),
            program.rows.iter().map(|row| row.limit).collect(),
        )
    }

    /// The same program from the beginning.
    fn anew(&self) -> Self {
        Self::start(Arc::clone(&self.columns), self.limits.clone())
    }

    fn start(columns: Arc<Columns>, limits: Vec<f64>) -> Self {
        let (variables, rows) = (columns.objective.len(), limits.len());
        let unit = |row: usize| {
            let mut unit = vec![0.0; rows];
            unit[row] = 1.0;
            unit
        };
        let is_basic =
            (0..=variables + rows).map(|variable| (variables..variables + rows).contains(&variable));
        Self {
            basic: (variables..variables + rows).collect(),
            is_basic: is_basic.collect(),
            inverse: (0..rows).map(unit).collect(),
            level: limits.clone(),
            is_first_phase: false,
            duals: vec![0.0; rows],
            value: 0.0,
            columns,
            limits,
        }
    }

    fn auxiliary(&self) -> usize {
        self.columns.objective.len() + self.limits.len()
    }

    fn worth(&self, variable: usize) -> f64 {
        if !self.is_first_phase {
            self.columns.objective.get(variable).copied().unwrap_or(0.0)
        } else if variable == self.auxiliary() {
            -1.0
        } else {
            0.0
        }
    }

    /// A vector of one number per row, times a variable's column.
    fn along(&self, vector: &[f64], variable: usize) -> f64 {
        match self.columns.terms.get(variable) {
            Some(terms) => terms.iter().map(|(row, factor)| vector[*row] * factor).sum(),
            None if variable == self.auxiliary() => -vector.iter().sum::<f64>(),
            None => vector[variable - self.columns.terms.len()],
        }
    }

    /// What a variable takes from each basic one per unit of itself.
    fn column(&self, variable: usize) -> Vec<f64> {
        self.inverse.iter().map(|row| self.along(row, variable)).collect()
    }

    fn times_inverse(&self, vector: &[f64]) -> Vec<f64> {
        let times = |row: &Vec<f64>| row.iter().zip(vector).map(|(a, b)| a * b).sum();
        self.inverse.iter().map(times).collect()
    }

    /// By how much the value grows per unit of a variable.
    fn gain(&self, variable: usize) -> f64 {
        self.worth(variable) - self.along(&self.duals, variable)
    }

    /// Variables that may enter the basis.
    fn others(&self) -> impl Iterator<Item = usize> {
        let all = self.is_basic.len() - usize::from(!self.is_first_phase);
        (0..all).filter(|variable| !self.is_basic[*variable])
    }

    fn solve(&mut self) -> Ended {
        match self.find_feasible() {
            Ended::Optimal => {
                self.set_phase(false);
                self.maximise()
            }
            other @ (Ended::Infeasible | Ended::Unbounded | Ended::Unfinished) => other,
        }
    }

    /// Values everything anew, by the auxiliary variable alone or by the program's objective.
    fn set_phase(&mut self, is_first: bool) {
        self.is_first_phase = is_first;
        self.duals = vec![0.0; self.limits.len()];
        self.value = 0.0;
        for (row, variable) in self.basic.iter().enumerate() {
            let worth = self.worth(*variable);
            if worth != 0.0 {
                self.value += worth * self.level[row];
                add(&mut self.duals, worth, &self.inverse[row]);
            }
        }
    }

    /// Phase one: every row is loosened by the auxiliary variable, which is then driven out.
    fn find_feasible(&mut self) -> Ended {
        let Some(worst) = self.violated(false) else {
            return Ended::Optimal;
        };
        let auxiliary = self.auxiliary();
        self.set_phase(true);
        let column = self.column(auxiliary);
        self.pivot(worst, auxiliary, &column);
        match self.maximise() {
            Ended::Optimal => {}
            other @ (Ended::Infeasible | Ended::Unbounded | Ended::Unfinished) => return other,
        }
        if self.value < -1e-7 {
            return Ended::Infeasible;
        }
        if let Some(row) = self.basic.iter().position(|variable| *variable == auxiliary) {
            // It is zero; any other variable may take its place.
            let steepness = |variable: &usize| self.along(&self.inverse[row], *variable).abs();
            let steepest = self.others().max_by(|a, b| steepness(a).total_cmp(&steepness(b)));
            let Some(entering) = steepest.filter(|variable| steepness(variable) > EPSILON) else {
                return Ended::Unfinished;
            };
            let column = self.column(entering);
            self.pivot(row, entering, &column);
        }
        Ended::Optimal
    }

    /// The primal method: from a solution to better ones.
    fn maximise(&mut self) -> Ended {
        let mut stalled = 0;
        for _ in 0..MAX_PIVOTS {
            let bland = stalled > STALLED;
            let Some(entering) = self.entering(bland) else {
                return Ended::Optimal;
            };
            let column = self.column(entering);
            let Some(leaving) = self.leaving(&column) else {
                return Ended::Unbounded;
            };
            let before = self.value;
            self.pivot(leaving, entering, &column);
            stalled = if self.value > before + EPSILON {
                0
            } else {
                stalled + 1
            };
        }
        Ended::Unfinished
    }

    /// The dual method: from what would be best to what is allowed. No variable may be worth using at the start.
    fn restore(&mut self) -> Ended {
        self.set_phase(false);
        let mut stalled = 0;
        for _ in 0..MAX_RESTORING_PIVOTS {
            let bland = stalled > STALLED;
            let Some(leaving) = self.violated(bland) else {
                // Of ties that were taken for equal something may be left to gain.
                return self.maximise();
            };
            let Some(entering) = self.dual_entering(leaving, bland) else {
                return Ended::Infeasible;
            };
            let before = self.value;
            let column = self.column(entering);
            self.pivot(leaving, entering, &column);
            stalled = if self.value < before - EPSILON {
                0
            } else {
                stalled + 1
            };
        }
        Ended::Unfinished
    }

    fn violated(&self, bland: bool) -> Option<usize> {
        let negative = (0..self.level.len()).filter(|row| self.level[*row] < -EPSILON);
        if bland {
            negative.min_by_key(|row| self.basic[*row])
        } else {
            negative.min_by(|a, b| self.level[*a].total_cmp(&self.level[*b]))
        }
    }

    /// The variable that loses least when it takes over the violated row; of equal ones the steepest, or the one with the
    /// smallest index, as Bland asks.
    fn dual_entering(&self, leaving: usize, bland: bool) -> Option<usize> {
        let row = &self.inverse[leaving];
        let mut best: Option<(usize, f64, f64)> = None;
        for variable in self.others() {
            let slope = self.along(row, variable);
            if slope >= -EPSILON {
                continue;
            }
            let ratio = (-self.gain(variable)).max(0.0) / -slope;
            let better = best.is_none_or(|(_, known, steepest)| {
                let first = !bland && slope < steepest;
                ratio < known - EPSILON || (ratio < known + EPSILON && first)
            });
            if better {
                best = Some((variable, ratio, slope));
            }
        }
        best.map(|(variable, ..)| variable)
    }

    fn entering(&self, bland: bool) -> Option<usize> {
        let mut rising = self.others().map(|variable| (variable, self.gain(variable)));
        if bland {
            rising.find(|(_, gain)| *gain > EPSILON)
        } else {
            rising
                .filter(|(_, gain)| *gain > EPSILON)
                .max_by(|a, b| a.1.total_cmp(&b.1))
        }
        .map(|(variable, _)| variable)
    }

    /// The row that limits the entering variable first; of equal ones the one with the smallest index, as Bland asks.
    fn leaving(&self, column: &[f64]) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for (row, slope) in column.iter().enumerate() {
            if *slope <= EPSILON {
                continue;
            }
            let ratio = self.level[row].max(0.0) / slope;
            let better = best.is_none_or(|(other, known)| {
                ratio < known - EPSILON || (ratio < known + EPSILON && self.basic[row] < self.basic[other])
            });
            if better {
                best = Some((row, ratio));
            }
        }
        best.map(|(row, _)| row)
    }

    /// Puts a variable with this column into the basis, in place of that of a row.
    fn pivot(&mut self, leaving: usize, entering: usize, column: &[f64]) {
        let gain = self.gain(entering);
        let mut row = std::mem::take(&mut self.inverse[leaving]);
        let slope = column[leaving];
        row.iter_mut().for_each(|value| *value /= slope);
        let level = self.level[leaving] / slope;
        for (at, factor) in column.iter().enumerate() {
            if at != leaving && *factor != 0.0 {
                add(&mut self.inverse[at], -factor, &row);
                self.level[at] -= factor * level;
            }
        }
        add(&mut self.duals, gain, &row);
        self.value += gain * level;
        self.inverse[leaving] = row;
        self.level[leaving] = level;
        self.is_basic[self.basic[leaving]] = false;
        self.is_basic[entering] = true;
        self.basic[leaving] = entering;
    }

    fn solution(&self) -> Solution {
        let mut x = vec![0.0; self.columns.objective.len()];
        for (variable, level) in self.basic.iter().zip(&self.level) {
            if let Some(x) = x.get_mut(*variable) {
                *x = level.max(0.0);
            }
        }
        Solution {
            value: self.value,
            x,
            duals: self.duals.iter().map(|dual| dual.max(0.0)).collect(),
        }
    }
}

/// `vector += factor·other`: this loop is where the time goes.
fn add(vector: &mut [f64], factor: f64, other: &[f64]) {
    for (value, other) in vector.iter_mut().zip(other) {
        *value += factor * other;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(program: &LinearProgram) -> f64 {
        match program.solve() {
            Outcome::Optimal(solution) => solution.value,
            other @ (Outcome::Infeasible | Outcome::Unbounded | Outcome::Unfinished) => panic!("{other:?}"),
        }
    }

    /// The example of chapter 29.3 in Cormen et al., third edition: the optimum is 28.
    #[test]
    fn the_textbook_example_comes_out() {
        let mut program = LinearProgram::default();
        let x: Vec<_> = [3.0, 1.0, 2.0].map(|c| program.variable(c)).to_vec();
        program.at_most(vec![(x[0], 1.0), (x[1], 1.0), (x[2], 3.0)], 30.0);
        program.at_most(vec![(x[0], 2.0), (x[1], 2.0), (x[2], 5.0)], 24.0);
        program.at_most(vec![(x[0], 4.0), (x[1], 1.0), (x[2], 2.0)], 36.0);
        assert!((value(&program) - 28.0).abs() < 1e-9);
    }

    #[test]
    fn a_program_without_solution_or_bound_is_told() {
        let mut program = LinearProgram::default();
        let x = program.variable(1.0);
        assert_eq!(program.solve(), Outcome::Unbounded);
        program.at_least(vec![(x, 1.0)], 3.0);
        program.at_most(vec![(x, 1.0)], 2.0);
        assert_eq!(program.solve(), Outcome::Infeasible);
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
        /// A feasible point and feasible prices of the same value prove each other optimal (strong duality).
        #[test]
        fn an_optimum_carries_its_proof(program in programs()) {
            if let Outcome::Optimal(solution) = program.solve() {
                let mut paid = vec![0.0; program.objective.len()];
                let mut price = 0.0;
                for (row, dual) in program.rows.iter().zip(&solution.duals) {
                    let used: f64 = row.terms.iter().map(|(j, a)| a * solution.x[*j]).sum();
                    prop_assert!(used <= row.limit + 1e-6, "{used} > {}", row.limit);
                    for (j, a) in &row.terms {
                        paid[*j] += a * dual;
                    }
                    price += dual * row.limit;
                }
                for (paid, worth) in paid.iter().zip(&program.objective) {
                    prop_assert!(*paid >= worth - 1e-6, "{paid} < {worth}");
                }
                let worth: f64 = program.objective.iter().zip(&solution.x).map(|(c, x)| c * x).sum();
                prop_assert!((worth - solution.value).abs() < 1e-6);
                prop_assert!((price - solution.value).abs() < 1e-6, "{price} != {}", solution.value);
            }
        }

        /// The short way from an optimum to that of other limits leads to where the long one does.
        #[test]
        fn other_limits_have_the_same_optimum_either_way(
            mut program in programs(),
            limits in prop::collection::vec(-6i32..12, 7),
        ) {
            let optimum = Optimum::new(&program);
            let limits: Vec<f64> = limits[..program.rows.len()].iter().copied().map(f64::from).collect();
            for (row, limit) in program.rows.iter_mut().zip(&limits) {
                row.limit = *limit;
            }
            if let Ok(optimum) = optimum {
                let short = optimum.with_limits(limits.into_iter().enumerate());
                match (short.map(|short| short.solution()), program.solve()) {
                    (Ok(short), Outcome::Optimal(long)) => {
                        prop_assert!((short.value - long.value).abs() < 1e-6, "{} != {}", short.value, long.value);
                        for row in &program.rows {
                            let used: f64 = row.terms.iter().map(|(j, a)| a * short.x[*j]).sum();
                            prop_assert!(used <= row.limit + 1e-6, "{used} > {}", row.limit);
                        }
                    }
                    (Err(NoOptimum::Infeasible), Outcome::Infeasible) => {}
                    (short, long) => prop_assert!(false, "{short:?}, the long way {long:?}"),
                }
            }
        }

        /// Where a point is allowed, there is a solution, and it is worth as much as the point or more.
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
                Outcome::Optimal(solution) => prop_assert!(worth <= solution.value + 1e-6),
                Outcome::Unbounded => {}
                Outcome::Infeasible | Outcome::Unfinished => prop_assert!(false, "{point:?} is allowed"),
            }
        }
    }
}
