//! Quantised matrices, in all of MLX's modes.
//!
//! MLX 0.32 chooses a kernel on CUDA by the last axis but one alone
//! (mlx/backend/cuda/quantized/quantized.cpp), and fewer than eight rows go one by one. On an H200
//! a matrix of 11008 by 4096 in 4 bits takes 31 µs for one row, 120 for four, 33 for eight or
//! sixteen in one piece, 110 for 128 and, unpacked first, 150 for 256.

use std::ffi::CStr;

use mlx_rs::Array;
use mlx_rs::error::Result;
use mlx_rs::ops::indexing::{TryIndexOp, take_axis};
use mlx_rs::ops::{concatenate, matmul, pad, split_at_indices, swap_axes};

use super::backend::Backend;
use super::sys;
use rooflet_model::config::{QuantizationMode, QuantizationScheme};

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Product {
    /// MLX takes what it gets.
    AsItIs,
    /// So many rows at a time, and at least eight.
    Together,
    /// The matrix is unpacked for it.
    Unpacked,
}

impl Product {
    /// Fewer go as fast one by one.
    const FEWEST: i32 = 4;
    const LEAST_TOGETHER: i32 = 8;
    const MOST_TOGETHER: i32 = 16;
    /// More than three times as many take as long as to unpack the matrix.
    const MOST_PACKED: i32 = 3 * Self::MOST_TOGETHER;

    fn of(rows: i32, backend: Backend) -> Self {
        match backend {
            Backend::Cpu | Backend::Metal => Self::AsItIs,
            Backend::Cuda if rows < Self::FEWEST => Self::AsItIs,
            Backend::Cuda if rows <= Self::MOST_PACKED => Self::Together,
            Backend::Cuda => Self::Unpacked,
        }
    }
}

/// Whether a pass over so many rows has matrices in memory that are not packed, for as long as it
/// computes with them.
pub fn unpacks(rows: i32, backend: Backend) -> bool {
    Product::of(rows, backend) == Product::Unpacked
}

/// A quantised matrix, `[rows, columns]` once unpacked, or a stack of them.
#[derive(Debug)]
pub struct QuantizedMatrix {
    pub(super) weight: Array,
    pub(super) scales: Array,
    /// Where the mode has them.
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

    /// `x · matrixᵀ`.
    pub fn multiply(&self, x: &Array) -> Result<Array> {
        let columns = x.dim(-1);
        let rows: i32 = x.shape().iter().rev().skip(1).product();
        match Product::of(rows, self.backend) {
            Product::AsItIs => sys::quantized_matmul(x, self),
            Product::Unpacked => {
                let matrix = sys::dequantize(self)?.as_dtype(x.dtype())?;
                matmul(x, swap_axes(&matrix, 0, 1)?)
            }
            Product::Together => {
                let product = self.multiply_together(&x.reshape(&[rows, columns])?)?;
                let mut shape = x.shape().to_vec();
                shape.pop();
                shape.push(product.dim(-1));
                product.reshape(&shape)
            }
        }
    }

    /// `x` is `[rows, columns]`.
    fn multiply_together(&self, x: &Array) -> Result<Array> {
        let rows = x.dim(0);
        if rows > Product::MOST_TOGETHER {
            let cuts: Vec<i32> = (1..)
                .map(|part| part * Product::MOST_TOGETHER)
                .take_while(|cut| *cut < rows)
                .collect();
            let parts = split_at_indices(x, &cuts, 0)?;
            let products = parts.iter().map(|part| self.multiply_together(part));
            return concatenate(&products.collect::<Result<Vec<_>>>()?, 0);
        }
        let missing = (Product::LEAST_TOGETHER - rows).max(0);
        if missing == 0 {
            return sys::quantized_matmul(x, self);
        }
        let filled = pad(x, &[(0, missing), (0, 0)], None, None)?;
        sys::quantized_matmul(&filled, self)?.try_index((..rows, ..))
    }

    /// `x · matrixᵀ` with one matrix of the stack for each of `indices`; `sorted` says that these
    /// do not fall.
    pub fn multiply_each(&self, x: &Array, indices: &Array, sorted: bool) -> Result<Array> {
        sys::gather_quantized_matmul(x, self, indices, sorted)
    }

    /// Some rows in floats, of the type that MLX gives the mode: all numbers of small floats are
    /// exact in it.
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
        fn a_product_is_the_same_however_it_is_computed(sequences in 1..6_i32, tokens in 1..40_i32) {
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
            let apart = product.subtract(&other).unwrap().abs().unwrap().max(None).unwrap();
            prop_assert!(apart.item_exact::<f32>() < 1e-4);
        }
    }

    #[test]
    fn rows_of_a_step_go_together_and_those_of_a_prompt_over_floats() {
        let of = |rows| Product::of(rows, Backend::Cuda);
        assert_eq!(
            [of(3), of(4), of(48), of(49)],
            [
                Product::AsItIs,
                Product::Together,
                Product::Together,
                Product::Unpacked
            ]
        );
        assert_eq!(Product::of(49, Backend::Metal), Product::AsItIs);
    }
}
