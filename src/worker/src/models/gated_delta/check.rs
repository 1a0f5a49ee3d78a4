//! Comparison of the kernels with MLX's operations.

use rooflet_mlx::mlx_rs::Dtype;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::transforms::eval;

use super::super::kernels::{check_close, random_values};
use super::{GatedDelta, Projected};
use rooflet_mlx::gated_delta::{Constants, Dimensions, GatedDeltaKernels, State};

/// Numbers of rows and tokens: a single row, as many rows as one launch supports, and more; more
/// tokens than the convolution keeps (prefill), and one token (decode). MLX compiles another kernel
/// for very short arrays.
const SIZES: [(i32, i32); 5] = [(1, 5), (1, 1), (8, 5), (8, 1), (11, 5)];

impl GatedDelta {
    /// Compares the kernels with MLX's operations in float32, on random inputs.
    pub(super) fn compare(&self, kernels: &GatedDeltaKernels, float: Dtype) -> Result<()> {
        // Evaluated before the first run of an unverified kernel, because a failure in the same
        // evaluation would lose them.
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
            mixed: random_values(1, &[rows, tokens, channels], float)?,
            gate: random_values(2, &[rows, tokens, value_heads, value_dim], float)?,
            strength: random_values(3, &[rows, tokens, value_heads], float)?,
            decay: random_values(4, &[rows, tokens, value_heads], float)?,
        };
        let convolutions = random_values(5, &[rows, width - 1, channels], float)?;
        let memories = random_values(6, &[rows, value_heads, value_dim, key_dim], Dtype::Float32)?;
        let before = State::split(&convolutions, &memories)?;
        let (attended, after) = kernels.step(&self.constants(), &projected.tokens(), &before)?;
        let gated = kernels.gate(&attended, &projected.gate, self.norm.array(), &self.norm_eps)?;

        let exact = projected.as_dtype(Dtype::Float32)?;
        let before = State::split(&convolutions.as_dtype(Dtype::Float32)?, &memories)?;
        let (exact_attended, exact_after) = self.mix(&exact, before)?;
        check_close("attention outputs", &attended, &exact_attended)?;
        let exact_gated = self.gated(&exact_attended, &exact.gate)?;
        check_close("gated values", &gated, &exact_gated)?;
        for (state, exact) in after.iter().zip(&exact_after) {
            check_close("the memory", &state.memory, &exact.memory)?;
            check_close("the convolution state", &state.convolution, &exact.convolution)?;
        }
        Ok(())
    }
}
