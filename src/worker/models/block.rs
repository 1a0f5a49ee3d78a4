//! One decoder block: attention and a gated MLP, each behind an RMS norm and added to the stream.

use mlx_rs::Array;
use mlx_rs::error::Result;
use mlx_rs::fast::{ScaledDotProductAttentionMask, rms_norm, scaled_dot_product_attention};
use mlx_rs::ops::{add, concatenate, multiply, sigmoid, split_equal};

use super::cache::LayerRows;
use super::linear::Linear;
use super::rope::RotaryEmbedding;
use crate::mlx::load::{LoadError, Weights};
use crate::roofline::checkpoint::ModelShape;

/// RMS norm with a weight.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    weight: Array,
    eps: f32,
}

impl RmsNorm {
    pub(crate) fn load(
        tensor: &str,
        eps: f32,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        Ok(Self {
            weight: weights.take(tensor)?,
            eps,
        })
    }

    pub(crate) fn apply(&self, x: &Array) -> Result<Array> {
        rms_norm(x, Some(&self.weight), self.eps)
    }

    pub(crate) fn array(&self) -> &Array {
        &self.weight
    }
}

#[derive(Debug)]
struct Attention {
    heads: i32,
    kv_heads: i32,
    scale: f32,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// Per-head norms of query and key.
    norms: Option<(RmsNorm, RmsNorm)>,
}

impl Attention {
    fn load(module: &str, shape: &ModelShape, weights: &mut Weights) -> std::result::Result<Self, LoadError> {
        let config = &shape.config;
        let mut linear = |part: &str, bias| Linear::load(&format!("{module}.{part}"), bias, shape, weights);
        let query = linear("q_proj", config.qkv_bias)?;
        let key = linear("k_proj", config.qkv_bias)?;
        let value = linear("v_proj", config.qkv_bias)?;
        let output = linear("o_proj", config.output_bias)?;
        let mut norm = |part: &str| RmsNorm::load(&format!("{module}.{part}"), config.rms_norm_eps, weights);
        let norms = if config.qk_norm {
            Some((norm("q_norm.weight")?, norm("k_norm.weight")?))
        } else {
            None
        };
        Ok(Self {
            heads: config.attention_heads.cast_signed(),
            kv_heads: config.kv_heads.cast_signed(),
            // Rounded once, as Python's float handed to MLX is.
            scale: f64::from(config.head_dim).powf(-0.5) as f32,
            query,
            key,
            value,
            output,
            norms,
        })
    }

    fn apply(&self, x: &Array, rope: &RotaryEmbedding, rows: LayerRows<'_>) -> Result<Array> {
        let (batch, tokens) = (x.dim(0), x.dim(1));
        let split = |projected: Array, heads: i32| projected.reshape(&[batch, tokens, heads, -1]);
        let mut queries = split(self.query.apply(x)?, self.heads)?;
        let mut keys = split(self.key.apply(x)?, self.kv_heads)?;
        let values = split(self.value.apply(x)?, self.kv_heads)?;
        if let Some((query_norm, key_norm)) = &self.norms {
            queries = query_norm.apply(&queries)?;
            keys = key_norm.apply(&keys)?;
        }
        let by_head = |array: &Array| array.transpose_axes(&[0, 2, 1, 3]);
        let (queries, keys, values) = (by_head(&queries)?, by_head(&keys)?, by_head(&values)?);
        let attended = match rows {
            LayerRows::One { cache, offset } => {
                let (queries, keys) = (rope.apply(&queries, offset)?, rope.apply(&keys, offset)?);
                let (keys, values) = cache.update(offset, &keys, &values)?;
                // A single token may attend to everything before it: no mask.
                let mask = (tokens > 1).then_some(ScaledDotProductAttentionMask::Causal);
                scaled_dot_product_attention(queries, keys, values, self.scale, mask, None)?
            }
            LayerRows::Many {
                caches,
                offsets,
                positions,
            } => {
                let each = |array: &Array| split_equal(array, batch, 0);
                let queries = each(&rope.apply_at(&queries, positions)?)?;
                let keys = each(&rope.apply_at(&keys, positions)?)?;
                let values = each(&values)?;
                // Row by row, over contiguous keys of its own: the same kernels on the same values as alone, hence the
                // same bits, whatever else is in the batch; and a row that joins or leaves moves nobody's cache.
                let projected = queries.into_iter().zip(keys.iter().zip(&values));
                let attended = caches.into_iter().zip(offsets).zip(projected).map(
                    |((cache, offset), (query, (key, value)))| {
                        let (keys, values) = cache.update(*offset, key, value)?;
                        scaled_dot_product_attention(query, keys, values, self.scale, None, None)
                    },
                );
                concatenate(&attended.collect::<Result<Vec<Array>>>()?, 0)?
            }
        };
        let merged = by_head(&attended)?.reshape(&[batch, tokens, -1])?;
        self.output.apply(&merged)
    }

    fn arrays(&self) -> Vec<&Array> {
        let mut arrays: Vec<&Array> = [&self.query, &self.key, &self.value, &self.output]
            .into_iter()
            .flat_map(Linear::arrays)
            .collect();
        arrays.extend(
            self.norms
                .iter()
                .flat_map(|(query, key)| [query.array(), key.array()]),
        );
        arrays
    }
}

#[derive(Debug)]
struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn load(module: &str, shape: &ModelShape, weights: &mut Weights) -> std::result::Result<Self, LoadError> {
        let bias = shape.config.mlp_bias;
        let mut linear = |part: &str| Linear::load(&format!("{module}.{part}"), bias, shape, weights);
        Ok(Self {
            gate: linear("gate_proj")?,
            up: linear("up_proj")?,
            down: linear("down_proj")?,
        })
    }

    fn apply(&self, x: &Array) -> Result<Array> {
        let gate = self.gate.apply(x)?;
        let activated = multiply(&gate, sigmoid(&gate)?)?;
        self.down.apply(&multiply(activated, self.up.apply(x)?)?)
    }

    fn arrays(&self) -> Vec<&Array> {
        [&self.gate, &self.up, &self.down]
            .into_iter()
            .flat_map(Linear::arrays)
            .collect()
    }
}

/// One layer of the decoder.
#[derive(Debug)]
pub(crate) struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    pub(crate) fn load(
        layer: u32,
        shape: &ModelShape,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        let eps = shape.config.rms_norm_eps;
        Ok(Self {
            attention_norm: RmsNorm::load(&at("input_layernorm.weight"), eps, weights)?,
            attention: Attention::load(&at("self_attn"), shape, weights)?,
            mlp_norm: RmsNorm::load(&at("post_attention_layernorm.weight"), eps, weights)?,
            mlp: Mlp::load(&at("mlp"), shape, weights)?,
        })
    }

    pub(crate) fn apply(&self, x: &Array, rope: &RotaryEmbedding, rows: LayerRows<'_>) -> Result<Array> {
        let attended = self.attention.apply(&self.attention_norm.apply(x)?, rope, rows)?;
        let x = add(x, attended)?;
        let transformed = self.mlp.apply(&self.mlp_norm.apply(&x)?)?;
        add(x, transformed)
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        let mut arrays = vec![self.attention_norm.array(), self.mlp_norm.array()];
        arrays.extend(self.attention.arrays());
        arrays.extend(self.mlp.arrays());
        arrays
    }
}
