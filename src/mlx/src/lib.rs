//! MLX, the inference engine: devices, weights from files, rooflet's own kernels, and the bandwidth
//! probe.
//!
//! Invariants:
//! - No other crate depends on `mlx-rs` or `mlx-sys`.
//! - One thread of a process owns every MLX object and makes every MLX call.

pub mod backend;
pub mod device;
pub mod device_limits;
pub mod gate;
pub mod gated_delta;
mod kernel;
pub mod kernel_cases;
pub mod kernel_check;
pub mod load;
pub mod metallib;
pub mod probe;
pub mod quantized;
mod sys;

/// Re-export of the bindings, so that this crate alone determines their version.
pub use mlx_rs;
use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype};

/// Sets environment variables of MLX that the user has not set, and the path of its Metal kernels.
/// Must be called before the process starts a second thread and before any other call of MLX.
pub fn set_environment() {
    sys::set_environment();
    if let Some(path) = metallib::path() {
        sys::set_metallib(path);
    }
}

/// Writes `part` into `buffer`, `[rows, heads, capacity, size]`, from token `start` on. The write
/// is in place if the caller holds the only reference to the buffer.
pub fn put_tokens(buffer: Array, part: &Array, start: i32) -> Result<Array> {
    sys::put_tokens(buffer, part, start)
}

/// Copies bytes into an array of floats or 32-bit integers.
pub fn from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array> {
    sys::from_bytes(bytes, shape, dtype)
}

/// Returns the memory of a row-contiguous array. Waits until the array is computed, but not for
/// other work of the device.
pub fn bytes_of(array: &Array) -> Result<&[u8]> {
    sys::bytes_of(array)
}

/// Returns the lock for tests that compute, because only one thread at a time may use MLX.
pub fn exclusive() -> std::sync::MutexGuard<'static, ()> {
    static MLX: std::sync::Mutex<()> = std::sync::Mutex::new(());
    rooflet_base::mutex::lock(&MLX)
}
