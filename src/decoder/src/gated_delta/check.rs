//! Comparison of the kernels, and of the rule in chunks, with MLX's operations.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::transforms::eval;
use rooflet_mlx::mlx_rs::{Array, Dtype};

use super::super::kernels::{Difference, random_values};
use super::super::norm::RmsNorm;
use super::operations::{Learned, Operations, Projected};
use rooflet_mlx::gated_delta::{Dimensions, GatedDeltaKernels, State};

/// Numbers of rows and tokens: a single row, as many rows as one launch supports, and more; more
/// tokens than the convolution keeps (prefill), and one token (decode). MLX compiles another kernel
/// for very short arrays.
const SIZES: [(i32, i32); 5] = [(1, 5), (1, 1), (8, 5), (8, 1), (11, 5)];

/// Random inputs of a layer.
struct Inputs {
    projected: Projected,
    convolutions: Array,
    memories: Array,
}

impl Operations {
    /// Creates the operations of a layer with random arrays. They compute token by token.
    pub fn random(dimensions: Dimensions, float: Dtype) -> Result<Self> {
        let Dimensions {
            value_heads,
            value_dim,
            width,
            ..
        } = dimensions;
        let learned = Learned {
            convolution: random_values(11, &[dimensions.channels(), width, 1], float)?,
            decay_bias: random_values(12, &[value_heads], float)?,
            log_rate: random_values(13, &[value_heads], Dtype::Float32)?,
            norm: RmsNorm::new(random_values(14, &[value_dim], float)?, 1e-6),
        };
        Self::new(dimensions, learned, float, false)
    }

    /// Returns an error if the kernels differ from MLX's operations by more than rounding.
    pub(super) fn compare(&self, kernels: &GatedDeltaKernels) -> Result<()> {
        // The arrays are evaluated before the first run of an unverified kernel, because a failure
        // in the same evaluation would lose them.
        eval(self.arrays())?;
        for size in SIZES {
            for (what, difference) in self.differences(kernels, size)? {
                difference.check(what)?;
            }
        }
        Ok(())
    }

    /// Compares the kernels with MLX's operations in float32, on random inputs of a number of rows
    /// and tokens.
    pub fn differences(
        &self,
        kernels: &GatedDeltaKernels,
        size: (i32, i32),
    ) -> Result<Vec<(&'static str, Difference)>> {
        let Inputs {
            projected,
            convolutions,
            memories,
        } = self.random_inputs(size)?;
        let before = State::split(&convolutions, &memories)?;
        let (attended, after) = kernels.step(&self.constants(), &projected.tokens(), &before)?;
        let gated = self.gate_with(kernels, &attended, &projected.gate)?;

        let reference = self.in_float32(false)?;
        let exact = projected.as_dtype(Dtype::Float32)?;
        let before = State::split(&convolutions.as_dtype(Dtype::Float32)?, &memories)?;
        let (exact_attended, exact_after) = reference.mix(&exact, before)?;
        let exact_gated = reference.gated(&exact_attended, &exact.gate)?;
        let mut differences = vec![
            ("attention outputs", Difference::new(&attended, &exact_attended)?),
            ("gated values", Difference::new(&gated, &exact_gated)?),
        ];
        differences.extend(states(&after, &exact_after)?);
        Ok(differences)
    }

    /// Compares the rule in chunks of tokens with the rule token by token.
    pub fn differences_of_chunks(&self, size: (i32, i32)) -> Result<Vec<(&'static str, Difference)>> {
        let inputs = self.random_inputs(size)?;
        let run = |in_chunks: bool| {
            let before = State::split(&inputs.convolutions, &inputs.memories)?;
            self.in_float32(in_chunks)?.mix(&inputs.projected, before)
        };
        let (attended, after) = run(true)?;
        let (exact_attended, exact_after) = run(false)?;
        let mut differences = vec![("attention outputs", Difference::new(&attended, &exact_attended)?)];
        differences.extend(states(&after, &exact_after)?);
        Ok(differences)
    }

    /// Returns the same operations in float32.
    fn in_float32(&self, in_chunks: bool) -> Result<Self> {
        let float32 = |array: &Array| array.as_dtype(Dtype::Float32);
        let learned = Learned {
            convolution: float32(&self.learned.convolution)?,
            decay_bias: float32(&self.learned.decay_bias)?,
            log_rate: self.learned.log_rate.clone(),
            norm: RmsNorm::new(float32(self.learned.norm.array())?, self.learned.norm.eps()),
        };
        Self::new(self.dimensions, learned, Dtype::Float32, in_chunks)
    }

    fn random_inputs(&self, (rows, tokens): (i32, i32)) -> Result<Inputs> {
        let Dimensions {
            key_dim,
            value_heads,
            value_dim,
            width,
            ..
        } = self.dimensions;
        let channels = self.dimensions.channels();
        let float = self.learned.convolution.dtype();
        Ok(Inputs {
            projected: Projected {
                mixed: random_values(1, &[rows, tokens, channels], float)?,
                gate: random_values(2, &[rows, tokens, value_heads, value_dim], float)?,
                strength: random_values(3, &[rows, tokens, value_heads], float)?,
                decay: random_values(4, &[rows, tokens, value_heads], float)?,
            },
            convolutions: random_values(5, &[rows, width - 1, channels], float)?,
            memories: random_values(6, &[rows, value_heads, value_dim, key_dim], Dtype::Float32)?,
        })
    }
}

fn states(computed: &[State], exact: &[State]) -> Result<Vec<(&'static str, Difference)>> {
    let mut differences = Vec::new();
    for (state, exact) in computed.iter().zip(exact) {
        differences.push(("the memory", Difference::new(&state.memory, &exact.memory)?));
        let convolution = Difference::new(&state.convolution, &exact.convolution)?;
        differences.push(("the convolution state", convolution));
    }
    Ok(differences)
}
