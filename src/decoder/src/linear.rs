//! Matrices: linear layers, stacks of linear layers for experts, and the embedding table, in floats
//! or quantised.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::take_axis;
use rooflet_mlx::mlx_rs::ops::{add, addmm, gather_mm, matmul, swap_axes};
use rooflet_mlx::mlx_rs::{Array, Dtype};

use rooflet_mlx::backend::Backend;
use rooflet_mlx::load::{LoadError, Weights};
use rooflet_mlx::quantized::QuantizedMatrix;
use rooflet_model::checkpoint::{MatrixStorage, ModelShape};

/// Weight matrix, `[rows, columns]`, or a stack of matrices.
#[derive(Debug)]
enum Matrix {
    Float { weight: Array, transposed: Array },
    Quantized(QuantizedMatrix),
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
                let transposed =
                    swap_axes(&weight, -1, -2).map_err(|err| LoadError::Convert { tensor, err })?;
                Ok(Self::Float { weight, transposed })
            }
            MatrixStorage::Quantized(scheme) => {
                let scales = weights.take(&format!("{module}.scales"))?;
                let biases = scheme
                    .mode
                    .has_biases()
                    .then(|| weights.take(&format!("{module}.biases")))
                    .transpose()?;
                let backend = Backend::current().map_err(|err| LoadError::Evaluate { err })?;
                Ok(Self::Quantized(QuantizedMatrix::new(
                    weight, scales, biases, scheme, backend,
                )))
            }
        }
    }

    /// Computes `x · weightᵀ`.
    fn apply(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Float { transposed, .. } => matmul(x, transposed),
            Self::Quantized(matrix) => matrix.multiply(x),
        }
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Float { weight, .. } => vec![weight],
            Self::Quantized(matrix) => matrix.arrays().collect(),
        }
    }
}

/// Loads the matrix or stack of `module`, and its bias.
fn load(
    module: &str,
    has_bias: bool,
    shape: &ModelShape,
    weights: &mut Weights,
) -> std::result::Result<(Matrix, Option<Array>), LoadError> {
    let matrix = Matrix::load(module, shape, weights)?;
    let bias = has_bias
        .then(|| weights.take(&format!("{module}.bias")))
        .transpose()?;
    Ok((matrix, bias))
}

/// A linear layer.
#[derive(Debug)]
pub(super) struct Linear {
    matrix: Matrix,
    bias: Option<Array>,
}

impl Linear {
    pub(super) fn load(
        module: &str,
        has_bias: bool,
        shape: &ModelShape,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        let (matrix, bias) = load(module, has_bias, shape, weights)?;
        Ok(Self { matrix, bias })
    }

    pub(super) fn apply(&self, x: &Array) -> Result<Array> {
        match (&self.matrix, &self.bias) {
            (matrix, None) => matrix.apply(x),
            (Matrix::Float { transposed, .. }, Some(bias)) => addmm(bias, x, transposed, None, None),
            (matrix @ Matrix::Quantized(_), Some(bias)) => add(matrix.apply(x)?, bias),
        }
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        self.matrix.arrays().into_iter().chain(&self.bias).collect()
    }
}

/// Linear layers of several experts.
#[derive(Debug)]
pub(super) struct ExpertLinear {
    stack: Matrix,
    /// `[experts, rows]`.
    bias: Option<Array>,
}

impl ExpertLinear {
    pub(super) fn load(
        module: &str,
        has_bias: bool,
        shape: &ModelShape,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        let (stack, bias) = load(module, has_bias, shape, weights)?;
        Ok(Self { stack, bias })
    }

    /// Applies the layers of `experts` to `x`, `[…, 1, columns]`, with one row for each expert or
    /// one row for several. `sorted` asserts that `experts` is in ascending order.
    pub(super) fn apply(&self, x: &Array, experts: &Array, sorted: bool) -> Result<Array> {
        let product = match &self.stack {
            Matrix::Float { transposed, .. } => gather_mm(x, transposed, None, experts, sorted)?,
            Matrix::Quantized(stack) => stack.multiply_each(x, experts, sorted)?,
        };
        match &self.bias {
            Some(bias) => product.add(take_axis(bias, experts, 0)?.expand_dims(-2)?),
            None => Ok(product),
        }
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        self.stack.arrays().into_iter().chain(&self.bias).collect()
    }
}

/// Embedding table, also the head of a tied model.
#[derive(Debug)]
pub(super) struct Embedding {
    matrix: Matrix,
    compute: Dtype,
}

impl Embedding {
    pub(super) fn load(
        module: &str,
        shape: &ModelShape,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        Ok(Self {
            matrix: Matrix::load(module, shape, weights)?,
            compute: weights.compute(),
        })
    }

    /// Returns one row of the table per token.
    pub(super) fn lookup(&self, tokens: &Array) -> Result<Array> {
        match &self.matrix {
            Matrix::Float { weight, .. } => take_axis(weight, tokens, 0),
            Matrix::Quantized(matrix) => {
                let rows = matrix.rows(tokens)?;
                if rows.dtype() == self.compute {
                    Ok(rows)
                } else {
                    rows.as_dtype(self.compute)
                }
            }
        }
    }

    /// Applies the table as the head.
    pub(super) fn as_head(&self, x: &Array) -> Result<Array> {
        self.matrix.apply(x)
    }

    pub(super) fn arrays(&self) -> Vec<&Array> {
        self.matrix.arrays()
    }
}
