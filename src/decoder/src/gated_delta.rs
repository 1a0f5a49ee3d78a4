//! Gated delta rule: linear attention with a state that decays and that each token corrects (Gated
//! DeltaNet, arXiv:2412.06464; used by Qwen3-Next and Qwen3.5). The order of operations is
//! mlx-lm's.

mod check;
mod operations;
mod rule;

use std::rc::Rc;

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp;
use rooflet_mlx::mlx_rs::ops::{concatenate, split_at_indices, zeros_dtype};
use rooflet_mlx::mlx_rs::{Array, Dtype};

use self::operations::{Learned, Projected};
use super::cache::{self, LayerCache, LayerRows, Part};
use super::kernels::Kernels;
use super::linear::Linear;
use super::norm::RmsNorm;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::gated_delta::{Dimensions, GatedDeltaKernels, State};
use rooflet_mlx::load::{LoadError, Weights};
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::GatedDeltaConfig;

pub use self::operations::Operations;

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

/// Gated delta layer.
#[derive(Debug)]
pub(super) struct GatedDelta {
    inputs: Inputs,
    operations: Operations,
    output: Linear,
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
        let convolution = weights.take(&at("conv1d.weight"))?;
        let dimensions = Dimensions {
            key_heads: config.key_heads.cast_signed(),
            key_dim: config.key_dim.cast_signed(),
            value_heads: config.value_heads.cast_signed(),
            value_dim: config.value_dim.cast_signed(),
            width: convolution.dim(1),
        };
        let learned = Learned {
            convolution,
            decay_bias: weights.take(&at("dt_bias"))?,
            log_rate: weights.take_float32(&at("A_log"))?,
            norm: RmsNorm::load(&at("norm.weight"), &shape.config, weights)?,
        };
        // A CPU does not use chunks, because the number of tokens would then change the last bits.
        let in_chunks = kernels.backend() != Backend::Cpu;
        let operations = Operations::new(dimensions, learned, weights.compute(), in_chunks)
            .map_err(|err| LoadError::Evaluate { err })?;
        let kernels = kernels.gated_delta(dimensions, |kernels| operations.compare(kernels));
        Ok(Self {
            inputs,
            operations,
            output,
            kernels,
        })
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
            Some(kernels) => kernels.step(&self.operations.constants(), &projected.tokens(), &before)?,
            None => self.operations.mix(projected, before)?,
        };
        for (cache, state) in caches.into_iter().zip(after) {
            cache.recurrent()?.set(projected.mixed.dim(1), state);
        }
        Ok(attended)
    }

    fn project(&self, x: &Array) -> Result<Projected> {
        let (rows, tokens) = (x.dim(0), x.dim(1));
        let Dimensions {
            key_heads,
            key_dim,
            value_heads,
            value_dim,
            ..
        } = self.operations.dimensions;
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

    /// Returns the states of the rows, which are zeros before the first token.
    fn states(&self, compute: Dtype, caches: &mut [&mut LayerCache], offsets: &[i32]) -> Result<Vec<State>> {
        let at_first = || -> Result<State> {
            let of = &self.operations.dimensions;
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

    /// Normalises the outputs by head and multiplies them by SiLU of the gate, in float32.
    fn gated(&self, attended: &Array, gate: &Array) -> Result<Array> {
        match &self.kernels {
            Some(kernels) => self.operations.gate_with(kernels, attended, gate),
            None => self.operations.gated(attended, gate),
        }
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        let linears = match &self.inputs {
            Inputs::ByHead { qkvz, ba } => vec![qkvz, ba],
            Inputs::Split { qkv, z, b, a } => vec![qkv, z, b, a],
        };
        let linears = linears.into_iter().chain([&self.output]);
        let mut arrays: Vec<&Array> = linears.flat_map(Linear::arrays).collect();
        arrays.extend(self.operations.arrays());
        arrays
    }
}
