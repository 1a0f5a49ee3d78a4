//! Storage formats of a model's matrices, by module, from `quantization` (MLX) or
//! `quantization_config`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::census::Part;
use crate::config::QuantizationScheme;
use crate::fields::{FieldError, Fields, Section, shortened};

/// Storage format of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixFormat {
    /// Floats of `bits` bits.
    Float { bits: u32 },
    /// Integers of `bits` bits in groups of `group`, with `group_bits` of scales and biases per
    /// group.
    Grouped { bits: u32, group: u32, group_bits: u32 },
}

impl MatrixFormat {
    const HALF: Self = Self::Float { bits: 16 };

    /// Returns the bits per weight, including its share of the group's scales.
    pub(super) fn bits_per_weight(self) -> f64 {
        match self {
            Self::Float { bits } => f64::from(bits),
            Self::Grouped {
                bits,
                group,
                group_bits,
            } => f64::from(bits) + f64::from(group_bits) / f64::from(group),
        }
    }

    fn in_float32(self) -> Self {
        match self {
            Self::Float { bits: 16 } => Self::Float { bits: 32 },
            Self::Grouped {
                bits,
                group,
                group_bits: 32,
            } => Self::Grouped {
                bits,
                group,
                group_bits: 64,
            },
            Self::Float { .. } | Self::Grouped { .. } => self,
        }
    }

    /// Returns the bits of one weight in the packed matrix.
    pub(super) fn packed_bits(self) -> u32 {
        match self {
            Self::Float { bits } | Self::Grouped { bits, .. } => bits,
        }
    }
}

/// Float type of a model, including scales and biases. `mlx_lm.convert` keeps the type that
/// `config.json` states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementType {
    /// Type of most models; also the default for files without a known type.
    BFloat16,
    Float16,
    Float32,
}

impl ElementType {
    /// Reads the float type. Transformers 5 writes `dtype`, also into the section of the text
    /// model.
    fn of(root: &Fields<'_>, text: Option<&Fields<'_>>) -> Result<Self, FieldError> {
        for fields in std::iter::once(root).chain(text) {
            for field in ["torch_dtype", "dtype"] {
                if let Some(name) = fields.optional_text(field)? {
                    return Ok(Self::named(name));
                }
            }
        }
        Ok(Self::BFloat16)
    }

    /// Parses PyTorch's name of the type.
    fn named(name: &str) -> Self {
        match name.strip_prefix("torch.").unwrap_or(name) {
            "float16" | "half" => Self::Float16,
            "float32" | "float" => Self::Float32,
            _ => Self::BFloat16,
        }
    }
}

impl fmt::Display for MatrixFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float { bits } => write!(f, "{bits}-bit float"),
            Self::Grouped { bits, group, .. } => write!(f, "{bits}-bit in groups of {group}"),
        }
    }
}

/// Storage formats of a model's matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFormat {
    pub default: MatrixFormat,
    /// Formats by module path, such as `model.layers.0.mlp.down_proj`.
    overrides: BTreeMap<String, MatrixFormat>,
    /// Overrides of the text model, by the path suffix that all families share.
    text_overrides: BTreeMap<String, MatrixFormat>,
    /// Parts of paths of modules that other tools keep in half precision.
    float_modules: Vec<String>,
    /// Part of the path of quantised modules; `None` if all are quantised.
    quantized_part: Option<&'static str>,
    /// Format of modules that are not quantised.
    float_format: MatrixFormat,
    /// True if every GPU computes natively with the float type, including the type of scales and
    /// biases.
    native_floats: bool,
    /// Quantisation method of unknown sizes, as named in the file.
    pub unknown: Option<String>,
}

impl StoredFormat {
    /// Reads the formats from the top-level object of `config.json`.
    pub fn new(root: &Fields<'_>) -> Result<Self, FieldError> {
        let text = root.object("text_config")?;
        let text = text.as_ref().map(Section::as_fields);
        let element = ElementType::of(root, text.as_ref())?;
        let format = Self {
            native_floats: element != ElementType::BFloat16,
            ..Self::packed(root, text.as_ref())?
        };
        Ok(match element {
            ElementType::Float32 => format.in_float32(),
            ElementType::BFloat16 | ElementType::Float16 => format,
        })
    }

    /// Reads the formats, with floats of 16 bits.
    fn packed(root: &Fields<'_>, text: Option<&Fields<'_>>) -> Result<Self, FieldError> {
        if let Some(section) = root.object("quantization")? {
            return Self::mlx(&section.as_fields());
        }
        let nested = text.map(|text| text.object("quantization_config"));
        let Some(section) = root
            .object("quantization_config")?
            .or(nested.transpose()?.flatten())
        else {
            return Ok(Self::half());
        };
        let fields = section.as_fields();
        match fields.optional_text("quant_method")? {
            None => Self::mlx(&fields),
            Some(method) => Self::other(&fields, method),
        }
    }

    pub(super) fn half() -> Self {
        Self::uniform(MatrixFormat::HALF)
    }

    pub(super) fn has_native_floats(&self) -> bool {
        self.native_floats
    }

    /// Returns the formats with every 16-bit float in 32 bits, including scales and biases.
    pub(super) fn in_float32(&self) -> Self {
        let widen = |formats: &BTreeMap<String, MatrixFormat>| {
            let wide = |(module, format): (&String, &MatrixFormat)| (module.clone(), format.in_float32());
            formats.iter().map(wide).collect()
        };
        Self {
            default: self.default.in_float32(),
            overrides: widen(&self.overrides),
            text_overrides: widen(&self.text_overrides),
            float_format: MatrixFormat::Float { bits: 32 },
            native_floats: true,
            ..self.clone()
        }
    }

    fn uniform(default: MatrixFormat) -> Self {
        Self {
            default,
            overrides: BTreeMap::new(),
            text_overrides: BTreeMap::new(),
            float_modules: Vec::new(),
            quantized_part: None,
            float_format: MatrixFormat::HALF,
            native_floats: false,
            unknown: None,
        }
    }

    fn mlx(fields: &Fields<'_>) -> Result<Self, FieldError> {
        let default = mlx_scheme(fields)?;
        let mut format = Self::uniform(default);
        for (module, value) in fields.map {
            let stored = match value {
                Value::Object(map) => mlx_scheme(&Fields {
                    map,
                    path: &fields.name(module),
                })?,
                Value::Bool(true) => default,
                Value::Bool(false) => MatrixFormat::HALF,
                Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => continue,
            };
            if Part::of(module, None).is_loaded() {
                format.text_overrides.insert(text_module(module), stored);
            }
            format.overrides.insert(module.clone(), stored);
        }
        Ok(format)
    }

    /// Reads formats of tools other than MLX whose sizes follow from the file.
    fn other(fields: &Fields<'_>, method: &str) -> Result<Self, FieldError> {
        let mut format = Self::uniform(match method {
            // Each block of 128 × 128 weights has one 32-bit scale.
            "fp8" => MatrixFormat::Grouped {
                bits: 8,
                group: 128 * 128,
                group_bits: 32,
            },
            "mxfp4" => MatrixFormat::Grouped {
                bits: 4,
                group: 32,
                group_bits: 8,
            },
            // Each group has a 16-bit scale and a zero point with the bits of a weight.
            "gptq" | "awq" => {
                let bits = fields.dimension("bits")?;
                MatrixFormat::Grouped {
                    bits,
                    group: fields.dimension("group_size")?,
                    group_bits: 16 + bits,
                }
            }
            _ => {
                let mut format = Self::uniform(MatrixFormat::HALF);
                format.unknown = Some(shortened(method));
                return Ok(format);
            }
        });
        format.float_modules = vec!["embed".to_owned(), "lm_head".to_owned()];
        if method == "mxfp4" {
            // Published files of this method quantise only the experts.
            format.quantized_part = Some("experts");
        }
        for list in ["modules_to_not_convert", "ignore"] {
            if let Some(Value::Array(modules)) = fields.present(list) {
                let modules = modules.iter().filter_map(Value::as_str);
                format
                    .float_modules
                    .extend(modules.map(|module| module.trim_matches(['*', '.']).to_owned()));
            }
        }
        Ok(format)
    }

    /// Returns the format of the matrix of `module`.
    pub fn of(&self, module: &str) -> MatrixFormat {
        let stated = self.overrides.get(module).copied();
        stated.unwrap_or_else(|| self.format_without_override(module))
    }

    /// Returns the format of a matrix of the text model. The name starts at `layers` or is the last
    /// segment.
    pub(super) fn of_text_module(&self, module: &str) -> MatrixFormat {
        let stated = self.text_overrides.get(module).copied();
        stated.unwrap_or_else(|| self.format_without_override(module))
    }

    fn format_without_override(&self, module: &str) -> MatrixFormat {
        let is_float = self
            .float_modules
            .iter()
            .any(|part| module.contains(part.as_str()));
        let quantised = self.quantized_part.is_none_or(|part| module.contains(part));
        if is_float || !quantised {
            self.float_format
        } else {
            self.default
        }
    }

    /// Returns the number of modules per format that differs from the default, for messages.
    pub fn exceptions(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for format in self.overrides.values().filter(|format| **format != self.default) {
            *counts.entry(format.to_string()).or_insert(0) += 1;
        }
        counts
    }
}

/// Returns the path of a module from `layers` on. Routers and the three matrices of experts, which
/// share one format, get the same name in all families.
fn text_module(path: &str) -> String {
    let tail = match path.find("layers.") {
        Some(at) => &path[at..],
        None => path.rsplit('.').next().unwrap_or(path),
    };
    let mut segments = tail.splitn(3, '.');
    let (Some(layers), Some(index), Some(module)) = (segments.next(), segments.next(), segments.next())
    else {
        return tail.to_owned();
    };
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "modules of all other parts have the same name in all families"
    )]
    let module = match Part::of(path, None) {
        Part::Router => "mlp.gate",
        Part::RoutedExpert => "mlp.switch_mlp.experts",
        Part::SharedExpert => "mlp.shared_expert",
        _ => module,
    };
    format!("{layers}.{index}.{module}")
}

/// Reads an MLX scheme. An affine group has a scale and a bias of 16 bits. A group of a
/// Microscaling format has one scale of 8 bits.
fn mlx_scheme(fields: &Fields<'_>) -> Result<MatrixFormat, FieldError> {
    let scheme = QuantizationScheme::parse(fields)?;
    Ok(MatrixFormat::Grouped {
        bits: scheme.bits,
        group: scheme.group_size,
        group_bits: if scheme.mode.has_biases() { 32 } else { 8 },
    })
}
