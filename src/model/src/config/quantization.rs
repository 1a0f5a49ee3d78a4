//! `quantization` of an MLX checkpoint: default scheme and exceptions by module.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::{ModelConfigError, unsupported};
use crate::fields::{FieldError, Fields};

/// `quantization` of an MLX checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    pub default: QuantizationScheme,
    /// Schemes by module path, such as `model.layers.0.mlp.down_proj`. `None`: the module is stored
    /// in float.
    pub overrides: BTreeMap<String, Option<QuantizationScheme>>,
}

impl Quantization {
    /// Returns the scheme of a module. `None` if the module is stored in float.
    pub fn scheme(&self, module: &str) -> Option<QuantizationScheme> {
        match self.overrides.get(module) {
            Some(scheme) => *scheme,
            None => Some(self.default),
        }
    }
}

/// Quantisation scheme of a matrix: `bits` per weight, and the groups that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizationScheme {
    pub mode: QuantizationMode,
    pub group_size: u32,
    pub bits: u32,
}

/// Quantisation mode of MLX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizationMode {
    /// Integers with a float scale and a float bias per group.
    Affine,
    /// Microscaling formats: small floats with an 8-bit scale that is a power of two.
    Mxfp4,
    Mxfp8,
    /// Small floats with a scale that is itself a small float.
    Nvfp4,
}

impl QuantizationMode {
    /// Returns whether groups have a float bias in addition to their float scale.
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

    /// Parses a section. MLX has kernels only for the accepted group sizes and bits. Absent and
    /// null fields have the defaults of MLX's functions.
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
        let parse_number = |field, allowed: &[u32], default| match fields.present(field) {
            None => Ok(default),
            Some(value) => {
                let mut candidates = allowed.iter().copied();
                let stated = candidates.find(|number| value.as_u64() == Some(u64::from(*number)));
                let expected = || format!("{} with mode {name}", one_of(allowed));
                stated.ok_or_else(|| fields.invalid(field, expected()))
            }
        };
        Ok(Self {
            mode,
            group_size: parse_number("group_size", group_sizes, group_size)?,
            bits: parse_number("bits", all_bits, bits)?,
        })
    }
}

/// Formats a list as `2, 3 or 4`.
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
        // Original gpt-oss files.
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

/// Returns the name of a tensor or module of the text model, without the prefix of a multimodal
/// model.
pub(crate) fn text_name(name: &str) -> String {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.strip_prefix("language_model.").unwrap_or(name).to_owned(),
    }
}
