//! The few calls that mlx-rs does not offer.
#![expect(unsafe_code, reason = "the island for MLX's C interface")]

use std::ffi::CStr;

/// Version of the MLX library that is loaded, which need not be the one this was built with.
pub(super) fn version() -> Option<String> {
    // SAFETY: the string is created and freed here; `mlx_version` only assigns to it; its data is a C string that
    // lives until it is freed.
    unsafe {
        let mut text = mlx_sys::mlx_string_new();
        let version = (mlx_sys::mlx_version(&raw mut text) == 0).then(|| {
            let data = mlx_sys::mlx_string_data(text);
            (!data.is_null()).then(|| CStr::from_ptr(data).to_string_lossy().into_owned())
        });
        mlx_sys::mlx_string_free(text);
        version.flatten()
    }
}

/// Whether this is MLX's CUDA build and it found a GPU.
pub(super) fn cuda_is_available() -> bool {
    let mut available = false;
    // SAFETY: writes one bool.
    let status = unsafe { mlx_sys::mlx_cuda_is_available(&raw mut available) };
    status == 0 && available
}
