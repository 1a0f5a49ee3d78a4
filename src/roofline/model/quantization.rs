//! `quantization` of an MLX checkpoint: the scheme of its matrices, and exceptions by module.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ModelConfigError, unsupported};
use crate::roofline::fields::Fields;

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

/// So many `bits` per weight, and what a group of weights has in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuantizationScheme {
    pub(crate) mode: QuantizationMode,
    pub(crate) group_size: u32,
    pub(crate) bits: u32,
}

/// MLX's modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantizationMode {
    /// Integers with a scale and a bias for each group, both floats.
    Affine,
    /// The formats of Microscaling: small floats with a scale of 8 bits, a power of two.
    Mxfp4,
    Mxfp8,
    /// The same with a scale that is a small float itself.
    Nvfp4,
}

impl QuantizationMode {
    /// Whether groups have a bias beside their scale; both are floats then.
    pub(crate) fn has_biases(self) -> bool {
        match self {
            Self::Affine => true,
            Self::Mxfp4 | Self::Mxfp8 | Self::Nvfp4 => false,
        }
    }
}

impl QuantizationScheme {
    const MXFP4: Self = Self {
        mode: QuantizationMode::Mxfp4,
        group_size: 32,
        bits: 4,
    };
    const MXFP8: Self = Self {
        mode: QuantizationMode::Mxfp8,
        group_size: 32,
        bits: 8,
    };
    const NVFP4: Self = Self {
        mode: QuantizationMode::Nvfp4,
        group_size: 16,
        bits: 4,
    };
}

pub(super) fn parse_quantization(root: &Fields<'_>) -> Result<Option<Quantization>, ModelConfigError> {
    let (field, section) = match root.object("quantization")? {
        Some(section) => ("quantization", section),
        None => match root.object("quantization_config")? {
            Some(section) => ("quantization_config", section),
            None => return Ok(None),
        },
    };
    let fields = section.as_fields();
    if field == "quantization_config" && fields.get("quant_method").is_some() {
        // As gpt-oss is published.
        if fields.optional_text("quant_method")? == Some("mxfp4") {
            return Ok(Some(Quantization {
                default: QuantizationScheme::MXFP4,
                overrides: BTreeMap::new(),
            }));
        }
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
        overrides.insert(text_name(module), scheme);
    }
    Ok(Some(Quantization { default, overrides }))
}

fn parse_scheme(fields: &Fields<'_>) -> Result<QuantizationScheme, ModelConfigError> {
    let mode = fields.optional_text("mode")?.unwrap_or("affine");
    let scheme = match mode {
        "affine" => return parse_affine(fields),
        "mxfp4" => QuantizationScheme::MXFP4,
        "mxfp8" => QuantizationScheme::MXFP8,
        "nvfp4" => QuantizationScheme::NVFP4,
        _ => {
            return Err(unsupported(
                fields,
                "mode",
                "only affine, mxfp4, mxfp8 and nvfp4 are",
            ));
        }
    };
    for (field, only) in [("group_size", scheme.group_size), ("bits", scheme.bits)] {
        if fields
            .optional_dimension(field)?
            .is_some_and(|found| found != only)
        {
            return Err(unsupported(fields, field, &format!("only {only} is with {mode}")));
        }
    }
    Ok(scheme)
}

/// The name that a tensor or module of the text model has by itself, where it is nested in a model that also sees.
pub(crate) fn text_name(name: &str) -> String {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.strip_prefix("language_model.").unwrap_or(name).to_owned(),
    }
}

/// What is not stated, or null, is as MLX's own functions have it.
fn parse_affine(fields: &Fields<'_>) -> Result<QuantizationScheme, ModelConfigError> {
    let group_size = fields.optional_dimension("group_size")?.unwrap_or(64);
    if ![32, 64, 128].contains(&group_size) {
        return Err(unsupported(fields, "group_size", "only 32, 64 and 128 are"));
    }
    let bits = fields.optional_dimension("bits")?.unwrap_or(4);
    if ![2, 3, 4, 5, 6, 8].contains(&bits) {
        return Err(unsupported(fields, "bits", "only 2, 3, 4, 5, 6 and 8 are"));
    }
    Ok(QuantizationScheme {
        mode: QuantizationMode::Affine,
        group_size,
        bits,
    })
}
