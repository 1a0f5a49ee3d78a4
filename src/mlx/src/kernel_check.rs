//! Checks that the engine computes correctly on this device: products in each float type and of
//! 4-bit weights, compared with the same products computed by the CPU in double precision.

use std::time::{Duration, Instant};

use mlx_rs::error::Result;
use mlx_rs::ops::{self, matmul};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use super::bytes_of;

/// Rows, columns and depth of the product.
const SIDE: i32 = 64;
/// Weights that share a scale.
const GROUP: i32 = 64;
/// Bits of a quantised weight.
const BITS: i32 = 4;

/// Result of one check.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelCheck {
    /// Name of the kernel, such as `product in bfloat16`.
    pub name: &'static str,
    /// Largest difference from the reference, as a share of the largest value. `NaN` if the kernel
    /// computed a value that is not a number.
    pub error: f64,
    /// Largest difference that rounding explains.
    pub tolerance: f64,
    /// Time of the first run, which includes the compilation of the kernel.
    pub first_run: Duration,
}

impl KernelCheck {
    /// Returns true if the result is correct.
    pub fn is_correct(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// Runs the checks within about a second.
pub fn check_kernels() -> Result<Vec<KernelCheck>> {
    Ok(vec![
        product("product in float32", Dtype::Float32, 1e-4)?,
        product("product in float16", Dtype::Float16, 5e-3)?,
        product("product in bfloat16", Dtype::Bfloat16, 3e-2)?,
        quantized_product()?,
    ])
}

fn product(name: &'static str, dtype: Dtype, tolerance: f64) -> Result<KernelCheck> {
    let (a, b) = (matrix(1), matrix(2));
    let array = |values: &[f32]| Array::from_slice(values, &[SIDE, SIDE]).as_dtype(dtype);
    let (a_array, b_array) = (array(&a)?, array(&b)?);
    let (computed, first_run) = run(|| matmul(&a_array, &b_array))?;
    // The reference multiplies the values after rounding to the type.
    let rounded = |array: &Array| values(&array.as_dtype(Dtype::Float32)?);
    let expected = reference(&rounded(&a_array)?, &rounded(&b_array)?);
    Ok(KernelCheck {
        name,
        error: error(&computed, &expected),
        tolerance,
        first_run,
    })
}

fn quantized_product() -> Result<KernelCheck> {
    let (x, weights) = (matrix(3), matrix(4));
    let x_array = Array::from_slice(&x, &[SIDE, SIDE]);
    let weights_array = Array::from_slice(&weights, &[SIDE, SIDE]);
    let (packed, scales, biases) = ops::quantize(&weights_array, GROUP, BITS)?;
    let (computed, first_run) =
        run(|| ops::quantized_matmul(&x_array, &packed, &scales, &biases, true, GROUP, BITS))?;
    // The weights are stored transposed: one row per output.
    let unpacked = ops::dequantize(&packed, &scales, &biases, GROUP, BITS)?;
    let unpacked = values(&unpacked.as_dtype(Dtype::Float32)?)?;
    let expected = reference(&x, &transposed(&unpacked));
    Ok(KernelCheck {
        name: "product with 4-bit weights",
        error: error(&computed, &expected),
        tolerance: 1e-3,
        first_run,
    })
}

#[expect(clippy::disallowed_methods, reason = "kernels are timed with the real clock")]
fn run(compute: impl FnOnce() -> Result<Array>) -> Result<(Vec<f32>, Duration)> {
    let start = Instant::now();
    let product = compute()?.as_dtype(Dtype::Float32)?;
    eval([&product])?;
    let first_run = start.elapsed();
    Ok((values(&product)?, first_run))
}

/// Returns deterministic values between -1 and 1.
fn matrix(seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
    };
    std::iter::repeat_with(next)
        .take((SIDE * SIDE) as usize)
        .collect()
}

fn values(array: &Array) -> Result<Vec<f32>> {
    let bytes = bytes_of(array)?.chunks_exact(4);
    Ok(bytes
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect())
}

fn transposed(matrix: &[f32]) -> Vec<f32> {
    let side = SIDE as usize;
    (0..side * side)
        .map(|at| matrix[at % side * side + at / side])
        .collect()
}

fn reference(a: &[f32], b: &[f32]) -> Vec<f64> {
    let side = SIDE as usize;
    let at = |row: usize, column: usize| {
        (0..side)
            .map(|k| f64::from(a[row * side + k]) * f64::from(b[k * side + column]))
            .sum()
    };
    (0..side * side)
        .map(|index| at(index / side, index % side))
        .collect()
}

fn error(computed: &[f32], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    let differences = computed
        .iter()
        .zip(expected)
        .map(|(computed, expected)| (f64::from(*computed) - expected).abs());
    differences.fold(0.0_f64, |most, difference| {
        match difference.is_nan() || most.is_nan() {
            true => f64::NAN,
            false => most.max(difference),
        }
    }) / largest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exclusive;

    #[test]
    fn this_machine_computes_correctly() {
        let _mlx = exclusive();
        let checks = check_kernels().unwrap();
        assert_eq!(checks.len(), 4);
        for check in checks {
            assert!(check.is_correct(), "{check:?}");
        }
    }

    #[test]
    fn detects_wrong_results() {
        let expected = reference(&matrix(1), &matrix(2));
        let mut computed: Vec<f32> = expected.iter().map(|value| *value as f32).collect();
        assert!(error(&computed, &expected) < 1e-6);
        computed[77] += 1.0;
        assert!(error(&computed, &expected) > 1e-2);
        computed[77] = f32::NAN;
        assert!(error(&computed, &expected).is_nan());
        let check = KernelCheck {
            name: "product",
            error: f64::NAN,
            tolerance: 1.0,
            first_run: Duration::ZERO,
        };
        assert!(!check.is_correct(), "not a number is not correct");
    }
}
