//! Rotary position embedding with the scalings of all supported models.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::{Array, Dtype, fast, ops};

use rooflet_model::config::{Rope, RopeScaling};

/// Rotary position embedding of queries and keys.
#[derive(Debug, Clone)]
pub(super) struct RotaryEmbedding {
    /// Number of elements of each head that are rotated.
    dims: i32,
    traditional: bool,
    frequencies: Frequencies,
    /// Factors of the inputs, `[head_dim]`; 1 for elements that are not rotated.
    magnitude: Option<Array>,
}

#[derive(Debug, Clone)]
enum Frequencies {
    /// MLX computes them from the base.
    Base { theta: f32, scale: f32 },
    /// Table, computed at load time.
    Table(Array),
}

impl RotaryEmbedding {
    /// Creates the embedding for heads of `head_dim` elements of type `compute`.
    pub(super) fn new(rope: &Rope, head_dim: u32, compute: Dtype) -> Result<Self> {
        let dims = rope.dims.cast_signed();
        let base = |scale| Frequencies::Base {
            theta: rope.theta,
            scale,
        };
        let (frequencies, magnitude) = match &rope.scaling {
            RopeScaling::None => (base(1.0), 1.0),
            // The division has double precision, as in Python.
            RopeScaling::Linear { factor } => (base((1.0 / f64::from(*factor)) as f32), 1.0),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context_tokens,
            } => {
                let table = llama3_table(
                    rope.theta,
                    dims,
                    *factor,
                    *low_freq_factor,
                    *high_freq_factor,
                    *original_context_tokens,
                )?;
                (Frequencies::Table(table), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                blend,
                magnitude,
            } => {
                let table = yarn_table(rope.theta, dims, *factor, *blend)?;
                (Frequencies::Table(table), *magnitude)
            }
            RopeScaling::Long { factors, magnitude } => {
                let factors = Array::from_slice(factors, &[dims / 2]);
                let table = factors.multiply(wavelength_factors(rope.theta, dims)?)?;
                (Frequencies::Table(table), *magnitude)
            }
        };
        if let Frequencies::Table(table) = &frequencies {
            table.eval()?;
        }
        let magnitude = if magnitude == 1.0 {
            None
        } else {
            let mut factors = vec![1.0; head_dim as usize];
            factors[..rope.dims as usize].fill(magnitude);
            let factors = Array::from_slice(&factors, &[head_dim.cast_signed()]).as_dtype(compute)?;
            factors.eval()?;
            Some(factors)
        };
        Ok(Self {
            dims,
            traditional: rope.traditional,
            frequencies,
            magnitude,
        })
    }

    fn scaled(&self, x: &Array) -> Result<Array> {
        match &self.magnitude {
            Some(magnitude) => x.multiply(magnitude),
            None => Ok(x.clone()),
        }
    }

    /// Rotates `x`, `[batch, heads, tokens, head_dim]`, with its first token at position `offset`.
    pub(super) fn apply(&self, x: &Array, offset: i32) -> Result<Array> {
        let x = &self.scaled(x)?;
        let (dims, traditional) = (self.dims, self.traditional);
        match &self.frequencies {
            Frequencies::Base { theta, scale } => {
                fast::rope(x, dims, traditional, *theta, *scale, offset, None::<&Array>)
            }
            Frequencies::Table(table) => fast::rope(x, dims, traditional, None, 1.0, offset, table),
        }
    }

    /// Rotates `x`, `[batch, heads, 1, head_dim]`, with one position per batch row.
    pub(super) fn apply_at(&self, x: &Array, positions: &Array) -> Result<Array> {
        let x = &self.scaled(x)?;
        let (dims, traditional) = (self.dims, self.traditional);
        match &self.frequencies {
            Frequencies::Base { theta, scale } => {
                fast::rope_dynamic(x, dims, traditional, *theta, *scale, positions, None::<&Array>)
            }
            Frequencies::Table(table) => {
                fast::rope_dynamic(x, dims, traditional, None, 1.0, positions, table)
            }
        }
    }
}

/// Returns the wavelengths divided by 2π: `theta ^ (2i/dims)`.
fn wavelength_factors(theta: f32, dims: i32) -> Result<Array> {
    let exponents = ops::arange::<_, i32>(0, dims, 2)?
        .as_dtype(Dtype::Float32)?
        .divide(Array::from_f32(dims as f32))?;
    Array::from_f32(theta).power(exponents)
}

/// Multiplies long wavelengths by `factor`, keeps short ones and blends the ones between. Uses
/// mlx-lm's sequence of operations (`Llama3RoPE`), so that results are bit-identical.
fn llama3_table(
    theta: f32,
    dims: i32,
    factor: f32,
    low_freq_factor: f32,
    high_freq_factor: f32,
    original_context_tokens: f32,
) -> Result<Array> {
    let scalar = Array::from_f32;
    let low_wavelength = scalar((f64::from(original_context_tokens) / f64::from(low_freq_factor)) as f32);
    let high_wavelength = scalar((f64::from(original_context_tokens) / f64::from(high_freq_factor)) as f32);

    let frequencies = wavelength_factors(theta, dims)?;
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

/// Multiplies wavelengths above the blend by `factor` and keeps those below it. Uses mlx-lm's
/// sequence of operations (`YarnRoPE`).
fn yarn_table(theta: f32, dims: i32, factor: f32, (low, high): (f32, f32)) -> Result<Array> {
    let scalar = Array::from_f32;
    let kept = wavelength_factors(theta, dims)?;
    let stretched = scalar(factor).multiply(&kept)?;
    let ramp = ops::arange::<_, i32>(0, dims / 2, 1)?
        .as_dtype(Dtype::Float32)?
        .subtract(scalar(low))?
        .divide(scalar((f64::from(high) - f64::from(low)) as f32))?;
    let ramp = ops::clip(ramp, (0.0, 1.0))?;
    let keeps = scalar(1.0).subtract(ramp)?;
    let stretches = scalar(1.0).subtract(&keeps)?;
    let blended = stretched.multiply(&keeps)?.add(kept.multiply(stretches)?)?;
    stretched.multiply(&kept)?.divide(blended)
}
