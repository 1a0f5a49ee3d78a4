//! The kernels beside the operations that they stand for.

use mlx_rs::Dtype;
use mlx_rs::error::Result;

use super::super::kernels::{alike, numbers};
use super::{GatedDelta, Projected};
use crate::mlx::gated_delta::{Dimensions, GatedDeltaKernels, State};

/// A row alone, as many as one launch takes, and fewer.
const ROWS: [i32; 3] = [1, 8, 11];
/// More than the convolution keeps.
const TOKENS: i32 = 5;

impl GatedDelta {
    /// Runs both with made up numbers, the operations in float32.
    pub(super) fn compare(&self, kernels: &GatedDeltaKernels, float: Dtype) -> Result<()> {
        ROWS.into_iter()
            .try_for_each(|rows| self.compare_rows(rows, kernels, float))
    }

    fn compare_rows(&self, rows: i32, kernels: &GatedDeltaKernels, float: Dtype) -> Result<()> {
        let Dimensions {
            key_dim,
            value_heads,
            value_dim,
            width,
            ..
        } = self.dimensions;
        let channels = self.dimensions.channels();
        let projected = Projected {
            mixed: numbers(1, &[rows, TOKENS, channels], float)?,
            gate: numbers(2, &[rows, TOKENS, value_heads, value_dim], float)?,
            strength: numbers(3, &[rows, TOKENS, value_heads], float)?,
            decay: numbers(4, &[rows, TOKENS, value_heads], float)?,
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
