//! Cost of one decoder layer for one token, without its matrix products: attention over the KV
//! cache, and the small kernels. The operations and their order are those of the worker's block.

use mlx_rs::error::Result;
use mlx_rs::fast::{rms_norm, rope, scaled_dot_product_attention};
use mlx_rs::ops::indexing::{Ellipsis, TryIndexMutOp, TryIndexOp};
use mlx_rs::ops::{add, multiply, ones_dtype, sigmoid, zeros_dtype};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, random};

use super::plan::{MIN_BUFFERS, Plan};
use super::quantized::element;
use super::sampling::Sampler;
use crate::backend::Backend;
use rooflet_api::v1alpha1::{AttentionFigure, LayerFigure};
use rooflet_roofline::probing;
use rooflet_roofline::probing::rate;

/// Query heads per key head: no sharing, and the common maximum. The two figures define a line.
const QUERIES_PER_KEY: [i32; 2] = [1, 4];
const KEY_HEADS: i32 = 8;
const HEAD_DIM: i32 = 64;
/// Ratio of the MLP's width to the layer's width in most models.
const MLP_WIDTH: i32 = 3;
/// Growth step of the worker's KV cache.
const CACHE_TOKENS: i32 = 256;

fn normal(shape: &[i32], seed: u64, backend: Backend) -> Result<Array> {
    let array = random::normal::<f32>(shape, None, None, Some(&random::key(seed)?))?;
    array.as_dtype(element(backend))
}

/// Measures attention of one token for each number of query heads per key head. On a GPU the time
/// depends on the bytes of keys and values, on a CPU on the arithmetic of each query. Two figures
/// distinguish the two cases.
pub(super) fn attention(
    plan: &Plan,
    backend: Backend,
    sampler: &Sampler<'_>,
) -> Result<Vec<AttentionFigure>> {
    // Attention reads a part of each buffer, as in the worker, whose cache has free capacity.
    let tokens = plan.attention_tokens;
    let shape = [1, KEY_HEADS, tokens + CACHE_TOKENS / 2, HEAD_DIM];
    let caches = (0..MIN_BUFFERS as u64)
        .map(|n| {
            Ok((
                normal(&shape, 2 * n, backend)?,
                normal(&shape, 2 * n + 1, backend)?,
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    eval(caches.iter().flat_map(|(keys, values)| [keys, values]))?;
    let used = |array: &Array| array.try_index((Ellipsis, ..tokens, ..));
    let bytes = used(&caches[0].0)?.nbytes() + used(&caches[0].1)?.nbytes();
    let scale = (HEAD_DIM as f32).sqrt().recip();
    QUERIES_PER_KEY
        .into_iter()
        .map(|queries_per_key| {
            let start = normal(&[1, KEY_HEADS * queries_per_key, 1, HEAD_DIM], 99, backend)?;
            eval([&start])?;
            let seconds = sampler.seconds(|launches, first| {
                let mut queries = start.clone();
                for launch in 0..launches {
                    let (keys, values) = &caches[(first + launch) % caches.len()];
                    let (keys, values) = (used(keys)?, used(values)?);
                    queries = scaled_dot_product_attention(queries, keys, values, scale, None, None)?;
                }
                eval([&queries])
            })?;
            Ok(AttentionFigure {
                queries_per_key: queries_per_key.cast_unsigned(),
                figure: probing::figure(&rate(bytes as f64, &seconds), bytes, caches.len()),
            })
        })
        .collect()
}

/// Measures norms, rotary embedding, cache update, activation and sums at two widths. Other widths
/// are interpolated.
pub(super) fn small_kernels(
    plan: &Plan,
    backend: Backend,
    sampler: &Sampler<'_>,
) -> Result<Vec<LayerFigure>> {
    plan.hidden_sizes
        .into_iter()
        .map(|hidden| {
            let mut layer = Layer::new(hidden, backend)?;
            let seconds = sampler.seconds(|launches, first| {
                let x = layer.build(launches, first)?;
                eval([&x].into_iter().chain(&layer.cache))
            })?;
            // Measures the construction of the graph alone: the result is dropped without
            // evaluation.
            let mut layer = Layer::new(hidden, backend)?;
            let building = sampler.seconds(|launches, first| {
                let before = layer.cache.clone();
                drop(layer.build(launches, first)?);
                layer.cache = before;
                Ok(())
            })?;
            Ok(LayerFigure {
                hidden_size: hidden.cast_unsigned(),
                seconds,
                describing_seconds: building.median.min(seconds.median),
            })
        })
        .collect()
}

/// Inputs of one layer's small kernels.
struct Layer {
    hidden: i32,
    weight: Array,
    start: Array,
    gate: Array,
    new_keys: Array,
    /// Keys and values.
    cache: Vec<Array>,
}

impl Layer {
    fn new(hidden: i32, backend: Backend) -> Result<Self> {
        let key_heads = key_heads(hidden);
        let cache_shape = [1, key_heads, CACHE_TOKENS, HEAD_DIM];
        let layer = Self {
            hidden,
            weight: ones_dtype(&[hidden], element(backend))?,
            start: normal(&[1, 1, hidden], 7, backend)?,
            gate: normal(&[1, 1, MLP_WIDTH * hidden], 8, backend)?,
            new_keys: normal(&[1, 1, key_heads * HEAD_DIM], 9, backend)?,
            cache: (0..2)
                .map(|_| zeros_dtype(&cache_shape, element(backend)))
                .collect::<Result<Vec<_>>>()?,
        };
        let inputs = [&layer.weight, &layer.start, &layer.gate, &layer.new_keys];
        eval(inputs.into_iter().chain(&layer.cache))?;
        Ok(layer)
    }

    /// Builds a chain of `layers` layers for consecutive tokens from `first` on. Lazy.
    fn build(&mut self, layers: usize, first: usize) -> Result<Array> {
        let (heads, key_heads) = (self.hidden / HEAD_DIM, key_heads(self.hidden));
        let by_head = |array: &Array, heads: i32| {
            array
                .reshape(&[1, 1, heads, HEAD_DIM])?
                .transpose_axes(&[0, 2, 1, 3])
        };
        let rotate = |array: &Array, at: i32| rope(array, HEAD_DIM, false, 10_000.0, 1.0, at, None::<&Array>);
        let mut x = self.start.clone();
        for layer in 0..layers {
            let at = i32::try_from((first + layer) % CACHE_TOKENS as usize).unwrap_or(0);
            let normed = rms_norm(&x, Some(&self.weight), 1e-6)?;
            let queries = rotate(&by_head(&normed, heads)?, at)?;
            let keys = rotate(&by_head(&self.new_keys, key_heads)?, at)?;
            let values = by_head(&self.new_keys, key_heads)?;
            for (all, new) in self.cache.iter_mut().zip([keys, values]) {
                all.try_index_mut((Ellipsis, at..at + 1, ..), &new)?;
            }
            let merged = queries.transpose_axes(&[0, 2, 1, 3])?.reshape(&[1, 1, -1])?;
            let attended = add(&x, merged)?;
            let normed = rms_norm(&attended, Some(&self.weight), 1e-6)?;
            let activated = multiply(multiply(&self.gate, sigmoid(&self.gate)?)?, &self.gate)?;
            let sliced = activated.try_index((.., .., ..self.hidden))?;
            // The sum before the norm would exceed the range of half precision in a long chain.
            x = add(normed, sliced)?;
        }
        Ok(x)
    }
}

/// Returns the number of key heads: one for two query heads, as in small models.
fn key_heads(hidden: i32) -> i32 {
    (hidden / HEAD_DIM / 2).max(1)
}
