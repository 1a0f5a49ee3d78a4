//! Kernels of our own, for layers that are alike. They are used only where they have been seen to
//! say what MLX's operations say: a driver, a compiler or a chip that nobody tried may bring
//! another result, and then a model is slower, not wrong.

use std::rc::Rc;

use rooflet_mlx::mlx_rs::error::{Exception, Result};
use rooflet_mlx::mlx_rs::ops::{abs, max, mean, subtract};
use rooflet_mlx::mlx_rs::{Array, Dtype, random};

use rooflet_mlx::backend::Backend;
use rooflet_mlx::gate::GateKernel;
use rooflet_mlx::gated_delta::{Dimensions, GatedDeltaKernels};
use rooflet_model::config::Activation;

/// Of the largest number. bfloat16 has 8 bits, and what kernels pass on is rounded to it a few
/// times.
const TOLERANCE: f32 = 0.02;

/// Those that the layers of one model were found to need.
#[derive(Debug)]
pub(super) struct Kernels {
    backend: Backend,
    float: Dtype,
    gates: Known<Activation, GateKernel>,
    gated_delta: Known<Dimensions, GatedDeltaKernels>,
}

/// `None`: there are none for layers of this kind, or not here.
type Known<K, V> = Vec<(K, Option<Rc<V>>)>;

impl Kernels {
    /// For a model that computes in `float`.
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
        known(&mut self.gates, activation, "feed-forward gates", make, compare)
    }

    pub(super) fn gated_delta(
        &mut self,
        dimensions: Dimensions,
        compare: impl FnOnce(&GatedDeltaKernels) -> Result<()>,
    ) -> Option<Rc<GatedDeltaKernels>> {
        let make = || GatedDeltaKernels::new(self.backend, dimensions, self.float);
        let what = "layers of the gated delta rule";
        known(&mut self.gated_delta, dimensions, what, make, compare)
    }
}

fn known<K: Copy + PartialEq, V>(
    known: &mut Known<K, V>,
    key: K,
    what: &str,
    make: impl FnOnce() -> Result<Option<V>>,
    compare: impl FnOnce(&V) -> Result<()>,
) -> Option<Rc<V>> {
    if let Some((_, kernels)) = known.iter().find(|(known, _)| *known == key) {
        return kernels.clone();
    }
    let made = make().and_then(|kernels| {
        kernels.as_ref().map_or(Ok(()), compare)?;
        Ok(kernels.map(Rc::new))
    });
    let kernels = made.unwrap_or_else(|err| {
        tracing::warn!(
            error = %err,
            "{what} are computed by MLX's operations, which take longer than rooflet's kernels: these did not compute the same"
        );
        None
    });
    known.push((key, kernels.clone()));
    kernels
}

/// Made up numbers of both signs around nought, others for each seed.
pub(super) fn numbers(seed: u64, shape: &[i32], float: Dtype) -> Result<Array> {
    random::normal::<f32>(shape, None, None, &random::key(seed)?)?.as_dtype(float)
}

/// An error where kernels differ from `exact`, in float32, by more than rounding: anywhere, or on
/// the average.
pub(super) fn alike(what: &str, computed: &Array, exact: &Array) -> Result<()> {
    if computed.shape() != exact.shape() {
        return Err(Exception::custom(format!("{what} has another shape")));
    }
    let difference = abs(subtract(computed.as_dtype(Dtype::Float32)?, exact)?)?;
    let exact = abs(exact)?;
    let compare = |measure: &str, difference: Array, exact: Array| {
        let (difference, exact) = (number(&difference)?, number(&exact)?);
        // Not a number is not below.
        if difference <= TOLERANCE * exact {
            Ok(())
        } else {
            Err(Exception::custom(format!(
                "{what} differs by {difference} {measure} {exact}"
            )))
        }
    };
    compare(
        "at most, of at most",
        max(&difference, false)?,
        max(&exact, false)?,
    )?;
    compare(
        "on the average, where it is",
        mean(&difference, false)?,
        mean(&exact, false)?,
    )
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
    fn kernels_are_compared_once_and_used_where_they_agree() {
        let mut all = Known::<u8, u8>::new();
        let mut ask = |key, made: Result<Option<u8>>, compared: Result<()>| {
            let kernels = known(&mut all, key, "layers", || made, |_| compared);
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
    fn what_differs_by_more_than_rounding_is_not_alike() {
        let _mlx = rooflet_mlx::exclusive();
        let exact = numbers(1, &[4, 100], Dtype::Float32).unwrap();
        let rounded = exact.as_dtype(Dtype::Bfloat16).unwrap();
        alike("it", &rounded, &exact).unwrap();
        let other = numbers(2, &[4, 100], Dtype::Float32).unwrap();
        let scaled = exact.multiply(Array::from_f32(1.03)).unwrap();
        let one_off = exact
            .add(Array::from_slice(
                &[[0.0_f32; 99].as_slice(), &[1.0]].concat(),
                &[100],
            ))
            .unwrap();
        let not_a_number = exact.multiply(Array::from_f32(f32::NAN)).unwrap();
        for wrong in [other, scaled, one_off, not_a_number] {
            alike("it", &wrong, &exact).unwrap_err();
        }
    }
}
