//! Quantised KV cache of a layer: groups of each head's elements with a scale and a bias, like
//! MLX's quantised matrices. Attention multiplies with the packed elements directly, so that a step
//! reads fewer bytes.

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{Exception, Result};
use rooflet_mlx::mlx_rs::ops::{arange, quantize, quantized_matmul, select, softmax_axis};

use super::super::attend::{in_parts, tokens_at_once};
use rooflet_roofline::kv_quantisation::KvQuantisation;

/// Attention over quantised keys and values.
pub(crate) trait QuantisedAttention: Sized {
    /// Quantises keys and values. Returns packed elements, scales and biases of keys and of values,
    /// `[1, kv_heads, tokens, …]` each.
    fn pack(self, keys: &Array, values: &Array) -> Result<[(Array, Array); 3]>;

    /// Attends with `queries`, `[1, heads, tokens, head_dim]`, over the `held` keys and values, of
    /// which the last `tokens` belong to the queries (causal). The order of operations is mlx-lm's.
    fn attend(self, queries: &Array, held: &[(Array, Array)], scale: f32) -> Result<Array>;
}

impl QuantisedAttention for KvQuantisation {
    fn pack(self, keys: &Array, values: &Array) -> Result<[(Array, Array); 3]> {
        let pack = |array: &Array| quantize(array, self.group().cast_signed(), self.bits().cast_signed());
        let (keys, values) = (pack(keys)?, pack(values)?);
        Ok([(keys.0, values.0), (keys.1, values.1), (keys.2, values.2)])
    }

    fn attend(self, queries: &Array, held: &[(Array, Array)], scale: f32) -> Result<Array> {
        let known = held.first().map_or(0, |packed| packed.0.dim(2));
        attend_at_once(self, tokens_at_once(queries.dim(1), known), queries, held, scale)
    }
}

fn multiply(
    quantisation: KvQuantisation,
    x: &Array,
    (packed, scales, biases): (&Array, &Array, &Array),
    transposed: bool,
) -> Result<Array> {
    let (group, bits) = (
        quantisation.group().cast_signed(),
        quantisation.bits().cast_signed(),
    );
    quantized_matmul(x, packed, scales, biases, transposed, group, bits)
}

/// Attends with `at_once` tokens at a time.
fn attend_at_once(
    quantisation: KvQuantisation,
    at_once: i32,
    queries: &Array,
    held: &[(Array, Array)],
    scale: f32,
) -> Result<Array> {
    let [packed, scales, biases] = held else {
        return Err(Exception::custom("a quantised cache must have three pairs"));
    };
    let (heads, tokens) = (queries.dim(1), queries.dim(2));
    let (kv_heads, known) = (packed.0.dim(1), packed.0.dim(2));
    let queries = queries.multiply(Array::from_f32(scale).as_dtype(queries.dtype())?)?;
    // Heads that share keys become an additional axis, over which the keys are broadcast.
    let by_kv_head = |array: &Array| array.expand_dims(2);
    let queries = queries.reshape(&[1, kv_heads, heads / kv_heads, tokens, -1])?;
    let part = |pair: &(Array, Array)| -> Result<(Array, Array)> {
        Ok((by_kv_head(&pair.0)?, by_kv_head(&pair.1)?))
    };
    let (packed, scales, biases) = (part(packed)?, part(scales)?, part(biases)?);
    let keys = (&packed.0, &scales.0, &biases.0);
    let values = (&packed.1, &scales.1, &biases.1);
    let attend = |queries: &Array, first: i32| -> Result<Array> {
        let mut scores = multiply(quantisation, queries, keys, true)?;
        let count = queries.dim(3);
        if tokens > 1 {
            let positions = arange::<i32, i32>(first, first + count, 1)?.expand_dims(1)?;
            let visible = positions.ge(arange::<i32, i32>(0, known, 1)?.expand_dims(0)?)?;
            let minus_infinity = Array::from_f32(f32::NEG_INFINITY).as_dtype(scores.dtype())?;
            scores = select(&visible, &scores, &minus_infinity)?;
        }
        multiply(quantisation, &softmax_axis(scores, -1, true)?, values, false)
    };
    let before = known - tokens;
    let read = in_parts(&queries, at_once, |part, at| attend(part, before + at.start))?;
    read.reshape(&[1, heads, tokens, -1])
}

#[cfg(test)]
mod tests {
    use camino::{Utf8Path, Utf8PathBuf};
    use rooflet_mlx::mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
    use rooflet_mlx::mlx_rs::ops::dequantize;
    use rooflet_mlx::mlx_rs::ops::indexing::{Ellipsis, TryIndexOp};

    use super::*;
    use crate::{Decoder, KvCache};
    use rooflet_artifact::model_dir::ModelDir;
    use rooflet_mlx as mlx;
    use rooflet_mlx::backend::Backend;
    use rooflet_mlx::load::Weights;
    use rooflet_model::config::FloatType;
    use rooflet_testing::TempDir;

    /// Pseudo-random values between -1 and 1.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / f64::from(1 << 23) as f32 - 1.0
        };
        (0..count).map(next).collect()
    }

    fn array(shape: &[i32], seed: u32) -> Array {
        Array::from_slice(&noise(shape.iter().product::<i32>() as usize, seed), shape)
    }

    fn row(tokens: &[u32]) -> Array {
        Array::from_slice(tokens, &[1, i32::try_from(tokens.len()).unwrap()])
    }

    fn bits(array: &Array) -> Vec<u32> {
        let floats = array.to_vec_exact::<f32>().unwrap();
        floats.into_iter().map(f32::to_bits).collect()
    }

    /// The reference is MLX's attention over the dequantised keys and values.
    #[test]
    fn equals_attention_over_dequantised_values() {
        let _mlx = mlx::exclusive();
        let dir = TempDir::new();
        let dir = model(dir.path());
        for bits_of_each in [8, 4] {
            let quantisation = KvQuantisation::new(bits_of_each, &dir.shape.config).unwrap();
            let (keys, values) = (array(&[1, 2, 70, 64], 1), array(&[1, 2, 70, 64], 2));
            let held = quantisation.pack(&keys, &values).unwrap();
            let unpack = |one: fn(&(Array, Array)) -> &Array| {
                let [packed, scales, biases] = held.each_ref().map(one);
                dequantize(packed, scales, biases, 64, bits_of_each.cast_signed()).unwrap()
            };
            let (keys, values) = (unpack(|pair| &pair.0), unpack(|pair| &pair.1));
            for tokens in [1, 9] {
                let queries = array(&[1, 4, tokens, 64], 3);
                let read = quantisation.attend(&queries, &held, 0.125).unwrap();
                let mask = (tokens > 1).then_some(ScaledDotProductAttentionMask::Causal);
                let expected =
                    scaled_dot_product_attention(&queries, &keys, &values, 0.125, mask, None).unwrap();
                assert_eq!(read.shape(), expected.shape());
                let difference = read.subtract(&expected).unwrap().abs().unwrap();
                let difference: f32 = difference.max(None).unwrap().item_exact();
                assert!(
                    difference < 1e-5,
                    "{bits_of_each} bits, {tokens} tokens: {difference}"
                );
                // Parts of three tokens, the last one of a single token.
                let parts = attend_at_once(quantisation, 3, &queries, &held, 0.125).unwrap();
                let difference = read.subtract(&parts).unwrap().abs().unwrap();
                let difference: f32 = difference.max(None).unwrap().item_exact();
                assert!(difference < 1e-6, "{difference}");
            }
        }
    }

    /// Llama model with two layers and heads of 64 elements.
    fn model(dir: &Utf8Path) -> ModelDir {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5, "vocab_size": 100,
            "max_position_embeddings": 2048, "tie_word_embeddings": true, "eos_token_id": 0
        });
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let fixture = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("e2e/fixtures/models/llama3");
        std::fs::copy(fixture.join("tokenizer.json"), dir.join("tokenizer.json")).unwrap();
        let mut shapes = vec![
            ("model.embed_tokens.weight".to_owned(), vec![100, 64]),
            ("model.norm.weight".to_owned(), vec![64]),
        ];
        for layer in 0..2 {
            for (part, shape) in [
                ("input_layernorm", vec![64]),
                ("post_attention_layernorm", vec![64]),
                ("self_attn.q_proj", vec![256, 64]),
                ("self_attn.k_proj", vec![128, 64]),
                ("self_attn.v_proj", vec![128, 64]),
                ("self_attn.o_proj", vec![64, 256]),
                ("mlp.gate_proj", vec![96, 64]),
                ("mlp.up_proj", vec![96, 64]),
                ("mlp.down_proj", vec![64, 96]),
            ] {
                shapes.push((format!("model.layers.{layer}.{part}.weight"), shape));
            }
        }
        let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = (0_u32..)
            .zip(shapes)
            .map(|(seed, (name, shape))| {
                let numbers = noise(shape.iter().product(), seed);
                let bytes = numbers
                    .into_iter()
                    .flat_map(|number| (number * 0.3).to_le_bytes());
                (name, shape, bytes.collect())
            })
            .collect();
        let views = tensors.iter().map(|(name, shape, bytes)| {
            let float = safetensors::Dtype::F32;
            let view = safetensors::tensor::TensorView::new(float, shape.clone(), bytes);
            (name.clone(), view.unwrap())
        });
        safetensors::serialize_to_file(views, None, dir.join("model.safetensors").as_std_path()).unwrap();
        ModelDir::inspect(dir).unwrap()
    }

    #[test]
    fn logits_do_not_depend_on_chunks_prefixes_or_batches() {
        let _mlx = mlx::exclusive();
        if Backend::current().unwrap() != Backend::Cpu {
            return;
        }
        let dir = TempDir::new();
        let dir = model(dir.path());
        let mut plain = None;
        for each in [8, 4] {
            let quantisation = KvQuantisation::new(each, &dir.shape.config).unwrap();
            let load = |kv| {
                let mut weights = Weights::open(&dir.weight_files, FloatType::F32).unwrap();
                Decoder::load(&dir.shape, &mut weights).unwrap().with_kv(kv)
            };
            let plain: &Decoder = plain.get_or_insert_with(|| load(None));
            let model = load(Some(quantisation));
            let text: Vec<u32> = (0..600).map(|at| 3 + at * at % 89).collect();
            let read = |model: &Decoder, cache: &mut KvCache, text: &[u32], chunk: usize| {
                let mut logits = None;
                for part in text.chunks(chunk) {
                    logits = Some(model.forward(&row(part), cache).unwrap());
                }
                logits.unwrap()
            };
            let mut whole_cache = model.new_cache();
            let whole = read(&model, &mut whole_cache, &text, 600);
            assert_eq!(
                bits(&whole),
                bits(&read(&model, &mut model.new_cache(), &text, 77)),
                "chunks"
            );
            // Start with blocks of another row.
            let blocks = whole_cache.blocks(&[0..256, 256..500], false).unwrap();
            let begun = [(&blocks[0], 256), (&blocks[1], 200)];
            let mut begun = model.new_cache().filled_from(&begun, 600).unwrap();
            assert_eq!(
                bits(&whole),
                bits(&read(&model, &mut begun, &text[456..], 600)),
                "prefix"
            );
            // Two rows in one batch.
            let mut other = model.new_cache();
            read(&model, &mut other, &text[..100], 600);
            let mut alone = model.new_cache();
            read(&model, &mut alone, &text[..100], 600);
            let next = Array::from_slice(&[7_u32, 7], &[2]);
            let both = model.decode(&next, &mut [&mut whole_cache, &mut other]).unwrap();
            let single = model.forward(&row(&[7]), &mut alone).unwrap();
            let second = both.try_index((1.., Ellipsis)).unwrap();
            assert_eq!(bits(&second), bits(&single), "batch");
            // The quantised cache is smaller and its logits are close to those of the float cache.
            let mut float_cache = plain.new_cache();
            let float = read(plain, &mut float_cache, &text, 600);
            let share = whole_cache.bytes() as f64 / float_cache.bytes() as f64;
            let expected = quantisation.stored_bits(32.0).0 / 32.0;
            assert!((share / expected - 1.0).abs() < 1e-3, "{share} of {expected}");
            let difference: f32 = whole
                .subtract(&float)
                .unwrap()
                .abs()
                .unwrap()
                .max(None)
                .unwrap()
                .item_exact();
            let largest: f32 = float.abs().unwrap().max(None).unwrap().item_exact();
            let bound = if each == 8 { 0.05 } else { 0.5 };
            assert!(
                difference > 0.0 && difference < bound * largest,
                "{each} bits: {difference} of {largest}"
            );
        }
    }
}
