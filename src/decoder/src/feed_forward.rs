//! Feed-forward part of a layer. A dense block computes the down projection of the activated gate
//! times the up projection.

use std::rc::Rc;

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::{add, clip, minimum, multiply, power, sigmoid, split_equal, tanh};
use rooflet_mlx::mlx_rs::{Array, Dtype};

use super::experts::Experts;
use super::kernels::{Difference, Kernels, random_values};
use super::linear::Linear;
use rooflet_mlx::gate::GateKernel;
use rooflet_mlx::load::{self, LoadError, Weights};
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::{Activation, DenseConfig, FeedForwardConfig};

/// Activated gate times the up projection.
#[derive(Debug)]
pub(super) struct Gate {
    operations: Operations,
    kernel: Option<Rc<GateKernel>>,
}

/// The gate as operations of MLX, with constants on the device.
#[derive(Debug)]
enum Operations {
    Silu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`.
    GeluTanh {
        half: Array,
        one: Array,
        three: Array,
        cubic: Array,
        root: Array,
    },
    /// `gate · σ(alpha·gate) · (up + 1)`, with the gate clipped from above to `limit` and up
    /// clipped to ±`limit`.
    ClampedSilu {
        alpha: Array,
        one: Array,
        limit: Array,
        lowest: Array,
    },
}

/// Constant of gpt-oss, from its published code.
const CLAMPED_SILU_ALPHA: f64 = 1.702;

impl Gate {
    pub(super) fn new(
        activation: Activation,
        weights: &Weights,
        kernels: &mut Kernels,
    ) -> std::result::Result<Self, LoadError> {
        let operations =
            Operations::new(activation, weights.compute()).map_err(|err| LoadError::Evaluate { err })?;
        let kernel = kernels.gate(activation, |kernel| {
            difference(kernel, activation, &[3, 1000], weights.compute())?.check("gated values")
        });
        Ok(Self { operations, kernel })
    }

    pub(super) fn apply(&self, gate: &Array, up: &Array) -> Result<Array> {
        match &self.kernel {
            Some(kernel) => kernel.apply(gate, up),
            None => self.operations.apply(gate, up),
        }
    }
}

/// Compares a kernel with MLX's operations in float32, on random inputs.
pub fn difference(
    kernel: &GateKernel,
    activation: Activation,
    shape: &[i32],
    float: Dtype,
) -> Result<Difference> {
    // The inputs exceed any limit.
    let wide = |seed| random_values(seed, shape, float)?.multiply(Array::from_f32(5.0).as_dtype(float)?);
    let (gate, up) = (wide(1)?, wide(2)?);
    let float32 = |array: &Array| array.as_dtype(Dtype::Float32);
    let exact = Operations::new(activation, Dtype::Float32)?.apply(&float32(&gate)?, &float32(&up)?)?;
    Difference::new(&kernel.apply(&gate, &up)?, &exact)
}

impl Operations {
    fn new(activation: Activation, compute: Dtype) -> Result<Self> {
        let constant = |value: f64| load::constant(value as f32, compute);
        Ok(match activation {
            Activation::Silu => Self::Silu,
            Activation::GeluTanh => Self::GeluTanh {
                half: constant(0.5)?,
                one: constant(1.0)?,
                three: constant(3.0)?,
                cubic: constant(0.044_715)?,
                root: constant((2.0 / std::f64::consts::PI).sqrt())?,
            },
            Activation::ClampedSilu { limit } => Self::ClampedSilu {
                alpha: constant(CLAMPED_SILU_ALPHA)?,
                one: constant(1.0)?,
                limit: constant(f64::from(limit))?,
                lowest: constant(-f64::from(limit))?,
            },
        })
    }

    fn apply(&self, gate: &Array, up: &Array) -> Result<Array> {
        match self {
            Self::Silu => multiply(multiply(gate, sigmoid(gate)?)?, up),
            Self::GeluTanh {
                half,
                one,
                three,
                cubic,
                root,
            } => {
                let cubic_sum = add(gate, multiply(cubic, power(gate, three)?)?)?;
                let share = add(one, tanh(multiply(root, cubic_sum)?)?)?;
                multiply(multiply(multiply(half, gate)?, share)?, up)
            }
            Self::ClampedSilu {
                alpha,
                one,
                limit,
                lowest,
            } => {
                let gate = minimum(gate, limit)?;
                let up = clip(up, (lowest, limit))?;
                let activated = multiply(&gate, sigmoid(multiply(alpha, &gate)?)?)?;
                multiply(add(up, one)?, activated)
            }
        }
    }
}

/// Gate and up projections.
#[derive(Debug)]
enum Inputs {
    Split { gate: Linear, up: Linear },
    Fused(Linear),
}

/// Feed-forward part of a layer.
#[derive(Debug)]
pub(super) enum FeedForward {
    Dense(Box<Dense>),
    Experts(Box<Experts>),
}

impl FeedForward {
    pub(super) fn load(
        module: &str,
        config: &FeedForwardConfig,
        shape: &ModelShape,
        weights: &mut Weights,
        kernels: &mut Kernels,
    ) -> std::result::Result<Self, LoadError> {
        Ok(match config {
            FeedForwardConfig::Dense(config) => {
                Self::Dense(Box::new(Dense::load(module, config, shape, weights, kernels)?))
            }
            FeedForwardConfig::Experts(config) => {
                Self::Experts(Box::new(Experts::load(module, config, shape, weights, kernels)?))
            }
        })
    }

    pub(super) fn apply(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense(block) => block.apply(x),
            Self::Experts(block) => block.apply(x),
        }
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Dense(block) => block.arrays(),
            Self::Experts(block) => block.arrays(),
        }
    }
}

/// Dense gated block.
#[derive(Debug)]
pub(super) struct Dense {
    inputs: Inputs,
    gate: Gate,
    down: Linear,
}

impl Dense {
    pub(super) fn load(
        module: &str,
        config: &DenseConfig,
        shape: &ModelShape,
        weights: &mut Weights,
        kernels: &mut Kernels,
    ) -> std::result::Result<Self, LoadError> {
        let gate = Gate::new(config.activation, weights, kernels)?;
        let mut linear = |part: &str| Linear::load(&format!("{module}.{part}"), config.bias, shape, weights);
        let inputs = if config.fused {
            Inputs::Fused(linear("gate_up_proj")?)
        } else {
            Inputs::Split {
                gate: linear("gate_proj")?,
                up: linear("up_proj")?,
            }
        };
        Ok(Self {
            inputs,
            gate,
            down: linear("down_proj")?,
        })
    }

    pub(super) fn apply(&self, x: &Array) -> Result<Array> {
        let activated = match &self.inputs {
            Inputs::Split { gate, up } => self.gate.apply(&gate.apply(x)?, &up.apply(x)?)?,
            Inputs::Fused(both) => {
                let halves = split_equal(both.apply(x)?, 2, -1)?;
                self.gate.apply(&halves[0], &halves[1])?
            }
        };
        self.down.apply(&activated)
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        let inputs = match &self.inputs {
            Inputs::Split { gate, up } => vec![gate, up],
            Inputs::Fused(both) => vec![both],
        };
        inputs
            .into_iter()
            .chain([&self.down])
            .flat_map(Linear::arrays)
            .collect()
    }
}
