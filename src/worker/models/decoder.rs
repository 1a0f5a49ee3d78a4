//! A whole model: embedding, blocks, final norm and head.

use mlx_rs::error::Result;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

use super::block::{Block, RmsNorm};
use super::cache::{KvCache, LayerRows};
use super::linear::{Embedding, Linear};
use super::rope::RotaryEmbedding;
use crate::mlx::load::{LoadError, Weights};
use crate::roofline::checkpoint::ModelShape;

/// A decoder-only language model with its weights.
#[derive(Debug)]
pub(crate) struct Decoder {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    /// `None`: the embedding table is the head.
    head: Option<Linear>,
    rope: RotaryEmbedding,
}

impl Decoder {
    /// Builds the model and reads its weights, layer by layer, so that converted copies do not pile up.
    pub(crate) fn load(shape: &ModelShape, weights: &mut Weights) -> std::result::Result<Self, LoadError> {
        let config = &shape.config;
        let evaluate =
            |arrays: Vec<&Array>| mlx_rs::transforms::eval(arrays).map_err(|err| LoadError::Evaluate { err });
        let embedding = Embedding::load("model.embed_tokens", shape, weights)?;
        evaluate(embedding.arrays())?;
        let mut blocks = Vec::new();
        for layer in 0..config.layers {
            let block = Block::load(layer, shape, weights)?;
            evaluate(block.arrays())?;
            blocks.push(block);
        }
        let norm = RmsNorm::load("model.norm.weight", config.rms_norm_eps, weights)?;
        evaluate(vec![norm.array()])?;
        let head = if shape.tied {
            None
        } else {
            Some(Linear::load("lm_head", false, shape, weights)?)
        };
        evaluate(head.iter().flat_map(Linear::arrays).collect())?;
        let rope =
            RotaryEmbedding::new(&config.rope, config.head_dim).map_err(|err| LoadError::Evaluate { err })?;
        Ok(Self {
            embedding,
            blocks,
            norm,
            head,
            rope,
        })
    }

    pub(crate) fn new_cache(&self) -> KvCache {
        KvCache::new(self.blocks.len())
    }

    /// Runs `tokens`, `[1, n]`, after what the cache holds, and returns the logits of the last one, `[1, vocabulary]`,
    /// in float32. Lazy: nothing is computed before the result is evaluated.
    pub(crate) fn forward(&self, tokens: &Array, cache: &mut KvCache) -> Result<Array> {
        let x = self.hidden(tokens, cache)?;
        self.logits(&x.try_index((.., -1.., ..))?)
    }

    /// Runs one token for each of several sequences, `tokens` being `[rows]`, and returns `[rows, vocabulary]` in
    /// float32. Lazy. After an error, a cache cut to the length it had can be used again.
    pub(crate) fn decode(&self, tokens: &Array, rows: &mut [&mut KvCache]) -> Result<Array> {
        if let [cache] = rows {
            return self.forward(&tokens.reshape(&[1, 1])?, cache);
        }
        let offsets: Vec<i32> = rows.iter().map(|cache| cache.offset()).collect();
        let positions = Array::from_slice(&offsets, &[tokens.dim(0)]);
        let mut x = self.embedding.lookup(&tokens.expand_dims(-1)?)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let step = LayerRows::Many {
                caches: rows.iter_mut().map(|cache| cache.layer_mut(layer)).collect(),
                offsets: &offsets,
                positions: &positions,
            };
            x = block.apply(&x, &self.rope, step)?;
        }
        let logits = self.logits(&x)?;
        for cache in rows {
            cache.advance(1);
        }
        Ok(logits)
    }

    /// Runs `tokens` for the cache's sake only.
    pub(crate) fn prefill(&self, tokens: &Array, cache: &mut KvCache) -> Result<()> {
        self.hidden(tokens, cache)?;
        mlx_rs::transforms::eval(cache.arrays())
    }

    fn hidden(&self, tokens: &Array, cache: &mut KvCache) -> Result<Array> {
        let offset = cache.offset();
        let mut x = self.embedding.lookup(tokens)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let step = LayerRows::One {
                cache: cache.layer_mut(layer),
                offset,
            };
            x = block.apply(&x, &self.rope, step)?;
        }
        cache.advance(tokens.dim(1));
        Ok(x)
    }

    /// Of `[rows, 1, hidden]`.
    fn logits(&self, last: &Array) -> Result<Array> {
        let last = self.norm.apply(last)?;
        let logits = match &self.head {
            Some(head) => head.apply(&last)?,
            None => self.embedding.as_head(&last)?,
        };
        logits.try_index((.., -1, ..))?.as_dtype(Dtype::Float32)
    }
}

#[cfg(test)]
mod tests;
