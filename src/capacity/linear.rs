//! Linear programs, solved exactly enough: the simplex method on a dense dictionary, in two phases.
//!
//! After Dantzig (1947) with Bland's rule (1977) against cycling; the form with one auxiliary variable is that of Cormen
//! et al., *Introduction to Algorithms*, chapter 29. Each optimum comes with its dual, which proves it. From one optimum
//! to that of the same program with other limits leads the dual simplex method (Lemke, 1954), mostly in few steps.

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
        let mut dictionary = Dictionary::new(self);
        match dictionary.solve(&self.objective) {
            Ended::Optimal => Outcome::Optimal(dictionary.solution()),
            Ended::Infeasible => Outcome::Infeasible,
            Ended::Unbounded => Outcome::Unbounded,
            Ended::Unfinished => Outcome::Unfinished,
        }
    }
}

/// A program at its optimum, to be asked again with other limits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Optimum {
    program: LinearProgram,
    dictionary: Dictionary,
}

impl Optimum {
    pub(super) fn new(program: LinearProgram) -> Result<Self, NoOptimum> {
        let mut dictionary = Dictionary::new(&program);
        match dictionary.solve(&program.objective) {
            Ended::Optimal => Ok(Self { program, dictionary }),
            Ended::Infeasible => Err(NoOptimum::Infeasible),
            Ended::Unbounded | Ended::Unfinished => Err(NoOptimum::Unknown),
        }
    }

    pub(super) fn solution(&self) -> Solution {
        self.dictionary.solution()
    }

    /// The same program with the limits of these rows moved.
    pub(super) fn with_limits(
        &self,
        limits: impl IntoIterator<Item = (usize, f64)>,
    ) -> Result<Self, NoOptimum> {
        let mut moved = self.clone();
        for (row, limit) in limits {
            let old = std::mem::replace(&mut moved.program.rows[row].limit, limit);
            if limit != old {
                moved.dictionary.shift(row, limit - old);
            }
        }
        match moved.dictionary.restore() {
            Ended::Optimal => Ok(moved),
            Ended::Infeasible => Err(NoOptimum::Infeasible),
            // The short way was none.
            Ended::Unbounded | Ended::Unfinished => Self::new(moved.program),
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

/// Basic variables written in the nonbasic ones: `basic[i] = b[i] − Σ a[i][j]·nonbasic[j]`, `value + Σ c[j]·nonbasic[j]`.
/// Variables count from 0, then the slacks of the rows, then the auxiliary one.
#[derive(Debug, Clone, PartialEq)]
struct Dictionary {
    basic: Vec<usize>,
    nonbasic: Vec<usize>,
    a: Vec<Vec<f64>>,
    b: Vec<f64>,
    c: Vec<f64>,
    value: f64,
    variables: usize,
    rows: usize,
}

impl Dictionary {
    fn new(program: &LinearProgram) -> Self {
        let variables = program.objective.len();
        let rows = program.rows.len();
        let a = program
            .rows
            .iter()
            .map(|row| {
                let mut dense = vec![0.0; variables];
                for (variable, factor) in &row.terms {
                    dense[*variable] += factor;
                }
                dense
            })
            .collect();
        Self {
            basic: (variables..variables + rows).collect(),
            nonbasic: (0..variables).collect(),
            a,
            b: program.rows.iter().map(|row| row.limit).collect(),
            c: vec![0.0; variables],
            value: 0.0,
            variables,
            rows,
        }
    }

    fn solve(&mut self, objective: &[f64]) -> Ended {
        match self.find_feasible() {
            Ended::Optimal => {
                self.install(objective);
                self.maximise()
            }
            other @ (Ended::Infeasible | Ended::Unbounded | Ended::Unfinished) => other,
        }
    }

    /// Phase one: every row's slack is lifted by an auxiliary variable, which is then driven out.
    fn find_feasible(&mut self) -> Ended {
        let worst = (0..self.b.len()).min_by(|i, j| self.b[*i].total_cmp(&self.b[*j]));
        let Some(worst) = worst.filter(|worst| self.b[*worst] < -EPSILON) else {
            return Ended::Optimal;
        };
        let auxiliary = self.variables + self.b.len();
        self.nonbasic.push(auxiliary);
        for row in &mut self.a {
            row.push(-1.0);
        }
        self.c = vec![0.0; self.nonbasic.len()];
        let last = self.nonbasic.len() - 1;
        self.c[last] = -1.0;
        self.pivot(worst, last);
        match self.maximise() {
            Ended::Optimal => {}
            other @ (Ended::Infeasible | Ended::Unbounded | Ended::Unfinished) => return other,
        }
        if self.value < -1e-7 {
            return Ended::Infeasible;
        }
        if let Some(row) = self.basic.iter().position(|variable| *variable == auxiliary) {
            // It is zero; any other variable may take its place.
            let column = (0..self.nonbasic.len())
                .max_by(|i, j| self.a[row][*i].abs().total_cmp(&self.a[row][*j].abs()));
            match column.filter(|column| self.a[row][*column].abs() > EPSILON) {
                Some(column) => self.pivot(row, column),
                None => {
                    // The row says 0 = 0.
                    self.basic.swap_remove(row);
                    self.a.swap_remove(row);
                    self.b.swap_remove(row);
                }
            }
        }
        if let Some(column) = self.nonbasic.iter().position(|variable| *variable == auxiliary) {
            self.nonbasic.swap_remove(column);
            self.c.swap_remove(column);
            for row in &mut self.a {
                row.swap_remove(column);
            }
        }
        Ended::Optimal
    }

    /// Writes the objective in the nonbasic variables.
    fn install(&mut self, objective: &[f64]) {
        let factor = |variable: usize| objective.get(variable).copied().unwrap_or(0.0);
        self.value = 0.0;
        self.c = self.nonbasic.iter().map(|variable| factor(*variable)).collect();
        for (i, variable) in self.basic.iter().enumerate() {
            let factor = factor(*variable);
            if factor != 0.0 {
                self.value += factor * self.b[i];
                for (c, a) in self.c.iter_mut().zip(&self.a[i]) {
                    *c -= factor * a;
                }
            }
        }
    }

    /// The primal method: from a solution to better ones.
    fn maximise(&mut self) -> Ended {
        let mut stalled = 0;
        for _ in 0..MAX_PIVOTS {
            let bland = stalled > STALLED;
            let Some(entering) = self.entering(bland) else {
                return Ended::Optimal;
            };
            let Some(leaving) = self.leaving(entering) else {
                return Ended::Unbounded;
            };
            let before = self.value;
            self.pivot(leaving, entering);
            stalled = if self.value > before + EPSILON {
                0
            } else {
                stalled + 1
            };
        }
        Ended::Unfinished
    }

    /// Moves the limit of a row.
    fn shift(&mut self, row: usize, by: f64) {
        let slack = self.variables + row;
        if let Some(column) = self.nonbasic.iter().position(|variable| *variable == slack) {
            for (b, a) in self.b.iter_mut().zip(&self.a) {
                *b += a[column] * by;
            }
            self.value -= self.c[column] * by;
        } else if let Some(row) = self.basic.iter().position(|variable| *variable == slack) {
            self.b[row] += by;
        }
    }

    /// The dual method: from what would be best to what is allowed. No variable may be worth using at the start.
    fn restore(&mut self) -> Ended {
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
            self.pivot(leaving, entering);
            stalled = if self.value < before - EPSILON {
                0
            } else {
                stalled + 1
            };
        }
        Ended::Unfinished
    }

    fn violated(&self, bland: bool) -> Option<usize> {
        let negative = (0..self.b.len()).filter(|i| self.b[*i] < -EPSILON);
        if bland {
            negative.min_by_key(|i| self.basic[*i])
        } else {
            negative.min_by(|i, j| self.b[*i].total_cmp(&self.b[*j]))
        }
    }

    /// The variable that loses least when it takes over the violated row; of equal ones the steepest, or the one with the
    /// smallest index, as Bland asks.
    fn dual_entering(&self, leaving: usize, bland: bool) -> Option<usize> {
        let row = &self.a[leaving];
        let mut best: Option<(usize, f64)> = None;
        for (j, slope) in row.iter().enumerate() {
            if *slope >= -EPSILON {
                continue;
            }
            let ratio = (-self.c[j]).max(0.0) / -slope;
            let better = match best {
                None => true,
                Some((column, known)) => {
                    let first = if bland {
                        self.nonbasic[j] < self.nonbasic[column]
                    } else {
                        *slope < row[column]
                    };
                    ratio < known - EPSILON || (ratio < known + EPSILON && first)
                }
            };
            if better {
                best = Some((j, ratio));
            }
        }
        best.map(|(column, _)| column)
    }

    fn entering(&self, bland: bool) -> Option<usize> {
        let rising = (0..self.c.len()).filter(|j| self.c[*j] > EPSILON);
        if bland {
            rising.min_by_key(|j| self.nonbasic[*j])
        } else {
            rising.max_by(|i, j| self.c[*i].total_cmp(&self.c[*j]))
        }
    }

    /// The row that limits the entering variable first; of equal ones the one with the smallest index, as Bland asks.
    fn leaving(&self, entering: usize) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for i in 0..self.b.len() {
            let slope = self.a[i][entering];
            if slope <= EPSILON {
                continue;
            }
            let ratio = self.b[i].max(0.0) / slope;
            let better = match best {
                None => true,
                Some((row, known)) => {
                    ratio < known - EPSILON || (ratio < known + EPSILON && self.basic[i] < self.basic[row])
                }
            };
            if better {
                best = Some((i, ratio));
            }
        }
        best.map(|(row, _)| row)
    }

    fn pivot(&mut self, leaving: usize, entering: usize) {
        let mut row = std::mem::take(&mut self.a[leaving]);
        let inverse = row[entering].recip();
        for value in &mut row {
            *value *= inverse;
        }
        row[entering] = inverse;
        let level = self.b[leaving] * inverse;
        // Most entries are zero: touch the others only.
        let filled: Vec<usize> = (0..row.len()).filter(|j| row[*j] != 0.0).collect();
        // Plain slices: this loop is where the time goes, and a build without optimisation indexes vectors by two calls.
        let (terms, filled): (&[f64], &[usize]) = (&row, &filled);
        let dense = 4 * filled.len() > terms.len();
        for i in 0..self.a.len() {
            if i == leaving {
                continue;
            }
            let factor = self.a[i][entering];
            if factor == 0.0 {
                continue;
            }
            let other: &mut [f64] = &mut self.a[i];
            other[entering] = 0.0;
            if dense {
                for (other, term) in other.iter_mut().zip(terms) {
                    *other -= factor * term;
                }
            } else {
                for j in filled {
                    other[*j] -= factor * terms[*j];
                }
            }
            self.b[i] -= factor * level;
        }
        let factor = self.c[entering];
        if factor != 0.0 {
            self.c[entering] = 0.0;
            for j in filled {
                self.c[*j] -= factor * terms[*j];
            }
            self.value += factor * level;
        }
        self.a[leaving] = row;
        self.b[leaving] = level;
        std::mem::swap(&mut self.basic[leaving], &mut self.nonbasic[entering]);
    }

    fn solution(&self) -> Solution {
        let mut x = vec![0.0; self.variables];
        for (variable, value) in self.basic.iter().zip(&self.b) {
            if *variable < self.variables {
                x[*variable] = value.max(0.0);
            }
        }
        let mut duals = vec![0.0; self.rows];
        for (variable, slope) in self.nonbasic.iter().zip(&self.c) {
            if let Some(row) = variable.checked_sub(self.variables) {
                duals[row] = (-slope).max(0.0);
            }
        }
        Solution {
            value: self.value,
            x,
            duals,
        }
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
            let optimum = Optimum::new(program.clone());
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
