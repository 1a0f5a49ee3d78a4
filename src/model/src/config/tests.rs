use serde_json::{Value, json};

use super::*;
use crate::fields::FieldError;
use rooflet_base::error::Chain;

/// Published configuration of Llama 3.2 1B.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"}
    })
}

/// Published configuration of Qwen3 8B in 4 bits.
fn qwen3() -> Value {
    json!({
        "attention_bias": false, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
        "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
        "num_key_value_heads": 8, "quantization": {"group_size": 64, "bits": 4},
        "quantization_config": {"group_size": 64, "bits": 4}, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
        "use_sliding_window": false, "vocab_size": 151936
    })
}

fn attention(layer: &LayerConfig) -> &AttentionConfig {
    match &layer.mixer {
        MixerConfig::Attention(attention) => attention,
        MixerConfig::GatedDelta(delta) => panic!("{delta:?}"),
    }
}

fn parse(value: &Value) -> Result<ModelConfig, ModelConfigError> {
    ModelConfig::parse(&value.to_string())
}

#[test]
fn parses_llama_with_scaled_rope() {
    let config = parse(&llama()).unwrap();
    assert_eq!(config.architecture.as_str(), "llama");
    let attention = attention(&config.layers[0]);
    assert_eq!((attention.kv_heads, attention.head_dim), (8, 64));
    assert_eq!(config.eos_token_ids, [128001, 128008, 128009]);
    assert_eq!(
        attention.rope.clone().unwrap(),
        Rope {
            dims: 64,
            theta: 500_000.0,
            traditional: false,
            scaling: RopeScaling::Llama3 {
                factor: 32.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context_tokens: 8192.0
            }
        }
    );
    // 2 × 16 layers × 8 heads × 64 × 2 bytes.
    assert_eq!(config.kv_bytes_per_token(FloatType::BF16), 32_768);
}

#[test]
fn parses_quantised_qwen3() {
    let config = parse(&qwen3()).unwrap();
    let attention = attention(&config.layers[35]);
    assert!(attention.query_key_norm == QueryKeyNorm::Head && !attention.qkv_bias);
    let quantization = config.quantization.as_ref().unwrap();
    assert_eq!(
        quantization.default,
        QuantizationScheme {
            mode: QuantizationMode::Affine,
            group_size: 64,
            bits: 4
        }
    );
    assert_eq!(config.kv_bytes_per_token(FloatType::F16), 147_456);
}

#[test]
fn qwen2_always_has_qkv_bias_and_ignores_an_unused_window() {
    let mut value = qwen3();
    value["model_type"] = json!("qwen2");
    value["sliding_window"] = json!(131072);
    let config = parse(&value).unwrap();
    let attention = attention(&config.layers[0]);
    assert!(attention.qkv_bias && !attention.output_bias);
    assert_eq!(
        (attention.query_key_norm, attention.window),
        (QueryKeyNorm::None, None)
    );
}

/// Published configuration of Gemma 3 1B.
fn gemma3() -> Value {
    json!({
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": null,
        "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
        "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144
    })
}

#[test]
fn gemma3_window_layers_have_a_separate_rope() {
    let config = parse(&gemma3()).unwrap();
    let layer = |index: usize| {
        let attention = attention(&config.layers[index]);
        (attention.window, attention.rope.as_ref().map(|rope| rope.theta))
    };
    assert_eq!(layer(4), (Some(512), Some(10_000.0)));
    assert_eq!(layer(5), (None, Some(1_000_000.0)));
    assert_eq!(attention(&config.layers[0]).scale, 0.0625);
    assert_eq!(
        config.layers[0].feed_forward,
        FeedForwardConfig::Dense(DenseConfig {
            intermediate: 6912,
            activation: Activation::GeluTanh,
            fused: false,
            bias: false
        })
    );
    assert!(config.norm_adds_one && config.scales_embeddings && config.clips_residuals);
}

#[test]
fn rejects_gemma3_fields_that_change_the_output() {
    for (field, found, supported) in [
        (
            "use_bidirectional_attention",
            json!(true),
            "the only supported value is false",
        ),
        (
            "final_logit_softcapping",
            json!(30.0),
            "the only supported value is null",
        ),
        (
            "attn_logit_softcapping",
            json!(50.0),
            "the only supported value is null",
        ),
    ] {
        let mut value = gemma3();
        value[field] = found.clone();
        assert_eq!(
            parse(&value).unwrap_err().to_string(),
            format!("config.json: field `{field}` is {found}, which is not supported: {supported}")
        );
    }
    let mut value = gemma3();
    value["use_bidirectional_attention"] = json!(false);
    assert!(parse(&value).is_ok());
}

/// Published configuration of Phi-3.5 mini, with other lists of factors.
#[test]
fn parses_fused_phi3_with_long_factors() {
    let mut value = json!({
        "attention_bias": false, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "model_type": "phi3",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "rope_scaling": {"long_factor": vec![2.0; 48], "short_factor": vec![1.0; 48], "type": "longrope"},
        "sliding_window": 262144, "tie_word_embeddings": false, "vocab_size": 32064
    });
    let config = parse(&value).unwrap();
    let attention = attention(&config.layers[0]);
    assert!(attention.fused);
    let RopeScaling::Long { factors, magnitude } = &attention.rope.as_ref().unwrap().scaling else {
        panic!("{:?}", attention.rope);
    };
    // The square root of 1 + ln(131072 / 4096) / ln 4096.
    assert_eq!((factors[0], factors.len()), (2.0, 48));
    assert!((magnitude - 1.190_238).abs() < 1e-6, "{magnitude}");

    value["rope_scaling"]["long_factor"] = json!([2.0]);
    assert_eq!(
        parse(&value).unwrap_err().to_string(),
        "config.json: field `rope_scaling.long_factor` is [2.0], expected a list of 48 numbers"
    );
}

/// Qwen2.5 with the scaling of its model card.
#[test]
fn yarn_blends_between_dimensions() {
    let mut value = qwen3();
    value["rope_scaling"] = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let scaling = |value: &Value| {
        let attention = attention(&parse(value).unwrap().layers[0]).clone();
        attention.rope.unwrap().scaling
    };
    // 64 · ln(32768 / 2π·32) / ln(10^6) = 23.59…, and 39.65… for one turn.
    let RopeScaling::Yarn { blend, magnitude, .. } = scaling(&value) else {
        panic!();
    };
    assert_eq!(blend, (23.0, 40.0));
    assert!((magnitude - 1.138_629).abs() < 1e-6, "{magnitude}");
    value["rope_scaling"]["truncate"] = json!(false);
    let RopeScaling::Yarn { blend, .. } = scaling(&value) else {
        panic!();
    };
    assert!(
        (blend.0 - 23.59).abs() < 0.01 && (blend.1 - 39.65).abs() < 0.01,
        "{blend:?}"
    );
}

#[test]
fn smollm3_has_rope_in_three_of_four_layers() {
    let mut value = llama();
    value["model_type"] = json!("smollm3");
    value["rope_scaling"] = json!(null);
    let rotated = |value: &Value| -> Vec<bool> {
        let config = parse(value).unwrap();
        let layers = config.layers.iter().take(5);
        layers.map(|layer| attention(layer).rope.is_some()).collect()
    };
    assert_eq!(rotated(&value), [true, true, true, false, true]);
    value["no_rope_layers"] = json!([0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1]);
    assert_eq!(rotated(&value), [false, true, true, true, false]);
    value["no_rope_layers"] = json!([0]);
    assert_eq!(
        parse(&value).unwrap_err().to_string(),
        "config.json: field `no_rope_layers` is [0], expected a list of 0 and 1, one for each layer"
    );
}

/// Published configuration of gpt-oss 20B.
#[test]
fn parses_original_gpt_oss() {
    let layer_types: Vec<&str> = ["sliding_attention", "full_attention"].repeat(12);
    let config = parse(&json!({
        "attention_bias": true, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880, "layer_types": layer_types,
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-05, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": false,
                         "original_max_position_embeddings": 4096},
        "tie_word_embeddings": false, "vocab_size": 201088
    }))
    .unwrap();
    let (attention_0, feed_forward) = (attention(&config.layers[0]), &config.layers[0].feed_forward);
    assert!(attention_0.sinks && attention_0.qkv_bias && attention_0.output_bias);
    assert_eq!(
        (attention_0.window, attention(&config.layers[1]).window),
        (Some(128), None)
    );
    let FeedForwardConfig::Experts(experts) = feed_forward else {
        panic!("{feed_forward:?}");
    };
    assert_eq!(
        (experts.experts, experts.active, experts.router),
        (32, 4, Router::SelectedSoftmax)
    );
    assert_eq!(experts.activation, Activation::ClampedSilu { limit: 7.0 });
    let quantization = config.quantization.unwrap();
    assert_eq!(quantization.default.mode, QuantizationMode::Mxfp4);
}

#[test]
fn rejects_contradictory_expert_fields() {
    let value = json!({
        "model_type": "glm4_moe", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 32,
        "max_position_embeddings": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": 8, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1
    });
    let config = parse(&value).unwrap();
    assert!(matches!(
        config.layers[0].feed_forward,
        FeedForwardConfig::Dense(_)
    ));
    for (field, replacement, message) in [
        (
            "num_experts_per_tok",
            9,
            "config.json: field `num_experts_per_tok` is 9, expected at most the number of experts (8)",
        ),
        (
            "n_group",
            3,
            "config.json: field `n_group` is 3, expected a divisor of n_routed_experts (8)",
        ),
        (
            "topk_group",
            3,
            "config.json: field `topk_group` is 3, expected at most n_group (2)",
        ),
    ] {
        let mut value = value.clone();
        value[field] = json!(replacement);
        assert_eq!(parse(&value).unwrap_err().to_string(), message);
    }
}

/// Published configuration of Qwen3.6 35B A3B, without the fields of its vision tower.
#[test]
fn parses_hybrid_in_a_multimodal_model() {
    let mut value = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "tie_word_embeddings": false,
        "vision_config": {"depth": 27}, "quantization": {
            "group_size": 64, "bits": 4, "language_model.model.layers.0.mlp.gate": {"group_size": 64, "bits": 8}
        },
        "text_config": {
            "attention_bias": false, "attn_output_gate": true, "eos_token_id": 248044, "full_attention_interval": 4,
            "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
            "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1,
            "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "shared_expert_intermediate_size": 512,
            "tie_word_embeddings": false, "vocab_size": 248320, "rope_parameters": {
                "mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                "rope_theta": 10000000, "rope_type": "default"
            }
        }
    });
    let config = parse(&value).unwrap();
    assert!(config.is_multimodal);
    assert_eq!(
        (config.architecture.as_str(), config.max_context_tokens),
        ("qwen3_5_moe", 262_144)
    );
    assert_eq!(config.eos_token_ids, [248_044]);
    assert_eq!(
        config.layers[0].mixer,
        MixerConfig::GatedDelta(GatedDeltaConfig {
            key_heads: 16,
            key_dim: 128,
            value_heads: 32,
            value_dim: 128,
            by_head: false
        })
    );
    let full = attention(&config.layers[3]);
    assert!(full.output_gate && full.query_key_norm == QueryKeyNorm::Head);
    assert_eq!(full.rope.as_ref().unwrap().dims, 64);
    // Ten layers of 2 × 2 heads of 256, two bytes each.
    assert_eq!(config.kv_bytes_per_token(FloatType::BF16), 20_480);
    let scheme = config
        .quantization
        .unwrap()
        .scheme("model.layers.0.mlp.gate")
        .unwrap();
    assert_eq!(scheme.bits, 8);

    value["text_config"]["linear_num_value_heads"] = json!(24);
    assert_eq!(
        parse(&value).unwrap_err().to_string(),
        "config.json: field `text_config.linear_num_value_heads` is 24, expected a multiple of linear_num_key_heads (16)"
    );
}

#[test]
fn parses_nested_rope_parameters() {
    let mut value = qwen3();
    value.as_object_mut().unwrap().remove("rope_theta");
    assert_eq!(
        parse(&value).unwrap_err().to_string(),
        "config.json: required field `rope_theta` is missing"
    );
    value["rope_parameters"] = json!({"rope_theta": 5000000, "rope_type": "linear", "factor": 2.0});
    let rope = attention(&parse(&value).unwrap().layers[0]).rope.clone().unwrap();
    assert_eq!(
        (rope.theta, rope.scaling),
        (5_000_000.0, RopeScaling::Linear { factor: 2.0 })
    );
}

#[test]
fn parses_quantisation_overrides_by_module() {
    let mut value = qwen3();
    value["quantization"]["lm_head"] = json!({"group_size": 32, "bits": 8});
    value["quantization"]["model.embed_tokens"] = json!(false);
    let quantization = parse(&value).unwrap().quantization.unwrap();
    assert_eq!(
        quantization.scheme("lm_head"),
        Some(QuantizationScheme {
            mode: QuantizationMode::Affine,
            group_size: 32,
            bits: 8
        })
    );
    assert_eq!(quantization.scheme("model.embed_tokens"), None);
    // The format of `mlx_lm.convert --quant-predicate mixed_4_6`.
    value["quantization"]["lm_head"] = json!({"group_size": null, "bits": 6, "mode": "affine"});
    let mixed = parse(&value).unwrap().quantization.unwrap();
    let scheme = mixed.scheme("lm_head").unwrap();
    assert_eq!((scheme.group_size, scheme.bits), (64, 6));
    assert_eq!(
        quantization.scheme("model.layers.0.mlp.up_proj"),
        Some(quantization.default)
    );
}

/// Each case is a field, its new value (null removes it), and the exact message.
#[test]
fn errors_name_file_and_field() {
    let cases = [
        (
            "model_type",
            json!("mamba"),
            "config.json: model_type `mamba` is not supported; supported: gemma3_text, glm4, glm4_moe, gpt_oss, llama, mistral, olmo2, phi3, qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, smollm3",
        ),
        (
            "model_type",
            json!(null),
            "config.json: required field `model_type` is missing",
        ),
        (
            "hidden_size",
            json!("big"),
            "config.json: field `hidden_size` is \"big\", expected an integer from 1 to 16777216",
        ),
        (
            "hidden_size",
            json!(-3),
            "config.json: field `hidden_size` is -3, expected an integer from 1 to 16777216",
        ),
        (
            "num_key_value_heads",
            json!(5),
            "config.json: field `num_key_value_heads` is 5, expected a divisor of num_attention_heads (32)",
        ),
        (
            "hidden_act",
            json!("gelu"),
            "config.json: field `hidden_act` is \"gelu\", which is not supported: the only supported value is silu",
        ),
        (
            "rope_scaling",
            json!({"rope_type": "dynamic", "factor": 4}),
            "config.json: field `rope_scaling.rope_type` is \"dynamic\", which is not supported: the supported values are default, linear, llama3, longrope and yarn",
        ),
        (
            "rope_scaling",
            json!({"type": "linear"}),
            "config.json: required field `rope_scaling.factor` is missing",
        ),
        (
            "layer_types",
            json!(vec!["sliding_attention"; 16]),
            "config.json: required field `sliding_window` is missing",
        ),
        (
            "partial_rotary_factor",
            json!(0.01),
            "config.json: field `partial_rotary_factor` is 0.01, expected a share of 64 elements that results in an even number of elements",
        ),
        (
            "layer_types",
            json!(["sliding_attention"]),
            "config.json: field `layer_types` is [\"sliding_attention\"], expected a list of 16 entries, one per layer, of full_attention, sliding_attention, linear_attention",
        ),
        (
            "quantization",
            json!({"group_size": 64, "bits": 4, "mode": "mxfp4"}),
            "config.json: field `quantization.group_size` is 64, expected 32 with mode mxfp4",
        ),
        (
            "quantization",
            json!({"group_size": 64, "bits": 4, "mode": "hqq"}),
            "config.json: field `quantization.mode` is \"hqq\", expected affine, mxfp4, mxfp8 or nvfp4",
        ),
        (
            "quantization",
            json!({"group_size": 64, "bits": 4, "lm_head": {"bits": 7, "group_size": 64}}),
            "config.json: field `quantization.lm_head.bits` is 7, expected 2, 3, 4, 5, 6 or 8 with mode affine",
        ),
        (
            "quantization_config",
            json!({"quant_method": "gptq", "bits": 4}),
            "config.json: field `quantization_config.quant_method` is \"gptq\", which is not supported: convert the model with mlx_lm.convert first",
        ),
        (
            "eos_token_id",
            json!("</s>"),
            "config.json: field `eos_token_id` is \"</s>\", expected a token id or a list of token ids",
        ),
    ];
    for (field, replacement, message) in cases {
        let mut value = llama();
        value[field] = replacement;
        assert_eq!(parse(&value).unwrap_err().to_string(), message, "{field}");
    }
}

#[test]
fn rejects_text_that_is_not_a_json_object() {
    assert_eq!(
        Chain(&ModelConfig::parse("{\"a\":").unwrap_err()).to_string(),
        "config.json: not valid JSON: EOF while parsing a value at line 1 column 5"
    );
    assert!(matches!(
        ModelConfig::parse("[]"),
        Err(ModelConfigError::Field(FieldError::NotAnObject))
    ));
}

#[test]
fn shortens_huge_values_in_messages() {
    let mut value = llama();
    value["model_type"] = json!("x".repeat(10_000));
    assert!(parse(&value).unwrap_err().to_string().len() < 400);
}
