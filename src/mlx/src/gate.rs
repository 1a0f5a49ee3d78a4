//! A feed-forward block's gate in one kernel for a GPU, where it is three operations of MLX's
//! (SiLU) to nine (GELU), each as long as the launch of a kernel is where there are few tokens.
#![expect(unsafe_code, reason = "a kernel is run here, behind a check of shapes")]

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype};

use super::backend::Backend;
use super::kernel::{Kernel, LANES, Launch, Source};
use rooflet_model::config::Activation;

/// Lines whose threads share a group.
const LINES: i32 = 4;

/// Numbers of one thread.
const PARTS: i32 = 4;

/// Numbers of the threads that share a group.
const GROUP: i32 = LANES * LINES * PARTS;

fn name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "gate_silu",
        Activation::GeluTanh => "gate_gelu",
        Activation::ClampedSilu { .. } => "gate_clamped_silu",
    }
}

/// Of a gate `x` and what comes up, `y`, in float32.
fn formula(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "y * x / (1 + exponential(-x))",
        Activation::GeluTanh => {
            "y * x * 0.5f * (1 + hyperbolic_tangent(0.7978845608f * (x + 0.044715f * x * x * x)))"
        }
        Activation::ClampedSilu { .. } => "(y + 1) * x / (1 + exponential(-1.702f * x))",
    }
}

/// The largest gate, and the largest and the smallest of what comes up.
fn limit(activation: Activation) -> f32 {
    match activation {
        Activation::Silu | Activation::GeluTanh => f32::INFINITY,
        Activation::ClampedSilu { limit } => limit,
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct GateKernel {
    kernel: Kernel,
    limit: Array,
    float: Dtype,
}

impl GateKernel {
    /// `None` where there is no GPU, and on CUDA for SiLU: there its three operations are no
    /// slower, and compiling a kernel takes seconds. Compiled when it is first run.
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

    /// Of gate and up, which have one shape. Lazy.
    pub fn apply(&self, gate: &Array, up: &Array) -> Result<Array> {
        let count = gate
            .shape()
            .iter()
            .try_fold(1_i32, |count, dimension| count.checked_mul(*dimension));
        // Threads beyond the last number count on.
        let sizes = 1..i32::MAX - GROUP;
        let fits = |count: &i32| sizes.contains(count) && gate.shape() == up.shape() && gate.ndim() > 0;
        let Some(count) = count.filter(fits) else {
            return Err(Exception::custom("a gate of another shape than what comes up"));
        };
        let launch = Launch {
            places: (count - 1) / GROUP + 1,
            lines: LINES,
            outputs: vec![(gate.shape().to_vec(), self.float)],
        };
        // SAFETY: both inputs and the output have `count` numbers, and each thread writes some of them or none.
        let gated = unsafe { self.kernel.run(&[gate, up, &self.limit], &launch)? };
        gated
            .into_iter()
            .next()
            .ok_or_else(|| Exception::custom("a kernel that wrote nothing"))
    }
}
