//! What a model is, from the text of its `config.json`: architecture, dimensions, rotary scaling and
//! quantisation, and the sizes that follow. A value of [`ModelConfig`] is one this engine can run; everything
//! else is refused here, by field name, before a byte of weights is read.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::fields::{CONFIG_FILE, FieldError, Fields, parse_object, shortened};

/// Families that the engine runs, as one block with switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
}

impl Architecture {
    pub(crate) const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// The `model_type` of config.json.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    fn parse(model_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == model_type)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A parsed, supported `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelConfig {
    pub(crate) architecture: Architecture,
    pub(crate) hidden_size: u32,
    pub(crate) layers: u32,
    pub(crate) intermediate_size: u32,
    pub(crate) attention_heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) vocab_size: u32,
    pub(crate) rms_norm_eps: f32,
    /// `max_position_embeddings`: prompt plus completion never exceed it.
    pub(crate) max_context_tokens: u64,
    /// `None` when the file does not say: then the checkpoint decides, see `checkpoint::ModelShape::tied`.
    pub(crate) tie_word_embeddings: Option<bool>,
    pub(crate) qkv_bias: bool,
    pub(crate) output_bias: bool,
    pub(crate) mlp_bias: bool,
    /// RMS norm of each head's query and key (Qwen3).
    pub(crate) qk_norm: bool,
    pub(crate) rope: Rope,
    pub(crate) quantization: Option<Quantization>,
    pub(crate) eos_token_ids: Vec<u32>,
}

/// Rotary position embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rope {
    pub(crate) theta: f32,
    /// Rotates neighbouring pairs instead of halves.
    pub(crate) traditional: bool,
    pub(crate) scaling: RopeScaling,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RopeScaling {
    None,
    /// Positions are divided by the factor.
    Linear {
        factor: f32,
    },
    /// Long wavelengths are stretched, short ones kept, the middle blended.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_context_tokens: f32,
    },
}

/// `quantization` of an MLX checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quantization {
    pub(crate) default: QuantizationScheme,
    /// By module path, such as `model.layers.0.mlp.down_proj`; `None` = that module is kept in float.
    pub(crate) overrides: BTreeMap<String, Option<QuantizationScheme>>,
}

impl Quantization {
    /// The scheme of one module, `None` where the file keeps it in float.
    pub(crate) fn scheme(&self, module: &str) -> Option<QuantizationScheme> {
        match self.overrides.get(module) {
            Some(scheme) => *scheme,
            None => Some(self.default),
        }
    }
}

/// Affine groups: `bits` per weight plus one scale and one bias per `group_size` weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuantizationScheme {
    pub(crate) group_size: u32,
    pub(crate) bits: u32,
}

/// Element type of weights, activations and KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatType {
    F32,
    F16,
    BF16,
}

impl FloatType {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// Why a `config.json` cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelConfigError {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("{CONFIG_FILE}: model_type `{found}` is not supported; supported: llama, qwen2, qwen3")]
    UnsupportedArchitecture { found: String },
    #[error("{CONFIG_FILE}: field `{field}` is {found}, which is not supported: {supported}")]
    UnsupportedFeature {
        field: String,
        found: String,
        supported: String,
    },
}

impl ModelConfigError {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Field(_) => "InvalidModelConfig",
            Self::UnsupportedArchitecture { .. } => "UnsupportedArchitecture",
            Self::UnsupportedFeature { .. } => "UnsupportedModelFeature",
        }
    }
}

impl ModelConfig {
    /// Parses the text of `config.json`.
    pub(crate) fn parse(text: &str) -> Result<Self, ModelConfigError> {
        let object = parse_object(text)?;
        let root = Fields::top(&object);

        let model_type = root.text("model_type")?;
        let architecture =
            Architecture::parse(model_type).ok_or_else(|| ModelConfigError::UnsupportedArchitecture {
                found: shortened(model_type),
            })?;
        refuse_sliding_windows(&root)?;
        if let Some(activation) = root.optional_text("hidden_act")?
            && activation != "silu"
        {
            return Err(unsupported(&root, "hidden_act", "only silu is"));
        }

        let hidden_size = root.dimension("hidden_size")?;
        let layers = root.dimension("num_hidden_layers")?;
        let attention_heads = root.dimension("num_attention_heads")?;
        let kv_heads = root
            .optional_dimension("num_key_value_heads")?
            .unwrap_or(attention_heads);
        if attention_heads % kv_heads != 0 {
            let expected = format!("a divisor of num_attention_heads ({attention_heads})");
            return Err(root.invalid("num_key_value_heads", expected).into());
        }
        let head_dim = match root.optional_dimension("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden_size % attention_heads == 0 => hidden_size / attention_heads,
            None => {
                let expected = format!(
                    "a multiple of num_attention_heads ({attention_heads}), as head_dim is not given"
                );
                return Err(root.invalid("hidden_size", expected).into());
            }
        };
        if head_dim % 2 != 0 {
            let field = if root.get("head_dim").is_some() {
                "head_dim"
            } else {
                "hidden_size"
            };
            let expected = format!("one that makes an even head size, not {head_dim}");
            return Err(root.invalid(field, expected).into());
        }

        let attention_bias = root.optional_bool("attention_bias")?.unwrap_or(false);
        let (qkv_bias, output_bias) = match architecture {
            Architecture::Llama | Architecture::Qwen3 => (attention_bias, attention_bias),
            // Qwen2 has them always and its configuration does not mention them.
            Architecture::Qwen2 => (true, false),
        };
        Ok(Self {
            architecture,
            hidden_size,
            layers,
            intermediate_size: root.dimension("intermediate_size")?,
            attention_heads,
            kv_heads,
            head_dim,
            vocab_size: root.dimension("vocab_size")?,
            rms_norm_eps: root.positive_float("rms_norm_eps")?,
            max_context_tokens: u64::from(root.dimension("max_position_embeddings")?),
            tie_word_embeddings: root.optional_bool("tie_word_embeddings")?,
            qkv_bias,
            output_bias,
            mlp_bias: match architecture {
                Architecture::Llama => root.optional_bool("mlp_bias")?.unwrap_or(false),
                Architecture::Qwen2 | Architecture::Qwen3 => false,
            },
            qk_norm: architecture == Architecture::Qwen3,
            rope: parse_rope(&root, architecture)?,
            quantization: parse_quantization(&root)?,
            eos_token_ids: root.token_ids("eos_token_id")?,
        })
    }

    /// Bytes that one token adds to the KV cache of one sequence.
    #[cfg_attr(not(feature = "mlx"), allow(dead_code, reason = "only a worker asks"))]
    pub(crate) fn kv_bytes_per_token(&self, element: FloatType) -> u64 {
        2 * u64::from(self.layers) * u64::from(self.kv_heads) * u64::from(self.head_dim) * element.bytes()
    }
}

fn refuse_sliding_windows(root: &Fields<'_>) -> Result<(), ModelConfigError> {
    if let Some(types) = root.get("layer_types").filter(|types| !types.is_null()) {
        let all_full = types
            .as_array()
            .is_some_and(|types| types.iter().all(|t| t == "full_attention"));
        if !all_full {
            return Err(unsupported(
                root,
                "layer_types",
                "every layer must be `full_attention`",
            ));
        }
        return Ok(());
    }
    let window = root.get("sliding_window").filter(|window| !window.is_null());
    match (root.optional_bool("use_sliding_window")?, window) {
        // Qwen2 and Qwen3 files carry an unused window size beside `use_sliding_window: false`.
        (Some(false), _) | (_, None) => Ok(()),
        (Some(true), Some(_)) => Err(unsupported(
            root,
            "use_sliding_window",
            "attention windows are not; set it to false only if the model was trained so",
        )),
        (None, Some(_)) => {
            // The field's default is false in the two families that know it.
            if root.optional_text("model_type")? == Some("llama") {
                return Err(unsupported(root, "sliding_window", "attention windows are not"));
            }
            Ok(())
        }
    }
}

fn parse_rope(root: &Fields<'_>, architecture: Architecture) -> Result<Rope, ModelConfigError> {
    // transformers 5 nests theta and scaling under `rope_parameters`; older files have two fields.
    let nested = root.object("rope_parameters")?;
    let scaling = match root.object("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => nested.clone(),
    };
    let theta = match (root.optional_positive_float("rope_theta")?, &nested) {
        (Some(theta), _) => Some(theta),
        (None, Some(nested)) => nested.as_fields().optional_positive_float("rope_theta")?,
        (None, None) => None,
    };
    let theta = match (theta, architecture) {
        (Some(theta), _) => theta,
        (None, Architecture::Llama) => 10_000.0,
        (None, Architecture::Qwen2 | Architecture::Qwen3) => {
            return Err(root.missing("rope_theta").into());
        }
    };
    let scaling = match &scaling {
        Some(scaling) => parse_rope_scaling(&scaling.as_fields())?,
        None => RopeScaling::None,
    };
    Ok(Rope {
        theta,
        traditional: root.optional_bool("rope_traditional")?.unwrap_or(false),
        scaling,
    })
}

fn parse_rope_scaling(scaling: &Fields<'_>) -> Result<RopeScaling, ModelConfigError> {
    if let Some(partial) = scaling.optional_positive_float("partial_rotary_factor")?
        && partial != 1.0
    {
        return Err(unsupported(
            scaling,
            "partial_rotary_factor",
            "only whole heads are rotated",
        ));
    }
    let (field, kind) = match scaling.optional_text("rope_type")? {
        Some(kind) => ("rope_type", kind),
        None => ("type", scaling.optional_text("type")?.unwrap_or("default")),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear {
            factor: scaling.positive_float("factor")?,
        }),
        "llama3" => {
            let low_freq_factor = scaling.optional_positive_float("low_freq_factor")?.unwrap_or(1.0);
            let high_freq_factor = scaling
                .optional_positive_float("high_freq_factor")?
                .unwrap_or(4.0);
            if high_freq_factor <= low_freq_factor {
                let expected = format!("a number above low_freq_factor ({low_freq_factor})");
                return Err(scaling.invalid("high_freq_factor", expected).into());
            }
            Ok(RopeScaling::Llama3 {
                factor: scaling.positive_float("factor")?,
                low_freq_factor,
                high_freq_factor,
                original_context_tokens: scaling
                    .optional_positive_float("original_max_position_embeddings")?
                    .unwrap_or(8192.0),
            })
        }
        _ => Err(unsupported(scaling, field, "only default, linear and llama3 are")),
    }
}

fn unsupported(fields: &Fields<'_>, field: &str, supported: &str) -> ModelConfigError {
    ModelConfigError::UnsupportedFeature {
        field: fields.name(field),
        found: fields.found(field),
        supported: supported.to_owned(),
    }
}

fn parse_quantization(root: &Fields<'_>) -> Result<Option<Quantization>, ModelConfigError> {
    let (field, section) = match root.object("quantization")? {
        Some(section) => ("quantization", section),
        None => match root.object("quantization_config")? {
            Some(section) => ("quantization_config", section),
            None => return Ok(None),
        },
    };
    let fields = section.as_fields();
    if field == "quantization_config" && fields.get("quant_method").is_some() {
        return Err(unsupported(
            &fields,
            "quant_method",
            "convert the model with mlx_lm.convert first",
        ));
    }
    let default = parse_scheme(&fields)?;
    let mut overrides = BTreeMap::new();
    for (module, value) in fields.map {
        let scheme = match value {
            Value::Object(map) => Some(parse_scheme(&Fields {
                map,
                path: &format!("{field}.{module}"),
            })?),
            Value::Bool(true) => Some(default),
            Value::Bool(false) => None,
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => continue,
        };
        overrides.insert(module.clone(), scheme);
    }
    Ok(Some(Quantization { default, overrides }))
}

fn parse_scheme(fields: &Fields<'_>) -> Result<QuantizationScheme, ModelConfigError> {
    if let Some(mode) = fields.optional_text("mode")?
        && mode != "affine"
    {
        return Err(unsupported(fields, "mode", "only affine is"));
    }
    let group_size = fields.dimension("group_size")?;
    if ![32, 64, 128].contains(&group_size) {
        return Err(unsupported(fields, "group_size", "only 32, 64 and 128 are"));
    }
    let bits = fields.dimension("bits")?;
    if ![2, 3, 4, 5, 6, 8].contains(&bits) {
        return Err(unsupported(fields, "bits", "only 2, 3, 4, 5, 6 and 8 are"));
    }
    Ok(QuantizationScheme { group_size, bits })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Chain;

    /// Llama 3.2 1B, as published.
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

    /// Qwen3 8B, 4 bits, as published.
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

    fn parse(value: &Value) -> Result<ModelConfig, ModelConfigError> {
        ModelConfig::parse(&value.to_string())
    }

    #[test]
    fn llama_with_scaled_positions() {
        let config = parse(&llama()).unwrap();
        assert_eq!(config.architecture, Architecture::Llama);
        assert_eq!((config.kv_heads, config.head_dim), (8, 64));
        assert_eq!(config.eos_token_ids, [128001, 128008, 128009]);
        assert_eq!(
            config.rope,
            Rope {
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
    fn qwen3_quantised() {
        let config = parse(&qwen3()).unwrap();
        assert!(config.qk_norm && !config.qkv_bias);
        let quantization = config.quantization.as_ref().unwrap();
        assert_eq!(
            quantization.default,
            QuantizationScheme {
                group_size: 64,
                bits: 4
            }
        );
        assert_eq!(config.kv_bytes_per_token(FloatType::F16), 147_456);
    }

    #[test]
    fn qwen2_always_has_qkv_bias_and_may_carry_an_unused_window() {
        let mut value = qwen3();
        value["model_type"] = json!("qwen2");
        value["sliding_window"] = json!(131072);
        let config = parse(&value).unwrap();
        assert!(config.qkv_bias && !config.output_bias && !config.qk_norm);
    }

    #[test]
    fn nested_rope_parameters_are_read() {
        let mut value = qwen3();
        value.as_object_mut().unwrap().remove("rope_theta");
        assert_eq!(
            parse(&value).unwrap_err().to_string(),
            "config.json: required field `rope_theta` is missing"
        );
        value["rope_parameters"] = json!({"rope_theta": 5000000, "rope_type": "linear", "factor": 2.0});
        let rope = parse(&value).unwrap().rope;
        assert_eq!(
            (rope.theta, rope.scaling),
            (5_000_000.0, RopeScaling::Linear { factor: 2.0 })
        );
    }

    #[test]
    fn quantisation_overrides_by_module() {
        let mut value = qwen3();
        value["quantization"]["lm_head"] = json!({"group_size": 32, "bits": 8});
        value["quantization"]["model.embed_tokens"] = json!(false);
        let quantization = parse(&value).unwrap().quantization.unwrap();
        assert_eq!(
            quantization.scheme("lm_head"),
            Some(QuantizationScheme {
                group_size: 32,
                bits: 8
            })
        );
        assert_eq!(quantization.scheme("model.embed_tokens"), None);
        assert_eq!(
            quantization.scheme("model.layers.0.mlp.up_proj"),
            Some(quantization.default)
        );
    }

    /// Each case: a field, what it becomes (null removes it), and the exact message.
    #[test]
    fn refusals_name_file_and_field() {
        let cases = [
            (
                "model_type",
                json!("mamba"),
                "config.json: model_type `mamba` is not supported; supported: llama, qwen2, qwen3",
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
                "config.json: field `hidden_act` is \"gelu\", which is not supported: only silu is",
            ),
            (
                "rope_scaling",
                json!({"rope_type": "yarn", "factor": 4}),
                "config.json: field `rope_scaling.rope_type` is \"yarn\", which is not supported: only default, linear and llama3 are",
            ),
            (
                "rope_scaling",
                json!({"type": "linear"}),
                "config.json: required field `rope_scaling.factor` is missing",
            ),
            (
                "sliding_window",
                json!(4096),
                "config.json: field `sliding_window` is 4096, which is not supported: attention windows are not",
            ),
            (
                "layer_types",
                json!(["sliding_attention"]),
                "config.json: field `layer_types` is [\"sliding_attention\"], which is not supported: every layer must be `full_attention`",
            ),
            (
                "quantization",
                json!({"group_size": 32, "bits": 4, "mode": "mxfp4"}),
                "config.json: field `quantization.mode` is \"mxfp4\", which is not supported: only affine is",
            ),
            (
                "quantization",
                json!({"group_size": 64, "bits": 4, "lm_head": {"bits": 7, "group_size": 64}}),
                "config.json: field `quantization.lm_head.bits` is 7, which is not supported: only 2, 3, 4, 5, 6 and 8 are",
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
    fn text_that_is_no_json_object() {
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
    fn a_huge_value_does_not_flood_the_message() {
        let mut value = llama();
        value["model_type"] = json!("x".repeat(10_000));
        assert!(parse(&value).unwrap_err().to_string().len() < 200);
    }
}
