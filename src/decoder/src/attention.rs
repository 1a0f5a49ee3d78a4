//! Softmax attention with grouped queries over a sequence's KV cache.

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::{concatenate, sigmoid, split_at_indices, split_equal};

use super::attend::{self, FloatAttention};
use super::cache::{self, KeysValues, LayerRows, Part, QuantisedAttention as _};
use super::linear::Linear;
use super::mask::Masks;
use super::norm::RmsNorm;
use super::rope::RotaryEmbedding;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::load::{LoadError, Weights};
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::{AttentionConfig, QueryKeyNorm};

/// Query, key and value projections.
#[derive(Debug)]
enum Projections {
    Split {
        query: Linear,
        key: Linear,
        value: Linear,
    },
    /// One matrix for all three; `at` are the first columns of keys and of values.
    Fused { all: Linear, at: [i32; 2] },
}

impl Projections {
    /// Returns the queries of the tokens whose output is needed, and keys and values of all tokens.
    fn apply(&self, x: &Array, rows: &LayerRows<'_>) -> Result<(Array, Array, Array)> {
        match self {
            Self::Split { query, key, value } => Ok((
                query.apply(&rows.select_needed(x)?)?,
                key.apply(x)?,
                value.apply(x)?,
            )),
            Self::Fused { all, at } => {
                let mut parts = split_at_indices(all.apply(x)?, at, -1)?.into_iter();
                let mut next = || parts.next().expect("two split points make three parts");
                Ok((rows.select_needed(&next())?, next(), next()))
            }
        }
    }

    fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Split { query, key, value } => vec![query, key, value],
            Self::Fused { all, .. } => vec![all],
        }
    }
}

/// Norms of queries and keys, before the rotation.
#[derive(Debug)]
enum Norms {
    None,
    Head { query: RmsNorm, key: RmsNorm },
    Full { query: RmsNorm, key: RmsNorm },
}

/// Attention layer.
#[derive(Debug)]
pub(super) struct Attention {
    heads: i32,
    kv_heads: i32,
    scale: f32,
    window: Option<i32>,
    /// Set if the kernels keep no scores in memory.
    fused: bool,
    pads: bool,
    projections: Projections,
    norms: Norms,
    rope: Option<RotaryEmbedding>,
    /// Set if the query projection also contains a gate of the output.
    gated: bool,
    /// Attention sink: a score of each head without a key.
    sinks: Option<Array>,
    output: Linear,
}

impl Attention {
    pub(super) fn load(
        module: &str,
        config: &AttentionConfig,
        rope: Option<RotaryEmbedding>,
        shape: &ModelShape,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        let mut linear = |part: &str, bias| Linear::load(&format!("{module}.{part}"), bias, shape, weights);
        let projections = if config.fused {
            let (query, key_value) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
            Projections::Fused {
                all: linear("qkv_proj", config.qkv_bias)?,
                at: [query.cast_signed(), (query + key_value).cast_signed()],
            }
        } else {
            Projections::Split {
                query: linear("q_proj", config.qkv_bias)?,
                key: linear("k_proj", config.qkv_bias)?,
                value: linear("v_proj", config.qkv_bias)?,
            }
        };
        let output = linear("o_proj", config.output_bias)?;
        let sinks = config
            .sinks
            .then(|| weights.take(&format!("{module}.sinks")))
            .transpose()?;
        let mut norm = |part: &str| RmsNorm::load(&format!("{module}.{part}.weight"), &shape.config, weights);
        let norms = match config.query_key_norm {
            QueryKeyNorm::None => Norms::None,
            QueryKeyNorm::Head => Norms::Head {
                query: norm("q_norm")?,
                key: norm("k_norm")?,
            },
            QueryKeyNorm::Full => Norms::Full {
                query: norm("q_norm")?,
                key: norm("k_norm")?,
            },
        };
        let backend = Backend::current().map_err(|err| LoadError::Evaluate { err })?;
        Ok(Self {
            heads: config.heads.cast_signed(),
            kv_heads: config.kv_heads.cast_signed(),
            scale: config.scale,
            window: config.window.map(u32::cast_signed),
            fused: attend::is_fused(backend, config.head_dim),
            pads: attend::compiles_per_shape(backend, config.head_dim),
            projections,
            norms,
            rope,
            gated: config.output_gate,
            sinks,
            output,
        })
    }

    pub(super) fn apply(&self, x: &Array, rows: LayerRows<'_>, masks: &mut Masks) -> Result<Array> {
        let (mut queries, mut keys, values) = self.projections.apply(x, &rows)?;
        let (batch, output_tokens) = (x.dim(0), queries.dim(1));
        if let Norms::Full { query, key } = &self.norms {
            (queries, keys) = (query.apply(&queries)?, key.apply(&keys)?);
        }
        let split = |projected: Array, heads: i32| projected.reshape(&[batch, projected.dim(1), heads, -1]);
        let mut queries = split(queries, self.heads)?;
        let mut gate = None;
        if self.gated {
            let halves = split_equal(&queries, 2, -1)?;
            gate = Some(halves[1].reshape(&[batch, output_tokens, -1])?);
            queries = halves[0].clone();
        }
        let mut keys = split(keys, self.kv_heads)?;
        let values = split(values, self.kv_heads)?;
        if let Norms::Head { query, key } = &self.norms {
            (queries, keys) = (query.apply(&queries)?, key.apply(&keys)?);
        }
        let by_head = |array: &Array| array.transpose_axes(&[0, 2, 1, 3]);
        let (mut queries, mut keys, values) = (by_head(&queries)?, by_head(&keys)?, by_head(&values)?);
        let at_ends = matches!(rows, LayerRows::PrefillLast(_));
        let attended = match rows {
            LayerRows::Prefill(parts) | LayerRows::PrefillLast(parts) => {
                let (split_points, alone) = (cache::split_points(&parts), parts.len() == 1);
                let each = |array: &Array| split_at_indices(array, &split_points, 2);
                let (keys, values) = (each(&keys)?, each(&values)?);
                let queries = match at_ends {
                    true => split_equal(&queries, output_tokens, 2)?,
                    false => each(&queries)?,
                };
                let projected = queries.into_iter().zip(keys).zip(values);
                let attended = parts
                    .into_iter()
                    .zip(projected)
                    .map(|(part, ((query, key), value))| {
                        let attended = self.attend_part(part, query, key, &value, masks)?;
                        if !alone && !self.fused {
                            // Only one sequence's scores may be in memory.
                            attended.eval()?;
                        }
                        Ok(attended)
                    });
                match &attended.collect::<Result<Vec<Array>>>()?[..] {
                    [one] => one.clone(),
                    several => concatenate(several, 2)?,
                }
            }
            LayerRows::Decode {
                caches,
                offsets,
                positions,
            } => {
                if let Some(rope) = &self.rope {
                    (queries, keys) = (
                        rope.apply_at(&queries, positions)?,
                        rope.apply_at(&keys, positions)?,
                    );
                }
                let each = |array: &Array| split_equal(array, batch, 0);
                let (queries, keys, values) = (each(&queries)?, each(&keys)?, each(&values)?);
                // Each row attends separately, over its own contiguous keys. The kernels and values
                // are the same as without other rows, so the bits are the same whatever else is in
                // the batch. A row that joins or leaves does not move other caches.
                let projected = queries.into_iter().zip(keys.iter().zip(&values));
                let attended = caches.into_iter().zip(offsets).zip(projected).map(
                    |((cache, offset), (query, (key, value)))| {
                        let held = cache.update(*offset, key, value)?;
                        self.attend(query, held, masks)
                    },
                );
                concatenate(&attended.collect::<Result<Vec<Array>>>()?, 0)?
            }
        };
        let merged = by_head(&attended)?.reshape(&[batch, output_tokens, -1])?;
        match gate {
            Some(gate) => self.output.apply(&merged.multiply(sigmoid(gate)?)?),
            None => self.output.apply(&merged),
        }
    }

    /// Rotates the queries and keys of one sequence's tokens, appends keys and values to its cache,
    /// and attends with the queries of all tokens or of the last one.
    fn attend_part(
        &self,
        Part {
            cache,
            offset,
            tokens,
        }: Part<'_>,
        mut queries: Array,
        mut keys: Array,
        values: &Array,
        masks: &mut Masks,
    ) -> Result<Array> {
        if let Some(rope) = &self.rope {
            let output_tokens = offset + tokens - queries.dim(2);
            (queries, keys) = (rope.apply(&queries, output_tokens)?, rope.apply(&keys, offset)?);
        }
        let held = cache.update(offset, &keys, values)?;
        self.attend(queries, held, masks)
    }

    /// Attends with the queries of one sequence's tokens. The last keys and values belong to the
    /// same tokens.
    fn attend(&self, queries: Array, held: KeysValues, masks: &mut Masks) -> Result<Array> {
        match held {
            KeysValues::Floats(keys, values) => {
                let at_once = match self.fused {
                    true => i32::MAX,
                    false => attend::tokens_at_once(self.heads, keys.dim(2)),
                };
                let floats = FloatAttention {
                    keys,
                    values,
                    scale: self.scale,
                    window: self.window,
                    sinks: self.sinks.as_ref(),
                    pads: self.pads,
                };
                floats.apply(&queries, at_once, masks)
            }
            KeysValues::Quantised(quantisation, held) => quantisation.attend(&queries, &held, self.scale),
        }
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        let linears = self.projections.linears().into_iter().chain([&self.output]);
        let mut arrays: Vec<&Array> = linears.flat_map(Linear::arrays).collect();
        arrays.extend(&self.sinks);
        match &self.norms {
            Norms::None => {}
            Norms::Head { query, key } | Norms::Full { query, key } => {
                arrays.extend([query.array(), key.array()]);
            }
        }
        arrays
    }
}
