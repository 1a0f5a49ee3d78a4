//! MLX, the inference engine: devices, weights from files, rooflet's own kernels, and the bandwidth
//! probe.
//!
//! Invariants:
//! - No other crate depends on `mlx-rs` or `mlx-sys`.
//! - One thread of a process owns every MLX object and makes every MLX call.

pub mod backend;
pub mod device;
pub mod gate;
pub mod gated_delta;
mod kernel;
pub mod kernel_check;
pub mod load;
pub mod probe;
pub mod quantized;
mod sys;

/// The bindings themselves. Other crates reach them through this re-export, so that one crate
/// decides their version.
pub use mlx_rs;
use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype};

/// Chooses settings of MLX's that the user has not chosen. To be called before there is a second
/// thread.
pub fn set_environment() {
    sys::set_environment();
}

/// `buffer`, `[rows, heads, capacity, size]`, with `part` from token `start` on; in place where
/// nobody else holds the buffer.
pub fn put_tokens(buffer: Array, part: &Array, start: i32) -> Result<Array> {
    sys::put_tokens(buffer, part, start)
}

/// A copy of these bytes as an array of floats or 32-bit integers.
pub fn from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array> {
    sys::from_bytes(bytes, shape, dtype)
}

/// The numbers of an array whose rows follow one another, as they are in memory. Waits until it has
/// been computed, and for nothing else.
pub fn bytes_of(array: &Array) -> Result<&[u8]> {
    sys::bytes_of(array)
}

/// Held by each test that computes: one thread at a time uses MLX, in tests as elsewhere.
pub fn exclusive() -> std::sync::MutexGuard<'static, ()> {
    static MLX: std::sync::Mutex<()> = std::sync::Mutex::new(());
    rooflet_base::mutex::lock(&MLX)
}
