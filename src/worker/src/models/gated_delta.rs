//! Gated delta rule: linear attention with a state that decays and that each token corrects (Gated
//! DeltaNet, arXiv:2412.06464; used by Qwen3-Next and Qwen3.5). The order of operations is
//! mlx-lm's.

mod check;
mod rule;

use std::rc::Rc;

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::fast::rms_norm;
use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp;
use rooflet_mlx::mlx_rs::ops::{
    add, concatenate, conv1d, exp, logaddexp, multiply, sigmoid, split_at_indices, zeros_dtype,
};
use rooflet_mlx::mlx_rs::{Array, Dtype};

use super::cache::{self, LayerCache, LayerRows, Part};
use super::kernels::Kernels;
use super::linear::Linear;
use super::norm::RmsNorm;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::gated_delta::{Constants, Dimensions, GatedDeltaKernels, State, Tokens};
use rooflet_mlx::load::{LoadError, Weights};
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::GatedDeltaConfig;

/// Added to the sum of squares before queries and keys are normalised to unit vectors.
const UNIT_EPS: f64 = 1e-6;

/// Projections to queries, keys, values, output gate, and each head's write strength and decay.
#[derive(Debug)]
enum Inputs {
    /// Two matrices with rows grouped by key head.
    ByHead { qkvz: Linear, ba: Linear },
    Split {
        qkv: Linear,
        z: Linear,
        b: Linear,
        a: Linear,
    },
}

/// Outputs of the projections.
struct Projected {
    /// Queries, keys and values, `[rows, tokens, channels]`.
    mixed: Array,
    /// `[rows, tokens, heads, value_dim]`.
    gate: Array,
    strength: Array,
    decay: Array,
}

impl Projected {
    /// Splits the outputs by consecutive ranges of tokens.
    fn split(&self, cuts: &[i32]) -> Result<Vec<Self>> {
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

    fn tokens(&self) -> Tokens<'_> {
        Tokens {
            mixed: &self.mixed,
            strength: &self.strength,
            decay: &self.decay,
        }
    }

    fn as_dtype(&self, dtype: Dtype) -> Result<Self> {
        Ok(Self {
            mixed: self.mixed.as_dtype(dtype)?,
            gate: self.gate.as_dtype(dtype)?,
            strength: self.strength.as_dtype(dtype)?,
            decay: self.decay.as_dtype(dtype)?,
        })
    }
}

/// Gated delta layer.
#[derive(Debug)]
pub(super) struct GatedDelta {
    dimensions: Dimensions,
    inputs: Inputs,
    /// `[channels, width, 1]`.
    convolution: Array,
    decay_bias: Array,
    /// −exp of the logarithm of each head's decay rate, float32.
    rate: Array,
    norm: RmsNorm,
    norm_eps: Array,
    output: Linear,
    /// Factors of queries and keys after their normalisation.
    query_scale: Array,
    key_scale: Array,
    zero: Array,
    /// Set if several tokens are computed at once. Not on a CPU, where the number of tokens would
    /// change the last bits.
    in_chunks: bool,
    kernels: Option<Rc<GatedDeltaKernels>>,
}

impl GatedDelta {
    pub(super) fn load(
        module: &str,
        config: &GatedDeltaConfig,
        shape: &ModelShape,
        weights: &mut Weights,
        kernels: &mut Kernels,
    ) -> std::result::Result<Self, LoadError> {
        let at = |part: &str| format!("{module}.{part}");
        let mut linear = |part: &str| Linear::load(&at(part), false, shape, weights);
        let inputs = if config.by_head {
            Inputs::ByHead {
                qkvz: linear("in_proj_qkvz")?,
                ba: linear("in_proj_ba")?,
            }
        } else {
            Inputs::Split {
                qkv: linear("in_proj_qkv")?,
                z: linear("in_proj_z")?,
                b: linear("in_proj_b")?,
                a: linear("in_proj_a")?,
            }
        };
        let output = linear("out_proj")?;
        let evaluate = |err| LoadError::Evaluate { err };
        let inverse_root = f64::from(config.key_dim).powf(-0.5);
        let constant = |value: f64| weights.constant(value as f32).map_err(evaluate);
        let (query_scale, key_scale) = (constant(inverse_root * inverse_root)?, constant(inverse_root)?);
        let zero = constant(0.0)?;
        let convolution = weights.take(&at("conv1d.weight"))?;
        let log_rate = weights.take_float32(&at("A_log"))?;
        let mut layer = Self {
            dimensions: Dimensions {
                key_heads: config.key_heads.cast_signed(),
                key_dim: config.key_dim.cast_signed(),
                value_heads: config.value_heads.cast_signed(),
                value_dim: config.value_dim.cast_signed(),
                width: convolution.dim(1),
            },
            inputs,
            output,
            query_scale,
            key_scale,
            zero,
            convolution,
            decay_bias: weights.take(&at("dt_bias"))?,
            rate: exp(log_rate).and_then(|rate| rate.negative()).map_err(evaluate)?,
            norm: RmsNorm::load(&at("norm.weight"), &shape.config, weights)?,
            norm_eps: Array::from_slice(&[shape.config.rms_norm_eps], &[1]),
            in_chunks: kernels.backend() != Backend::Cpu,
            kernels: None,
        };
        layer.kernels = kernels.gated_delta(layer.dimensions, |kernels| {
            layer.compare(kernels, weights.compute())
        });
        Ok(layer)
    }

    pub(super) fn apply(&self, x: &Array, rows: LayerRows<'_>) -> Result<Array> {
        let projected = self.project(x)?;
        let gate = rows.select_needed(&projected.gate)?;
        let at_ends = matches!(rows, LayerRows::PrefillLast(_));
        let attended = match rows {
            LayerRows::Prefill(parts) | LayerRows::PrefillLast(parts) => {
                let each = projected.split(&cache::split_points(&parts))?;
                let attended = parts.into_iter().zip(&each).map(|(part, projected)| {
                    let Part { cache, offset, .. } = part;
                    let attended = self.attend(projected, vec![cache], &[offset])?;
                    match at_ends {
                        true => attended.try_index((.., -1.., ..)),
                        false => Ok(attended),
                    }
                });
                match &attended.collect::<Result<Vec<Array>>>()?[..] {
                    [one] => one.clone(),
                    several => concatenate(several, 1)?,
                }
            }
            LayerRows::Decode { caches, offsets, .. } => self.attend(&projected, caches, offsets)?,
        };
        let attended = self.gated(&attended, &gate)?;
        self.output
            .apply(&attended.reshape(&[x.dim(0), gate.dim(1), -1])?)
    }

    /// Computes the attention outputs of the tokens and updates the states in the caches.
    fn attend(
        &self,
        projected: &Projected,
        mut caches: Vec<&mut LayerCache>,
        offsets: &[i32],
    ) -> Result<Array> {
        let before = self.states(projected.mixed.dtype(), &mut caches, offsets)?;
        let (attended, after) = match &self.kernels {
            Some(kernels) => kernels.step(&self.constants(), &projected.tokens(), &before)?,
            None => self.mix(projected, before)?,
        };
        for (cache, state) in caches.into_iter().zip(after) {
            cache.recurrent()?.set(projected.mixed.dim(1), state);
        }
        Ok(attended)
    }

    fn constants(&self) -> Constants<'_> {
        Constants {
            convolution: &self.convolution,
            decay_bias: &self.decay_bias,
            rate: &self.rate,
        }
    }

    fn project(&self, x: &Array) -> Result<Projected> {
        let (rows, tokens) = (x.dim(0), x.dim(1));
        let Dimensions {
            key_heads,
            key_dim,
            value_heads,
            value_dim,
            ..
        } = self.dimensions;
        let by_value_head = |array: &Array| array.reshape(&[rows, tokens, value_heads, value_dim]);
        match &self.inputs {
            Inputs::Split { qkv, z, b, a } => Ok(Projected {
                mixed: qkv.apply(x)?,
                gate: by_value_head(&z.apply(x)?)?,
                strength: b.apply(x)?,
                decay: a.apply(x)?,
            }),
            Inputs::ByHead { qkvz, ba } => {
                let by_key_head = |array: Array| array.reshape(&[rows, tokens, key_heads, -1]);
                let shared = value_heads / key_heads;
                let cuts = [key_dim, 2 * key_dim, 2 * key_dim + shared * value_dim];
                let parts = split_at_indices(by_key_head(qkvz.apply(x)?)?, &cuts, -1)?;
                let flat = |array: &Array| array.reshape(&[rows, tokens, -1]);
                let mixed = concatenate(&[flat(&parts[0])?, flat(&parts[1])?, flat(&parts[2])?], -1)?;
                let of_heads = split_at_indices(by_key_head(ba.apply(x)?)?, &[shared], -1)?;
                Ok(Projected {
                    mixed,
                    gate: by_value_head(&parts[3])?,
                    strength: flat(&of_heads[0])?,
                    decay: flat(&of_heads[1])?,
                })
            }
        }
    }

    /// States of the rows.
    fn states(&self, compute: Dtype, caches: &mut [&mut LayerCache], offsets: &[i32]) -> Result<Vec<State>> {
        let at_first = || -> Result<State> {
            let of = &self.dimensions;
            let memory = [1, of.value_heads, of.value_dim, of.key_dim];
            Ok(State {
                convolution: zeros_dtype(&[1, of.width - 1, of.channels()], compute)?,
                memory: zeros_dtype(&memory, Dtype::Float32)?,
            })
        };
        let states = caches.iter_mut().zip(offsets).map(|(cache, offset)| {
            let state = cache.recurrent()?.state(*offset)?;
            state.map_or_else(at_first, Ok)
        });
        states.collect()
    }

    /// Computes the attention outputs, `[rows, tokens, heads, value_dim]`, and the new states of
    /// the rows with MLX's operations. The result of a row does not depend on other rows.
    fn mix(&self, projected: &Projected, before: Vec<State>) -> Result<(Array, Vec<State>)> {
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
            &self.convolution,
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
        let step = logaddexp(add(&projected.decay, &self.decay_bias)?, &self.zero)?;
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
    fn gated(&self, attended: &Array, gate: &Array) -> Result<Array> {
        if let Some(kernels) = &self.kernels {
            return kernels.gate(attended, gate, self.norm.array(), &self.norm_eps);
        }
        let normed = self.norm.apply(attended)?.as_dtype(Dtype::Float32)?;
        let gate = gate.as_dtype(Dtype::Float32)?;
        let activated = multiply(&gate, sigmoid(&gate)?)?;
        multiply(activated, normed)?.as_dtype(attended.dtype())
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        let linears = match &self.inputs {
            Inputs::ByHead { qkvz, ba } => vec![qkvz, ba],
            Inputs::Split { qkv, z, b, a } => vec![qkv, z, b, a],
        };
        let linears = linears.into_iter().chain([&self.output]);
        let mut arrays: Vec<&Array> = linears.flat_map(Linear::arrays).collect();
        arrays.extend([&self.convolution, &self.decay_bias, &self.rate, self.norm.array()]);
        arrays
    }
}
