//! Complete model: embedding, blocks, final norm and head.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::{TryIndexOp, take_axis};
use rooflet_mlx::mlx_rs::transforms::async_eval;
use rooflet_mlx::mlx_rs::{Array, Dtype};

use super::block::Block;
use super::cache::{KvCache, LayerCache, LayerRows, Part};
use super::kernels::Kernels;
use super::linear::{Embedding, Linear};
use super::mask::Masks;
use super::norm::RmsNorm;
use super::rope::RotaryEmbedding;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::load::{LoadError, Weights, dtype};
use rooflet_mlx::quantized::dequantizes;
use rooflet_model::checkpoint::ModelShape;
use rooflet_model::config::{MixerConfig, Rope};
use rooflet_roofline::kv_quantisation::KvQuantisation;

/// A decoder-only language model with its weights.
#[derive(Debug)]
pub struct Decoder {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    /// `None` if the embedding table is the head.
    head: Option<Linear>,
    /// Factor of the embeddings.
    embedding_scale: Option<Array>,
    layer_memory: Vec<LayerMemory>,
    /// Quantisation of the KV cache, for layers that keep all tokens.
    kv: Option<KvQuantisation>,
    backend: Backend,
}

/// Limit of the device's lag to one layer, for layers that allocate memory which the next layer can
/// reuse. Operations that are only built or submitted hold all their memory at once.
#[derive(Debug)]
struct LayerByLayer {
    applies: bool,
    before: Option<Array>,
}

impl LayerByLayer {
    fn new(rows: i32, backend: Backend) -> Self {
        Self {
            applies: dequantizes(rows, backend),
            before: None,
        }
    }

    /// Records the output of a layer.
    fn add_output(&mut self, x: &Array) -> Result<()> {
        if self.applies {
            async_eval([x])?;
            if let Some(before) = self.before.replace(x.clone()) {
                before.eval()?;
            }
        }
        Ok(())
    }
}

/// Tokens whose hidden states are needed.
#[derive(Debug, Clone, Copy)]
enum Outputs {
    All,
    Last,
}

/// Part of a sequence that a layer keeps.
#[derive(Debug, Clone, Copy)]
enum LayerMemory {
    All,
    Window(i32),
    State,
}

impl LayerMemory {
    fn of(mixer: &MixerConfig) -> Self {
        match mixer {
            MixerConfig::Attention(attention) => match attention.window {
                Some(window) => Self::Window(window.cast_signed()),
                None => Self::All,
            },
            MixerConfig::GatedDelta(_) => Self::State,
        }
    }
}

impl Decoder {
    /// Builds the model and reads its weights layer by layer, so that the converted copies of only
    /// one layer are in memory at a time.
    pub fn load(shape: &ModelShape, weights: &mut Weights) -> std::result::Result<Self, LoadError> {
        let config = &shape.config;
        weights.set_sources(&shape.sources);
        let evaluate = |arrays: Vec<&Array>| {
            rooflet_mlx::mlx_rs::transforms::eval(arrays).map_err(|err| LoadError::Evaluate { err })
        };
        let backend = Backend::current().map_err(|err| LoadError::Evaluate { err })?;
        let embedding = Embedding::load("model.embed_tokens", shape, weights)?;
        evaluate(embedding.arrays())?;
        let mut rotations = Rotations::default();
        let mut kernels = Kernels::new(backend, weights.compute());
        let mut blocks = Vec::new();
        for (index, layer) in config.layers.iter().enumerate() {
            let rope = rotations.of(&layer.mixer, weights.compute());
            let rope = rope.map_err(|err| LoadError::Evaluate { err })?;
            let module = format!("model.layers.{index}");
            let block = Block::load(&module, layer, rope, shape, weights, &mut kernels)?;
            evaluate(block.arrays())?;
            blocks.push(block);
        }
        let norm = RmsNorm::load("model.norm.weight", config, weights)?;
        evaluate(vec![norm.array()])?;
        let head = match shape.tied {
            true => None,
            false => Some(Linear::load("lm_head", false, shape, weights)?),
        };
        evaluate(head.iter().flat_map(Linear::arrays).collect())?;
        let embedding_scale = config
            .scales_embeddings
            .then(|| embedding_scale(shape, weights.compute()))
            .transpose()
            .map_err(|err| LoadError::Evaluate { err })?;
        Ok(Self {
            embedding,
            blocks,
            norm,
            head,
            embedding_scale,
            layer_memory: config
                .layers
                .iter()
                .map(|layer| LayerMemory::of(&layer.mixer))
                .collect(),
            kv: None,
            backend,
        })
    }

    /// Sets the quantisation of KV caches.
    pub fn with_kv(self, kv: Option<KvQuantisation>) -> Self {
        Self { kv, ..self }
    }

    pub fn new_cache(&self) -> KvCache {
        KvCache::new(self.layer_memory.iter().map(|layer_memory| match layer_memory {
            LayerMemory::All => self.kv.map_or_else(LayerCache::full, LayerCache::quantised),
            LayerMemory::Window(window) => LayerCache::window(*window),
            LayerMemory::State => LayerCache::state(),
        }))
    }

    /// Runs `tokens`, `[1, n]`, after the contents of the cache, and returns the logits of the last
    /// token, `[1, vocabulary]`, in float32. Lazy.
    pub fn forward(&self, tokens: &Array, cache: &mut KvCache) -> Result<Array> {
        let last = self.hidden_ends(tokens, &mut [(cache, tokens.dim(1))])?;
        self.logits(&last)
    }

    /// Runs `tokens`, `[1, n]`, after the contents of the cache, and returns the logits of all
    /// tokens, `[n, vocabulary]`, in float32. Lazy.
    pub fn forward_each(&self, tokens: &Array, cache: &mut KvCache) -> Result<Array> {
        let x = self.hidden(tokens, cache)?;
        self.logits(&x.reshape(&[tokens.dim(1), 1, x.dim(-1)])?)
    }

    /// Runs one token of each of several sequences, `tokens` being `[rows]`, and returns logits,
    /// `[rows, vocabulary]`, in float32. Lazy. After an error, a cache can be used again if it is
    /// truncated to its previous length.
    pub fn decode(&self, tokens: &Array, rows: &mut [&mut KvCache]) -> Result<Array> {
        if let [cache] = rows {
            return self.forward(&tokens.reshape(&[1, 1])?, cache);
        }
        let offsets: Vec<i32> = rows.iter().map(|cache| cache.offset()).collect();
        let positions = Array::from_slice(&offsets, &[tokens.dim(0)]);
        let mut x = self.embed(&tokens.expand_dims(-1)?)?;
        let mut masks = Masks::default();
        let mut one_by_one = LayerByLayer::new(tokens.dim(0), self.backend);
        for (layer, block) in self.blocks.iter().enumerate() {
            let step = LayerRows::Decode {
                caches: rows.iter_mut().map(|cache| cache.layer_mut(layer)).collect(),
                offsets: &offsets,
                positions: &positions,
            };
            x = block.apply(&x, step, &mut masks)?;
            one_by_one.add_output(&x)?;
        }
        let logits = self.logits(&x)?;
        for cache in rows {
            cache.advance(1);
        }
        Ok(logits)
    }

    fn embed(&self, tokens: &Array) -> Result<Array> {
        let x = self.embedding.lookup(tokens)?;
        match &self.embedding_scale {
            Some(scale) => x.multiply(scale),
            None => Ok(x),
        }
    }

    /// Runs `tokens`, `[1, n]`, after the contents of the cache, and returns all hidden states
    /// before the final norm, `[1, n, hidden]`. Lazy.
    pub fn hidden(&self, tokens: &Array, cache: &mut KvCache) -> Result<Array> {
        self.hidden_parts(tokens, &mut [(cache, tokens.dim(1))])
    }

    /// Like [`hidden`](Self::hidden), for tokens of several sequences, one after the other: the
    /// given number of tokens after the contents of each cache. Lazy, except for [`LayerByLayer`].
    pub fn hidden_parts(&self, tokens: &Array, parts: &mut [(&mut KvCache, i32)]) -> Result<Array> {
        self.run(tokens, parts, Outputs::All)
    }

    /// Like [`hidden_parts`](Self::hidden_parts), but returns only the hidden state of each
    /// sequence's last token, `[1, sequences, hidden]`. The last layer computes only these and its
    /// cache update.
    pub fn hidden_ends(&self, tokens: &Array, parts: &mut [(&mut KvCache, i32)]) -> Result<Array> {
        self.run(tokens, parts, Outputs::Last)
    }

    fn run(&self, tokens: &Array, parts: &mut [(&mut KvCache, i32)], outputs: Outputs) -> Result<Array> {
        let mut x = self.embed(tokens)?;
        let mut masks = Masks::default();
        let mut one_by_one = LayerByLayer::new(tokens.dim(1), self.backend);
        for (layer, block) in self.blocks.iter().enumerate() {
            let of_layer = parts.iter_mut().map(|(cache, tokens)| Part {
                offset: cache.offset(),
                cache: cache.layer_mut(layer),
                tokens: *tokens,
            });
            let of_layer = of_layer.collect();
            let rows = match outputs {
                Outputs::Last if layer + 1 == self.blocks.len() => LayerRows::PrefillLast(of_layer),
                Outputs::Last | Outputs::All => LayerRows::Prefill(of_layer),
            };
            x = block.apply(&x, rows, &mut masks)?;
            one_by_one.add_output(&x)?;
        }
        for (cache, tokens) in parts {
            cache.advance(*tokens);
        }
        Ok(x)
    }

    /// Returns the logits of tokens at `places` in `hidden`, `[1, tokens, hidden]`, as `[places,
    /// vocabulary]`. Lazy.
    pub fn logits_after(&self, hidden: &Array, places: &[i32]) -> Result<Array> {
        let count = i32::try_from(places.len()).expect("rows are far fewer than i32::MAX");
        let places = Array::from_slice(places, &[count]);
        let chosen = take_axis(hidden, places, 1)?;
        self.logits(&chosen.reshape(&[count, 1, hidden.dim(-1)])?)
    }

    /// Applies the final norm to hidden states.
    pub fn normed(&self, hidden: &Array) -> Result<Array> {
        self.norm.apply(hidden)
    }

    /// Returns the logits of hidden states `[rows, 1, hidden]` as `[rows, vocabulary]` in float32.
    pub fn logits(&self, last: &Array) -> Result<Array> {
        let last = self.norm.apply(last)?;
        let logits = match &self.head {
            Some(head) => head.apply(&last)?,
            None => self.embedding.as_head(&last)?,
        };
        logits.try_index((.., -1, ..))?.as_dtype(Dtype::Float32)
    }
}

/// Returns the square root of the embeddings' width, rounded to the element type of the checkpoint,
/// as in training (transformers, `Gemma3TextScaledWordEmbedding`).
fn embedding_scale(shape: &ModelShape, compute: Dtype) -> Result<Array> {
    let root = f64::from(shape.config.dimensions.hidden).sqrt() as f32;
    let scale = Array::from_f32(root)
        .as_dtype(dtype(shape.element))?
        .as_dtype(compute)?;
    scale.eval()?;
    Ok(scale)
}

/// Rotary embeddings by their parameters: layers with the same parameters share a table.
#[derive(Debug, Default)]
struct Rotations {
    known: Vec<(Rope, RotaryEmbedding)>,
}

impl Rotations {
    fn of(&mut self, mixer: &MixerConfig, compute: Dtype) -> Result<Option<RotaryEmbedding>> {
        let MixerConfig::Attention(attention) = mixer else {
            return Ok(None);
        };
        let Some(rope) = &attention.rope else {
            return Ok(None);
        };
        if let Some((_, rotary)) = self.known.iter().find(|(known, _)| known == rope) {
            return Ok(Some(rotary.clone()));
        }
        let rotary = RotaryEmbedding::new(rope, attention.head_dim, compute)?;
        self.known.push((rope.clone(), rotary.clone()));
        Ok(Some(rotary))
    }
}

#[cfg(test)]
mod tests;
