//! Probe: measurement of the engine's speed on this machine, within seconds. Predictions are based
//! on its figures.
//!
//! Every figure measures kernels of the engine:
//! - Reading memory (`memory.rs`) measures the machine.
//! - Quantised products (`quantized.rs`), attention and the small kernels between them (`layer.rs`)
//!   determine the decode speed. This speed can be five times lower than the memory figure
//!   suggests.
//! - Dense and quantised products of many rows determine the prefill speed.
//!
//! The probe runs in its own process, on an idle node, because a GPU may reject all further work of
//! a process after a fault.

mod layer;
mod matmul;
mod memory;
mod plan;
mod quantized;
mod sampling;

use std::time::Duration;

use self::plan::Plan;
use self::quantized::Ring;
use self::sampling::Sampler;
use super::backend::Backend;
use super::device;
use rooflet_api::v1alpha1::{Measurements, Sustained};
use rooflet_api::wire::EngineInfo;
use rooflet_base::clock::Clock;
use rooflet_base::units::Bytes;
use rooflet_model::config::FloatType;
use rooflet_roofline::probing;

/// Batch sizes for which 4-bit products are measured. On a GPU each size runs another kernel, and
/// the rate need not grow with the size: an H200 with MLX's CUDA backend reads the weights at 739,
/// 231, 847 and 941 GB/s for 1, 4, 8 and 16 vectors.
const BATCHES: [u32; 4] = [2, 4, 8, 16];

/// Parameters of a probe.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOptions {
    /// Memory that the GPU may hold or that the machine has free. The probe uses a quarter of it.
    pub memory: Bytes,
    /// Duration of the sustained measurement, which repeats 4-bit products to detect thermal
    /// throttling. `None` skips it.
    pub sustained: Option<Duration>,
}

/// Failure of the engine during a measurement.
#[derive(Debug, thiserror::Error)]
#[error("the engine failed while measuring: {0}")]
pub struct ProbeError(mlx_rs::error::Exception);

impl From<mlx_rs::error::Exception> for ProbeError {
    fn from(err: mlx_rs::error::Exception) -> Self {
        Self(err)
    }
}

/// Measures all figures within about ten seconds, plus `options.sustained`. `progress` receives the
/// name of each phase before it starts.
pub fn measure(
    options: ProbeOptions,
    clock: &Clock,
    progress: impl FnMut(&str),
) -> Result<(EngineInfo, Measurements), ProbeError> {
    let backend = Backend::current()?;
    let plan = Plan::new(backend, options.memory);
    let measurements = measure_as(plan, backend, options.sustained, clock, progress)?;
    Ok((device::engine_info()?, measurements))
}

fn measure_as(
    plan: Plan,
    backend: Backend,
    sustained: Option<Duration>,
    clock: &Clock,
    mut progress: impl FnMut(&str),
) -> Result<Measurements, ProbeError> {
    let sampler = Sampler::new(clock, plan.sampling);
    // Buffers of one figure would reduce the memory for the next one.
    let free = mlx_rs::memory::clear_cache;

    progress("memory: read, copy, triad");
    let read = memory::read(&plan, &sampler)?;
    free()?;
    let copy = memory::copy(&plan, &sampler)?;
    free()?;
    let triad = memory::triad(&plan, &sampler)?;
    free()?;

    progress("decode: 4-bit and 8-bit products, attention, small kernels");
    let ring = Ring::new(4, &plan, backend)?;
    let qmv = ring.rate(1, &sampler)?;
    let mut quantized = Vec::new();
    for batch in BATCHES {
        quantized.push(ring.quantized_figure(batch, &sampler)?);
    }
    let sustained = match sustained {
        None => None,
        Some(duration) => {
            progress(&format!("sustained: {} s of 4-bit products", duration.as_secs()));
            Some(measure_sustained(&ring, duration, &sampler)?)
        }
    };
    drop(ring);
    free()?;
    let ring = Ring::new(8, &plan, backend)?;
    quantized.insert(0, ring.quantized_figure(1, &sampler)?);
    drop(ring);
    free()?;
    let launch_seconds = quantized::launch_seconds(&plan, backend, &qmv, &sampler)?;
    let round_trip_seconds = quantized::round_trip_seconds(&plan, backend, &sampler)?;
    let attention = layer::attention(&plan, backend, &sampler)?;
    let layers = layer::small_kernels(&plan, backend, &sampler)?;
    free()?;

    progress("prefill: dense and quantised products of many rows");
    let matmul = matmul::dense(&plan, backend, &sampler)?;
    let quantized_matmul = matmul::quantized(&plan, backend, &sampler)?;
    free()?;
    Ok(Measurements {
        read,
        copy: Some(copy),
        triad: Some(triad),
        qmv,
        quantized,
        scale_bits: Some(8 * backend.compute_type(FloatType::F16).bytes() as u32),
        attention,
        launch_seconds: Some(launch_seconds),
        round_trip_seconds: Some(round_trip_seconds),
        layers,
        matmul_flops_per_second: Some(matmul),
        quantized_matmul_flops_per_second: Some(quantized_matmul),
        sustained,
        sizes_reduced: plan.is_reduced(),
        ..Measurements::default()
    })
}

/// Compares the rates of the first and the last sixth of the time, which are 20 s each for two
/// minutes.
fn measure_sustained(
    ring: &Ring,
    duration: Duration,
    sampler: &Sampler<'_>,
) -> Result<Sustained, ProbeError> {
    let samples = ring.rates_for(duration, sampler)?;
    let total = samples.last().map_or(0.0, |(at, _)| *at);
    let median = |from: f64, to: f64| {
        let part = samples.iter().filter(|(at, _)| (from..=to).contains(at));
        let rates: Vec<f64> = part.map(|(_, rate)| *rate).collect();
        if rates.is_empty() {
            return samples.last().map_or(0.0, |(_, rate)| *rate);
        }
        probing::spread(rates).median
    };
    let (first, last) = (median(0.0, total / 6.0), median(total * 5.0 / 6.0, total));
    Ok(Sustained {
        seconds: total,
        first_bytes_per_second: first,
        last_bytes_per_second: last,
        thermal_factor: last / first,
    })
}

#[cfg(test)]
mod tests;
