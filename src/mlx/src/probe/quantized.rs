//! Product of a quantised matrix and vectors, the kernel that dominates decoding. Predictions of
//! the decode speed use this figure.

use std::time::Duration;

use mlx_rs::error::Result;
use mlx_rs::ops::{add, quantize, quantized_matmul, zeros_dtype};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, random};

use super::plan::{MIN_BUFFERS, Plan};
use super::sampling::Sampler;
use crate::backend::Backend;
use crate::load::dtype;
use rooflet_api::v1alpha1::{Figure, QuantizedFigure, Spread};
use rooflet_model::config::FloatType;
use rooflet_roofline::probing;
use rooflet_roofline::probing::rate;

pub(super) const GROUP_SIZE: i32 = 64;

/// Launches of the tiny product per evaluation, enough that the cost of the evaluation is
/// negligible.
const TINY_LAUNCHES: usize = 1000;

/// A square matrix in MLX's affine quantisation.
pub(super) struct Quantized {
    weight: Array,
    scales: Array,
    biases: Array,
    bits: i32,
}

impl Quantized {
    /// Creates a random matrix. Its spread preserves the length of a vector from product to
    /// product, which avoids overflow and subnormal numbers, which are slow on CPUs.
    pub(super) fn random(side: i32, bits: i32, backend: Backend) -> Result<Self> {
        let spread = (side as f32).sqrt().recip();
        let key = random::key(0)?;
        let dense = random::normal::<f32>(&[side, side], None, spread, Some(&key))?;
        let (weight, scales, biases) = quantize(dense.as_dtype(element(backend))?, GROUP_SIZE, bits)?;
        let matrix = Self {
            weight,
            scales,
            biases,
            bits,
        };
        eval(matrix.arrays())?;
        Ok(matrix)
    }

    pub(super) fn multiply(&self, rows: Array) -> Result<Array> {
        let Self {
            weight,
            scales,
            biases,
            bits,
        } = self;
        quantized_matmul(rows, weight, scales, biases, true, GROUP_SIZE, *bits)
    }

    fn arrays(&self) -> [&Array; 3] {
        [&self.weight, &self.scales, &self.biases]
    }

    fn bytes(&self) -> usize {
        self.arrays().into_iter().map(Array::nbytes).sum()
    }

    /// Copies the matrix into separate memory.
    fn duplicate(&self) -> Result<Self> {
        let copy = |array: &Array| add(array, zeros_dtype(&[1], array.dtype())?);
        let copy = Self {
            weight: copy(&self.weight)?,
            scales: copy(&self.scales)?,
            biases: copy(&self.biases)?,
            bits: self.bits,
        };
        eval(copy.arrays())?;
        Ok(copy)
    }
}

/// Returns random rows in place of activations.
pub(super) fn rows(count: i32, columns: i32, backend: Backend) -> Result<Array> {
    let key = random::key(1)?;
    let rows =
        random::normal::<f32>(&[count, columns], None, None, Some(&key))?.as_dtype(element(backend))?;
    eval([&rows])?;
    Ok(rows)
}

pub(super) fn element(backend: Backend) -> mlx_rs::Dtype {
    dtype(backend.compute_type(FloatType::BF16))
}

/// Equal matrices in separate memory, used in turn.
pub(super) struct Ring {
    matrices: Vec<Quantized>,
    side: i32,
    backend: Backend,
}

impl Ring {
    pub(super) fn new(bits: i32, plan: &Plan, backend: Backend) -> Result<Self> {
        let original = Quantized::random(plan.side, bits, backend)?;
        let count = (plan.total_bytes / original.bytes()).max(MIN_BUFFERS);
        let mut matrices = (1..count)
            .map(|_| original.duplicate())
            .collect::<Result<Vec<_>>>()?;
        matrices.push(original);
        Ok(Self {
            matrices,
            side: plan.side,
            backend,
        })
    }

    fn bytes(&self) -> usize {
        self.matrices[0].bytes()
    }

    /// Runs a chain of products; each product depends on the previous one, as in decoding.
    fn chain(&self, start: &Array, launches: usize, first: usize) -> Result<()> {
        let mut vectors = start.clone();
        for launch in 0..launches {
            vectors = self.matrices[(first + launch) % self.matrices.len()].multiply(vectors)?;
        }
        eval([&vectors])
    }

    /// Measures the rate of products with `batch` vectors at a time.
    pub(super) fn rate(&self, batch: u32, sampler: &Sampler<'_>) -> Result<Figure> {
        let start = rows(batch.cast_signed(), self.side, self.backend)?;
        let seconds = sampler.seconds(|launches, first| self.chain(&start, launches, first))?;
        let rate = rate(self.bytes() as f64, &seconds);
        Ok(probing::figure(&rate, self.bytes(), self.matrices.len()))
    }

    pub(super) fn quantized_figure(&self, batch: u32, sampler: &Sampler<'_>) -> Result<QuantizedFigure> {
        Ok(QuantizedFigure {
            bits: self.matrices[0].bits.cast_unsigned(),
            group_size: GROUP_SIZE.cast_unsigned(),
            batch,
            figure: self.rate(batch, sampler)?,
        })
    }

    /// Measures the rate of products with one vector over a time. Returns the end of each sample in
    /// seconds and its rate in bytes per second.
    pub(super) fn rates_for(&self, duration: Duration, sampler: &Sampler<'_>) -> Result<Vec<(f64, f64)>> {
        let start = rows(1, self.side, self.backend)?;
        let series = sampler.series(duration, |launches, first| self.chain(&start, launches, first))?;
        let bytes = self.bytes() as f64;
        Ok(series
            .into_iter()
            .map(|(at, seconds)| (at, bytes / seconds))
            .collect())
    }
}

/// Measures the fixed cost of a kernel launch: the time of a tiny product minus the time of its
/// bytes.
pub(super) fn launch_seconds(
    plan: &Plan,
    backend: Backend,
    qmv: &Figure,
    sampler: &Sampler<'_>,
) -> Result<Spread> {
    let matrix = Quantized::random(plan.tiny_side, 4, backend)?;
    let start = rows(1, plan.tiny_side, backend)?;
    let spread = sampler.seconds_chained(TINY_LAUNCHES, |launches, _| {
        let mut vector = start.clone();
        for _ in 0..launches {
            vector = matrix.multiply(vector)?;
        }
        eval([&vector])
    })?;
    let own = matrix.bytes() as f64 / qmv.median_bytes_per_second;
    let corrected = |seconds: f64| (seconds - own).max(0.0);
    Ok(Spread {
        median: corrected(spread.median),
        p10: corrected(spread.p10),
        p90: corrected(spread.p90),
        ..spread
    })
}

/// Measures the latency of one tiny product from submission to result, which is the fixed cost of a
/// decode step besides its kernels.
pub(super) fn round_trip_seconds(plan: &Plan, backend: Backend, sampler: &Sampler<'_>) -> Result<Spread> {
    let matrix = Quantized::random(plan.tiny_side, 4, backend)?;
    let start = rows(1, plan.tiny_side, backend)?;
    sampler.seconds(|launches, _| {
        for _ in 0..launches {
            eval([&matrix.multiply(start.clone())?])?;
        }
        Ok(())
    })
}
