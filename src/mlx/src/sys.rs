//! The few calls that mlx-rs does not offer.
#![expect(unsafe_code, reason = "the island for MLX's C interface")]

use std::ffi::CStr;

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype, Stream};

use super::quantized::QuantizedMatrix;
use rooflet_base::environment::is_set;

/// CUDA graphs that MLX keeps, in place of its 400: every number of rows and length of caches makes
/// others, and with sixteen streams MLX gave up computing ("cache thrashing") on an H200. 4096 were
/// enough there.
const CUDA_GRAPHS: &str = "4096";

/// Settings of MLX's that are read from the environment, where the user has not chosen. To be
/// called before there is a second thread.
#[expect(
    clippy::disallowed_methods,
    reason = "MLX offers no call for it, and a worker is started by hand, too; there is one thread yet"
)]
pub(super) fn set_environment() {
    const NAME: &str = "MLX_CUDA_GRAPH_CACHE_SIZE";
    if !is_set(NAME) {
        // SAFETY: nobody reads the environment at the same time, as the caller promises.
        unsafe { std::env::set_var(NAME, CUDA_GRAPHS) };
    }
}

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

/// `buffer` with `part` at `start` of its third dimension of four, in place where nobody else holds
/// the buffer. One operation, where indexing adds two that change nothing, for every row, layer and
/// step.
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
    // SAFETY: the three pointers are to four integers each, as their lengths say, and MLX copies them; arrays and stream
    // outlive the call; the result is owned by the returned `Array`, and freed with it also after
    // an error.
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
            Err(Exception::custom("MLX refused to extend the cache"))
        }
    }
}

/// A copy of these bytes, which are numbers of type `dtype`, as an array.
pub(super) fn from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array> {
    let count: Option<usize> = shape.iter().try_fold(1_usize, |count, size| {
        count.checked_mul(usize::try_from(*size).ok()?)
    });
    let size = if matches!(dtype, Dtype::Float32 | Dtype::Uint32) {
        4
    } else if matches!(dtype, Dtype::Float16 | Dtype::Bfloat16) {
        2
    } else {
        return Err(Exception::custom("numbers of a type that is not read from bytes"));
    };
    if count.and_then(|count| count.checked_mul(size)) != Some(bytes.len()) {
        return Err(Exception::custom("bytes of another shape"));
    }
    if !bytes.as_ptr().addr().is_multiple_of(size) {
        return Err(Exception::custom("numbers that are not aligned"));
    }
    // SAFETY: there are as many numbers as the shape says, aligned as their type asks, and any bits are a number of each
    // type; MLX copies them before it returns.
    Ok(unsafe { Array::from_raw_data(bytes.as_ptr().cast(), shape, dtype) })
}

/// The numbers of an array whose rows follow one another, as they are in memory. Waits until it has
/// been computed, and for nothing else.
pub(super) fn bytes_of(array: &Array) -> Result<&[u8]> {
    array.eval()?;
    let mut contiguous = false;
    // SAFETY: the array outlives the call, which writes a bool.
    let status = unsafe { mlx_sys::_mlx_array_is_row_contiguous(&raw mut contiguous, array.as_ptr()) };
    if status != 0 || !contiguous {
        return Err(Exception::custom("an array whose rows lie apart"));
    }
    let count = array.nbytes();
    // SAFETY: the array has been computed. It has a pointer to its first number then, whatever its type is.
    let data = unsafe { mlx_sys::mlx_array_data_uint8(array.as_ptr()) };
    if data.is_null() || count == 0 {
        return Ok(&[]);
    }
    // SAFETY: so many bytes follow one another there; they are the array's, which is borrowed, and nobody writes to what
    // has been computed.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

fn some(value: i32) -> mlx_sys::mlx_optional_int {
    mlx_sys::mlx_optional_int {
        value,
        has_value: true,
    }
}

/// What MLX takes for a matrix's offsets; an array without contents stands for none.
fn biases(matrix: &QuantizedMatrix) -> mlx_sys::mlx_array {
    match &matrix.biases {
        Some(biases) => biases.as_ptr(),
        // SAFETY: makes a value that points to nothing.
        None => unsafe { mlx_sys::mlx_array_new() },
    }
}

/// `x · matrixᵀ`, in a mode of choice, which mlx-rs leaves at affine.
pub(super) fn quantized_matmul(x: &Array, matrix: &QuantizedMatrix) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: arrays, the mode's name and stream outlive the call; the result
    // is owned by the returned `Array`, and freed with it also after an error.
    unsafe {
        let mut product = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_quantized_matmul(
            &raw mut product,
            x.as_ptr(),
            matrix.weight.as_ptr(),
            matrix.scales.as_ptr(),
            biases(matrix),
            true,
            some(matrix.group_size),
            some(matrix.bits),
            matrix.mode.as_ptr(),
            stream.as_ptr(),
        );
        taken(product, status, "MLX refused a product with a quantised matrix")
    }
}

/// `x · matrixᵀ` with one matrix of a stack for each of `indices`.
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
            some(stack.group_size),
            some(stack.bits),
            stack.mode.as_ptr(),
            sorted,
            stream.as_ptr(),
        );
        taken(product, status, "MLX refused a product with quantised experts")
    }
}

/// The matrix in floats, of the type that MLX gives its mode.
pub(super) fn dequantize(matrix: &QuantizedMatrix) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: as above; without a value, the type is not read.
    unsafe {
        let mut floats = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_dequantize(
            &raw mut floats,
            matrix.weight.as_ptr(),
            matrix.scales.as_ptr(),
            biases(matrix),
            some(matrix.group_size),
            some(matrix.bits),
            matrix.mode.as_ptr(),
            mlx_sys::mlx_array_new(),
            mlx_sys::mlx_optional_dtype {
                value: mlx_sys::mlx_dtype__MLX_FLOAT32,
                has_value: false,
            },
            stream.as_ptr(),
        );
        taken(floats, status, "MLX refused to unpack a quantised matrix")
    }
}

/// The array that an operation wrote, or its failure.
///
/// # Safety
/// `array` must be the result of an operation and in nobody else's hands.
unsafe fn taken(array: mlx_sys::mlx_array, status: i32, failure: &'static str) -> Result<Array> {
    // SAFETY: the caller's promise.
    let array = unsafe { Array::from_ptr(array) };
    if status == 0 {
        Ok(array)
    } else {
        Err(Exception::custom(failure))
    }
}
