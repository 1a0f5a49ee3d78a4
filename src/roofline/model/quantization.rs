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

/// Affine groups: `bits` per weight plus one scale and one bias per `group_size` weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuantizationScheme {
    pub(crate) group_size: u32,
    pub(crate) bits: u32,
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
