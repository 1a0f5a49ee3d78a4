//! Storage of weights: float types and quantisation formats.

use super::*;

#[test]
fn only_bfloat16_is_not_native() {
    let config = json!({"model_type": "mamba9", "num_hidden_layers": 4, "max_position_embeddings": 4096});
    for (dtype, native) in [("F32", true), ("F16", true), ("BF16", false)] {
        let mut file = Checkpoint::default();
        file.tensor("backbone.embeddings.weight", dtype, &[100, 64]);
        assert_eq!(file.facts(&config).weights.native_floats, native, "{dtype}");
    }
}

/// `mlx_lm.convert` keeps the type of `config.json`, also in scales and biases.
#[test]
fn config_sets_the_float_type_if_headers_are_missing() {
    let quantized = json!({"bits": 4, "group_size": 64});
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
    // Bits per weight, and whether every GPU computes natively with the float type.
    let cases = [
        (json!({}), 16.0, false),
        (
            json!({"torch_dtype": null, "dtype": "float8_e4m3fn"}),
            16.0,
            false,
        ),
        (json!({"torch_dtype": "bfloat16"}), 16.0, false),
        (json!({"torch_dtype": "float16"}), 16.0, true),
        (json!({"dtype": "float16"}), 16.0, true),
        (json!({"torch_dtype": "torch.half"}), 16.0, true),
        (json!({"torch_dtype": "float32"}), 32.0, true),
        (
            json!({"torch_dtype": "float16", "quantization": quantized}),
            4.5,
            true,
        ),
        (
            json!({"torch_dtype": "bfloat16", "quantization": quantized}),
            4.5,
            false,
        ),
        (json!({"dtype": "float32", "quantization": quantized}), 5.0, true),
    ];
    for (stated, bits, native) in cases {
        let mut config = llama_70b();
        config["torch_dtype"] = Value::Null;
        for (name, value) in stated.as_object().unwrap() {
            config[name] = value.clone();
        }
        let facts = estimated(&config);
        assert_eq!(facts.weights.native_floats, native, "{stated}");
        let bytes = facts.parameters as f64 * bits / 8.0;
        assert!(within(facts.weights.resident().0, bytes, 1e-4), "{stated}");
    }
    let mut config = llama_70b();
    config["torch_dtype"] = json!("float16");
    config["quantization_config"] = gptq;
    assert!(estimated(&config).weights.native_floats);
    // A multimodal model has the field in the section of its text model.
    let mut config = gemma3_12b();
    config["torch_dtype"] = Value::Null;
    config["text_config"]["dtype"] = json!("float16");
    assert!(estimated(&config).weights.native_floats);
}

/// The format in which `mlx_lm.convert --quant-predicate mixed_4_6` writes exceptions.
#[test]
fn exceptions_without_group_size_have_the_default_of_mlx() {
    let mut config = llama_70b();
    let stored = |config: &Value| estimated(config).weights;
    config["quantization"] =
        json!({"group_size": 64, "bits": 4, "model.layers.0.mlp.down_proj": {"group_size": 64, "bits": 6}});
    let stated = stored(&config);
    config["quantization"]["model.layers.0.mlp.down_proj"] =
        json!({"group_size": null, "bits": 6, "mode": "affine"});
    assert_eq!(stored(&config), stated);
}

/// The accepted formats are those of MLX's `quantize`. The engine's parser accepts and rejects the
/// same files.
#[test]
fn rejects_quantisation_without_mlx_kernels() {
    let read = |section: Value| {
        let mut config = llama_70b();
        config["rms_norm_eps"] = json!(1e-5);
        config["rope_theta"] = json!(5e5);
        config["quantization"] = section;
        let facts = ModelFacts::new(&config.to_string(), Tensors::Unknown).map_err(|err| err.to_string());
        let model = ModelConfig::parse(&config.to_string()).map_err(|err| err.to_string());
        assert_eq!(facts.as_ref().err(), model.err().as_ref());
        facts.map(drop)
    };
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            assert_eq!(read(json!({"bits": bits, "group_size": group_size})), Ok(()));
        }
    }
    for (mode, bits, group_size) in [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)] {
        let stated = json!({"mode": mode, "bits": bits, "group_size": group_size});
        assert_eq!(read(stated), Ok(()));
        assert_eq!(read(json!({"mode": mode})), Ok(()));
    }
    for (section, field, found, expected) in [
        (
            json!({"bits": 7}),
            "bits",
            "7",
            "2, 3, 4, 5, 6 or 8 with mode affine",
        ),
        (
            json!({"bits": 9}),
            "bits",
            "9",
            "2, 3, 4, 5, 6 or 8 with mode affine",
        ),
        (
            json!({"bits": "4"}),
            "bits",
            "\"4\"",
            "2, 3, 4, 5, 6 or 8 with mode affine",
        ),
        (
            json!({"group_size": 33}),
            "group_size",
            "33",
            "32, 64 or 128 with mode affine",
        ),
        (
            json!({"mode": "mxfp4", "bits": 8}),
            "bits",
            "8",
            "4 with mode mxfp4",
        ),
        (
            json!({"mode": "nvfp4", "group_size": 32}),
            "group_size",
            "32",
            "16 with mode nvfp4",
        ),
        (
            json!({"lm_head": {"bits": 1}}),
            "lm_head.bits",
            "1",
            "2, 3, 4, 5, 6 or 8 with mode affine",
        ),
    ] {
        let message = format!("config.json: field `quantization.{field}` is {found}, expected {expected}");
        assert_eq!(read(section), Err(message));
    }
}
