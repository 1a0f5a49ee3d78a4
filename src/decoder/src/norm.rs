//! RMS norm with a weight.

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::fast::rms_norm;

use rooflet_mlx::load::{LoadError, Weights, constant};
use rooflet_model::config::ModelConfig;

/// RMS norm with a weight.
#[derive(Debug, Clone)]
pub(super) struct RmsNorm {
    weight: Array,
    eps: f32,
}

impl RmsNorm {
    pub(super) fn new(weight: Array, eps: f32) -> Self {
        Self { weight, eps }
    }

    pub(super) fn load(
        tensor: &str,
        config: &ModelConfig,
        weights: &mut Weights,
    ) -> std::result::Result<Self, LoadError> {
        let mut weight = weights.take(tensor)?;
        if config.norm_adds_one {
            weight = constant(1.0, weights.compute())
                .and_then(|one| one.add(&weight))
                .map_err(|err| LoadError::Convert {
                    tensor: tensor.to_owned(),
                    err,
                })?;
        }
        Ok(Self {
            weight,
            eps: config.rms_norm_eps,
        })
    }

    pub(super) fn apply(&self, x: &Array) -> Result<Array> {
        rms_norm(x, Some(&self.weight), self.eps)
    }

    pub(super) fn eps(&self) -> f32 {
        self.eps
    }

    pub(super) fn array(&self) -> &Array {
        &self.weight
    }
}
