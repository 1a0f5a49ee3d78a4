//! Robust regularised least squares: most probable constants for priors and heavy-tailed
//! measurements.
//!
//! Minimises `Σ (ν+1)·ln(1 + (r/s)²/ν) + Σ ((x−µ)/σ)²`. Errors r of scale s follow Student's t with
//! ν degrees of freedom, so single wrong rows have little influence. Every unknown x has a normal
//! prior. The solver takes Levenberg–Marquardt steps on iteratively reweighted rows, with forward
//! differences. It is deterministic.

/// Degrees of freedom, with tails between those of a normal and a Cauchy distribution.
const DEGREES_OF_FREEDOM: f64 = 3.0;
const MAX_STEPS: usize = 60;
const DIFFERENCE: f64 = 1e-5;
/// Minimum improvement of a step; a smaller one ends the search.
const TOLERANCE: f64 = 1e-2;

/// Prior of an unknown: mean and standard deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Prior {
    pub mean: f64,
    pub deviation: f64,
}

/// Finds the unknowns, starting at `start`. `errors` returns the scaled error of every row.
pub(crate) fn solve(priors: &[Prior], start: Vec<f64>, errors: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let cost = |unknowns: &[f64], errors: &[f64]| {
        let rows: f64 = errors
            .iter()
            .map(|error| (DEGREES_OF_FREEDOM + 1.0) * (error * error / DEGREES_OF_FREEDOM).ln_1p())
            .sum();
        let prior_cost: f64 = priors
            .iter()
            .zip(unknowns)
            .map(|(prior, x)| ((x - prior.mean) / prior.deviation).powi(2))
            .sum();
        rows + prior_cost
    };

    let mut unknowns = start;
    let mut current = errors(&unknowns);
    let mut best = cost(&unknowns, &current);
    let mut damping = 1e-3;
    for _ in 0..MAX_STEPS {
        let (curvature, slope) = normal_equations(priors, &unknowns, &current, &errors);
        let mut gained = None;
        while gained.is_none() && damping < 1e6 {
            let mut damped = curvature.clone();
            for (index, row) in damped.iter_mut().enumerate() {
                row[index] *= 1.0 + damping;
            }
            let step = cholesky_solve(damped, &slope);
            let candidate: Vec<f64> = unknowns.iter().zip(&step).map(|(x, step)| x + step).collect();
            let candidate_errors = errors(&candidate);
            let candidate_cost = cost(&candidate, &candidate_errors);
            if candidate_cost < best {
                gained = Some(best - candidate_cost);
                (unknowns, current, best) = (candidate, candidate_errors, candidate_cost);
                damping = (damping / 5.0).max(1e-6);
            } else {
                damping *= 5.0;
            }
        }
        if gained.is_none_or(|gained| gained < TOLERANCE) {
            break;
        }
    }
    unknowns
}

/// Returns the matrix and right-hand side of one Gauss–Newton step.
fn normal_equations(
    priors: &[Prior],
    unknowns: &[f64],
    current: &[f64],
    errors: impl Fn(&[f64]) -> Vec<f64>,
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let n = unknowns.len();
    let mut moved = unknowns.to_vec();
    // Unknowns per row. Most rows depend on few of the bins and releases.
    let mut gradients: Vec<Vec<(usize, f64)>> = vec![Vec::new(); current.len()];
    for index in 0..n {
        moved[index] += DIFFERENCE;
        for (gradient, (after, before)) in gradients.iter_mut().zip(errors(&moved).iter().zip(current)) {
            let slope = (after - before) / DIFFERENCE;
            if slope != 0.0 {
                gradient.push((index, slope));
            }
        }
        moved[index] = unknowns[index];
    }
    let mut curvature = vec![vec![0.0; n]; n];
    let mut slope = vec![0.0; n];
    for (index, prior) in priors.iter().enumerate() {
        curvature[index][index] = prior.deviation.powi(-2);
        slope[index] = (prior.mean - unknowns[index]) * prior.deviation.powi(-2);
    }
    for (gradient, error) in gradients.iter().zip(current) {
        let weight = (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + error * error);
        for &(i, gi) in gradient {
            slope[i] -= weight * gi * error;
            for &(j, gj) in gradient {
                curvature[i][j] += weight * gi * gj;
            }
        }
    }
    (curvature, slope)
}

/// Solves `a·x = b` for a symmetric positive definite `a`. The priors make it positive definite.
fn cholesky_solve(mut a: Vec<Vec<f64>>, b: &[f64]) -> Vec<f64> {
    let n = b.len();
    for i in 0..n {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| a[i][k] * a[j][k]).sum();
            let rest = a[i][j] - known;
            a[i][j] = if i == j {
                rest.max(1e-12).sqrt()
            } else {
                rest / a[j][j]
            };
        }
    }
    let mut x = b.to_vec();
    for i in 0..n {
        let known: f64 = (0..i).map(|k| a[i][k] * x[k]).sum();
        x[i] = (x[i] - known) / a[i][i];
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| a[k][i] * x[k]).sum();
        x[i] = (x[i] - known) / a[i][i];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fits a line through points with one outlier.
    #[test]
    fn outlier_has_little_influence() {
        let points: Vec<(f64, f64)> = (0..20)
            .map(|x| (f64::from(x), 3.0 + 2.0 * f64::from(x)))
            .collect();
        let wide = Prior {
            mean: 0.0,
            deviation: 100.0,
        };
        let fit = |points: &[(f64, f64)]| {
            solve(&[wide, wide], vec![0.0, 0.0], |u| {
                points.iter().map(|(x, y)| (u[0] + u[1] * x - y) / 0.1).collect()
            })
        };
        let clean = fit(&points);
        assert!(
            (clean[0] - 3.0).abs() < 1e-2 && (clean[1] - 2.0).abs() < 1e-2,
            "{clean:?}"
        );
        let mut disturbed = points.clone();
        disturbed[7].1 += 500.0;
        let robust = fit(&disturbed);
        assert!((robust[1] - 2.0).abs() < 2e-2, "{robust:?}");
    }

    #[test]
    fn returns_the_prior_without_rows() {
        let prior = Prior {
            mean: 1.5,
            deviation: 0.2,
        };
        assert!((solve(&[prior], vec![0.0], |_| Vec::new())[0] - 1.5).abs() < 1e-6);
    }
}
