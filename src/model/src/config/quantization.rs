//! `quantization` of an MLX checkpoint: the scheme of its matrices, and exceptions by module.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::{ModelConfigError, unsupported};
use crate::fields::{FieldError, Fields};

/// `quantization` of an MLX checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    pub default: QuantizationScheme,
    /// By module path, such as `model.layers.0.mlp.down_proj`; `None` = that module is kept in
    /// float.
    pub overrides: BTreeMap<String, Option<QuantizationScheme>>,
}

impl Quantization {
    /// The scheme of one module, `None` where the file keeps it in float.
    pub fn scheme(&self, module: &str) -> Option<QuantizationScheme> {
        match self.overrides.get(module) {
            Some(scheme) => *scheme,
            None => Some(self.default),
        }
    }
}

/// So many `bits` per weight, and what a group of weights has in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizationScheme {
    pub mode: QuantizationMode,
    pub group_size: u32,
    pub bits: u32,
}

/// MLX's modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizationMode {
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
    pub fn has_biases(self) -> bool {
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

    /// Of a section that states it. MLX has kernels for these sizes of groups and numbers of bits
    /// alone; what is not stated, or null, is as MLX's own functions have it.
    pub fn parse(fields: &Fields<'_>) -> Result<Self, FieldError> {
        let name = fields.optional_text("mode")?.unwrap_or("affine");
        let (mode, (group_sizes, group_size), (all_bits, bits)): (_, (&[u32], _), (&[u32], _)) = match name {
            "affine" => (
                QuantizationMode::Affine,
                (&[32, 64, 128], 64),
                (&[2, 3, 4, 5, 6, 8], 4),
            ),
            "mxfp4" => (QuantizationMode::Mxfp4, (&[32], 32), (&[4], 4)),
            "mxfp8" => (QuantizationMode::Mxfp8, (&[32], 32), (&[8], 8)),
            "nvfp4" => (QuantizationMode::Nvfp4, (&[16], 16), (&[4], 4)),
            _ => return Err(fields.invalid("mode", one_of(&["affine", "mxfp4", "mxfp8", "nvfp4"]))),
        };
        let one_of_these = |field, allowed: &[u32], default| match fields.present(field) {
            None => Ok(default),
            Some(value) => {
                let mut allowed_ones = allowed.iter().copied();
                let stated = allowed_ones.find(|number| value.as_u64() == Some(u64::from(*number)));
                let expected = || format!("{} with mode {name}", one_of(allowed));
                stated.ok_or_else(|| fields.invalid(field, expected()))
            }
        };
        Ok(Self {
            mode,
            group_size: one_of_these("group_size", group_sizes, group_size)?,
            bits: one_of_these("bits", all_bits, bits)?,
        })
    }
}

/// `2, 3 or 4`.
fn one_of<T: ToString>(allowed: &[T]) -> String {
    let allowed: Vec<String> = allowed.iter().map(T::to_string).collect();
    match allowed.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
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
    let default = QuantizationScheme::parse(&fields)?;
    let mut overrides = BTreeMap::new();
    for (module, value) in fields.map {
        let scheme = match value {
            Value::Object(map) => Some(QuantizationScheme::parse(&Fields {
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

/// The name that a tensor or module of the text model has by itself, where it is nested in a model
/// that also sees.
pub(crate) fn text_name(name: &str) -> String {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.strip_prefix("language_model.").unwrap_or(name).to_owned(),
    }
}
