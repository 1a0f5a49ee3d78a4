//! Back ends of MLX.

use rooflet_model::config::FloatType;

/// MLX's back ends.
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

    /// The element type to compute in. On the CPU half precision is emulated, dozens of times
    /// slower.
    pub fn compute_type(self, stored: FloatType) -> FloatType {
        match self {
            Self::Cpu => FloatType::F32,
            Self::Metal | Self::Cuda => stored,
        }
    }
}
