//! Calls of MLX's C interface that mlx-rs does not wrap.
#![expect(unsafe_code, reason = "calls MLX's C interface")]

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype, Stream};

use super::quantized::QuantizedMatrix;
use rooflet_base::environment::is_set;

/// Size of MLX's cache of CUDA graphs, instead of the default of 400. Every number of rows and
/// every cache length needs its own graph. With sixteen sequences on an H200, MLX failed with
/// "cache thrashing" at the default; 4096 was sufficient.
const CUDA_GRAPHS: &str = "4096";

/// Sets environment variables of MLX that the user has not set. Must be called before the process
/// starts a second thread.
#[expect(
    clippy::disallowed_methods,
    reason = "MLX has no call for this setting, workers also run without the agent, and there is only one thread yet"
)]
pub(super) fn set_environment() {
    const NAME: &str = "MLX_CUDA_GRAPH_CACHE_SIZE";
    if !is_set(NAME) {
        // SAFETY: the caller guarantees that there is no other thread, so nothing reads the
        // environment meanwhile.
        unsafe { std::env::set_var(NAME, CUDA_GRAPHS) };
    }
}

/// Sets the file of Metal kernels that MLX uses. No effect without a Metal backend.
pub(super) fn set_metallib(path: &Path) {
    if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
        // SAFETY: MLX copies the C string. The call cannot fail: it assigns to a string.
        unsafe { mlx_sys::mlx_metal_set_metallib_path(path.as_ptr()) };
    }
}

/// Returns the version of the loaded MLX library, which may differ from the version at build time.
pub(super) fn version() -> Option<String> {
    // SAFETY: the string is created and freed here. `mlx_version` only assigns to it. Its data is a
    // C string that is valid until the string is freed.
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

/// Returns true if MLX has a CUDA backend and found a GPU.
pub(super) fn cuda_is_available() -> bool {
    let mut available = false;
    // SAFETY: the call writes one bool.
    let status = unsafe { mlx_sys::mlx_cuda_is_available(&raw mut available) };
    status == 0 && available
}

/// Writes `part` into the third of four dimensions of `buffer`, from `start` on. The write is in
/// place if the caller holds the only reference to the buffer. This is one operation, whereas
/// indexing adds two copies for every row, layer and step.
pub(super) fn put_tokens(buffer: Array, part: &Array, start: i32) -> Result<Array> {
    let (&[rows, heads, capacity, size], &[part_rows, part_heads, tokens, part_size]) =
        (buffer.shape(), part.shape())
    else {
        return Err(Exception::custom("keys and values have four dimensions"));
    };
    if (rows, heads, size) != (part_rows, part_heads, part_size) || start < 0 || start + tokens > capacity {
        return Err(Exception::custom(
            "the new keys or values do not fit into the cache",
        ));
    }
    let from = [0, 0, start, 0];
    let to = [rows, heads, start + tokens, size];
    let stride = [1; 4];
    let stream = Stream::thread_local_or_default();
    // SAFETY: each pointer refers to four integers, as the lengths state, and MLX copies them. The
    // arrays and the stream outlive the call. The returned `Array` owns the result, which is freed
    // with it even after an error.
    unsafe {
        let mut updated = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_slice_update(
            &raw mut updated,
            buffer.as_ptr(),
            part.as_ptr(),
            from.as_ptr(),
            from.len(),
            to.as_ptr(),
            to.len(),
            stride.as_ptr(),
            stride.len(),
            stream.as_ptr(),
        );
        let updated = Array::from_ptr(updated);
        if status == 0 {
            Ok(updated)
        } else {
            Err(Exception::custom("MLX failed to extend the cache"))
        }
    }
}

/// Copies bytes, which are elements of type `dtype`, into an array.
pub(super) fn from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array> {
    let count: Option<usize> = shape.iter().try_fold(1_usize, |count, size| {
        count.checked_mul(usize::try_from(*size).ok()?)
    });
    let size = if matches!(dtype, Dtype::Float32 | Dtype::Uint32) {
        4
    } else if matches!(dtype, Dtype::Float16 | Dtype::Bfloat16) {
        2
    } else {
        return Err(Exception::custom(
            "arrays of this element type cannot be created from bytes",
        ));
    };
    if count.and_then(|count| count.checked_mul(size)) != Some(bytes.len()) {
        return Err(Exception::custom(
            "the number of bytes does not match the shape of the array",
        ));
    }
    if !bytes.as_ptr().addr().is_multiple_of(size) {
        return Err(Exception::custom("the bytes are not aligned to the element type"));
    }
    // SAFETY: the number of elements matches the shape, the pointer is aligned for the type, and
    // all bit patterns are valid for each type. MLX copies the elements before it returns.
    Ok(unsafe { Array::from_raw_data(bytes.as_ptr().cast(), shape, dtype) })
}

/// Returns the memory of a row-contiguous array. Waits until the array is computed, but not for
/// other work of the device.
pub(super) fn bytes_of(array: &Array) -> Result<&[u8]> {
    array.eval()?;
    let mut contiguous = false;
    // SAFETY: the array outlives the call, which writes one bool.
    let status = unsafe { mlx_sys::_mlx_array_is_row_contiguous(&raw mut contiguous, array.as_ptr()) };
    if status != 0 || !contiguous {
        return Err(Exception::custom("the array is not row-contiguous"));
    }
    let count = array.nbytes();
    // SAFETY: the array is evaluated, so it has a pointer to its first element, whatever its type
    // is.
    let data = unsafe { mlx_sys::mlx_array_data_uint8(array.as_ptr()) };
    if data.is_null() || count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the array is contiguous and has `count` bytes. The slice borrows the array, and MLX
    // does not write to evaluated arrays.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

fn optional_int(value: i32) -> mlx_sys::mlx_optional_int {
    mlx_sys::mlx_optional_int {
        value,
        has_value: true,
    }
}

/// Returns the handle of a matrix's offsets. MLX treats an empty array as absent.
fn biases(matrix: &QuantizedMatrix) -> mlx_sys::mlx_array {
    match &matrix.biases {
        Some(biases) => biases.as_ptr(),
        // SAFETY: creates an empty handle.
        None => unsafe { mlx_sys::mlx_array_new() },
    }
}

/// Computes `x · matrixᵀ` in the matrix's mode. The function of mlx-rs supports the affine mode
/// only.
pub(super) fn quantized_matmul(x: &Array, matrix: &QuantizedMatrix) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: the arrays, the mode's name and the stream outlive the call. The returned `Array`
    // owns the result, which is freed with it even after an error.
    unsafe {
        let mut product = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_quantized_matmul(
            &raw mut product,
            x.as_ptr(),
            matrix.weight.as_ptr(),
            matrix.scales.as_ptr(),
            biases(matrix),
            true,
            optional_int(matrix.group_size),
            optional_int(matrix.bits),
            matrix.mode.as_ptr(),
            stream.as_ptr(),
        );
        owned(product, status, "MLX failed to multiply by a quantised matrix")
    }
}

/// Computes `x · matrixᵀ` with one matrix of a stack for each element of `indices`.
pub(super) fn gather_quantized_matmul(
    x: &Array,
    stack: &QuantizedMatrix,
    indices: &Array,
    sorted: bool,
) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: as above.
    unsafe {
        let mut product = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_gather_qmm(
            &raw mut product,
            x.as_ptr(),
            stack.weight.as_ptr(),
            stack.scales.as_ptr(),
            biases(stack),
            mlx_sys::mlx_array_new(),
            indices.as_ptr(),
            true,
            optional_int(stack.group_size),
            optional_int(stack.bits),
            stack.mode.as_ptr(),
            sorted,
            stream.as_ptr(),
        );
        owned(
            product,
            status,
            "MLX failed to multiply by a stack of quantised matrices",
        )
    }
}

/// Dequantises the matrix into MLX's element type for its mode.
pub(super) fn dequantize(matrix: &QuantizedMatrix) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: as above. MLX does not read the type if it has no value.
    unsafe {
        let mut floats = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_dequantize(
            &raw mut floats,
            matrix.weight.as_ptr(),
            matrix.scales.as_ptr(),
            biases(matrix),
            optional_int(matrix.group_size),
            optional_int(matrix.bits),
            matrix.mode.as_ptr(),
            mlx_sys::mlx_array_new(),
            mlx_sys::mlx_optional_dtype {
                value: mlx_sys::mlx_dtype__MLX_FLOAT32,
                has_value: false,
            },
            stream.as_ptr(),
        );
        owned(floats, status, "MLX failed to dequantise a matrix")
    }
}

/// Takes ownership of an operation's result and returns it, or an error if the operation failed.
///
/// # Safety
/// `array` must be the result of an operation, and no other handle may own it.
unsafe fn owned(array: mlx_sys::mlx_array, status: i32, failure: &'static str) -> Result<Array> {
    // SAFETY: guaranteed by the caller.
    let array = unsafe { Array::from_ptr(array) };
    if status == 0 {
        Ok(array)
    } else {
        Err(Exception::custom(failure))
    }
}
