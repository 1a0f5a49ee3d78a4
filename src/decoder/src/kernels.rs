//! Custom kernels, shared by layers with the same parameters. A kernel is used only after its
//! results were compared with those of MLX's operations. With an untested driver, compiler or chip
//! that computes other results, a model is slower but not wrong.

use std::rc::Rc;

use rooflet_mlx::mlx_rs::error::{Exception, Result};
use rooflet_mlx::mlx_rs::ops::{abs, max, mean, subtract};
use rooflet_mlx::mlx_rs::{Array, Dtype, random};

use rooflet_mlx::backend::Backend;
use rooflet_mlx::gate::GateKernel;
use rooflet_mlx::gated_delta::{Dimensions, GatedDeltaKernels};
use rooflet_model::config::Activation;

/// Maximum difference, as a share of the largest value. bfloat16 has 8 significant bits, and
/// results are rounded to it a few times.
const TOLERANCE: f32 = 0.02;

/// Kernels of one model.
#[derive(Debug)]
pub(super) struct Kernels {
    backend: Backend,
    float: Dtype,
    gates: Verified<Activation, GateKernel>,
    gated_delta: Verified<Dimensions, GatedDeltaKernels>,
}

/// Verified kernels by parameters. `None` if the kernels do not support the parameters or the
/// backend, failed to compile, or failed the comparison.
type Verified<K, V> = Vec<(K, Option<Rc<V>>)>;

impl Kernels {
    /// Creates an empty set for a model that computes in `float`.
    pub(super) fn new(backend: Backend, float: Dtype) -> Self {
        Self {
            backend,
            float,
            gates: Vec::new(),
            gated_delta: Vec::new(),
        }
    }

    pub(super) fn backend(&self) -> Backend {
        self.backend
    }

    pub(super) fn gate(
        &mut self,
        activation: Activation,
        compare: impl FnOnce(&GateKernel) -> Result<()>,
    ) -> Option<Rc<GateKernel>> {
        let make = || GateKernel::new(self.backend, activation, self.float);
        get_or_verify(&mut self.gates, activation, "feed-forward gates", make, compare)
    }

    pub(super) fn gated_delta(
        &mut self,
        dimensions: Dimensions,
        compare: impl FnOnce(&GatedDeltaKernels) -> Result<()>,
    ) -> Option<Rc<GatedDeltaKernels>> {
        let make = || GatedDeltaKernels::new(self.backend, dimensions, self.float);
        let what = "layers of the gated delta rule";
        get_or_verify(&mut self.gated_delta, dimensions, what, make, compare)
    }
}

fn get_or_verify<K: Copy + PartialEq, V>(
    verified: &mut Verified<K, V>,
    key: K,
    what: &str,
    make: impl FnOnce() -> Result<Option<V>>,
    compare: impl FnOnce(&V) -> Result<()>,
) -> Option<Rc<V>> {
    if let Some((_, kernels)) = verified.iter().find(|(known, _)| *known == key) {
        return kernels.clone();
    }
    let made = make().and_then(|kernels| {
        kernels.as_ref().map_or(Ok(()), compare)?;
        Ok(kernels.map(Rc::new))
    });
    let kernels = made.unwrap_or_else(|err| {
        tracing::warn!(
            error = %err,
            kernels = what,
            "kernels failed verification, using MLX's operations, which are slower"
        );
        None
    });
    verified.push((key, kernels.clone()));
    kernels
}

/// Returns random values of both signs around zero, determined by the seed.
pub(super) fn random_values(seed: u64, shape: &[i32], float: Dtype) -> Result<Array> {
    random::normal::<f32>(shape, None, None, &random::key(seed)?)?.as_dtype(float)
}

/// Difference between computed values and exact values in float32, as shares of the exact values.
/// NaN if a value is not a number.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// Largest difference, as a share of the largest value.
    pub largest: f32,
    /// Average difference, as a share of the average magnitude.
    pub average: f32,
}

impl Difference {
    pub(crate) fn new(computed: &Array, exact: &Array) -> Result<Self> {
        if computed.shape() != exact.shape() {
            return Err(Exception::custom("shapes differ"));
        }
        let difference = abs(subtract(computed.as_dtype(Dtype::Float32)?, exact)?)?;
        let exact = abs(exact)?;
        let share =
            |difference: Array, exact: Array| -> Result<f32> { Ok(number(&difference)? / number(&exact)?) };
        Ok(Self {
            largest: share(max(&difference, false)?, max(&exact, false)?)?,
            average: share(mean(&difference, false)?, mean(&exact, false)?)?,
        })
    }

    /// Returns the larger share. NaN if one of them is NaN.
    pub fn most(self) -> f32 {
        if self.largest.is_nan() || self.average.is_nan() {
            return f32::NAN;
        }
        self.largest.max(self.average)
    }

    /// Returns an error if the values differ by more than rounding: at any place, or on average.
    pub(super) fn check(self, what: &str) -> Result<()> {
        for (measure, share) in [("largest", self.largest), ("average", self.average)] {
            // False for NaN.
            let is_close = share <= TOLERANCE;
            if !is_close {
                return Err(Exception::custom(format!(
                    "{what}: the {measure} difference is {share} of the {measure} value, and the limit is {TOLERANCE}"
                )));
            }
        }
        Ok(())
    }
}

fn number(array: &Array) -> Result<f32> {
    array.eval()?;
    array
        .try_item_exact()
        .map_err(|err| Exception::custom(err.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_once_and_used_if_equal() {
        let mut all = Verified::<u8, u8>::new();
        let mut ask = |key, made: Result<Option<u8>>, compared: Result<()>| {
            let kernels = get_or_verify(&mut all, key, "layers", || made, |_| compared);
            kernels.map(|kernels| *kernels)
        };
        let wrong = || Err(Exception::custom("differs"));
        assert_eq!(ask(1, Ok(Some(10)), Ok(())), Some(10));
        assert_eq!(ask(1, Ok(Some(11)), wrong()), Some(10));
        assert_eq!(ask(2, Ok(Some(20)), wrong()), None);
        assert_eq!(ask(2, Ok(Some(20)), Ok(())), None);
        assert_eq!(ask(3, Err(Exception::custom("does not compile")), Ok(())), None);
        assert_eq!(ask(4, Ok(None), wrong()), None);
    }

    #[test]
    fn rejects_differences_beyond_rounding() {
        let _mlx = rooflet_mlx::exclusive();
        let exact = random_values(1, &[4, 100], Dtype::Float32).unwrap();
        let rounded = exact.as_dtype(Dtype::Bfloat16).unwrap();
        let check = |computed: &Array| Difference::new(computed, &exact)?.check("it");
        check(&rounded).unwrap();
        let other = random_values(2, &[4, 100], Dtype::Float32).unwrap();
        let scaled = exact.multiply(Array::from_f32(1.03)).unwrap();
        let one_off = exact
            .add(Array::from_slice(
                &[[0.0_f32; 99].as_slice(), &[1.0]].concat(),
                &[100],
            ))
            .unwrap();
        let not_a_number = exact.multiply(Array::from_f32(f32::NAN)).unwrap();
        for wrong in [other, scaled, one_off, not_a_number] {
            check(&wrong).unwrap_err();
        }
    }
}
