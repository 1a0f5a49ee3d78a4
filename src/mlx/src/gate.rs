//! Fused gate of a feed-forward block, as one GPU kernel. MLX needs three operations (SiLU) to nine
//! (GELU). With few tokens, the cost of each operation is that of a kernel launch.
#![expect(unsafe_code, reason = "runs a kernel after a check of the shapes")]

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype};

use super::backend::Backend;
use super::kernel::{Kernel, LANES, Launch, Source};
use rooflet_model::config::Activation;

/// Rows (`line`) of the grid in one thread group.
const LINES: i32 = 4;

/// Elements per thread.
const PARTS: i32 = 4;

/// Elements per thread group.
const GROUP: i32 = LANES * LINES * PARTS;

fn name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "gate_silu",
        Activation::GeluTanh => "gate_gelu",
        Activation::ClampedSilu { .. } => "gate_clamped_silu",
    }
}

/// Returns the formula of the gated value in float32, from the gate `x` and the up projection `y`.
fn formula(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "y * x / (1 + exponential(-x))",
        Activation::GeluTanh => {
            "y * x * 0.5f * (1 + hyperbolic_tangent(0.7978845608f * (x + 0.044715f * x * x * x)))"
        }
        Activation::ClampedSilu { .. } => "(y + 1) * x / (1 + exponential(-1.702f * x))",
    }
}

/// Returns the upper bound of the gate, which is also the bound of the magnitude of the up
/// projection.
fn limit(activation: Activation) -> f32 {
    match activation {
        Activation::Silu | Activation::GeluTanh => f32::INFINITY,
        Activation::ClampedSilu { limit } => limit,
    }
}

/// Fused gate kernel for one activation and element type.
#[derive(Debug)]
pub struct GateKernel {
    kernel: Kernel,
    limit: Array,
    float: Dtype,
}

impl GateKernel {
    /// Returns `None` without a GPU, and for SiLU on CUDA: MLX's three operations are as fast
    /// there, and the compilation of a kernel lasts seconds. MLX compiles the kernel on its first
    /// run.
    pub fn new(backend: Backend, activation: Activation, float: Dtype) -> Result<Option<Self>> {
        if backend == Backend::Cuda && activation == Activation::Silu {
            return Ok(None);
        }
        let text = format!(
            "int count = 1;
            for (int dimension = 0; dimension < gate_ndim; ++dimension) {{
              count *= gate_shape[dimension];
            }}
            const float most = limit[0];
            for (int part = 0; part < {PARTS}; ++part) {{
              const int at = ((place * {LINES} + line) * {PARTS} + part) * 32 + lane;
              if (at < count) {{
                float x = float(gate[at]);
                float y = float(up[at]);
                x = x > most ? most : x;
                y = y > most ? most : y < -most ? -most : y;
                gated[at] = static_cast<Float>({});
              }}
            }}",
            formula(activation)
        );
        let source = Source {
            name: name(activation),
            inputs: &["gate", "up", "limit"],
            outputs: &["gated"],
            constants: &[],
            header: "",
            text: &text,
        };
        let kernel = Kernel::new(backend, float, &source)?;
        Ok(kernel.map(|kernel| Self {
            kernel,
            limit: Array::from_slice(&[limit(activation)], &[1]),
            float,
        }))
    }

    /// Applies the gate to `gate` and `up`, which must have the same shape. Lazy.
    pub fn apply(&self, gate: &Array, up: &Array) -> Result<Array> {
        let count = gate
            .shape()
            .iter()
            .try_fold(1_i32, |count, dimension| count.checked_mul(*dimension));
        // The thread indices round up to a whole group and must not overflow.
        let sizes = 1..i32::MAX - GROUP;
        let fits = |count: &i32| sizes.contains(count) && gate.shape() == up.shape() && gate.ndim() > 0;
        let Some(count) = count.filter(fits) else {
            return Err(Exception::custom(
                "gate and up projection must have the same shape, with 1 to 2^31 elements",
            ));
        };
        let launch = Launch {
            places: (count - 1) / GROUP + 1,
            lines: LINES,
            outputs: vec![(gate.shape().to_vec(), self.float)],
        };
        // SAFETY: both inputs and the output have `count` elements, and a thread reads and writes
        // only elements below `count`.
        let gated = unsafe { self.kernel.run(&[gate, up, &self.limit], &launch)? };
        gated
            .into_iter()
            .next()
            .ok_or_else(|| Exception::custom("a kernel returned no output"))
    }
}
