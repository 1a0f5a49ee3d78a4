//! Model directories with random weights. Their speed equals that of a trained model of the same
//! shape, without a download.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use camino::Utf8Path;
use serde_json::{Value, json};

const GROUP_SIZE: u32 = 64;
/// 1.0 in half precision.
const ONE: u16 = 0x3C00;
/// Size of the random block that is repeated. Kernel times do not depend on the repetition.
const BLOCK_BYTES: usize = 4 << 20;

/// Shape of a Llama model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Name by number of parameters.
    pub(super) name: &'static str,
    hidden: u32,
    intermediate: u32,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    vocabulary: u32,
}

impl Shape {
    /// Returns the name of the model's directory.
    pub(super) fn title(&self, bits: u32) -> String {
        format!("{}-{bits}bit", self.name)
    }
}

/// Shapes from overhead-bound to memory-bound.
pub(super) const SHAPES: [Shape; 6] = [
    shape("20m", 384, 1152, 8, (6, 3, 64), 16_384),
    shape("75m", 768, 2304, 9, (12, 6, 64), 16_384),
    shape("220m", 1024, 3072, 16, (16, 8, 64), 16_384),
    shape("600m", 1536, 4608, 20, (24, 12, 64), 16_384),
    shape("2.5b", 3072, 8192, 24, (24, 8, 128), 32_768),
    shape("7b", 4096, 11_008, 32, (32, 32, 128), 32_000),
];

const fn shape(
    name: &'static str,
    hidden: u32,
    intermediate: u32,
    layers: u32,
    (heads, kv_heads, head_dim): (u32, u32, u32),
    vocabulary: u32,
) -> Shape {
    Shape {
        name,
        hidden,
        intermediate,
        layers,
        heads,
        kv_heads,
        head_dim,
        vocabulary,
    }
}

/// Tensor to write.
#[derive(Debug, Clone)]
struct Tensor {
    dtype: &'static str,
    shape: Vec<u32>,
    fill: Fill,
}

#[derive(Debug, Clone, Copy)]
enum Fill {
    Random,
    /// Half-precision value of every element.
    Half(u16),
}

impl Tensor {
    fn elements(&self) -> u64 {
        self.shape.iter().map(|size| u64::from(*size)).product()
    }

    fn bytes(&self) -> u64 {
        match self.fill {
            Fill::Random => 4 * self.elements(),
            Fill::Half(_) => 2 * self.elements(),
        }
    }
}

impl Shape {
    /// Writes a directory that the worker can serve, quantised to `bits` in groups of 64.
    pub(super) fn write(&self, directory: &Utf8Path, bits: u32) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        let text = |name: &str, value: &Value| std::fs::write(directory.join(name), value.to_string());
        text("config.json", &self.config(bits))?;
        text("tokenizer.json", &tokenizer(self.vocabulary))?;
        text("tokenizer_config.json", &tokenizer_config())?;
        let file = File::create(directory.join("model.safetensors"))?;
        let mut file = BufWriter::with_capacity(BLOCK_BYTES, file);
        write_tensors(&mut file, &self.tensors(bits))?;
        file.flush()
    }

    fn config(&self, bits: u32) -> Value {
        json!({
            "model_type": "llama", "hidden_act": "silu", "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocabulary, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": [],
            "quantization": {"group_size": GROUP_SIZE, "bits": bits},
        })
    }

    /// Tensors by name, in file order.
    fn tensors(&self, bits: u32) -> BTreeMap<String, Tensor> {
        let mut tensors = BTreeMap::new();
        let mut matrix = |module: &str, rows: u32, columns: u32| {
            let (scale, bias) = scale_and_bias(bits, columns);
            let groups = vec![rows, columns / GROUP_SIZE];
            let packed = Tensor {
                dtype: "U32",
                shape: vec![rows, columns * bits / 32],
                fill: Fill::Random,
            };
            tensors.insert(format!("{module}.weight"), packed);
            for (part, value) in [("scales", scale), ("biases", bias)] {
                tensors.insert(format!("{module}.{part}"), halves(groups.clone(), value));
            }
        };
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        matrix("model.embed_tokens", self.vocabulary, self.hidden);
        for layer in 0..self.layers {
            let mut at = |part: &str, rows, columns| {
                matrix(&format!("model.layers.{layer}.{part}"), rows, columns);
            };
            at("self_attn.q_proj", queries, self.hidden);
            at("self_attn.k_proj", keys, self.hidden);
            at("self_attn.v_proj", keys, self.hidden);
            at("self_attn.o_proj", self.hidden, queries);
            at("mlp.gate_proj", self.intermediate, self.hidden);
            at("mlp.up_proj", self.intermediate, self.hidden);
            at("mlp.down_proj", self.hidden, self.intermediate);
        }
        let norms = (0..self.layers).flat_map(|layer| {
            ["input_layernorm", "post_attention_layernorm"]
                .map(|norm| format!("model.layers.{layer}.{norm}.weight"))
        });
        for norm in norms.chain(["model.norm.weight".to_owned()]) {
            tensors.insert(norm, halves(vec![self.hidden], ONE));
        }
        tensors
    }
}

fn halves(shape: Vec<u32>, value: u16) -> Tensor {
    Tensor {
        dtype: "F16",
        shape,
        fill: Fill::Half(value),
    }
}

/// Returns half-precision scale and bias for weights with mean zero that approximately preserve the
/// length of a vector of `columns` elements. The scale is a power of two, so both values are exact.
fn scale_and_bias(bits: u32, columns: u32) -> (u16, u16) {
    let levels = f64::from(1_u32 << bits);
    // Standard deviation of a uniform integer below `levels`.
    let deviation = (levels * levels - 1.0).sqrt() / 12_f64.sqrt();
    let exponent = -(deviation * f64::from(columns).sqrt()).log2().round() as i32;
    // The middle of the levels is 2^(bits-1) - 0.5: in binary, `bits` ones with the point before
    // the last.
    let middle_exponent = exponent + bits.cast_signed() - 2;
    let mantissa = ((1_u16 << (bits - 1)) - 1) << (11 - bits);
    let half = |exponent: i32| u16::try_from((exponent + 15).clamp(1, 30)).unwrap_or(1) << 10;
    (half(exponent), 0x8000 | half(middle_exponent) | mantissa)
}

/// Returns a tokenizer whose first 256 tokens are bytes, so that a prompt of letters has one token
/// per letter. The remaining tokens are words, so that every generated token is text.
fn tokenizer(vocabulary: u32) -> Value {
    let bytes = printable_bytes();
    let words =
        (u32::try_from(bytes.len()).expect("there are 256 bytes")..vocabulary).map(|id| format!("Ġw{id}"));
    let tokens: serde_json::Map<String, Value> = bytes
        .into_iter()
        .map(String::from)
        .chain(words)
        .zip(0_u32..)
        .map(|(token, id)| (token, id.into()))
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": tokens, "merges": []},
    })
}

/// Characters for bytes in byte-level vocabularies (GPT-2's table): printable Latin-1 maps to
/// itself, other bytes to U+0100 and up.
fn printable_bytes() -> Vec<char> {
    let mut next = 0x100;
    (0..=255_u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                let substitute = char::from_u32(next).expect("U+0100 to U+0143 are characters");
                next += 1;
                substitute
            }
        })
        .collect()
}

fn tokenizer_config() -> Value {
    json!({"chat_template": "{{ messages[0]['content'] }}", "tokenizer_class": "PreTrainedTokenizerFast"})
}

/// Writes the safetensors format: length of the header, header, data.
fn write_tensors(file: &mut impl Write, tensors: &BTreeMap<String, Tensor>) -> io::Result<()> {
    let mut header = serde_json::Map::new();
    let mut offset = 0_u64;
    for (name, tensor) in tensors {
        let end = offset + tensor.bytes();
        header.insert(
            name.clone(),
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut header = Value::Object(header).to_string();
    // Data is aligned to 8 bytes.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let random = random_block();
    for tensor in tensors.values() {
        let half;
        let block = match tensor.fill {
            Fill::Random => &random,
            Fill::Half(value) => {
                half = value.to_le_bytes().repeat(BLOCK_BYTES / 2);
                &half
            }
        };
        let mut left = tensor.bytes();
        while left > 0 {
            let now = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
            file.write_all(&block[..now])?;
            left -= now as u64;
        }
    }
    Ok(())
}

/// Returns xorshift64 output for a fixed seed, so that every run uses the same models.
fn random_block() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    while block.len() < BLOCK_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_artifact::model_dir::ModelDir;
    use rooflet_testing::TempDir;

    /// The expected values are multiples of 2^-k in IEEE 754 half precision.
    #[test]
    fn weights_have_mean_zero() {
        // 4 bits, 1024 columns: 2^-7 = 0x2000, and -7.5 * 2^-7 = -0.05859375 = 0xAB80.
        assert_eq!(scale_and_bias(4, 1024), (0x2000, 0xAB80));
        // 8 bits, 1024 columns: 2^-11 = 0x1000, and -127.5 * 2^-11 = -0.06225586 = 0xABF8.
        assert_eq!(scale_and_bias(8, 1024), (0x1000, 0xABF8));
    }

    #[test]
    fn random_model_is_servable() {
        let directory = TempDir::new();
        let path = directory.path();
        for (bits, weight_bits) in [(4, 4.5), (8, 8.5)] {
            let path = path.join(bits.to_string());
            SHAPES[0].write(&path, bits).unwrap();
            let shape = ModelDir::inspect(&path).unwrap().shape;
            assert_eq!(shape.parameters / 1_000_000, 20);
            let bits_each = 8.0 * shape.weights_bytes as f64 / shape.parameters as f64;
            assert!((bits_each - weight_bits).abs() < 0.01, "{bits_each}");
        }
    }
}
