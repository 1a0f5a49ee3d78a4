use serde_json::{Value, json};

use super::*;
use crate::config::QuantizationMode;

const FILE: &str = "model.safetensors";

fn config(quantization: Value) -> ModelConfig {
    let value = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 32,
        "max_position_embeddings": 128, "tie_word_embeddings": true, "quantization": quantization
    });
    ModelConfig::parse(&value.to_string()).unwrap()
}

/// Tensors of a Llama with one layer: name and shape, all bf16.
fn tensors() -> Vec<(&'static str, Vec<u64>)> {
    vec![
        ("model.embed_tokens.weight", vec![32, 64]),
        ("model.layers.0.input_layernorm.weight", vec![64]),
        ("model.layers.0.post_attention_layernorm.weight", vec![64]),
        ("model.layers.0.self_attn.q_proj.weight", vec![64, 64]),
        ("model.layers.0.self_attn.k_proj.weight", vec![32, 64]),
        ("model.layers.0.self_attn.v_proj.weight", vec![32, 64]),
        ("model.layers.0.self_attn.o_proj.weight", vec![64, 64]),
        ("model.layers.0.mlp.gate_proj.weight", vec![128, 64]),
        ("model.layers.0.mlp.up_proj.weight", vec![128, 64]),
        ("model.layers.0.mlp.down_proj.weight", vec![64, 128]),
        ("model.norm.weight", vec![64]),
    ]
}

fn table(tensors: &[(&str, Vec<u64>, &str)]) -> Result<TensorTable, CheckpointError> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape, dtype) in tensors {
        let begin = end;
        let bytes = match *dtype {
            "U8" => 1,
            "BF16" => 2,
            _ => 4,
        };
        end += shape.iter().product::<u64>() * bytes;
        header.insert(
            (*name).to_owned(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}),
        );
    }
    header.insert("__metadata__".to_owned(), json!({"format": "mlx"}));
    let mut table = TensorTable::default();
    table.add_file(FILE, Value::Object(header).to_string().as_bytes(), end)?;
    Ok(table)
}

fn float_table(edit: impl FnOnce(&mut Vec<(&'static str, Vec<u64>, &'static str)>)) -> TensorTable {
    let mut tensors = tensors()
        .into_iter()
        .map(|(name, shape)| (name, shape, "BF16"))
        .collect();
    edit(&mut tensors);
    table(&tensors).unwrap()
}

#[test]
fn sums_sizes_of_a_float_checkpoint() {
    let shape = ModelShape::new(config(Value::Null), &float_table(|_| ())).unwrap();
    // 32·64 + 2·64 + 2·64·64 + 2·32·64 + 3·128·64 + 64
    assert_eq!(shape.parameters, 39_104);
    assert_eq!(shape.weights_bytes, 78_208);
    assert_eq!(shape.element, FloatType::BF16);
    assert_eq!(shape.resident_bytes(FloatType::BF16), 78_208);
    assert_eq!(shape.resident_bytes(FloatType::F32), 156_416);
}

#[test]
fn checks_quantised_matrices_against_their_scheme() {
    let quantise = |bits: u64| {
        float_table(|tensors| {
            let gate = tensors
                .iter_mut()
                .find(|(name, ..)| name.contains("gate_proj"))
                .unwrap();
            *gate = (gate.0, vec![128, 64 * bits / 32], "U32");
            tensors.push(("model.layers.0.mlp.gate_proj.scales", vec![128, 2], "BF16"));
            tensors.push(("model.layers.0.mlp.gate_proj.biases", vec![128, 2], "BF16"));
        })
    };
    let scheme = json!({"group_size": 32, "bits": 4});
    let shape = ModelShape::new(config(scheme.clone()), &quantise(4)).unwrap();
    assert_eq!(shape.parameters, 39_104);
    // 8192 weights: 4 bits each and 2 × 16 bits per 32, instead of 16 bits each.
    assert_eq!(shape.weights_bytes, 78_208 - 16_384 + 4_096 + 1_024);
    assert_eq!(shape.resident_bytes(FloatType::BF16), shape.weights_bytes);
    assert_eq!(
        shape.matrices["model.layers.0.mlp.gate_proj"],
        MatrixStorage::Quantized(QuantizationScheme {
            mode: QuantizationMode::Affine,
            group_size: 32,
            bits: 4
        })
    );
    assert_eq!(
        shape.matrices["lm_head".replace("lm_head", "model.embed_tokens").as_str()],
        MatrixStorage::Float
    );

    assert_eq!(
        ModelShape::new(config(scheme), &quantise(8))
            .unwrap_err()
            .to_string(),
        "model.safetensors: tensor `model.layers.0.mlp.gate_proj.weight` has shape [128, 16], config.json implies [128, 8]"
    );
    assert_eq!(
        ModelShape::new(config(Value::Null), &quantise(4))
            .unwrap_err()
            .to_string(),
        "model.safetensors: tensor `model.layers.0.mlp.gate_proj.scales` is quantised, but config.json has no `quantization`"
    );
}

/// MLX multiplies by the scale of a whole matrix only if both operands are quantised. Otherwise
/// every product would be wrong by this factor.
#[test]
fn rejects_scale_of_a_whole_matrix() {
    let quantise = |whole: bool| {
        float_table(|tensors| {
            let gate = tensors.iter_mut().find(|(name, ..)| name.contains("gate_proj"));
            let gate = gate.unwrap();
            *gate = (gate.0, vec![128, 64 * 4 / 32], "U32");
            tensors.push(("model.layers.0.mlp.gate_proj.scales", vec![128, 4], "U8"));
            if whole {
                tensors.push(("model.layers.0.mlp.gate_proj.global_scale", vec![1], "F32"));
            }
        })
    };
    let config = config(json!({"mode": "nvfp4", "group_size": 16, "bits": 4}));
    assert!(ModelShape::new(config.clone(), &quantise(false)).is_ok());
    assert_eq!(
        ModelShape::new(config, &quantise(true)).unwrap_err().to_string(),
        "model.safetensors: tensor `model.layers.0.mlp.gate_proj.global_scale` is not part of llama with this config.json"
    );
}

#[test]
fn error_names_missing_mismatched_and_unknown_tensors() {
    let error = |table: &TensorTable| {
        ModelShape::new(config(Value::Null), table)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(&float_table(
            |tensors| tensors.retain(|(name, ..)| !name.contains("k_proj"))
        )),
        "tensor `model.layers.0.self_attn.k_proj.weight` is missing in the safetensors files; llama with this config.json requires it"
    );
    assert_eq!(
        error(&float_table(|tensors| tensors[0].1 = vec![33, 64])),
        "model.safetensors: tensor `model.embed_tokens.weight` has shape [33, 64], config.json implies [32, 64]"
    );
    assert_eq!(
        error(&float_table(|tensors| tensors.push((
            "vision.patch.weight",
            vec![3],
            "BF16"
        )))),
        "model.safetensors: tensor `vision.patch.weight` is not part of llama with this config.json"
    );
}

#[test]
fn ignores_redundant_head_of_a_tied_model() {
    let table = float_table(|tensors| tensors.push(("lm_head.weight", vec![32, 64], "BF16")));
    let shape = ModelShape::new(config(Value::Null), &table).unwrap();
    assert_eq!(shape.weights_bytes, 78_208);
    assert!(shape.tied);
    let [(head, embedding)] = &shape.head_copies[..] else {
        panic!("one tensor to compare: {:?}", shape.head_copies);
    };
    assert_eq!(head.bytes, embedding.bytes);
    assert_eq!(
        head.begin - embedding.begin,
        78_208,
        "the head is the last tensor"
    );
}

#[test]
fn head_in_another_format_is_not_tied() {
    let table = float_table(|tensors| tensors.push(("lm_head.weight", vec![32, 64], "F32")));
    let shape = ModelShape::new(config(Value::Null), &table).unwrap();
    assert!(!shape.tied && shape.head_copies.is_empty());
    assert_eq!(shape.weights_bytes, 78_208 + 4 * 32 * 64);
}

#[test]
fn checkpoint_decides_about_tied_head_if_config_omits_it() {
    let mut config = config(Value::Null);
    config.tie_word_embeddings = None;
    let with_head = float_table(|tensors| tensors.push(("lm_head.weight", vec![32, 64], "BF16")));
    assert!(!ModelShape::new(config.clone(), &with_head).unwrap().tied);
    assert!(ModelShape::new(config, &float_table(|_| ())).unwrap().tied);
}

#[test]
fn rejects_damaged_headers() {
    let check = |header: &str, data_bytes: u64, message: &str| {
        let err = TensorTable::default()
            .add_file(FILE, header.as_bytes(), data_bytes)
            .unwrap_err();
        assert!(err.to_string().contains(message), "{err}");
        assert!(
            err.to_string()
                .starts_with("model.safetensors: not a safetensors file, or truncated: ")
        );
    };
    check("not json", 0, "the header is not a JSON object");
    check(
        r#"{"a":{"dtype":"F32"}}"#,
        0,
        "entry of tensor `a`: missing field `shape`",
    );
    check(
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
        4,
        "tensor `a` ends at byte 8 of 4; the file is truncated",
    );
    check(
        r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#,
        8,
        "of shape [3] has 8 bytes",
    );
    check(
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        8,
        "two tensors overlap",
    );
    assert!(
        header_bytes(FILE, u64::MAX.to_le_bytes(), 100)
            .unwrap_err()
            .to_string()
            .contains("allows")
    );
    assert!(
        header_bytes(FILE, 93_u64.to_le_bytes(), 100)
            .unwrap_err()
            .to_string()
            .contains("93 bytes")
    );
    assert_eq!(header_bytes(FILE, 92_u64.to_le_bytes(), 100).unwrap(), 92);
}

/// Mixture of two experts in one layer, with separate tensors per expert. `edit` can change the
/// tensors.
fn mixture(edit: impl FnOnce(&mut Vec<(String, Vec<u64>)>)) -> Result<ModelShape, CheckpointError> {
    let config = json!({
        "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 32, "head_dim": 16,
        "max_position_embeddings": 128, "tie_word_embeddings": true, "rope_theta": 10000, "num_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 8
    });
    let mut tensors: Vec<(String, Vec<u64>)> = tensors()
        .into_iter()
        .filter(|(name, _)| !name.contains(".mlp."))
        .map(|(name, shape)| (name.to_owned(), shape))
        .collect();
    let at = |part: &str| format!("model.layers.0.{part}.weight");
    tensors.push((at("self_attn.q_norm"), vec![16]));
    tensors.push((at("self_attn.k_norm"), vec![16]));
    tensors.push((at("mlp.gate"), vec![2, 64]));
    for expert in 0..2 {
        for (part, shape) in [
            ("gate_proj", [8, 64]),
            ("up_proj", [8, 64]),
            ("down_proj", [64, 8]),
        ] {
            tensors.push((at(&format!("mlp.experts.{expert}.{part}")), shape.to_vec()));
        }
    }
    edit(&mut tensors);
    let tensors: Vec<(&str, Vec<u64>, &str)> = tensors
        .iter()
        .map(|(name, shape)| (name.as_str(), shape.clone(), "BF16"))
        .collect();
    ModelShape::new(
        ModelConfig::parse(&config.to_string()).unwrap(),
        &table(&tensors)?,
    )
}

#[test]
fn stacks_tensors_of_separate_experts() {
    let shape = mixture(|_| ()).unwrap();
    // Two experts of three matrices of 8 by 64, two bytes each.
    assert_eq!(shape.expert_bytes(FloatType::BF16), 2 * 3 * 8 * 64 * 2);
    assert_eq!(
        shape.sources["model.layers.0.mlp.switch_mlp.up_proj.weight"],
        TensorSource {
            stored: vec![
                "model.layers.0.mlp.experts.0.up_proj.weight".to_owned(),
                "model.layers.0.mlp.experts.1.up_proj.weight".to_owned()
            ],
            steps: vec![]
        }
    );
    let error = |edit: fn(&mut Vec<(String, Vec<u64>)>)| mixture(edit).unwrap_err().to_string();
    assert_eq!(
        error(|tensors| tensors.retain(|(name, _)| !name.contains("experts.1.up_proj"))),
        "tensor `model.layers.0.mlp.experts.1.up_proj.weight` is missing in the safetensors files; qwen3_moe with this config.json requires it"
    );
    assert_eq!(
        error(|tensors| tensors.push((
            "model.layers.0.mlp.experts.2.up_proj.weight".to_owned(),
            vec![8, 64]
        ))),
        "model.safetensors: tensor `model.layers.0.mlp.experts.2.up_proj.weight` is not part of qwen3_moe with this config.json"
    );
    assert_eq!(
        error(|tensors| {
            let part = tensors
                .iter_mut()
                .find(|(name, _)| name.contains("experts.1.down_proj"));
            part.unwrap().1 = vec![64, 9];
        }),
        "model.safetensors: tensor `model.layers.0.mlp.experts.1.down_proj.weight` has shape [64, 9], config.json implies [64, 8]"
    );
}
