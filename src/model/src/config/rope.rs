//! Rotary position embedding: rotated part of a head, and frequencies.

use super::error::{ModelConfigError, unsupported};
use crate::fields::{Fields, Section};

/// Rotary position embedding of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Number of rotated elements at the beginning of each head.
    pub dims: u32,
    pub theta: f32,
    /// True if neighbouring pairs are rotated instead of halves.
    pub traditional: bool,
    pub scaling: RopeScaling,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions are divided by the factor.
    Linear {
        factor: f32,
    },
    /// Long wavelengths are divided by the factor, short ones are kept, and the range between is
    /// blended.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_context_tokens: f32,
    },
    /// Like Llama 3, but blended linearly over dimensions (YaRN, arXiv:2309.00071).
    Yarn {
        factor: f32,
        /// First dimension that is not kept, and first dimension that is divided by the whole
        /// factor.
        blend: (f32, f32),
        /// Factor of queries and keys.
        magnitude: f32,
    },
    /// Factors by wavelength (LongRoPE, arXiv:2402.13753).
    Long {
        factors: Vec<f32>,
        /// Factor of queries and keys.
        magnitude: f32,
    },
}

/// Default values of a family's rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RopeDefaults {
    /// Default of `rope_theta`. `None`: the field is required.
    pub(crate) theta: Option<f32>,
    /// Default of `rope_local_base_freq`, for families with a separate rotation in window layers.
    pub(crate) local_theta: Option<f32>,
    /// True if neighbouring pairs are rotated instead of halves.
    pub(crate) traditional: bool,
    /// Default of `partial_rotary_factor`.
    pub(crate) share: f64,
}

impl RopeDefaults {
    pub(crate) const BASE: Self = Self {
        theta: None,
        local_theta: None,
        traditional: false,
        share: 1.0,
    };
}

/// Rotation of a layer, for models with separate rotations in window layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Full,
    Window,
}

/// Reads the rotation of a layer. `text` holds the fields of the text model.
pub(super) fn parse_rope(
    text: &Fields<'_>,
    defaults: RopeDefaults,
    head_dim: u32,
    max_context_tokens: u64,
    reach: Reach,
) -> Result<Rope, ModelConfigError> {
    let sections = Sections::find(text, reach)?;
    let local = reach == Reach::Window && defaults.local_theta.is_some();
    let default = if local {
        defaults.local_theta
    } else {
        defaults.theta
    };
    let theta = match sections.theta(text, local)? {
        Some(theta) => theta,
        None => default.ok_or_else(|| text.missing("rope_theta"))?,
    };
    let dims = rotated_dims(text, &sections, defaults, head_dim)?;
    let traditional = text.optional_bool("rope_traditional")?;
    Ok(Rope {
        dims,
        theta,
        traditional: traditional.unwrap_or(defaults.traditional),
        scaling: match &sections.scaling {
            // In the old format, scaling does not apply to window layers.
            Some(scaling) if !local || sections.per_layer_kind => {
                let base = Base {
                    dims,
                    theta,
                    max_context_tokens,
                };
                parse_scaling(text, &scaling.as_fields(), base)?
            }
            Some(_) | None => RopeScaling::None,
        },
    })
}

/// Location of the rotation's fields. Transformers 5 nests all of them under `rope_parameters`, in
/// one object or one object per layer kind. Older files have separate fields and `rope_scaling`.
struct Sections<'a> {
    nested: Option<Section<'a>>,
    scaling: Option<Section<'a>>,
    per_layer_kind: bool,
}

impl<'a> Sections<'a> {
    fn find(text: &Fields<'a>, reach: Reach) -> Result<Self, ModelConfigError> {
        let outer = text.object("rope_parameters")?;
        let kind = match reach {
            Reach::Full => "full_attention",
            Reach::Window => "sliding_attention",
        };
        let inner = match &outer {
            Some(outer) => outer.inner(kind)?,
            None => None,
        };
        let per_layer_kind = inner.is_some();
        let nested = inner.or(outer);
        let scaling = match text.object("rope_scaling")? {
            Some(scaling) if !per_layer_kind => Some(scaling),
            Some(_) | None => nested.clone(),
        };
        Ok(Self {
            nested,
            scaling,
            per_layer_kind,
        })
    }

    fn theta(&self, text: &Fields<'_>, local: bool) -> Result<Option<f32>, ModelConfigError> {
        let own = if local {
            "rope_local_base_freq"
        } else {
            "rope_theta"
        };
        let theta = text.optional_positive_float(own)?;
        match (theta, &self.nested) {
            (Some(theta), _) => Ok(Some(theta)),
            (None, Some(nested)) => Ok(nested.as_fields().optional_positive_float("rope_theta")?),
            (None, None) => Ok(None),
        }
    }
}

fn rotated_dims(
    text: &Fields<'_>,
    sections: &Sections<'_>,
    defaults: RopeDefaults,
    head_dim: u32,
) -> Result<u32, ModelConfigError> {
    let stated = match text.optional_number("partial_rotary_factor")? {
        Some(share) => Some(share),
        None => match &sections.scaling {
            Some(scaling) => scaling.as_fields().optional_number("partial_rotary_factor")?,
            None => None,
        },
    };
    let share = stated.unwrap_or(defaults.share);
    let dims = (f64::from(head_dim) * share) as u32;
    if share > 1.0 || dims == 0 || !dims.is_multiple_of(2) {
        let expected = format!("a share of {head_dim} elements that results in an even number of elements");
        return Err(text.invalid("partial_rotary_factor", expected).into());
    }
    Ok(dims)
}

/// Parameters of the unscaled frequencies.
#[derive(Debug, Clone, Copy)]
struct Base {
    dims: u32,
    theta: f32,
    max_context_tokens: u64,
}

fn parse_scaling(
    text: &Fields<'_>,
    scaling: &Fields<'_>,
    base: Base,
) -> Result<RopeScaling, ModelConfigError> {
    let (field, kind) = match scaling.optional_text("rope_type")? {
        Some(kind) => ("rope_type", kind),
        None => ("type", scaling.optional_text("type")?.unwrap_or("default")),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear {
            factor: scaling.positive_float("factor")?,
        }),
        "llama3" => parse_llama3(scaling),
        "yarn" => parse_yarn(scaling, base),
        "longrope" | "su" => parse_long(text, scaling, base),
        _ => Err(unsupported(
            scaling,
            field,
            "the supported values are default, linear, llama3, longrope and yarn",
        )),
    }
}

fn parse_llama3(scaling: &Fields<'_>) -> Result<RopeScaling, ModelConfigError> {
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

/// Parses YaRN scaling with the defaults of transformers (`modeling_rope_utils`).
///
/// If `truncate` is true, the blend begins and ends at whole dimensions. One of `mscale` and
/// `mscale_all_dim` may be set alone, as in mlx-lm; transformers reads them only together.
fn parse_yarn(scaling: &Fields<'_>, base: Base) -> Result<RopeScaling, ModelConfigError> {
    let factor = scaling.positive_float("factor")?;
    let original = scaling
        .optional_positive_float("original_max_position_embeddings")?
        .map_or(base.max_context_tokens as f64, f64::from);
    let fast = scaling.optional_positive_float("beta_fast")?.unwrap_or(32.0);
    let slow = scaling.optional_positive_float("beta_slow")?.unwrap_or(1.0);
    let dims = f64::from(base.dims);
    // Returns the dimension that makes `turns` turns within the original context.
    let turning = |turns: f32| {
        dims * (original / (f64::from(turns) * 2.0 * std::f64::consts::PI)).ln()
            / (2.0 * f64::from(base.theta).ln())
    };
    let (mut low, mut high) = (turning(fast), turning(slow));
    if scaling.optional_bool("truncate")?.unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(dims - 1.0));
    if low == high {
        high += 0.001;
    }
    let stretch = |weight: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * weight * f64::from(factor).ln() + 1.0
        }
    };
    let magnitude = match scaling.optional_positive_float("attention_factor")? {
        Some(stated) => f64::from(stated),
        None => {
            let all = scaling.optional_number("mscale_all_dim")?;
            let own = scaling.optional_number("mscale")?;
            stretch(own.unwrap_or(1.0)) / stretch(all.unwrap_or(0.0))
        }
    };
    Ok(RopeScaling::Yarn {
        factor,
        blend: (low as f32, high as f32),
        magnitude: magnitude as f32,
    })
}

/// Parses LongRoPE scaling. A model extended beyond its original context uses the long factors at
/// every length, because cached keys keep their rotation.
fn parse_long(text: &Fields<'_>, scaling: &Fields<'_>, base: Base) -> Result<RopeScaling, ModelConfigError> {
    let original = match text.optional_positive_float("original_max_position_embeddings")? {
        Some(original) => original,
        None => scaling
            .optional_positive_float("original_max_position_embeddings")?
            .unwrap_or(4096.0),
    };
    let extension = base.max_context_tokens as f64 / f64::from(original);
    let field = if extension > 1.0 {
        "long_factor"
    } else {
        "short_factor"
    };
    let factors = scaling.positive_floats(field)?;
    if factors.len() != base.dims as usize / 2 {
        let expected = format!("a list of {} numbers", base.dims / 2);
        return Err(scaling.invalid(field, expected).into());
    }
    let magnitude = match scaling.optional_positive_float("attention_factor")? {
        Some(stated) => f64::from(stated),
        None if extension > 1.0 => (1.0 + extension.ln() / f64::from(original).ln()).sqrt(),
        None => 1.0,
    };
    Ok(RopeScaling::Long {
        factors,
        magnitude: magnitude as f32,
    })
}
