//! Published configurations, one per family, with published figures.

use super::*;

/// Published figures of a configuration: billions of parameters in total and active per token
/// (including embedding and head; `None` if not published), and bytes of a 16-bit cache at a
/// context of 8192 tokens.
struct Published {
    config: Value,
    total: f64,
    active: Option<f64>,
    kv_8k: u64,
}

fn check(case: &Published) {
    let name = case.config["model_type"].as_str().unwrap();
    let dimensions = estimated(&case.config).dimensions.unwrap();
    let total = dimensions.parameters();
    assert!(within(total, case.total * 1e9, 0.01), "{name}: {total}");
    if let Some(active) = case.active {
        let table = if dimensions.tied_embeddings {
            0
        } else {
            dimensions.head_parameters()
        };
        let found = dimensions.active_parameters() + table;
        assert!(within(found, active * 1e9, 0.03), "{name}: {found} active");
    }
    assert_eq!(
        dimensions.kv_bytes(8192, KvBits::HALF),
        Bytes(case.kv_8k),
        "{name}"
    );
}

/// Returns layer types that repeat `pattern`: `f` full attention, `s` sliding, `l` linear.
fn layer_types(pattern: &str, layers: usize) -> Value {
    let kind = |letter: char| match letter {
        'f' => "full_attention",
        's' => "sliding_attention",
        _ => "linear_attention",
    };
    pattern.chars().cycle().take(layers).map(kind).collect()
}

/// Totals of dense models are the parameter counts of the hub.
#[test]
fn dense_families_match_published_figures() {
    let dense = |model_type: &str, sizes: [u32; 6], more: Value| {
        let [layers, hidden, intermediate, heads, kv_heads, vocabulary] = sizes;
        let mut config = json!({
            "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden,
            "intermediate_size": intermediate, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "vocab_size": vocabulary, "max_position_embeddings": 131_072
        });
        for (field, value) in more.as_object().unwrap() {
            config[field] = value.clone();
        }
        config
    };
    let full = |layers: u64, kv_heads: u64, head_dim: u64| 8192 * 2 * layers * kv_heads * head_dim * 2;
    for case in [
        // Llama-3.2-1B-Instruct: tied, with `head_dim`.
        Published {
            config: dense(
                "llama",
                [16, 2048, 8192, 32, 8, 128_256],
                json!({"tie_word_embeddings": true, "head_dim": 64}),
            ),
            total: 1.2358,
            active: None,
            kv_8k: full(16, 8, 64),
        },
        // Mistral-7B-Instruct-v0.3.
        Published {
            config: dense(
                "mistral",
                [32, 4096, 14_336, 32, 8, 32_768],
                json!({"sliding_window": null}),
            ),
            total: 7.248,
            active: None,
            kv_8k: full(32, 8, 128),
        },
        // Mistral-7B-v0.1 attends to the last 4096 tokens.
        Published {
            config: dense(
                "mistral",
                [32, 4096, 14_336, 32, 8, 32_000],
                json!({"sliding_window": 4096}),
            ),
            total: 7.242,
            active: None,
            kv_8k: full(32, 8, 128) / 2,
        },
        // Qwen2.5-7B: 56 KiB a token.
        Published {
            config: dense(
                "qwen2",
                [28, 3584, 18_944, 28, 4, 152_064],
                json!({"sliding_window": 131_072, "use_sliding_window": false, "max_window_layers": 28,
                       "tie_word_embeddings": false}),
            ),
            total: 7.616,
            active: None,
            kv_8k: 8192 * 56 * 1024,
        },
        // Qwen3-8B.
        Published {
            config: dense(
                "qwen3",
                [36, 4096, 12_288, 32, 8, 151_936],
                json!({"head_dim": 128, "sliding_window": null, "use_sliding_window": false}),
            ),
            total: 8.191,
            active: None,
            kv_8k: full(36, 8, 128),
        },
        // Gemma-2-2b: every other layer attends to the last 4096 tokens.
        Published {
            config: dense(
                "gemma2",
                [26, 2304, 9216, 8, 4, 256_000],
                json!({"head_dim": 256, "sliding_window": 4096}),
            ),
            total: 2.614,
            active: None,
            kv_8k: full(13, 4, 256) + full(13, 4, 256) / 2,
        },
        // Phi-3.5-mini-instruct: the window is longer than the context.
        Published {
            config: dense(
                "phi3",
                [32, 3072, 8192, 32, 32, 32_064],
                json!({"sliding_window": 262_144}),
            ),
            total: 3.821,
            active: None,
            kv_8k: full(32, 32, 96),
        },
        // GLM-4-9B-0414.
        Published {
            config: dense(
                "glm4",
                [40, 4096, 13_696, 32, 2, 151_552],
                json!({"head_dim": 128}),
            ),
            total: 9.4,
            active: None,
            kv_8k: full(40, 2, 128),
        },
        // OLMo-2-1124-7B.
        Published {
            config: dense(
                "olmo2",
                [32, 4096, 11_008, 32, 32, 100_352],
                json!({"tie_word_embeddings": false}),
            ),
            total: 7.299,
            active: None,
            kv_8k: full(32, 32, 128),
        },
        // SmolLM3-3B: tied by default of its configuration class.
        Published {
            config: dense(
                "smollm3",
                [36, 2048, 11_008, 16, 4, 128_256],
                json!({"sliding_window": null, "use_sliding_window": false, "no_rope_layer_interval": 4}),
            ),
            total: 3.075,
            active: None,
            kv_8k: full(36, 4, 128),
        },
    ] {
        check(&case);
    }
}

/// Totals and active parameters of model cards and papers.
#[test]
fn expert_families_match_published_figures() {
    for case in [
        // Qwen3-30B-A3B: 30.5 billion, 3.3 active.
        Published {
            config: json!({
                "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
                "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                "vocab_size": 151_936, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
                "mlp_only_layers": [], "tie_word_embeddings": false, "max_position_embeddings": 40_960
            }),
            total: 30.53,
            active: Some(3.35),
            kv_8k: 8192 * 2 * 48 * 4 * 128 * 2,
        },
        // Mixtral-8x7B: 46.7 billion, 12.9 active.
        Published {
            config: json!({
                "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14_336,
                "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000, "num_local_experts": 8,
                "num_experts_per_tok": 2, "sliding_window": null, "max_position_embeddings": 32_768
            }),
            total: 46.7,
            active: Some(12.9),
            kv_8k: 8192 * 2 * 32 * 8 * 128 * 2,
        },
        // DeepSeek-V3: 671 billion, 37 active with prediction layers; 70,272 bytes of cache per
        // token (paper).
        Published {
            config: json!({
                "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18_432,
                "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128,
                "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
                "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129_280, "tie_word_embeddings": false,
                "max_position_embeddings": 163_840, "num_nextn_predict_layers": 1
            }),
            total: 671.0,
            active: Some(37.0),
            kv_8k: 8192 * 70_272,
        },
        // DeepSeek-V2-Lite: 15.7 billion, 2.4 active without embeddings; uncompressed queries.
        Published {
            config: json!({
                "model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "intermediate_size": 10_944,
                "moe_intermediate_size": 1408, "num_attention_heads": 16, "num_key_value_heads": 16,
                "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
                "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102_400, "tie_word_embeddings": false,
                "max_position_embeddings": 163_840
            }),
            total: 15.706,
            active: None,
            kv_8k: 8192 * 27 * 576 * 2,
        },
        // GLM-4.5-Air: 106 billion with its prediction layer, 12 active.
        Published {
            config: json!({
                "model_type": "glm4_moe", "num_hidden_layers": 46, "hidden_size": 4096, "intermediate_size": 10_944,
                "moe_intermediate_size": 1408, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
                "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
                "vocab_size": 151_552, "tie_word_embeddings": false, "max_position_embeddings": 131_072
            }),
            total: 106.0,
            active: None,
            kv_8k: 8192 * 2 * 46 * 8 * 128 * 2,
        },
        // gpt-oss-120b: 116.83 billion, 5.13 active without embedding table (model card); a window
        // of 128 in every other layer.
        Published {
            config: json!({
                "model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "intermediate_size": 2880,
                "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201_088,
                "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
                "layer_types": layer_types("sf", 36), "tie_word_embeddings": false, "max_position_embeddings": 131_072
            }),
            total: 116.83,
            active: Some(5.13 + 0.579),
            kv_8k: 18 * (8192 + 128) * 2 * 8 * 64 * 2,
        },
    ] {
        check(&case);
    }
}

/// Qwen3.6-35B-A3B: 35 billion, 3 active. One layer of four has softmax attention. The file also
/// has a vision tower.
#[test]
fn hybrid_families_match_published_figures() {
    check(&Published {
        config: json!({
            "model_type": "qwen3_5_moe",
            "text_config": {
                "model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048,
                "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248_320,
                "layer_types": layer_types("lllf", 40), "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
                "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
                "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1, "max_position_embeddings": 262_144
            },
            "tie_word_embeddings": false,
            "vision_config": {"depth": 27, "hidden_size": 1152}
        }),
        total: 34.66,
        active: None,
        kv_8k: 10 * 8192 * 2 * 2 * 256 * 2 + 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2),
    });
}

/// Gemma 4 has another head size in global layers, one projection for keys and values, and a dense
/// block in addition to experts. Billions of parameters (model card): 30.7 for 31B; 25.2 for
/// 26B-A4B, 3.8 of them active. E2B has 2.3 without its per-layer tables of 35 × 256 × 262,144
/// weights.
#[test]
fn gemma_4_matches_published_figures() {
    let nested =
        |text: Value| json!({"model_type": "gemma4", "tie_word_embeddings": true, "text_config": text});
    let sliding = |layers: u64, kv_heads: u64, window: u64| layers * window * 2 * kv_heads * 256 * 2;
    let global = |layers: u64, kv_heads: u64| layers * 8192 * 2 * kv_heads * 512 * 2;
    for case in [
        Published {
            config: nested(json!({
                "model_type": "gemma4_text", "num_hidden_layers": 60, "hidden_size": 5376, "intermediate_size": 21_504,
                "num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4, "head_dim": 256,
                "global_head_dim": 512, "attention_k_eq_v": true, "sliding_window": 1024,
                "layer_types": layer_types("sssssf", 60), "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
                "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144, "enable_moe_block": false,
                "num_experts": null, "use_double_wide_mlp": false, "max_position_embeddings": 262_144
            })),
            total: 30.7,
            active: None,
            kv_8k: sliding(50, 16, 1024) + global(10, 4),
        },
        Published {
            config: nested(json!({
                "model_type": "gemma4_text", "num_hidden_layers": 30, "hidden_size": 2816, "intermediate_size": 2112,
                "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256,
                "global_head_dim": 512, "attention_k_eq_v": true, "sliding_window": 1024,
                "layer_types": layer_types("sssssf", 30), "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
                "vocab_size": 262_144, "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8,
                "moe_intermediate_size": 704, "use_double_wide_mlp": false, "max_position_embeddings": 262_144
            })),
            total: 25.2,
            active: Some(3.8),
            kv_8k: sliding(25, 8, 1024) + global(5, 2),
        },
        // Only the first 15 of 35 layers have caches, three of them global.
        Published {
            config: nested(json!({
                "model_type": "gemma4_text", "num_hidden_layers": 35, "hidden_size": 1536, "intermediate_size": 6144,
                "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
                "attention_k_eq_v": false, "sliding_window": 512, "layer_types": layer_types("ssssf", 35),
                "num_kv_shared_layers": 20, "hidden_size_per_layer_input": 256, "vocab_size": 262_144,
                "vocab_size_per_layer_input": 262_144, "enable_moe_block": false, "use_double_wide_mlp": true,
                "max_position_embeddings": 131_072
            })),
            total: 4.65,
            active: Some(2.3),
            kv_8k: sliding(12, 1, 512) + global(3, 1),
        },
    ] {
        check(&case);
    }
}

/// A layer that shares a cache reads the cache but does not store it.
#[test]
fn shared_cache_is_read_but_not_stored() {
    let layer = |shares_cache| crate::dimensions::Attention::Grouped {
        heads: 8,
        kv_heads: 1,
        head_dim: 256,
        window: None,
        output_gate: false,
        keys_are_values: false,
        shares_cache,
    };
    let (own, shared) = (layer(false), layer(true));
    assert_eq!(shared.kv_bytes(1000, KvBits::HALF), Bytes::ZERO);
    assert_eq!(
        shared.kv_read_bytes(1000, KvBits::HALF),
        own.kv_bytes(1000, KvBits::HALF)
    );
    assert_eq!(own.parameters(1536) - shared.parameters(1536), 2 * 1536 * 256);
}

#[test]
fn rejects_numbers_of_heads_that_do_not_divide() {
    let read = |heads: u32, kv_heads: u32, head_dim: Option<u32>| {
        let config = json!({
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2, "vocab_size": 100,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "max_position_embeddings": 512,
        });
        ModelFacts::new(&config.to_string(), Tensors::Unknown).map_err(|err| err.to_string())
    };
    // If `head_dim` is set, the heads need not divide the hidden size, as in Gemma and Qwen3.
    for (heads, kv_heads, head_dim) in [(32, 8, None), (48, 8, Some(128)), (33, 11, Some(128))] {
        assert!(read(heads, kv_heads, head_dim).is_ok(), "{heads} {kv_heads}");
    }
    for (heads, kv_heads, head_dim, expected) in [
        (
            33,
            8,
            None,
            "`hidden_size` is 4096, expected a multiple of num_attention_heads (33)",
        ),
        (
            33,
            8,
            Some(128),
            "`num_key_value_heads` is 8, expected a divisor of num_attention_heads (33)",
        ),
        (
            32,
            64,
            None,
            "`num_key_value_heads` is 64, expected a divisor of num_attention_heads (32)",
        ),
    ] {
        let message = read(heads, kv_heads, head_dim).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}
