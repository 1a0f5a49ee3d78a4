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
mod tests;
