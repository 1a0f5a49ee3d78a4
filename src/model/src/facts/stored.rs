//! In which formats a model's matrices are stored, by module: from `quantization` (MLX) or
//! `quantization_config`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::census::Part;
use crate::config::QuantizationScheme;
use crate::fields::{FieldError, Fields, Section, shortened};

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixFormat {
    /// Floats of so many bits.
    Float { bits: u32 },
    /// Integers of so many bits in groups, with `group_bits` of scales and offsets per group.
    Grouped { bits: u32, group: u32, group_bits: u32 },
}

impl MatrixFormat {
    const HALF: Self = Self::Float { bits: 16 };

    /// Bits per weight, those of its group's scale included.
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

    /// Bits of one weight in the packed matrix.
    pub(super) fn packed_bits(self) -> u32 {
        match self {
            Self::Float { bits } | Self::Grouped { bits, .. } => bits,
        }
    }
}

/// What a model's floats are, scales and offsets included: `mlx_lm.convert` keeps what
/// `config.json` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementType {
    /// Of nearly all models, so of those too that say nothing or something else.
    BFloat16,
    Float16,
    Float32,
}

impl ElementType {
    /// `dtype` is what transformers 5 writes, also into the part of a model that makes text.
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

    /// As PyTorch names it.
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

/// The formats of a model's matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFormat {
    pub default: MatrixFormat,
    /// By module path, such as `model.layers.0.mlp.down_proj`.
    overrides: BTreeMap<String, MatrixFormat>,
    /// Those of the text model, by the end of the path that the names of all families have in
    /// common.
    text_overrides: BTreeMap<String, MatrixFormat>,
    /// Modules that a format of other tools leaves in half precision: parts of their paths.
    left_in_float: Vec<String>,
    /// What is quantised at all; `None` is everything.
    only: Option<&'static str>,
    /// The format of what is not.
    unless_quantized: MatrixFormat,
    /// Floats, those of scales and offsets among them, are of a type that every GPU computes with.
    native_floats: bool,
    /// A format whose sizes are not known here, by the name that the file gives it.
    pub unknown: Option<String>,
}

impl StoredFormat {
    /// From the top-level object of `config.json`.
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

    /// As it is with floats of 16 bits.
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

    /// See the field.
    pub(super) fn has_native_floats(&self) -> bool {
        self.native_floats
    }

    /// The same with every float of 16 bits in 32, those of scales and offsets too.
    pub(super) fn in_float32(&self) -> Self {
        let widen = |formats: &BTreeMap<String, MatrixFormat>| {
            let wide = |(module, format): (&String, &MatrixFormat)| (module.clone(), format.in_float32());
            formats.iter().map(wide).collect()
        };
        Self {
            default: self.default.in_float32(),
            overrides: widen(&self.overrides),
            text_overrides: widen(&self.text_overrides),
            unless_quantized: MatrixFormat::Float { bits: 32 },
            native_floats: true,
            ..self.clone()
        }
    }

    fn uniform(default: MatrixFormat) -> Self {
        Self {
            default,
            overrides: BTreeMap::new(),
            text_overrides: BTreeMap::new(),
            left_in_float: Vec::new(),
            only: None,
            unless_quantized: MatrixFormat::HALF,
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

    /// Formats of other tools, as far as their sizes follow from the file.
    fn other(fields: &Fields<'_>, method: &str) -> Result<Self, FieldError> {
        let mut format = Self::uniform(match method {
            // One scale of 32 bits per block of 128 × 128.
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
            // A scale of 16 bits and an offset of the weights' own size per group.
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
        format.left_in_float = vec!["embed".to_owned(), "lm_head".to_owned()];
        if method == "mxfp4" {
            // Published files of this method quantise the experts alone.
            format.only = Some("experts");
        }
        for list in ["modules_to_not_convert", "ignore"] {
            if let Some(Value::Array(modules)) = fields.present(list) {
                let modules = modules.iter().filter_map(Value::as_str);
                format
                    .left_in_float
                    .extend(modules.map(|module| module.trim_matches(['*', '.']).to_owned()));
            }
        }
        Ok(format)
    }

    /// How the matrix of `module` is stored.
    pub fn of(&self, module: &str) -> MatrixFormat {
        let stated = self.overrides.get(module).copied();
        stated.unwrap_or_else(|| self.unless_stated(module))
    }

    /// The same for a matrix of the text model, named from `layers` on or by its last name.
    pub(super) fn of_text_module(&self, module: &str) -> MatrixFormat {
        let stated = self.text_overrides.get(module).copied();
        stated.unwrap_or_else(|| self.unless_stated(module))
    }

    fn unless_stated(&self, module: &str) -> MatrixFormat {
        let left = self
            .left_in_float
            .iter()
            .any(|part| module.contains(part.as_str()));
        let quantised = self.only.is_none_or(|part| module.contains(part));
        if left || !quantised {
            self.unless_quantized
        } else {
            self.default
        }
    }

    /// Formats that differ from the default, for people: how many modules have each.
    pub fn exceptions(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for format in self.overrides.values().filter(|format| **format != self.default) {
            *counts.entry(format.to_string()).or_insert(0) += 1;
        }
        counts
    }
}

/// The path of a module from `layers` on, with one name for what families name differently:
/// routers, and the three matrices of experts, which come in one format.
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
    let module = match Part::of(path, None) {
        Part::Router => "mlp.gate",
        Part::RoutedExpert => "mlp.switch_mlp.experts",
        Part::SharedExpert => "mlp.shared_expert",
        Part::Embedding
        | Part::PerLayerEmbedding
        | Part::Head
        | Part::Attention
        | Part::Dense
        | Part::Norm
        | Part::Vision
        | Part::Audio
        | Part::Prediction
        | Part::Other => module,
    };
    format!("{layers}.{index}.{module}")
}

/// MLX's schemes. Affine: a scale and a bias of 16 bits per group; the formats of Microscaling: one
/// scale of 8 bits.
fn mlx_scheme(fields: &Fields<'_>) -> Result<MatrixFormat, FieldError> {
    let scheme = QuantizationScheme::parse(fields)?;
    Ok(MatrixFormat::Grouped {
        bits: scheme.bits,
        group: scheme.group_size,
        group_bits: if scheme.mode.has_biases() { 32 } else { 8 },
    })
}
