//! Comparison with external figures: totals that publishers state for their files, and figures of
//! public model cards.

mod families;
mod formats;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::checkpoint::ModelShape;
use crate::config::{FloatType, ModelConfig};
use crate::kv_cache::KvBits;

/// Headers of a checkpoint, tensor by tensor as published.
#[derive(Default)]
struct Checkpoint {
    header: Map<String, Value>,
    end: u64,
}

impl Checkpoint {
    fn tensor(&mut self, name: &str, dtype: &str, shape: &[u64]) -> &mut Self {
        let width = match dtype {
            "F32" | "U32" => 4,
            "BF16" | "F16" => 2,
            _ => 1,
        };
        let bytes: u64 = shape.iter().product::<u64>() * width;
        let span = [self.end, self.end + bytes];
        self.end += bytes;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": span});
        assert!(
            self.header.insert(name.to_owned(), entry).is_none(),
            "{name} twice"
        );
        self
    }

    fn floats(&mut self, name: &str, shape: &[u64]) -> &mut Self {
        self.tensor(name, "BF16", shape)
    }

    /// Adds a matrix in MLX's affine format with groups of 64.
    fn affine(&mut self, module: &str, bits: u64, shape: &[u64]) -> &mut Self {
        let (columns, rows) = shape.split_last().unwrap();
        let with = |last: u64| [rows, &[last]].concat();
        self.tensor(&format!("{module}.weight"), "U32", &with(columns * bits / 32))
            .floats(&format!("{module}.scales"), &with(columns / 64))
            .floats(&format!("{module}.biases"), &with(columns / 64))
    }

    fn table(&self) -> TensorTable {
        let mut table = TensorTable::default();
        let header = Value::Object(self.header.clone()).to_string();
        table
            .add_file("model.safetensors", header.as_bytes(), self.end)
            .unwrap();
        table
    }

    fn facts(&self, config: &Value) -> ModelFacts {
        ModelFacts::new(&config.to_string(), Tensors::Headers(&self.table())).unwrap()
    }
}

fn estimated(config: &Value) -> ModelFacts {
    ModelFacts::new(&config.to_string(), Tensors::Unknown).unwrap()
}

fn kv(facts: &ModelFacts, context: u32) -> u64 {
    facts
        .dimensions
        .as_ref()
        .unwrap()
        .kv_bytes(context, KvBits::HALF)
        .0
}

fn within(value: u64, expected: f64, tolerance: f64) -> bool {
    (value as f64 / expected - 1.0).abs() <= tolerance
}

/// Llama 3.1 70B.
fn llama_70b() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16"
    })
}

#[derive(Clone, Copy)]
enum Storage {
    Floats,
    Affine(u64),
}

fn llama_70b_checkpoint(stored: Storage) -> Checkpoint {
    let mut file = Checkpoint::default();
    let matrix = |file: &mut Checkpoint, module: &str, rows: u64, columns: u64| match stored {
        Storage::Floats => drop(file.floats(&format!("{module}.weight"), &[rows, columns])),
        Storage::Affine(bits) => drop(file.affine(module, bits, &[rows, columns])),
    };
    matrix(&mut file, "model.embed_tokens", 128_256, 8192);
    matrix(&mut file, "lm_head", 128_256, 8192);
    file.floats("model.norm.weight", &[8192]);
    for layer in 0..80 {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        file.floats(&at("input_layernorm.weight"), &[8192]);
        file.floats(&at("post_attention_layernorm.weight"), &[8192]);
        for (part, rows, columns) in [
            ("self_attn.q_proj", 8192, 8192),
            ("self_attn.k_proj", 1024, 8192),
            ("self_attn.v_proj", 1024, 8192),
            ("self_attn.o_proj", 8192, 8192),
            ("mlp.gate_proj", 28_672, 8192),
            ("mlp.up_proj", 28_672, 8192),
            ("mlp.down_proj", 8192, 28_672),
        ] {
            matrix(&mut file, &at(part), rows, columns);
        }
    }
    file
}

/// The totals are from the model cards of exo (2026-06), which copy them from the index of the
/// files: 39,688,355,840 bytes in 4 bits, 74,964,549,632 in 8 bits, 141,107,412,992 in bfloat16.
/// The hub counts 70,553,706,496 parameters.
#[test]
fn llama_70b_matches_size_of_its_index() {
    for (stored, total) in [
        (Storage::Affine(4), 39_688_355_840),
        (Storage::Affine(8), 74_964_549_632),
        (Storage::Floats, 141_107_412_992),
    ] {
        let mut config = llama_70b();
        if let Storage::Affine(bits) = stored {
            config["quantization"] = json!({"bits": bits, "group_size": 64});
        }
        let facts = llama_70b_checkpoint(stored).facts(&config);
        assert_eq!(facts.weights.resident(), Bytes(total));
        assert_eq!(facts.parameters, 70_553_706_496);
        assert_eq!(facts.left_out, Bytes::ZERO);
        let embedding = facts.weights.idle.0;
        assert!(
            within(embedding, 128_256.0 * 8192.0 / 70.55e9 * total as f64, 0.01),
            "{embedding}"
        );

        let estimate = estimated(&config);
        assert!(within(estimate.weights.resident().0, total as f64, 0.001));
        assert!(within(
            estimate.weights.every_step.0,
            facts.weights.every_step.0 as f64,
            0.001
        ));
        assert_eq!(kv(&estimate, 1), 2 * 80 * 8 * 128 * 2);
    }
}

/// Qwen3-Coder-Next.
fn qwen3_coder_next() -> Value {
    json!({
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 5120,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
        "max_position_embeddings": 262144, "full_attention_interval": 4, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": false
    })
}

/// mlx-community/Qwen3-Coder-Next-4bit has 44,844,060,160 bytes of tensors (test of exo's model
/// cards). Routers and gates of shared experts are in 8 bits, as overrides by module.
#[test]
fn qwen3_coder_next_matches_size_of_its_index() {
    let mut config = qwen3_coder_next();
    let mut quantization = json!({"bits": 4, "group_size": 64});
    let mut file = Checkpoint::default();
    file.affine("model.embed_tokens", 4, &[151_936, 2048])
        .affine("lm_head", 4, &[151_936, 2048])
        .floats("model.norm.weight", &[2048]);
    for layer in 0..48 {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        file.floats(&at("input_layernorm.weight"), &[2048])
            .floats(&at("post_attention_layernorm.weight"), &[2048]);
        if (layer + 1) % 4 == 0 {
            file.affine(&at("self_attn.q_proj"), 4, &[8192, 2048])
                .affine(&at("self_attn.k_proj"), 4, &[512, 2048])
                .affine(&at("self_attn.v_proj"), 4, &[512, 2048])
                .affine(&at("self_attn.o_proj"), 4, &[2048, 4096])
                .floats(&at("self_attn.q_norm.weight"), &[256])
                .floats(&at("self_attn.k_norm.weight"), &[256]);
        } else {
            file.affine(&at("linear_attn.in_proj_qkvz"), 4, &[12_288, 2048])
                .affine(&at("linear_attn.in_proj_ba"), 4, &[64, 2048])
                .affine(&at("linear_attn.out_proj"), 4, &[2048, 4096])
                .floats(&at("linear_attn.conv1d.weight"), &[8192, 4, 1])
                .floats(&at("linear_attn.dt_bias"), &[32])
                .tensor(&at("linear_attn.A_log"), "BF16", &[32])
                .floats(&at("linear_attn.norm.weight"), &[128]);
        }
        for (module, shape) in [
            ("mlp.switch_mlp.gate_proj", [512, 512, 2048]),
            ("mlp.switch_mlp.up_proj", [512, 512, 2048]),
            ("mlp.switch_mlp.down_proj", [512, 2048, 512]),
        ] {
            file.affine(&at(module), 4, &shape);
        }
        file.affine(&at("mlp.shared_expert.gate_proj"), 4, &[512, 2048])
            .affine(&at("mlp.shared_expert.up_proj"), 4, &[512, 2048])
            .affine(&at("mlp.shared_expert.down_proj"), 4, &[2048, 512]);
        for (module, rows) in [("mlp.gate", 512), ("mlp.shared_expert_gate", 1)] {
            file.affine(&at(module), 8, &[rows, 2048]);
            quantization[at(module)] = json!({"bits": 8, "group_size": 64});
        }
    }
    config["quantization"] = quantization;
    let facts = file.facts(&config);
    assert_eq!(facts.weights.resident(), Bytes(44_844_060_160));
    // "80B-A3B": 79.7 billion parameters, about 3.5 billion of them active, including head and
    // embedding table.
    assert!(within(facts.parameters, 79.67e9, 0.001), "{}", facts.parameters);
    let dimensions = facts.dimensions.as_ref().unwrap();
    assert!(within(dimensions.parameters(), facts.parameters as f64, 0.001));
    assert_eq!(dimensions.linear_layers(), 36);
    assert!(within(
        estimated(&config).weights.resident().0,
        44_844_060_160.0,
        0.001
    ));

    // 12 layers have attention: 12 layers x 2 x 2 heads x 256 x 2 bytes. The others have 32 states
    // of 128 x 128 in 32 bits.
    let growth = kv(&facts, 2) - kv(&facts, 1);
    assert_eq!(growth, 12 * 2 * 2 * 256 * 2);
    assert_eq!(kv(&facts, 0), 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2));
}

/// Original openai/gpt-oss-20b: 459 tensors, 13,761,264,768 bytes. Its experts are blocks of 4-bit
/// weights with separate scales. The model card states 20.91 billion parameters.
#[test]
fn gpt_oss_20b_matches_size_of_its_index() {
    let config = json!({
        "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": false,
        "max_position_embeddings": 131072,
        "quantization_config": {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                       "lm_head"],
            "quant_method": "mxfp4"
        }
    });
    let mut file = Checkpoint::default();
    file.floats("model.embed_tokens.weight", &[201_088, 2880])
        .floats("lm_head.weight", &[201_088, 2880])
        .floats("model.norm.weight", &[2880]);
    for layer in 0..24 {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        for (part, rows, columns) in [
            ("self_attn.q_proj", 4096, 2880),
            ("self_attn.k_proj", 512, 2880),
            ("self_attn.v_proj", 512, 2880),
            ("self_attn.o_proj", 2880, 4096),
            ("mlp.router", 32, 2880),
        ] {
            file.floats(&at(&format!("{part}.weight")), &[rows, columns])
                .floats(&at(&format!("{part}.bias")), &[rows]);
        }
        for (part, rows) in [("gate_up_proj", 5760), ("down_proj", 2880)] {
            file.tensor(
                &at(&format!("mlp.experts.{part}_blocks")),
                "U8",
                &[32, rows, 90, 16],
            )
            .tensor(&at(&format!("mlp.experts.{part}_scales")), "U8", &[32, rows, 90])
            .floats(&at(&format!("mlp.experts.{part}_bias")), &[32, rows]);
        }
        file.floats(&at("self_attn.sinks"), &[64])
            .floats(&at("input_layernorm.weight"), &[2880])
            .floats(&at("post_attention_layernorm.weight"), &[2880]);
    }
    assert_eq!(file.header.len(), 459);
    let facts = file.facts(&config);
    assert_eq!(facts.weights.resident(), Bytes(13_761_264_768));
    assert!(within(facts.parameters, 20.91e9, 0.001), "{}", facts.parameters);
    assert!(within(
        estimated(&config).weights.resident().0,
        13_761_264_768.0,
        0.002
    ));
}

#[test]
fn reports_mismatch_between_config_and_tensors() {
    let checkpoint = llama_70b_checkpoint(Storage::Floats);
    assert_eq!(checkpoint.facts(&llama_70b()).parameter_mismatch(), None);
    let mut deeper = llama_70b();
    deeper["num_hidden_layers"] = json!(88);
    let described = checkpoint.facts(&deeper).parameter_mismatch();
    assert!(
        described.is_some_and(|described| described > 76_000_000_000),
        "{described:?}"
    );
    assert_eq!(
        estimated(&deeper).parameter_mismatch(),
        None,
        "an estimate has no tensors to compare with"
    );
}

/// Qwen/Qwen2.5-7B-Instruct has a `total_size` of 15,231,233,024, which is 7,615,616,512 parameters
/// including biases.
#[test]
fn qwen2_5_7b_matches_size_of_its_index() {
    let config = json!({
        "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": false,
        "max_position_embeddings": 32768, "torch_dtype": "bfloat16"
    });
    let mut file = Checkpoint::default();
    file.floats("model.embed_tokens.weight", &[152_064, 3584])
        .floats("lm_head.weight", &[152_064, 3584])
        .floats("model.norm.weight", &[3584]);
    for layer in 0..28 {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        for (part, rows, columns, bias) in [
            ("self_attn.q_proj", 3584, 3584, true),
            ("self_attn.k_proj", 512, 3584, true),
            ("self_attn.v_proj", 512, 3584, true),
            ("self_attn.o_proj", 3584, 3584, false),
            ("mlp.gate_proj", 18_944, 3584, false),
            ("mlp.up_proj", 18_944, 3584, false),
            ("mlp.down_proj", 3584, 18_944, false),
        ] {
            file.floats(&at(&format!("{part}.weight")), &[rows, columns]);
            if bias {
                file.floats(&at(&format!("{part}.bias")), &[rows]);
            }
        }
        file.floats(&at("input_layernorm.weight"), &[3584])
            .floats(&at("post_attention_layernorm.weight"), &[3584]);
    }
    let facts = file.facts(&config);
    assert_eq!(facts.weights.resident(), Bytes(15_231_233_024));
    assert_eq!(facts.parameters, 7_615_616_512);
}

/// google/gemma-3-12b-it. The text configuration has only the fields that differ from the 4B model.
fn gemma3_12b() -> Value {
    json!({
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text", "num_attention_heads": 16,
            "num_hidden_layers": 48, "num_key_value_heads": 8, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}
        },
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "model_type": "siglip_vision_model"}
    })
}

/// An audit of a published benchmark found 2.48 GB at 32K with rotating caches, 12.88 GB (12 GiB)
/// without, and 6.62 GB of text weights in 4 bits.
#[test]
fn gemma3_12b_has_a_window_in_most_layers() {
    let mut config = gemma3_12b();
    config["quantization"] = json!({"bits": 4, "group_size": 64});
    let facts = estimated(&config);
    assert!(
        within(kv(&facts, 32_768), 2.48e9, 0.002),
        "{}",
        kv(&facts, 32_768)
    );
    let dimensions = facts.dimensions.as_ref().unwrap();
    let whole = dimensions.without_windows().kv_bytes(32_768, KvBits::HALF);
    assert_eq!(whole, Bytes::gib(12));
    assert!(within(facts.weights.resident().0, 6.62e9, 0.002));
    assert!(dimensions.tied_embeddings);
    assert_eq!(facts.max_context_tokens, Some(131_072));
}

/// A text engine does not load vision and audio towers.
#[test]
fn towers_and_prediction_layers_are_not_loaded() {
    let config = json!({
        "model_type": "glm4_moe", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
        "max_position_embeddings": 512, "tie_word_embeddings": false
    });
    let mut file = Checkpoint::default();
    file.floats("model.embed_tokens.weight", &[100, 64])
        .floats("lm_head.weight", &[100, 64])
        .floats("model.layers.0.self_attn.q_proj.weight", &[64, 64])
        .floats("model.layers.1.mlp.gate.weight", &[4, 64])
        .floats("model.layers.1.mlp.experts.3.up_proj.weight", &[32, 64])
        .floats("model.layers.1.mlp.shared_experts.up_proj.weight", &[32, 64])
        .floats("model.layers.2.mlp.experts.0.up_proj.weight", &[32, 64])
        .floats("model.visual.blocks.0.attn.qkv.weight", &[10, 10])
        .floats("multi_modal_projector.linear.weight", &[10, 10])
        .floats("audio_tower.layers.0.self_attn.q_proj.weight", &[10, 10]);
    let facts = file.facts(&config);
    assert_eq!(facts.left_out, Bytes(2 * (32 * 64 + 300)));
    assert_eq!(facts.weights.idle, Bytes(2 * 6400));
    assert_eq!(facts.weights.experts, Bytes(2 * 32 * 64));
    assert_eq!(
        facts.weights.every_step,
        Bytes(2 * (6400 + 64 * 64 + 4 * 64 + 32 * 64))
    );
}

/// Only the values show whether a stored head is a copy of the embedding table, so that both count.
#[test]
fn stored_head_counts_although_the_config_ties_it() {
    let config = json!({
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
        "max_position_embeddings": 512, "tie_word_embeddings": true
    });
    let mut file = Checkpoint::default();
    file.floats("model.embed_tokens.weight", &[100, 64]);
    let one = file.facts(&config);
    assert_eq!(
        (one.weights.every_step, one.weights.idle),
        (Bytes(12_800), Bytes::ZERO)
    );
    file.floats("lm_head.weight", &[100, 64]);
    let both = file.facts(&config);
    assert_eq!(
        (both.weights.every_step, both.weights.idle),
        (Bytes(12_800), Bytes(12_800))
    );
    let is_tied = |facts: &ModelFacts| facts.dimensions.as_ref().unwrap().tied_embeddings;
    assert!(is_tied(&one) && !is_tied(&both));
}

/// The engine's checkpoint reader computes the same bytes, as stored and in 32 bits.
#[test]
fn sizes_equal_those_of_the_checkpoint_reader() {
    let config = json!({
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "max_position_embeddings": 512, "tie_word_embeddings": false,
        "quantization": {"bits": 4, "group_size": 64}
    });
    let mut file = Checkpoint::default();
    file.affine("model.embed_tokens", 4, &[128, 64])
        .affine("lm_head", 4, &[128, 64])
        .floats("model.norm.weight", &[64]);
    let at = |part: &str| format!("model.layers.0.{part}");
    for (part, rows, columns) in [
        ("self_attn.q_proj", 64, 64),
        ("self_attn.k_proj", 32, 64),
        ("self_attn.v_proj", 32, 64),
        ("self_attn.o_proj", 64, 64),
        ("mlp.gate_proj", 128, 64),
        ("mlp.up_proj", 128, 64),
        ("mlp.down_proj", 64, 128),
    ] {
        file.affine(&at(part), 4, &[rows, columns]);
    }
    for (part, size) in [
        ("input_layernorm", 64),
        ("post_attention_layernorm", 64),
        ("self_attn.q_norm", 16),
        ("self_attn.k_norm", 16),
    ] {
        file.floats(&at(&format!("{part}.weight")), &[size]);
    }
    let facts = file.facts(&config);
    let shape = ModelShape::new(ModelConfig::parse(&config.to_string()).unwrap(), &file.table()).unwrap();
    assert_eq!(facts.parameters, shape.parameters);
    let wide = facts.in_float32();
    for (weights, element) in [(facts.weights, FloatType::BF16), (wide.weights, FloatType::F32)] {
        assert_eq!(weights.resident(), Bytes(shape.resident_bytes(element)));
    }
    // The estimate omits norms: 64 x 3 + 16 x 2 floats.
    let estimate = estimated(&config).in_float32().weights.resident();
    assert_eq!(wide.weights.resident() - estimate, Bytes(4 * (64 * 3 + 16 * 2)));
}

#[test]
fn unknown_family_has_sizes_of_its_tensors() {
    let config = json!({"model_type": "mamba9", "num_hidden_layers": 4, "max_position_embeddings": 4096});
    let mut file = Checkpoint::default();
    file.floats("backbone.embeddings.weight", &[100, 64])
        .floats("backbone.layers.0.mixer.in_proj.weight", &[64, 64]);
    let facts = file.facts(&config);
    assert_eq!((facts.dimensions.is_some(), facts.parameters), (false, 10_496));
    assert_eq!(facts.weights.resident(), Bytes(20_992));
    assert!(facts.cost().is_none());
    let err = ModelFacts::new(&config.to_string(), Tensors::Unknown).unwrap_err();
    assert!(
        err.to_string()
            .starts_with("config.json: unknown model_type `mamba9`"),
        "{err}"
    );
}

#[test]
fn index_provides_the_exact_total() {
    let index = r#"{"metadata": {"total_size": 150000000000}, "weight_map":
        {"model.embed_tokens.weight": "model-1.safetensors", "lm_head.weight": "model-2.safetensors"}}"#;
    let index = WeightIndex::parse(index).unwrap();
    let facts = ModelFacts::new(&llama_70b().to_string(), Tensors::Index(&index)).unwrap();
    assert_eq!(facts.weights.resident(), Bytes(150_000_000_000));
    let dimensions = facts.dimensions.unwrap();
    assert!(!dimensions.tied_embeddings);
    assert_eq!(facts.parameters, dimensions.parameters());
}

proptest! {
    #[test]
    fn cache_size_grows_with_context_and_bits(context in 0u32..200_000, more in 0u32..200_000) {
        for config in [llama_70b(), qwen3_coder_next(), gemma3_12b()] {
            let dimensions = estimated(&config).dimensions.unwrap();
            let at = |context, bits| dimensions.kv_bytes(context, KvBits::new(bits));
            prop_assert!(at(context, 16) <= at(context + more, 16));
            prop_assert!(at(context, 4) <= at(context, 8) && at(context, 8) <= at(context, 16));
            prop_assert!(at(context, 16) <= dimensions.without_windows().kv_bytes(context, KvBits::HALF));
        }
    }

    #[test]
    fn never_panics_on_any_text(text in "\\PC*") {
        drop(ModelFacts::new(&text, Tensors::Unknown));
    }
}

#[test]
fn rejects_more_active_experts_than_experts() {
    let config = json!({
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 8,
        "num_experts_per_tok": 9, "tie_word_embeddings": false
    });
    let err = ModelFacts::new(&config.to_string(), Tensors::Unknown).unwrap_err();
    assert_eq!(
        err.to_string(),
        "config.json: field `num_experts_per_tok` is 9, expected at most the number of experts (8)"
    );
}

/// Transformers 5 writes the number of experts under another name than earlier versions. A file
/// with neither name is not a dense model.
#[test]
fn accepts_both_names_of_the_number_of_experts() {
    let config = |experts: Value| {
        let mut config = json!({
            "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "tie_word_embeddings": false
        });
        config
            .as_object_mut()
            .unwrap()
            .extend(experts.as_object().unwrap().clone());
        config
    };
    let named = estimated(&config(json!({"num_experts": 8})));
    assert_eq!(named, estimated(&config(json!({"num_local_experts": 8}))));
    assert_ne!(
        named,
        estimated(&config(json!({"num_experts": 0}))),
        "0 experts make a dense model"
    );
    let err = ModelFacts::new(&config(json!({})).to_string(), Tensors::Unknown).unwrap_err();
    assert_eq!(
        err.to_string(),
        "config.json: required field `num_experts` is missing"
    );
}

/// Every dimension is within its limit, but the product is not.
#[test]
fn rejects_dimensions_whose_product_is_too_large() {
    let config = |head_dim: u64, experts: u64| {
        json!({
            "model_type": "qwen3_moe", "hidden_size": 1 << 24, "num_hidden_layers": 2, "vocab_size": 100,
            "num_attention_heads": 1 << 24, "num_key_value_heads": 1, "head_dim": head_dim, "num_experts": experts,
            "num_experts_per_tok": 1, "moe_intermediate_size": 1 << 24, "max_position_embeddings": 512,
        })
    };
    for config in [config(1 << 24, 1), config(1, 1 << 24)] {
        let err = ModelFacts::new(&config.to_string(), Tensors::Unknown).unwrap_err();
        assert_eq!(
            err.to_string(),
            "config.json: the dimensions result in 2e19 parameters; the limit is 1e15, so at least one of them is wrong"
        );
    }
}
