//! Measures what this machine's engine can do, in seconds: the figures that predictions rest on.
//!
//! Every figure is of the engine's own kernels. Reading memory (`memory.rs`) says how good the
//! machine is; only the quantised products (`quantized.rs`), attention and the small kernels
//! between them (`layer.rs`) say how fast a model decodes, and the two can differ by a factor of
//! five. Dense and quantised products of many rows say how fast it reads a prompt.
//!
//! Runs in a process of its own, on an idle node: a GPU that has faulted may take nothing more of
//! the process it was for.

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

/// Vectors at once for which 4-bit products are measured: each is another kernel on a GPU, and the
/// rate need not even grow with them (one GPU: 739, 231, 847, 941 GB/s for 1, 4, 8 and 16).
const BATCHES: [u32; 4] = [2, 4, 8, 16];

/// What is to be measured.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOptions {
    /// What the GPU may hold or the machine has free: a quarter of it is used.
    pub memory: Bytes,
    /// How long the 4-bit products are repeated to see whether the machine gets slower as it gets
    /// warm.
    pub sustained: Option<Duration>,
}

/// A figure could not be measured.
#[derive(Debug, thiserror::Error)]
#[error("the engine failed while measuring: {0}")]
pub struct ProbeError(mlx_rs::error::Exception);

impl From<mlx_rs::error::Exception> for ProbeError {
    fn from(err: mlx_rs::error::Exception) -> Self {
        Self(err)
    }
}

/// Measures; some ten seconds, and `options.sustained` more. `say` hears what comes next.
pub fn measure(
    options: ProbeOptions,
    clock: &Clock,
    say: impl FnMut(&str),
) -> Result<(EngineInfo, Measurements), ProbeError> {
    let backend = Backend::current()?;
    let plan = Plan::new(backend, options.memory);
    let measurements = measure_as(plan, backend, options.sustained, clock, say)?;
    Ok((device::engine_info()?, measurements))
}

fn measure_as(
    plan: Plan,
    backend: Backend,
    sustained: Option<Duration>,
    clock: &Clock,
    mut say: impl FnMut(&str),
) -> Result<Measurements, ProbeError> {
    let sampler = Sampler::new(clock, plan.sampling);
    // The buffers of one figure would count against the next one's memory.
    let free = mlx_rs::memory::clear_cache;

    say("memory: read, copy, triad");
    let read = memory::read(&plan, &sampler)?;
    free()?;
    let copy = memory::copy(&plan, &sampler)?;
    free()?;
    let triad = memory::triad(&plan, &sampler)?;
    free()?;

    say("decode: 4-bit and 8-bit products, attention, small kernels");
    let ring = Ring::new(4, &plan, backend)?;
    let qmv = ring.rate(1, &sampler)?;
    let mut quantized = Vec::new();
    for batch in BATCHES {
        quantized.push(ring.quantized_figure(batch, &sampler)?);
    }
    let sustained = match sustained {
        None => None,
        Some(how_long) => {
            say(&format!("sustained: {} s of 4-bit products", how_long.as_secs()));
            Some(measure_sustained(&ring, how_long, &sampler)?)
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

    say("prefill: dense and quantised products of many rows");
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

/// The first and the last sixth of the time are compared: 20 s each of two minutes.
fn measure_sustained(
    ring: &Ring,
    how_long: Duration,
    sampler: &Sampler<'_>,
) -> Result<Sustained, ProbeError> {
    let samples = ring.rates_for(how_long, sampler)?;
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
