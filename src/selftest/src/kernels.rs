//! Kernels of rooflet and products of MLX against references.

use rooflet_mlx::backend::Backend;
use rooflet_mlx::gate::GateKernel;
use rooflet_mlx::gated_delta::{Dimensions, GatedDeltaKernels};
use rooflet_mlx::kernel_cases::{
    ACTIVATIONS, FLOATS, GATE_SHAPES, GATED_DELTA_DIMENSIONS, GATED_DELTA_SIZES,
};
use rooflet_mlx::kernel_check::check_kernels;
use rooflet_mlx::load::dtype;
use rooflet_mlx::mlx_rs::Dtype;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_model::config::{Activation, FloatType};

use super::check::{Check, Group, Status};
use super::models::type_name;
use rooflet_decoder::feed_forward;
use rooflet_decoder::gated_delta::Operations;
use rooflet_decoder::kernels::Difference;
use rooflet_decoder::replay::larger;

/// Numbers of rows and tokens for the rule in chunks: fewer tokens than a chunk has, and several
/// chunks of which the last is incomplete.
const CHUNKED_SIZES: [(i32, i32); 2] = [(2, 7), (1, 150)];

/// Returns the largest permitted difference of the rule in chunks from the rule token by token, as
/// a share of the largest value. A GPU may round the factors of float32 products to 10 bits (TF32).
fn chunk_tolerance(backend: Backend) -> f32 {
    match backend {
        Backend::Cpu => 1e-4,
        Backend::Metal | Backend::Cuda => 5e-3,
    }
}

/// Returns the largest permitted difference of a kernel from MLX's operations in float32, as a
/// share of the largest value. The kernels compute in float32 and round their results, some of them
/// twice.
fn tolerance(float: FloatType) -> f32 {
    match float {
        FloatType::BF16 => 0.02,
        FloatType::F16 => 3e-3,
        FloatType::F32 => 1e-4,
    }
}

/// Compares all kernels in each element type.
pub(super) fn run(backend: Backend, report: &mut dyn FnMut(Check)) {
    products(report);
    report(chunks(backend));
    for activation in ACTIVATIONS {
        for float in FLOATS {
            report(gate(backend, activation, float));
        }
    }
    for float in FLOATS {
        report(gated_delta(backend, float));
    }
}

/// Compares products of MLX with sums in double precision.
fn products(report: &mut dyn FnMut(Check)) {
    match check_kernels() {
        Err(err) => report(Check::failed(Group::Kernels, "products", err)),
        Ok(products) => {
            for product in products {
                let (difference, tolerance) = (product.error as f32, product.tolerance as f32);
                let finding = "MLX, compared with sums in double precision";
                report(Check::of_difference(
                    Group::Kernels,
                    product.name,
                    difference,
                    tolerance,
                    finding,
                ));
            }
        }
    }
}

fn chunks(backend: Backend) -> Check {
    let compare = || {
        let mut worst = Worst::default();
        for dimensions in GATED_DELTA_DIMENSIONS {
            let operations = Operations::random(dimensions, Dtype::Float32)?;
            for size in CHUNKED_SIZES {
                worst.add(operations.differences_of_chunks(size)?);
            }
        }
        Ok(Some(worst))
    };
    let name = "gated delta rule in chunks in float32".to_owned();
    check(
        name,
        chunk_tolerance(backend),
        "the rule token by token",
        compare(),
    )
}

fn gate(backend: Backend, activation: Activation, float: FloatType) -> Check {
    let name = format!("{} in {}", gate_name(activation), type_name(float));
    let compare = || {
        let Some(kernel) = GateKernel::new(backend, activation, dtype(float))? else {
            return Ok(None);
        };
        let mut worst = Worst::default();
        for shape in GATE_SHAPES {
            let difference = feed_forward::difference(&kernel, activation, shape, dtype(float))?;
            worst.add([("gated values", difference)]);
        }
        Ok(Some(worst))
    };
    check(name, tolerance(float), "MLX's operations", compare())
}

fn gate_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "SiLU gate",
        Activation::GeluTanh => "GELU gate",
        Activation::ClampedSilu { .. } => "clamped SiLU gate",
    }
}

fn gated_delta(backend: Backend, float: FloatType) -> Check {
    let name = format!("gated delta rule in {}", type_name(float));
    let compare = || {
        let mut worst = Worst::default();
        for dimensions in GATED_DELTA_DIMENSIONS {
            let Some(kernels) = GatedDeltaKernels::new(backend, dimensions, dtype(float))? else {
                return Ok(None);
            };
            worst.add_sizes(dimensions, float, &kernels)?;
        }
        Ok(Some(worst))
    };
    check(name, tolerance(float), "MLX's operations", compare())
}

/// Largest difference of several comparisons.
#[derive(Debug, Default)]
struct Worst {
    difference: f32,
    comparisons: usize,
}

impl Worst {
    fn add(&mut self, differences: impl IntoIterator<Item = (&'static str, Difference)>) {
        for (_, difference) in differences {
            self.difference = larger(self.difference, difference.most());
            self.comparisons += 1;
        }
    }

    fn add_sizes(
        &mut self,
        dimensions: Dimensions,
        float: FloatType,
        kernels: &GatedDeltaKernels,
    ) -> Result<()> {
        let operations = Operations::random(dimensions, dtype(float))?;
        for size in GATED_DELTA_SIZES {
            self.add(operations.differences(kernels, size)?);
        }
        Ok(())
    }
}

/// Returns the check of the worst difference. `compared` is `None` if the backend has no such
/// kernel.
fn check(name: String, tolerance: f32, reference: &str, compared: Result<Option<Worst>>) -> Check {
    match compared {
        Err(err) => Check::failed(Group::Kernels, name, err),
        Ok(None) => Check::new(
            Group::Kernels,
            name,
            Status::Skipped,
            "models on this device use MLX's operations",
        ),
        Ok(Some(Worst {
            difference,
            comparisons,
        })) => {
            let finding = format!("{comparisons} comparisons with {reference}");
            Check::of_difference(Group::Kernels, name, difference, tolerance, finding)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_mlx::exclusive;

    #[test]
    fn this_machine_passes() {
        let _mlx = exclusive();
        let backend = Backend::current().unwrap();
        let mut checks = Vec::new();
        run(backend, &mut |check| checks.push(check));
        // Four products, the rule in chunks, three gates and the rule in three types each.
        assert_eq!(checks.len(), 4 + 1 + 9 + 3);
        for check in &checks {
            assert!(check.status != Status::Fail, "{check:?}");
        }
        if backend == Backend::Cpu {
            let skipped = checks.iter().filter(|check| check.status == Status::Skipped);
            assert_eq!(skipped.count(), 12, "a CPU has no kernels of rooflet");
        }
    }

    #[test]
    fn worst_difference_determines_the_status() {
        let difference = |largest| Difference {
            largest,
            average: 0.0,
        };
        let status = |largest: &[f32]| {
            let mut worst = Worst::default();
            worst.add(largest.iter().map(|largest| ("it", difference(*largest))));
            check("kernel".to_owned(), 0.01, "operations", Ok(Some(worst))).status
        };
        assert_eq!(status(&[0.0, 0.01]), Status::Ok);
        assert_eq!(status(&[0.02, 0.0]), Status::Fail);
        assert_eq!(status(&[f32::NAN, 0.0]), Status::Fail);
    }
}
