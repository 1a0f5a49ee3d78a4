//! The gated delta rule as operations of MLX, in mlx-lm's order: convolution, normalisation, the
//! rule itself, and the output gate.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::fast::rms_norm;
use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp;
use rooflet_mlx::mlx_rs::ops::{
    add, concatenate, conv1d, exp, logaddexp, multiply, sigmoid, split_at_indices,
};
use rooflet_mlx::mlx_rs::{Array, Dtype};

use super::super::norm::RmsNorm;
use super::rule;
use rooflet_mlx::gated_delta::{Constants, Dimensions, GatedDeltaKernels, State, Tokens};
use rooflet_mlx::load;

/// Term added to the sum of squares before queries and keys are normalised to unit vectors.
const UNIT_EPS: f64 = 1e-6;

/// Outputs of the projections.
pub(super) struct Projected {
    /// Queries, keys and values, `[rows, tokens, channels]`.
    pub(super) mixed: Array,
    /// `[rows, tokens, heads, value_dim]`.
    pub(super) gate: Array,
    pub(super) strength: Array,
    pub(super) decay: Array,
}

impl Projected {
    /// Splits the outputs by consecutive ranges of tokens.
    pub(super) fn split(&self, cuts: &[i32]) -> Result<Vec<Self>> {
        let each = |array: &Array| split_at_indices(array, cuts, 1);
        let (mixed, gate) = (each(&self.mixed)?, each(&self.gate)?);
        let (strength, decay) = (each(&self.strength)?, each(&self.decay)?);
        let parts = mixed.into_iter().zip(gate).zip(strength.into_iter().zip(decay));
        Ok(parts
            .map(|((mixed, gate), (strength, decay))| Self {
                mixed,
                gate,
                strength,
                decay,
            })
            .collect())
    }

    pub(super) fn tokens(&self) -> Tokens<'_> {
        Tokens {
            mixed: &self.mixed,
            strength: &self.strength,
            decay: &self.decay,
        }
    }

    pub(super) fn as_dtype(&self, dtype: Dtype) -> Result<Self> {
        Ok(Self {
            mixed: self.mixed.as_dtype(dtype)?,
            gate: self.gate.as_dtype(dtype)?,
            strength: self.strength.as_dtype(dtype)?,
            decay: self.decay.as_dtype(dtype)?,
        })
    }
}

/// Learned arrays of a layer, besides its matrices.
#[derive(Debug, Clone)]
pub(super) struct Learned {
    /// `[channels, width, 1]`.
    pub(super) convolution: Array,
    /// `[value_heads]`.
    pub(super) decay_bias: Array,
    /// Logarithm of each head's decay rate, `[value_heads]` in float32.
    pub(super) log_rate: Array,
    /// Norm of the attention outputs by head.
    pub(super) norm: RmsNorm,
}

/// Operations of one layer, with their constants on the device.
#[derive(Debug)]
pub struct Operations {
    pub(super) dimensions: Dimensions,
    pub(super) learned: Learned,
    /// −exp of the logarithm of each head's decay rate, float32.
    rate: Array,
    norm_eps: Array,
    /// Factors of queries and keys after their normalisation.
    query_scale: Array,
    key_scale: Array,
    zero: Array,
    /// Set if several tokens are computed at once.
    in_chunks: bool,
}

impl Operations {
    pub(super) fn new(
        dimensions: Dimensions,
        learned: Learned,
        compute: Dtype,
        in_chunks: bool,
    ) -> Result<Self> {
        let constant = |value: f64| load::constant(value as f32, compute);
        let inverse_root = f64::from(dimensions.key_dim).powf(-0.5);
        Ok(Self {
            dimensions,
            rate: exp(&learned.log_rate)?.negative()?,
            norm_eps: Array::from_slice(&[learned.norm.eps()], &[1]),
            learned,
            query_scale: constant(inverse_root * inverse_root)?,
            key_scale: constant(inverse_root)?,
            zero: constant(0.0)?,
            in_chunks,
        })
    }

    pub(super) fn constants(&self) -> Constants<'_> {
        Constants {
            convolution: &self.learned.convolution,
            decay_bias: &self.learned.decay_bias,
            rate: &self.rate,
        }
    }

    /// Computes the attention outputs, `[rows, tokens, heads, value_dim]`, and the new states of
    /// the rows with MLX's operations. The result of a row does not depend on other rows.
    pub(super) fn mix(&self, projected: &Projected, before: Vec<State>) -> Result<(Array, Vec<State>)> {
        let (rows, tokens) = (projected.mixed.dim(0), projected.mixed.dim(1));
        let join = |arrays: Vec<Array>| match &arrays[..] {
            [one] => Ok(one.clone()),
            several => concatenate(several, 0),
        };
        let (convolutions, memories) = before
            .into_iter()
            .map(|state| (state.convolution, state.memory))
            .unzip();
        let convolution_input = concatenate(&[&join(convolutions)?, &projected.mixed], 1)?;
        let memory = join(memories)?;
        let Dimensions {
            key_heads,
            key_dim,
            value_heads,
            value_dim,
            width,
        } = self.dimensions;
        // A copy, because a view would keep the whole prompt in memory.
        let convolution = convolution_input.try_index((.., 1 - width.., ..))?.contiguous()?;
        let convolved = conv1d(
            &convolution_input,
            &self.learned.convolution,
            1,
            0,
            1,
            self.dimensions.channels(),
        )?;
        let convolved = multiply(&convolved, sigmoid(&convolved)?)?;
        let keys = key_heads * key_dim;
        let parts = split_at_indices(convolved, &[keys, 2 * keys], -1)?;
        let by_head = |array: &Array, heads, dim| array.reshape(&[rows, tokens, heads, dim]);
        let eps = (UNIT_EPS / f64::from(key_dim)) as f32;
        let unit = |array: &Array, scale: &Array| -> Result<Array> {
            let array = by_head(array, key_heads, key_dim)?;
            let scaled = multiply(scale, rms_norm(array, None, eps)?)?;
            let repeats = value_heads / key_heads;
            if repeats == 1 {
                Ok(scaled)
            } else {
                Array::repeat_axis::<f32>(scaled, repeats, -2)
            }
        };
        let (queries, keys) = (
            unit(&parts[0], &self.query_scale)?,
            unit(&parts[1], &self.key_scale)?,
        );
        let values = by_head(&parts[2], value_heads, value_dim)?;
        let step = logaddexp(add(&projected.decay, &self.learned.decay_bias)?, &self.zero)?;
        let inputs = rule::Tokens {
            queries,
            keys,
            values,
            log_decay: multiply(&self.rate, step)?,
            strength: sigmoid(&projected.strength)?,
        };
        let (attended, memory) = if tokens > 1 && self.in_chunks {
            rule::chunked(&inputs, memory)?
        } else {
            rule::token_by_token(&inputs, memory)?
        };
        Ok((attended, State::split(&convolution, &memory)?))
    }

    /// Normalises the outputs by head and multiplies them by SiLU of the gate, in float32.
    pub(super) fn gated(&self, attended: &Array, gate: &Array) -> Result<Array> {
        let normed = self.learned.norm.apply(attended)?.as_dtype(Dtype::Float32)?;
        let gate = gate.as_dtype(Dtype::Float32)?;
        let activated = multiply(&gate, sigmoid(&gate)?)?;
        multiply(activated, normed)?.as_dtype(attended.dtype())
    }

    /// Computes the same as [`gated`](Self::gated), with a kernel.
    pub(super) fn gate_with(
        &self,
        kernels: &GatedDeltaKernels,
        attended: &Array,
        gate: &Array,
    ) -> Result<Array> {
        kernels.gate(attended, gate, self.learned.norm.array(), &self.norm_eps)
    }

    pub(super) fn arrays(&self) -> [&Array; 4] {
        let Learned {
            convolution,
            decay_bias,
            norm,
            ..
        } = &self.learned;
        [convolution, decay_bias, &self.rate, norm.array()]
    }
}
