//! Matrices: linear layers and the embedding table, in floats or in MLX's affine quantisation.

use mlx_rs::Array;
use mlx_rs::error::Result;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::ops::{add, addmm, dequantize, matmul, quantized_matmul};

use crate::mlx::load::{LoadError, Weights};
use crate::roofline::checkpoint::{MatrixStorage, ModelShape};
use crate::roofline::model::QuantizationScheme;

/// One weight matrix, `[rows, columns]`.
#[derive(Debug)]
enum Matrix {
    Float {
        weight: Array,
        transposed: Array,
    },
    Affine {
        weight: Array,
        scales: Array,
        biases: Array,
        group_size: i32,
        bits: i32,
    },
}

impl Matrix {
    fn load(module: &str, shape: &ModelShape, weights: &mut Weights) -> std::result::Result<Self, LoadError> {
        let tensor = format!("{module}.weight");
        let weight = weights.take(&tensor)?;
        match shape
            .matrices
            .get(module)
            .copied()
            .unwrap_or(MatrixStorage::Float)
        {
            MatrixStorage::Float => {
                let transposed = weight
                    .transpose()
                    .map_err(|err| LoadError::Convert { tensor, err })?;
                Ok(Self::Float { weight, transposed })
            }
            MatrixStorage::Affine(QuantizationScheme { group_size, bits }) => Ok(Self::Affine {
                weight,
                scales: weights.take(&format!("{module}.scales"))?,
                biases: weights.take(&format!("{module}.biases"))?,
                group_size: group_size.cast_signed(),
                bits: bits.cast_signed(),
            }),
        }
    }

    /// `x · weightᵀ`.
    fn apply(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Float { transposed, .. } => matmul(x, transposed),
            Self::Affine {
                weight,
                scales,
                biases,
                group_size,
                bits,
            } => quantized_matmul(x, weight, scales, biases, true, *group_size, *bits),
        }
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Float { weight, .. } => vec![weight],
            Self::Affine {
                weight,
                scales,
                biases,
                ..
            } => vec![weight, scales, biases],
        }
    }
}

/// A linear layer.
#[derive(Debug)]
pub(crate) struct Linear {
    matrix: Matrix,
    bias: Option<Array>,
}

impl Linear {
    pub(crate) fn load(
        module: &str,
        has_bias: bool,
        shape: &ModelShape,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        let matrix = Matrix::load(module, shape, weights)?;
        let bias = has_bias
            .then(|| weights.take(&format!("{module}.bias")))
            .transpose()?;
        Ok(Self { matrix, bias })
    }

    pub(crate) fn apply(&self, x: &Array) -> Result<Array> {
        match (&self.matrix, &self.bias) {
            (matrix, None) => matrix.apply(x),
            (Matrix::Float { transposed, .. }, Some(bias)) => addmm(bias, x, transposed, None, None),
            (matrix @ Matrix::Affine { .. }, Some(bias)) => add(matrix.apply(x)?, bias),
        }
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        self.matrix.arrays().into_iter().chain(&self.bias).collect()
    }
}

/// The embedding table, also the head of a tied model.
#[derive(Debug)]
pub(crate) struct Embedding {
    matrix: Matrix,
}

impl Embedding {
    pub(crate) fn load(
        module: &str,
        shape: &ModelShape,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        Ok(Self {
            matrix: Matrix::load(module, shape, weights)?,
        })
    }

    /// Rows of the table, one per token.
    pub(crate) fn lookup(&self, tokens: &Array) -> Result<Array> {
        match &self.matrix {
            Matrix::Float { weight, .. } => take_axis(weight, tokens, 0),
            Matrix::Affine {
                weight,
                scales,
                biases,
                group_size,
                bits,
            } => {
                let row = |table: &Array| take_axis(table, tokens, 0);
                let (weight, scales, biases) = (row(weight)?, row(scales)?, row(biases)?);
                dequantize(weight, scales, &biases, *group_size, *bits)
            }
        }
    }

    /// The table as the head.
    pub(crate) fn as_head(&self, x: &Array) -> Result<Array> {
        self.matrix.apply(x)
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        self.matrix.arrays()
    }
}
