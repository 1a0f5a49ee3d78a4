//! Read, copy and triad: the memory bandwidth of kernels that only move data. Predictions use the
//! read rate. Writes are up to a third slower, so copy and triad are reported for information only.

use mlx_rs::error::Result;
use mlx_rs::ops::{add, negative, ones_dtype};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use super::plan::{MIN_BUFFERS, Plan};
use super::sampling::Sampler;
use rooflet_api::v1alpha1::{Figure, Spread};
use rooflet_roofline::probing;
use rooflet_roofline::probing::rate;

/// Measures the sum of a buffer, which reads every byte once.
pub(super) fn read(plan: &Plan, sampler: &Sampler<'_>) -> Result<Figure> {
    let buffers = buffers(plan.total_bytes / MIN_BUFFERS)?;
    let seconds = sampler.seconds(|launches, first| {
        let sums = (0..launches)
            .map(|launch| buffers[(first + launch) % buffers.len()].sum(None))
            .collect::<Result<Vec<_>>>()?;
        eval(&sums)
    })?;
    Ok(figure(&seconds, &buffers, 1))
}

/// Measures the negation of a buffer, which reads and writes every byte once. MLX's own copy would
/// share the buffer.
pub(super) fn copy(plan: &Plan, sampler: &Sampler<'_>) -> Result<Figure> {
    // The results are in memory together with the sources.
    let buffers = buffers(plan.total_bytes / MIN_BUFFERS / 2)?;
    let seconds = sampler.seconds(|launches, first| {
        in_rounds(launches, buffers.len(), |launch| {
            negative(&buffers[(first + launch) % buffers.len()])
        })
    })?;
    Ok(figure(&seconds, &buffers, 2))
}

/// Measures the sum of two buffers, which has the traffic of STREAM's triad. MLX fuses the
/// multiplication of a real triad only when it compiles a function.
pub(super) fn triad(plan: &Plan, sampler: &Sampler<'_>) -> Result<Figure> {
    let buffers = buffers(plan.total_bytes / MIN_BUFFERS / 2)?;
    let seconds = sampler.seconds(|launches, first| {
        in_rounds(launches, buffers.len(), |launch| {
            let at = |next: usize| &buffers[(first + launch + next) % buffers.len()];
            add(at(0), at(1))
        })
    })?;
    Ok(figure(&seconds, &buffers, 3))
}

/// Evaluates `launches` results, at most `max_at_once` at a time, because all of them are in memory
/// until they are evaluated.
fn in_rounds(launches: usize, max_at_once: usize, result: impl Fn(usize) -> Result<Array>) -> Result<()> {
    let mut launch = 0;
    while launch < launches {
        let end = launches.min(launch + max_at_once);
        let results = (launch..end).map(&result).collect::<Result<Vec<_>>>()?;
        eval(&results)?;
        launch = end;
    }
    Ok(())
}

fn buffers(bytes: usize) -> Result<Vec<Array>> {
    let elements = i32::try_from(bytes / size_of::<f32>()).unwrap_or(i32::MAX);
    let buffers = (0..MIN_BUFFERS)
        .map(|_| ones_dtype(&[elements], Dtype::Float32))
        .collect::<Result<Vec<_>>>()?;
    eval(&buffers)?;
    Ok(buffers)
}

fn figure(seconds: &Spread, buffers: &[Array], moved: usize) -> Figure {
    let bytes = buffers[0].nbytes();
    probing::figure(&rate((moved * bytes) as f64, seconds), bytes, buffers.len())
}
