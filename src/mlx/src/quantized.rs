//! Quantised matrices in all of MLX's modes.
//!
//! On CUDA, MLX 0.32 selects a kernel by the second-to-last axis alone
//! (mlx/backend/cuda/quantized/quantized.cpp), and computes fewer than eight rows one by one. On an
//! H200, a product with a 4-bit matrix of 11008 by 4096 takes 31 µs for one row, 120 µs for four
//! rows, and 33 µs for eight or sixteen rows in one call. It takes 110 µs for 128 rows, and 150 µs
//! for 256 rows with a dequantised matrix.

use std::ffi::CStr;

use mlx_rs::Array;
use mlx_rs::error::Result;
use mlx_rs::ops::indexing::{TryIndexOp, take_axis};
use mlx_rs::ops::{concatenate, matmul, pad, split_at_indices, swap_axes};

use super::backend::Backend;
use super::sys;
use rooflet_model::config::{QuantizationMode, QuantizationScheme};

/// Method of computing a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Product {
    /// A single call of MLX.
    Direct,
    /// Several calls with [`MIN_ROWS_PER_CALL`](Self::MIN_ROWS_PER_CALL) to
    /// [`MAX_ROWS_PER_CALL`](Self::MAX_ROWS_PER_CALL) rows each.
    Batched,
    /// Dequantisation of the matrix before the product.
    Dequantized,
}

impl Product {
    /// Minimum number of rows for [`Self::Batched`]. Fewer rows are as fast one by one.
    const MIN_BATCHED_ROWS: i32 = 4;
    const MIN_ROWS_PER_CALL: i32 = 8;
    const MAX_ROWS_PER_CALL: i32 = 16;
    /// Maximum number of rows for [`Self::Batched`]. With more rows, dequantising the matrix is
    /// faster.
    const MAX_BATCHED_ROWS: i32 = 3 * Self::MAX_ROWS_PER_CALL;

    fn of(rows: i32, backend: Backend) -> Self {
        match backend {
            Backend::Cpu | Backend::Metal => Self::Direct,
            Backend::Cuda if rows < Self::MIN_BATCHED_ROWS => Self::Direct,
            Backend::Cuda if rows <= Self::MAX_BATCHED_ROWS => Self::Batched,
            Backend::Cuda => Self::Dequantized,
        }
    }
}

/// Returns true if a pass over this many rows holds dequantised matrices in memory while it
/// computes with them.
pub fn dequantizes(rows: i32, backend: Backend) -> bool {
    Product::of(rows, backend) == Product::Dequantized
}

/// Quantised matrix, logically `[rows, columns]`, or a stack of such matrices.
#[derive(Debug)]
pub struct QuantizedMatrix {
    pub(super) weight: Array,
    pub(super) scales: Array,
    /// Offsets, if the mode has them.
    pub(super) biases: Option<Array>,
    pub(super) mode: &'static CStr,
    pub(super) group_size: i32,
    pub(super) bits: i32,
    pub(super) backend: Backend,
}

impl QuantizedMatrix {
    pub fn new(
        weight: Array,
        scales: Array,
        biases: Option<Array>,
        scheme: QuantizationScheme,
        backend: Backend,
    ) -> Self {
        Self {
            weight,
            scales,
            biases,
            mode: match scheme.mode {
                QuantizationMode::Affine => c"affine",
                QuantizationMode::Mxfp4 => c"mxfp4",
                QuantizationMode::Mxfp8 => c"mxfp8",
                QuantizationMode::Nvfp4 => c"nvfp4",
            },
            group_size: scheme.group_size.cast_signed(),
            bits: scheme.bits.cast_signed(),
            backend,
        }
    }

    /// Computes `x · matrixᵀ`.
    pub fn multiply(&self, x: &Array) -> Result<Array> {
        let columns = x.dim(-1);
        let rows: i32 = x.shape().iter().rev().skip(1).product();
        match Product::of(rows, self.backend) {
            Product::Direct => sys::quantized_matmul(x, self),
            Product::Dequantized => {
                let matrix = sys::dequantize(self)?.as_dtype(x.dtype())?;
                matmul(x, swap_axes(&matrix, 0, 1)?)
            }
            Product::Batched => {
                let product = self.multiply_batched(&x.reshape(&[rows, columns])?)?;
                let mut shape = x.shape().to_vec();
                shape.pop();
                shape.push(product.dim(-1));
                product.reshape(&shape)
            }
        }
    }

    /// Computes `x · matrixᵀ` in several calls; `x` is `[rows, columns]`.
    fn multiply_batched(&self, x: &Array) -> Result<Array> {
        let rows = x.dim(0);
        if rows > Product::MAX_ROWS_PER_CALL {
            let cuts: Vec<i32> = (1..)
                .map(|part| part * Product::MAX_ROWS_PER_CALL)
                .take_while(|cut| *cut < rows)
                .collect();
            let parts = split_at_indices(x, &cuts, 0)?;
            let products = parts.iter().map(|part| self.multiply_batched(part));
            return concatenate(&products.collect::<Result<Vec<_>>>()?, 0);
        }
        let missing = (Product::MIN_ROWS_PER_CALL - rows).max(0);
        if missing == 0 {
            return sys::quantized_matmul(x, self);
        }
        let filled = pad(x, &[(0, missing), (0, 0)], None, None)?;
        sys::quantized_matmul(&filled, self)?.try_index((..rows, ..))
    }

    /// Computes `x · matrixᵀ` with one matrix of the stack for each element of `indices`. `sorted`
    /// asserts that `indices` is in ascending order.
    pub fn multiply_each(&self, x: &Array, indices: &Array, sorted: bool) -> Result<Array> {
        sys::gather_quantized_matmul(x, self, indices, sorted)
    }

    /// Dequantises some rows. The element type is MLX's type for the mode, in which all values of
    /// small float formats are exact.
    pub fn rows(&self, indices: &Array) -> Result<Array> {
        let row = |table: &Array| take_axis(table, indices, 0);
        let rows = Self {
            weight: row(&self.weight)?,
            scales: row(&self.scales)?,
            biases: self.biases.as_ref().map(row).transpose()?,
            ..*self
        };
        sys::dequantize(&rows)
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.weight, &self.scales].into_iter().chain(&self.biases)
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::ops::quantize;
    use proptest::prelude::*;

    use super::*;
    use crate as mlx;

    fn numbers(shape: &[i32]) -> Array {
        let count: i32 = shape.iter().product();
        let number = |at: i32| (at as f32 * 12.9898).sin();
        Array::from_slice(&(0..count).map(number).collect::<Vec<f32>>(), shape)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn all_methods_compute_the_same_product(sequences in 1..6_i32, tokens in 1..40_i32) {
            let _mlx = mlx::exclusive();
            let (weight, scales, biases) = quantize(numbers(&[24, 64]), 64, 4).unwrap();
            let scheme = QuantizationScheme { mode: QuantizationMode::Affine, group_size: 64, bits: 4 };
            let matrix = |backend| {
                let biases = Some(biases.clone());
                QuantizedMatrix::new(weight.clone(), scales.clone(), biases, scheme, backend)
            };
            let x = numbers(&[sequences, tokens, 64]);
            let product = matrix(Backend::Cpu).multiply(&x).unwrap();
            let other = matrix(Backend::Cuda).multiply(&x).unwrap();
            prop_assert_eq!(product.shape(), &[sequences, tokens, 24][..]);
            prop_assert_eq!(other.shape(), product.shape());
            let difference = product.subtract(&other).unwrap().abs().unwrap().max(None).unwrap();
            prop_assert!(difference.item_exact::<f32>() < 1e-4);
        }
    }

    #[test]
    fn selects_method_by_row_count() {
        let of = |rows| Product::of(rows, Backend::Cuda);
        assert_eq!(
            [of(3), of(4), of(48), of(49)],
            [
                Product::Direct,
                Product::Batched,
                Product::Batched,
                Product::Dequantized
            ]
        );
        assert_eq!(Product::of(49, Backend::Metal), Product::Direct);
    }
}
