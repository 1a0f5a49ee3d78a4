//! The kernels beside the operations that they stand for.

use rooflet_mlx::mlx_rs::Dtype;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::transforms::eval;

use super::super::kernels::{alike, numbers};
use super::{GatedDelta, Projected};
use rooflet_mlx::gated_delta::{Constants, Dimensions, GatedDeltaKernels, State};

/// Rows and tokens of each: a row alone, as many as one launch takes, and fewer; as prompts are
/// read, more tokens than the convolution keeps, and as answers are written. MLX compiles another
/// kernel where arrays are very short.
const SIZES: [(i32, i32); 5] = [(1, 5), (1, 1), (8, 5), (8, 1), (11, 5)];

impl GatedDelta {
    /// Runs both with made up numbers, the operations in float32.
    pub(super) fn compare(&self, kernels: &GatedDeltaKernels, float: Dtype) -> Result<()> {
        // Not in one pass with a kernel that nobody has tried: what that spoils would not be read
        // again.
        let Constants {
            convolution,
            decay_bias,
            rate,
        } = self.constants();
        eval([convolution, decay_bias, rate, self.norm.array()])?;
        SIZES
            .into_iter()
            .try_for_each(|size| self.compare_at(size, kernels, float))
    }

    fn compare_at(
        &self,
        (rows, tokens): (i32, i32),
        kernels: &GatedDeltaKernels,
        float: Dtype,
    ) -> Result<()> {
        let Dimensions {
            key_dim,
            value_heads,
            value_dim,
            width,
            ..
        } = self.dimensions;
        let channels = self.dimensions.channels();
        let projected = Projected {
            mixed: numbers(1, &[rows, tokens, channels], float)?,
            gate: numbers(2, &[rows, tokens, value_heads, value_dim], float)?,
            strength: numbers(3, &[rows, tokens, value_heads], float)?,
            decay: numbers(4, &[rows, tokens, value_heads], float)?,
        };
        let convolutions = numbers(5, &[rows, width - 1, channels], float)?;
        let memories = numbers(6, &[rows, value_heads, value_dim, key_dim], Dtype::Float32)?;
        let before = State::split(&convolutions, &memories)?;
        let (said, after) = kernels.step(&self.constants(), &projected.tokens(), &before)?;
        let gated = kernels.gate(&said, &projected.gate, self.norm.array(), &self.norm_eps)?;

        let exact = projected.as_dtype(Dtype::Float32)?;
        let before = State::split(&convolutions.as_dtype(Dtype::Float32)?, &memories)?;
        let (exactly_said, exactly_after) = self.mix(&exact, before)?;
        alike("what is read", &said, &exactly_said)?;
        let exactly_gated = self.gated(&exactly_said, &exact.gate)?;
        alike("what passes the gate", &gated, &exactly_gated)?;
        for (state, exact) in after.iter().zip(&exactly_after) {
            alike("the memory", &state.memory, &exact.memory)?;
            alike(
                "what the convolution keeps",
                &state.convolution,
                &exact.convolution,
            )?;
        }
        Ok(())
    }
}
