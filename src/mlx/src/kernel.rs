//! Custom GPU kernels, in the subset of C++ that the Metal and CUDA dialects share. MLX compiles a
//! kernel on its first run and caches it by name.
#![expect(unsafe_code, reason = "calls MLX's C interface for custom kernels")]

use std::ffi::{CString, c_char};

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype};

use super::backend::Backend;

#[cfg(test)]
mod metal_tests;

/// Threads that run in lockstep and share a sum instruction: a SIMD group in Metal, a warp in CUDA.
pub(super) const LANES: i32 = 32;

/// Definitions that kernel sources use on every backend. `lane`, `place` and `line` are the indices
/// of a thread: `LANES` threads share a `place` and a `line`, and the grid is places by lines.
/// `sum_of_lanes(x)` is the sum over these threads.
const METAL_HEADER: &str = "
#define sum_of_lanes(x) simd_sum(x)
#define exponential(x) metal::precise::exp(x)
#define logarithm(x) metal::precise::log(x)
#define hyperbolic_tangent(x) metal::precise::tanh(x)
#define inverse_root(x) metal::precise::rsqrt(x)
";
const METAL_PLACE: &str = "
const int lane = thread_position_in_threadgroup.x;
const int place = thread_position_in_grid.x / 32;
const int line = thread_position_in_grid.y;
";
const CUDA_HEADER: &str = "
__device__ inline float sum_of_lanes(float x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}
#define exponential(x) expf(x)
#define logarithm(x) logf(x)
#define hyperbolic_tangent(x) tanhf(x)
#define inverse_root(x) rsqrtf(x)
";
const CUDA_PLACE: &str = "
const int lane = threadIdx.x;
const int place = blockIdx.x;
const int line = blockIdx.y * blockDim.y + threadIdx.y;
";

/// Source of a kernel with its inputs and outputs.
#[derive(Debug)]
pub(super) struct Source<'a> {
    /// Unique name: MLX caches compiled kernels by it.
    pub(super) name: &'a str,
    pub(super) inputs: &'a [&'a str],
    pub(super) outputs: &'a [&'a str],
    /// Compile-time integer constants.
    pub(super) constants: &'a [(&'a str, i32)],
    /// Macro definitions.
    pub(super) header: &'a str,
    pub(super) text: &'a str,
}

/// Kernel that can be run. `Float` in its source is the element type that it was created for.
#[derive(Debug)]
pub(super) struct Kernel {
    raw: Raw,
    float: Dtype,
    constants: Vec<(CString, i32)>,
    outputs: usize,
}

#[derive(Debug)]
enum Raw {
    Metal(metal::Raw),
    Cuda(cuda::Raw),
    /// A Metal kernel whose text a test records.
    #[cfg(test)]
    Text(metal_tests::Text),
}

/// Grid size and output shapes of one run.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) places: i32,
    pub(super) lines: i32,
    pub(super) outputs: Vec<(Vec<i32>, Dtype)>,
}

/// Rows (`line`) of the grid in one thread group.
const LINES_OF_GROUP: i32 = 4;

impl Kernel {
    /// Returns `None` without a GPU.
    pub(super) fn new(backend: Backend, float: Dtype, source: &Source<'_>) -> Result<Option<Self>> {
        let raw = match backend {
            Backend::Cpu => return Ok(None),
            #[cfg(test)]
            Backend::Metal if metal_tests::is_recording() => Raw::Text(metal_tests::Text::new(source)),
            Backend::Metal => Raw::Metal(metal::Raw::new(source, METAL_HEADER, METAL_PLACE)?),
            Backend::Cuda => Raw::Cuda(cuda::Raw::new(source, CUDA_HEADER, CUDA_PLACE)?),
        };
        let constants = source.constants.iter();
        let constants = constants.map(|(name, value)| Ok((c_string(name)?, *value)));
        Ok(Some(Self {
            raw,
            float,
            constants: constants.collect::<Result<_>>()?,
            outputs: source.outputs.len(),
        }))
    }

    /// Runs the kernel and returns its outputs. Lazy.
    ///
    /// # Safety
    /// With these inputs and outputs of these shapes, the kernel must stay within its buffers and
    /// write every element of the outputs exactly once. MLX copies inputs that are not contiguous.
    pub(super) unsafe fn run(&self, inputs: &[&Array], launch: &Launch) -> Result<Vec<Array>> {
        if launch.outputs.len() != self.outputs || launch.places < 1 || launch.lines < 1 {
            return Err(Exception::custom(
                "the number of outputs does not match the kernel, or the grid is empty",
            ));
        }
        if launch.places.checked_mul(LANES).is_none() {
            return Err(Exception::custom("the grid has too many threads"));
        }
        match &self.raw {
            // SAFETY: guaranteed by the caller.
            Raw::Metal(raw) => unsafe { raw.run(self, inputs, launch) },
            // SAFETY: as above.
            Raw::Cuda(raw) => unsafe { raw.run(self, inputs, launch) },
            #[cfg(test)]
            Raw::Text(text) => text.run(self, inputs, launch),
        }
    }
}

/// Wraps MLX's two sets of calls, which differ only in the last argument of the constructor.
macro_rules! calls {
    ($module:ident, $last:expr, $kernel:ident: $new:ident, $free:ident, $apply:ident; $config:ident: $new_config:ident,
     $free_config:ident, $output:ident, $grid:ident, $group:ident, $float:ident, $constant:ident) => {
        mod $module {
            use mlx_rs::error::{Exception, Result};
            use mlx_rs::{Array, Stream};

            use super::{Kernel, LANES, LINES_OF_GROUP, Launch, Source, Strings, c_string};

            #[derive(Debug)]
            pub(super) struct Raw(mlx_sys::$kernel);

            impl Raw {
                pub(super) fn new(source: &Source<'_>, header: &str, place: &str) -> Result<Self> {
                    let text = c_string(&format!("{place}{}", source.text))?;
                    let header = c_string(&format!("{header}{}", source.header))?;
                    let name = c_string(source.name)?;
                    let (inputs, outputs) = (Strings::new(source.inputs)?, Strings::new(source.outputs)?);
                    // SAFETY: the strings outlive the call, which copies them.
                    let raw = unsafe {
                        mlx_sys::$new(
                            name.as_ptr(),
                            inputs.0,
                            outputs.0,
                            text.as_ptr(),
                            header.as_ptr(),
                            true,
                            $last,
                        )
                    };
                    match raw.ctx.is_null() {
                        true => Err(Exception::custom("MLX rejected a kernel")),
                        false => Ok(Self(raw)),
                    }
                }

                /// # Safety
                /// See [`Kernel::run`].
                pub(super) unsafe fn run(
                    &self,
                    kernel: &Kernel,
                    inputs: &[&Array],
                    launch: &Launch,
                ) -> Result<Vec<Array>> {
                    let inputs: Vec<mlx_sys::mlx_array> = inputs.iter().map(|input| input.as_ptr()).collect();
                    let stream = Stream::thread_local_or_default();
                    let lines = launch.lines;
                    // SAFETY: the configuration, arrays, names and stream outlive the calls, which
                    // copy their arguments. Each array of the results is owned by an `Array`. The
                    // vectors are freed here.
                    unsafe {
                        let config = Config(mlx_sys::$new_config());
                        let mut status = i32::from(config.0.ctx.is_null());
                        for (shape, dtype) in &launch.outputs {
                            status |=
                                mlx_sys::$output(config.0, shape.as_ptr(), shape.len(), (*dtype).into());
                        }
                        status |= mlx_sys::$grid(config.0, launch.places * LANES, lines, 1);
                        status |= mlx_sys::$group(config.0, LANES, LINES_OF_GROUP.min(lines), 1);
                        status |= mlx_sys::$float(config.0, c"Float".as_ptr(), kernel.float.into());
                        for (name, value) in &kernel.constants {
                            status |= mlx_sys::$constant(config.0, name.as_ptr(), *value);
                        }
                        if status != 0 {
                            return Err(Exception::custom(
                                "MLX rejected the launch configuration of a kernel",
                            ));
                        }
                        let inputs = mlx_sys::mlx_vector_array_new_data(inputs.as_ptr(), inputs.len());
                        let mut written = mlx_sys::mlx_vector_array_new();
                        let status =
                            mlx_sys::$apply(&raw mut written, self.0, inputs, config.0, stream.as_ptr());
                        let mut arrays = Vec::with_capacity(launch.outputs.len());
                        if status == 0 {
                            for index in 0..mlx_sys::mlx_vector_array_size(written) {
                                let mut array = mlx_sys::mlx_array_new();
                                mlx_sys::mlx_vector_array_get(&raw mut array, written, index);
                                arrays.push(Array::from_ptr(array));
                            }
                        }
                        mlx_sys::mlx_vector_array_free(inputs);
                        mlx_sys::mlx_vector_array_free(written);
                        match arrays.len() == launch.outputs.len() {
                            true => Ok(arrays),
                            false => Err(Exception::custom("MLX failed to run a kernel")),
                        }
                    }
                }
            }

            impl Drop for Raw {
                fn drop(&mut self) {
                    // SAFETY: created by `new`, and freed once.
                    unsafe { mlx_sys::$free(self.0) };
                }
            }

            struct Config(mlx_sys::$config);

            impl Drop for Config {
                fn drop(&mut self) {
                    // SAFETY: created by `run`, and freed once.
                    unsafe { mlx_sys::$free_config(self.0) };
                }
            }
        }
    };
}

calls!(metal, false, mlx_fast_metal_kernel: mlx_fast_metal_kernel_new, mlx_fast_metal_kernel_free,
    mlx_fast_metal_kernel_apply; mlx_fast_metal_kernel_config: mlx_fast_metal_kernel_config_new,
    mlx_fast_metal_kernel_config_free, mlx_fast_metal_kernel_config_add_output_arg,
    mlx_fast_metal_kernel_config_set_grid, mlx_fast_metal_kernel_config_set_thread_group,
    mlx_fast_metal_kernel_config_add_template_arg_dtype, mlx_fast_metal_kernel_config_add_template_arg_int);
calls!(cuda, 0, mlx_fast_cuda_kernel: mlx_fast_cuda_kernel_new, mlx_fast_cuda_kernel_free,
    mlx_fast_cuda_kernel_apply; mlx_fast_cuda_kernel_config: mlx_fast_cuda_kernel_config_new,
    mlx_fast_cuda_kernel_config_free, mlx_fast_cuda_kernel_config_add_output_arg,
    mlx_fast_cuda_kernel_config_set_grid, mlx_fast_cuda_kernel_config_set_thread_group,
    mlx_fast_cuda_kernel_config_add_template_arg_dtype, mlx_fast_cuda_kernel_config_add_template_arg_int);

struct Strings(mlx_sys::mlx_vector_string);

impl Strings {
    fn new(strings: &[&str]) -> Result<Self> {
        let strings = strings.iter().map(|string| c_string(string));
        let strings = strings.collect::<Result<Vec<_>>>()?;
        let mut pointers: Vec<*const c_char> = strings.iter().map(|string| string.as_ptr()).collect();
        // SAFETY: the strings outlive the call, which copies them.
        let raw = unsafe { mlx_sys::mlx_vector_string_new_data(pointers.as_mut_ptr(), pointers.len()) };
        match raw.ctx.is_null() {
            true => Err(Exception::custom("MLX rejected the argument names of a kernel")),
            false => Ok(Self(raw)),
        }
    }
}

impl Drop for Strings {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and freed once.
        unsafe { mlx_sys::mlx_vector_string_free(self.0) };
    }
}

/// Converts text for MLX. Metal accepts ASCII only, and terminates the process on anything else.
fn c_string(text: &str) -> Result<CString> {
    if !text.is_ascii() {
        return Err(Exception::custom("the source of a kernel must be ASCII"));
    }
    CString::new(text).map_err(|err| Exception::custom(err.to_string()))
}
