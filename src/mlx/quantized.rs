//! Quantised matrices, in all of MLX's modes.

use std::ffi::CStr;

use mlx_rs::Array;
use mlx_rs::error::Result;
use mlx_rs::ops::indexing::take_axis;

use super::sys;
use crate::roofline::model::{QuantizationMode, QuantizationScheme};

/// A quantised matrix, `[rows, columns]` once unpacked, or a stack of them.
#[derive(Debug)]
pub(crate) struct QuantizedMatrix {
    pub(super) weight: Array,
    pub(super) scales: Array,
    /// Where the mode has them.
    pub(super) biases: Option<Array>,
    pub(super) mode: &'static CStr,
    pub(super) group_size: i32,
    pub(super) bits: i32,
}

impl QuantizedMatrix {
    pub(crate) fn new(
        weight: Array,
        scales: Array,
        biases: Option<Array>,
        scheme: QuantizationScheme,
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
        }
    }

    /// `x · matrixᵀ`.
    pub(crate) fn multiply(&self, x: &Array) -> Result<Array> {
        sys::quantized_matmul(x, self)
    }

    /// `x · matrixᵀ` with one matrix of the stack for each of `indices`; `sorted` says that these do not fall.
    pub(crate) fn multiply_each(&self, x: &Array, indices: &Array, sorted: bool) -> Result<Array> {
        sys::gather_quantized_matmul(x, self, indices, sorted)
    }

    /// Some rows in floats, of the type that MLX gives the mode: all numbers of small floats are exact in it.
    pub(crate) fn rows(&self, indices: &Array) -> Result<Array> {
        let row = |table: &Array| take_axis(table, indices, 0);
        let rows = Self {
            weight: row(&self.weight)?,
            scales: row(&self.scales)?,
            biases: self.biases.as_ref().map(row).transpose()?,
            ..*self
        };
        sys::dequantize(&rows)
    }

    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.weight, &self.scales].into_iter().chain(&self.biases)
    }
}
