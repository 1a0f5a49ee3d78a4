//! Rotary position embedding, with Llama 3's and linear scaling.

use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype, fast, ops};

use crate::roofline::model::{Rope, RopeScaling};

/// Rotates queries and keys by their positions.
#[derive(Debug)]
pub(crate) struct RotaryEmbedding {
    head_dim: i32,
    traditional: bool,
    frequencies: Frequencies,
}

#[derive(Debug)]
enum Frequencies {
    /// MLX computes them from the base.
    Base { theta: f32, scale: f32 },
    /// Computed once, here.
    Table(Array),
}

impl RotaryEmbedding {
    pub(crate) fn new(rope: &Rope, head_dim: u32) -> Result<Self> {
        let head_dim = head_dim.cast_signed();
        let base = |scale| Frequencies::Base {
            theta: rope.theta,
            scale,
        };
        let frequencies = match rope.scaling {
            RopeScaling::None => base(1.0),
            // Divided in double precision, as Python does.
            RopeScaling::Linear { factor } => base((1.0 / f64::from(factor)) as f32),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context_tokens,
            } => {
                let table = llama3_table(
                    rope.theta,
                    head_dim,
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_context_tokens,
                )?;
                table.eval()?;
                Frequencies::Table(table)
            }
        };
        Ok(Self {
            head_dim,
            traditional: rope.traditional,
            frequencies,
        })
    }

    /// `x` is `[batch, heads, tokens, head_dim]`, its first token at position `offset`.
    pub(crate) fn apply(&self, x: &Array, offset: i32) -> Result<Array> {
        match &self.frequencies {
            Frequencies::Base { theta, scale } => fast::rope(
                x,
                self.head_dim,
                self.traditional,
                *theta,
                *scale,
                offset,
                None::<&Array>,
            ),
            Frequencies::Table(table) => {
                fast::rope(x, self.head_dim, self.traditional, None, 1.0, offset, table)
            }
        }
    }

    /// `x` is `[batch, heads, 1, head_dim]`; `positions` holds one position for each of the batch.
    pub(crate) fn apply_at(&self, x: &Array, positions: &Array) -> Result<Array> {
        let (dim, traditional) = (self.head_dim, self.traditional);
        match &self.frequencies {
            Frequencies::Base { theta, scale } => {
                fast::rope_dynamic(x, dim, traditional, *theta, *scale, positions, None::<&Array>)
            }
            Frequencies::Table(table) => fast::rope_dynamic(x, dim, traditional, None, 1.0, positions, table),
        }
    }
}

/// Long wavelengths divided by `factor`, short ones kept, the middle blended. The steps are those of the reference,
/// one MLX operation each, for equality to the bit.
fn llama3_table(
    theta: f32,
    head_dim: i32,
    factor: f32,
    low_freq_factor: f32,
    high_freq_factor: f32,
    original_context_tokens: f32,
) -> Result<Array> {
    let scalar = Array::from_f32;
    let low_wavelength = scalar((f64::from(original_context_tokens) / f64::from(low_freq_factor)) as f32);
    let high_wavelength = scalar((f64::from(original_context_tokens) / f64::from(high_freq_factor)) as f32);

    let exponents = ops::arange::<_, i32>(0, head_dim, 2)?
        .as_dtype(Dtype::Float32)?
        .divide(scalar(head_dim as f32))?;
    let frequencies = scalar(theta).power(exponents)?;
    let wavelengths = scalar(2.0 * std::f32::consts::PI).multiply(&frequencies)?;

    let is_long = wavelengths.gt(&low_wavelength)?;
    let stretched = ops::select(&is_long, frequencies.multiply(scalar(factor))?, &frequencies)?;
    let is_medium = wavelengths
        .gt(&high_wavelength)?
        .logical_and(wavelengths.lt(&low_wavelength)?)?;
    let smooth = scalar(original_context_tokens)
        .divide(&wavelengths)?
        .subtract(scalar(low_freq_factor))?
        .divide(scalar(
            (f64::from(high_freq_factor) - f64::from(low_freq_factor)) as f32,
        ))?;
    let blended = stretched.divide(
        scalar(1.0)
            .subtract(&smooth)?
            .divide(scalar(factor))?
            .add(&smooth)?,
    )?;
    ops::select(&is_medium, blended, stretched)
}
