//! Backends of MLX.

use rooflet_model::config::FloatType;

/// Backend of MLX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Cpu,
    Metal,
    Cuda,
}

impl Backend {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Metal => "metal",
            Self::Cuda => "cuda",
        }
    }

    /// Returns the element type of computations. The CPU backend emulates half precision, which is
    /// dozens of times slower than float32.
    pub fn compute_type(self, stored: FloatType) -> FloatType {
        match self {
            Self::Cpu => FloatType::F32,
            Self::Metal | Self::Cuda => stored,
        }
    }
}
