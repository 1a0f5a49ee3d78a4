//! Linear programs, solved exactly enough: the simplex method on a dense dictionary, in two phases.
//!
//! After Dantzig (1947) with Bland's rule (1977) against cycling; the form with one auxiliary variable is that of Cormen
//! et al., *Introduction to Algorithms*, chapter 29. Each optimum comes with its dual, which proves it.

/// Numbers nearer to zero than this are zero.
const EPSILON: f64 = 1e-9;
/// Pivots without progress after which Bland's rule takes over.
const STALLED: u32 = 40;
/// Pivots after which a program is given up; far above what programs of our size take.
const MAX_PIVOTS: u32 = 50_000;

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
        match dictionary.find_feasible() {
            Phase::Done => {}
            Phase::Unbounded => return Outcome::Infeasible,
            Phase::Unfinished => return Outcome::Unfinished,
        }
        dictionary.install(&self.objective);
        match dictionary.maximise() {
            Phase::Done => Outcome::Optimal(dictionary.solution(self)),
            Phase::Unbounded => Outcome::Unbounded,
            Phase::Unfinished => Outcome::Unfinished,
        }
    }
}

enum Phase {
    Done,
    Unbounded,
    Unfinished,
}

/// Basic variables written in the nonbasic ones: `basic[i] = b[i] − Σ a[i][j]·nonbasic[j]`, `value + Σ c[j]·nonbasic[j]`.
/// Variables count from 0, then the slacks of the rows, then the auxiliary one.
struct Dictionary {
    basic: Vec<usize>,
    nonbasic: Vec<usize>,
    a: Vec<Vec<f64>>,
    b: Vec<f64>,
    c: Vec<f64>,
    value: f64,
    variables: usize,
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
        }
    }

    /// Phase one: every row's slack is lifted by an auxiliary variable, which is then driven out.
    /// `Unbounded` stands for a program that has no solution.
    fn find_feasible(&mut self) -> Phase {
        let worst = (0..self.b.len()).min_by(|i, j| self.b[*i].total_cmp(&self.b[*j]));
        let Some(worst) = worst.filter(|worst| self.b[*worst] < -EPSILON) else {
            return Phase::Done;
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
            Phase::Done => {}
            Phase::Unbounded => return Phase::Unbounded,
            Phase::Unfinished => return Phase::Unfinished,
        }
        if self.value < -1e-7 {
            return Phase::Unbounded;
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
        Phase::Done
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

    fn maximise(&mut self) -> Phase {
        let mut stalled = 0;
        for _ in 0..MAX_PIVOTS {
            let bland = stalled > STALLED;
            let Some(entering) = self.entering(bland) else {
                return Phase::Done;
            };
            let Some(leaving) = self.leaving(entering) else {
                return Phase::Unbounded;
            };
            let before = self.value;
            self.pivot(leaving, entering);
            stalled = if self.value > before + EPSILON {
                0
            } else {
                stalled + 1
            };
        }
        Phase::Unfinished
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
            for j in filled {
                other[*j] -= factor * terms[*j];
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

    fn solution(&self, program: &LinearProgram) -> Solution {
        let mut x = vec![0.0; self.variables];
        for (variable, value) in self.basic.iter().zip(&self.b) {
            if *variable < self.variables {
                x[*variable] = value.max(0.0);
            }
        }
        let mut duals = vec![0.0; program.rows.len()];
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
