//! Mixture of experts: a router selects some of many feed-forward blocks for each token.

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::Dtype;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::{
    Ellipsis, TryIndexOp, put_along_axis, take_along_axis, take_axis, topk_axis,
};
use rooflet_mlx::mlx_rs::ops::{
    add, argpartition_axis, argsort, divide, expand_dims_axes, multiply, sigmoid, softmax_axis, sum_axis,
};

use super::feed_forward::{Dense, Gate};
use super::kernels::Kernels;
use super::linear::{ExpertLinear, Linear};
use rooflet_mlx::load::{LoadError, Weights};
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config;
use rooflet_model::config::{DenseConfig, ExpertsConfig};

/// Minimum number of selections for sorting them by expert, so that the weights of an expert are
/// read once (mlx-lm's threshold).
const SORTED_CHOICES: i32 = 64;

/// Selection and weighting of each token's experts.
#[derive(Debug)]
enum Router {
    Softmax {
        renormalizes: bool,
    },
    SelectedSoftmax,
    Sigmoid {
        /// Bias of the scores that affects the selection only, in float32.
        correction: Array,
        renormalizes: bool,
        scale: Array,
        groups: i32,
        chosen_groups: i32,
    },
}

impl Router {
    fn load(
        module: &str,
        router: config::Router,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        Ok(match router {
            config::Router::Softmax { renormalizes } => Self::Softmax { renormalizes },
            config::Router::SelectedSoftmax => Self::SelectedSoftmax,
            config::Router::Sigmoid {
                renormalizes,
                scale,
                groups,
                chosen_groups,
            } => Self::Sigmoid {
                correction: weights.take_float32(&format!("{module}.e_score_correction_bias"))?,
                renormalizes,
                scale: Array::from_f32(scale),
                groups: groups.cast_signed(),
                chosen_groups: chosen_groups.cast_signed(),
            },
        })
    }

    /// Selects experts and their weights, `[…, active]` each, from the scores of all experts, `[…,
    /// experts]`.
    fn choose(&self, scores: &Array, active: i32) -> Result<(Array, Array)> {
        match self {
            Self::Softmax { renormalizes } => {
                let shares = softmax_axis(scores, -1, true)?;
                let chosen = highest(&shares, active)?;
                let weights = take_along_axis(&shares, &chosen, -1)?;
                Ok((chosen, normalized(weights, *renormalizes)?))
            }
            Self::SelectedSoftmax => {
                let chosen = highest(scores, active)?;
                let weights = softmax_axis(take_along_axis(scores, &chosen, -1)?, -1, true)?;
                Ok((chosen, weights))
            }
            Self::Sigmoid {
                correction,
                renormalizes,
                scale,
                groups,
                chosen_groups,
            } => {
                let scores = sigmoid(scores.as_dtype(Dtype::Float32)?)?;
                let mut corrected = add(&scores, correction)?;
                if *groups > 1 {
                    corrected = within_groups(&corrected, *groups, *chosen_groups)?;
                }
                let order = argpartition_axis(corrected.negative()?, active - 1, -1)?;
                let chosen = order.try_index((Ellipsis, ..active))?;
                let weights = take_along_axis(&scores, &chosen, -1)?;
                let weights = normalized(weights, *renormalizes && active > 1)?;
                Ok((chosen, multiply(weights, scale)?))
            }
        }
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Softmax { .. } | Self::SelectedSoftmax => Vec::new(),
            Self::Sigmoid { correction, .. } => vec![correction],
        }
    }
}

/// Returns the indices of the `count` highest scores, in any order.
fn highest(scores: &Array, count: i32) -> Result<Array> {
    argpartition_axis(scores, -count, -1)?.try_index((Ellipsis, -count..))
}

fn normalized(weights: Array, normalizes: bool) -> Result<Array> {
    if !normalizes {
        return Ok(weights);
    }
    let sum = sum_axis(&weights, -1, true)?;
    divide(weights, sum)
}

/// Sets the scores to zero in all but the best groups. The score of a group is the sum of its two
/// best scores.
fn within_groups(scores: &Array, groups: i32, chosen: i32) -> Result<Array> {
    let rejected = groups - chosen;
    if rejected == 0 {
        return Ok(scores.clone());
    }
    let shape = scores.shape().to_vec();
    let mut grouped = shape[..shape.len() - 1].to_vec();
    grouped.extend([groups, -1]);
    let grouped = scores.reshape(&grouped)?;
    let best = sum_axis(topk_axis(&grouped, 2, -1)?, -1, true)?;
    let worst = argpartition_axis(best, rejected - 1, -2)?.try_index((Ellipsis, ..rejected, ..))?;
    put_along_axis(grouped, worst, Array::from_f32(0.0), -2)?.reshape(&shape)
}

/// Expert that processes every token.
#[derive(Debug)]
struct Shared {
    block: Dense,
    /// Gate of the expert's output for each token.
    gate: Option<Linear>,
}

/// Mixture of experts with its router.
#[derive(Debug)]
pub(super) struct Experts {
    active: i32,
    scores: Linear,
    router: Router,
    gate: ExpertLinear,
    up: ExpertLinear,
    down: ExpertLinear,
    activation: Gate,
    shared: Option<Shared>,
}

impl Experts {
    pub(super) fn load(
        module: &str,
        config: &ExpertsConfig,
        shape: &ModelShape,
        weights: &mut Weights,
        kernels: &mut Kernels,
    ) -> std::result::Result<Self, LoadError> {
        let router = format!("{module}.{}", config.names.router);
        let experts = format!("{module}.{}", config.names.experts);
        let mut linear =
            |part: &str| ExpertLinear::load(&format!("{experts}.{part}"), config.bias, shape, weights);
        let (gate, up, down) = (linear("gate_proj")?, linear("up_proj")?, linear("down_proj")?);
        let shared = match &config.shared {
            Some(shared) => {
                let dense = DenseConfig {
                    intermediate: shared.intermediate,
                    activation: config.activation,
                    fused: false,
                    bias: config.bias,
                };
                let block = Dense::load(
                    &format!("{module}.{}", config.names.shared),
                    &dense,
                    shape,
                    weights,
                    kernels,
                )?;
                let gate = shared
                    .gated
                    .then(|| {
                        let gate = format!("{module}.{}_gate", config.names.shared);
                        Linear::load(&gate, false, shape, weights)
                    })
                    .transpose()?;
                Some(Shared { block, gate })
            }
            None => None,
        };
        Ok(Self {
            active: config.active.cast_signed(),
            scores: Linear::load(&router, config.bias, shape, weights)?,
            router: Router::load(&router, config.router, weights)?,
            gate,
            up,
            down,
            activation: Gate::new(config.activation, weights, kernels)?,
            shared,
        })
    }

    /// Applies the experts to `x`, `[rows, tokens, hidden]`.
    pub(super) fn apply(&self, x: &Array) -> Result<Array> {
        let (chosen, weights) = self.router.choose(&self.scores.apply(x)?, self.active)?;
        let outputs = self.apply_experts(x, &chosen)?;
        let weighed = multiply(&outputs, weights.expand_dims(-1)?)?;
        let mut y = sum_axis(weighed, -2, false)?;
        if y.dtype() != outputs.dtype() {
            y = y.as_dtype(outputs.dtype())?;
        }
        match &self.shared {
            Some(Shared { block, gate: None }) => add(y, block.apply(x)?),
            Some(Shared {
                block,
                gate: Some(gate),
            }) => add(y, multiply(sigmoid(gate.apply(x)?)?, block.apply(x)?)?),
            None => Ok(y),
        }
    }

    /// Computes the outputs of each token's experts, `[rows, tokens, active, hidden]`.
    fn apply_experts(&self, x: &Array, chosen: &Array) -> Result<Array> {
        let through = |x: &Array, experts: &Array, sorted: bool| {
            let up = self.up.apply(x, experts, sorted)?;
            let gate = self.gate.apply(x, experts, sorted)?;
            self.down
                .apply(&self.activation.apply(&gate, &up)?, experts, sorted)
        };
        let choices = i32::try_from(chosen.size()).unwrap_or(i32::MAX);
        if choices < SORTED_CHOICES {
            return through(&expand_dims_axes(x, &[-2, -3])?, chosen, false)?.squeeze_axes(&[-2]);
        }
        let experts = chosen.reshape(&[-1])?;
        let order = argsort(&experts)?;
        let back = argsort(&order)?;
        let tokens = x.reshape(&[-1, 1, x.dim(-1)])?;
        let token = order.floor_divide(Array::from_slice(&[self.active.cast_unsigned()], &[1]))?;
        let sorted = take_axis(experts, &order, 0)?;
        let outputs = through(&take_axis(tokens, token, 0)?, &sorted, true)?;
        let outputs = take_axis(outputs, back, 0)?;
        let mut shape = chosen.shape().to_vec();
        shape.push(outputs.dim(-1));
        outputs.reshape(&shape)
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        let mut arrays = self.scores.arrays();
        arrays.extend(self.router.arrays());
        for linear in [&self.gate, &self.up, &self.down] {
            arrays.extend(linear.arrays());
        }
        if let Some(Shared { block, gate }) = &self.shared {
            arrays.extend(block.arrays());
            arrays.extend(gate.iter().flat_map(Linear::arrays));
        }
        arrays
    }
}
