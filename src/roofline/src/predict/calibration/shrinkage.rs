//! Hierarchical estimate of a prediction's error from runs of one node.
//!
//! ```text
//! error = offset + slope·z(tokens) + noise,   z = ln(1 + tokens/4096)
//! (offset, slope)(model) = (offset, slope)(class) + d_model
//! (offset, slope)(class) = (offset, slope)(node)  + d_class
//! (offset, slope)(node)  =                          d_node
//! ```
//!
//! Errors are in units of their class: predictions of small models and of experts have larger errors
//! than those of dense models, so a run of such a model shifts the predictions of dense models less.
//!
//! All d are independent, normal, and zero on average, so every level is shrunk to the level above,
//! and a node without runs to the uncorrected prediction. The noise of a run follows Student's t:
//! runs that disagree with the majority lose their weight. The estimate is exact: information
//! passes from the runs up the tree and from its root down to the queried model, with 2 × 2
//! matrices.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};

use super::ArchitectureClass;
use rooflet_base::quantile::{nearest, sorted};

/// Context of which the slope starts to saturate, in tokens.
const BEND_TOKENS: f64 = 4096.0;
/// Degrees of freedom of a run's error in Student's t.
const DEGREES_OF_FREEDOM: f64 = 3.0;
/// Maximum number of iterations, and change of a weight at which they end.
const STEPS: usize = 25;
const CONVERGED: f64 = 1e-4;
/// Minimum deviation of a level. A zero would be a level without freedom.
const MIN_DEVIATION: f64 = 1e-4;

/// Deviations of the levels, as logarithms of times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shrinkage {
    /// Shares of the variance of an uncorrected prediction that all models of a node have in
    /// common, and that models of one class have in common. The remainder belongs to one model.
    pub node_share: f64,
    pub class_share: f64,
    /// Deviation of the slope of dense models at each level, per unit of z.
    pub slope: f64,
    /// Deviation of one run, which is the same for all classes.
    pub run: f64,
}

/// Model by its class and any number that identifies the model on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelId {
    pub class: ArchitectureClass,
    pub number: u64,
}

/// Error of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub model: ModelId,
    /// Mean context of decode, or length of prompts.
    pub tokens: f64,
    /// ln(measured / predicted time).
    pub error: f64,
    /// Number of current runs that this run counts as, 0 to 1.
    pub weight: f64,
}

/// Estimated error of a prediction, as a logarithm of its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub mean: f64,
    pub deviation: f64,
}

impl Shrinkage {
    /// Returns the error of predictions for `model` at this number of tokens. `prior` is the
    /// deviation of the uncorrected prediction.
    pub fn estimate(&self, samples: &[Sample], model: ModelId, tokens: f64, prior: f64) -> Estimate {
        let unit = model.class.error_scale();
        let levels = Levels::new(self, prior / unit);
        let mut weights = self.first_weights(samples);
        let mut tree = Tree::new(self, levels, samples, &weights);
        for _ in 0..STEPS {
            let mut change: f64 = 0.0;
            for (sample, weight) in samples.iter().zip(&mut weights) {
                let scale = sample.model.class.error_scale();
                let expected = scale * tree.at(sample.model).mean(position(sample.tokens));
                let next = self.weight(sample.error - expected);
                change = change.max((next - *weight).abs());
                *weight = next;
            }
            tree = Tree::new(self, levels, samples, &weights);
            if change < CONVERGED {
                break;
            }
        }
        let (at, information) = (position(tokens), tree.at(model));
        Estimate {
            mean: unit * information.mean(at),
            deviation: unit * information.variance(at).max(0.0).sqrt(),
        }
    }

    /// Returns the weights before the first iteration, relative to the median run of each model.
    /// The iteration then converges to the majority of the runs. A single run has no majority, so
    /// it starts as a deviation from the uncorrected prediction.
    fn first_weights(&self, samples: &[Sample]) -> Vec<f64> {
        let mut errors: BTreeMap<ModelId, Vec<f64>> = BTreeMap::new();
        for sample in samples {
            errors.entry(sample.model).or_default().push(sample.error);
        }
        let middle = |model: &ModelId| {
            let errors = &errors[model];
            let middle = nearest(&sorted(errors.iter().copied()), 0.5).unwrap_or_default();
            middle * (1.0 - (errors.len() as f64).recip())
        };
        samples
            .iter()
            .map(|sample| self.weight(sample.error - middle(&sample.model)))
            .collect()
    }

    /// Returns the weight of a run in Student's t, relative to a normal distribution.
    fn weight(&self, residual: f64) -> f64 {
        let scaled = residual / self.run;
        (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + scaled * scaled)
    }
}

/// Returns z of a number of tokens.
fn position(tokens: f64) -> f64 {
    (tokens.max(0.0) / BEND_TOKENS).ln_1p()
}

/// Variances of offset and slope that a level adds, in units of the class.
#[derive(Debug, Clone, Copy)]
struct Level {
    offset: f64,
    slope: f64,
}

#[derive(Debug, Clone, Copy)]
struct Levels {
    node: Level,
    class: Level,
    model: Level,
}

impl Levels {
    fn new(shrinkage: &Shrinkage, prior: f64) -> Self {
        let level = |share: f64| Level {
            offset: (share.max(0.0) * prior * prior).max(MIN_DEVIATION * MIN_DEVIATION),
            slope: shrinkage.slope.max(MIN_DEVIATION).powi(2),
        };
        Self {
            node: level(shrinkage.node_share),
            class: level(shrinkage.class_share),
            model: level(1.0 - shrinkage.node_share - shrinkage.class_share),
        }
    }
}

/// Information on an offset and a slope: the precision matrix, and its product with the mean.
#[derive(Debug, Clone, Copy, Default)]
struct Information {
    offset: f64,
    cross: f64,
    slope: f64,
    mean_offset: f64,
    mean_slope: f64,
}

impl Information {
    /// Returns the information of a prior with mean 0.
    fn prior(level: Level) -> Self {
        Self {
            offset: level.offset.recip(),
            slope: level.slope.recip(),
            ..Self::default()
        }
    }

    /// Returns the information of a run with this precision.
    fn run(at: f64, error: f64, precision: f64) -> Self {
        Self {
            offset: precision,
            cross: precision * at,
            slope: precision * at * at,
            mean_offset: precision * error,
            mean_slope: precision * at * error,
        }
    }

    /// Returns the information after independent deviations of the level were added:
    /// `(I + Λ·V)⁻¹·Λ`, which also exists for a singular Λ.
    fn across(self, level: Level) -> Self {
        let (a, b) = (1.0 + self.offset * level.offset, self.cross * level.slope);
        let (c, d) = (self.cross * level.offset, 1.0 + self.slope * level.slope);
        let determinant = a * d - b * c;
        let solve = |first: f64, second: f64| {
            (
                (d * first - b * second) / determinant,
                (a * second - c * first) / determinant,
            )
        };
        let (offset, cross) = solve(self.offset, self.cross);
        let (_, slope) = solve(self.cross, self.slope);
        let (mean_offset, mean_slope) = solve(self.mean_offset, self.mean_slope);
        Self {
            offset,
            cross,
            slope,
            mean_offset,
            mean_slope,
        }
    }

    fn determinant(self) -> f64 {
        self.offset * self.slope - self.cross * self.cross
    }

    fn mean(self, at: f64) -> f64 {
        let offset = self.slope * self.mean_offset - self.cross * self.mean_slope;
        let slope = self.offset * self.mean_slope - self.cross * self.mean_offset;
        (offset + slope * at) / self.determinant()
    }

    fn variance(self, at: f64) -> f64 {
        (self.slope - 2.0 * self.cross * at + self.offset * at * at) / self.determinant()
    }
}

impl AddAssign for Information {
    fn add_assign(&mut self, other: Self) {
        self.offset += other.offset;
        self.cross += other.cross;
        self.slope += other.slope;
        self.mean_offset += other.mean_offset;
        self.mean_slope += other.mean_slope;
    }
}

impl Sub for Information {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            offset: self.offset - other.offset,
            cross: self.cross - other.cross,
            slope: self.slope - other.slope,
            mean_offset: self.mean_offset - other.mean_offset,
            mean_slope: self.mean_slope - other.mean_slope,
        }
    }
}

/// Information of the runs at every level.
#[derive(Debug)]
struct Tree {
    levels: Levels,
    node: Information,
    classes: BTreeMap<ArchitectureClass, Information>,
    models: BTreeMap<ModelId, Information>,
}

impl Tree {
    fn new(shrinkage: &Shrinkage, levels: Levels, samples: &[Sample], weights: &[f64]) -> Self {
        let mut models: BTreeMap<ModelId, Information> = BTreeMap::new();
        for (sample, weight) in samples.iter().zip(weights) {
            let unit = sample.model.class.error_scale();
            let precision = weight * sample.weight * (unit / shrinkage.run).powi(2);
            *models.entry(sample.model).or_default() +=
                Information::run(position(sample.tokens), sample.error / unit, precision);
        }
        let mut classes: BTreeMap<ArchitectureClass, Information> = BTreeMap::new();
        for (model, information) in &models {
            *classes.entry(model.class).or_default() += information.across(levels.model);
        }
        let mut node = Information::prior(levels.node);
        for information in classes.values() {
            node += information.across(levels.class);
        }
        Self {
            levels,
            node,
            classes,
            models,
        }
    }

    /// Returns all information on a model, with or without runs of its own.
    fn at(&self, model: ModelId) -> Information {
        let Levels {
            class, model: own, ..
        } = self.levels;
        let of_class = self.classes.get(&model.class).copied().unwrap_or_default();
        let of_model = self.models.get(&model).copied().unwrap_or_default();
        // The information of a branch must not return to it.
        let mut information = (self.node - of_class.across(class)).across(class);
        information += of_class;
        let mut information = (information - of_model.across(own)).across(own);
        information += of_model;
        information
    }
}
