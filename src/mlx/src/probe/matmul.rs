//! Products of many rows, as in prefill. They are limited by compute, not by memory bandwidth.

use mlx_rs::error::Result;
use mlx_rs::ops::matmul;
use mlx_rs::random;
use mlx_rs::transforms::eval;

use super::plan::Plan;
use super::quantized::{Quantized, element, rows};
use super::sampling::Sampler;
use crate::backend::Backend;
use rooflet_api::v1alpha1::Spread;
use rooflet_roofline::probing::rate;

/// Rows of the quantised product: enough that compute limits the speed, and not the reading of the
/// weights.
const PREFILL_ROWS: i32 = 512;

/// Measures a square dense product in the engine's element type, in floating-point operations per
/// second.
pub(super) fn dense(plan: &Plan, backend: Backend, sampler: &Sampler<'_>) -> Result<Spread> {
    let side = plan.matmul_side;
    let spread = (side as f32).sqrt().recip();
    let matrix = random::normal::<f32>(&[side, side], None, spread, Some(&random::key(3)?))?
        .as_dtype(element(backend))?;
    let start = rows(side, side, backend)?;
    eval([&matrix])?;
    let seconds = sampler.seconds(|launches, _| {
        let mut product = start.clone();
        for _ in 0..launches {
            product = matmul(&product, &matrix)?;
        }
        eval([&product])
    })?;
    Ok(rate(2.0 * f64::from(side).powi(3), &seconds))
}

/// Measures the product of many rows and a 4-bit matrix, in floating-point operations per second.
pub(super) fn quantized(plan: &Plan, backend: Backend, sampler: &Sampler<'_>) -> Result<Spread> {
    let side = plan.prefill_side;
    let matrix = Quantized::random(side, 4, backend)?;
    let start = rows(PREFILL_ROWS, side, backend)?;
    let seconds = sampler.seconds(|launches, _| {
        let mut product = start.clone();
        for _ in 0..launches {
            product = matrix.multiply(product)?;
        }
        eval([&product])
    })?;
    Ok(rate(
        2.0 * f64::from(PREFILL_ROWS) * f64::from(side).powi(2),
        &seconds,
    ))
}
