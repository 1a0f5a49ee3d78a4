//! Element types, parameters and shapes for which rooflet's own kernels are checked: by the
//! compiler of their Metal texts (`kernel/metal_tests.rs`), and by `rooflet selftest` on a device.

use super::gated_delta::Dimensions;
use rooflet_model::config::{Activation, FloatType};

/// Element types that models compute in on a GPU.
pub const FLOATS: [FloatType; 3] = [FloatType::F32, FloatType::F16, FloatType::BF16];

/// Activations of the fused gate. The limit is that of gpt-oss.
pub const ACTIVATIONS: [Activation; 3] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::ClampedSilu { limit: 7.0 },
];

/// Shapes of the fused gate's inputs: a decode step, a prompt, and less than a group of threads.
pub const GATE_SHAPES: [&[i32]; 3] = [&[1, 1, 4096], &[2, 16, 64], &[4]];

/// Dimensions of layers of the gated delta rule: those of Qwen3-Next, and small ones with few
/// heads, the shortest window, and keys and values of different lengths.
pub const GATED_DELTA_DIMENSIONS: [Dimensions; 5] = [
    dimensions(16, 128, 32, 128, 4),
    dimensions(2, 64, 4, 64, 4),
    dimensions(1, 32, 1, 32, 2),
    dimensions(1, 32, 2, 256, 4),
    dimensions(1, 256, 2, 32, 4),
];

/// Numbers of rows and tokens: decode steps and prompts, with one row, with as many rows as one
/// launch supports, and with more.
pub const GATED_DELTA_SIZES: [(i32, i32); 5] = [(1, 1), (1, 16), (3, 1), (8, 16), (9, 1)];

const fn dimensions(
    key_heads: i32,
    key_dim: i32,
    value_heads: i32,
    value_dim: i32,
    width: i32,
) -> Dimensions {
    Dimensions {
        key_heads,
        key_dim,
        value_heads,
        value_dim,
        width,
    }
}
