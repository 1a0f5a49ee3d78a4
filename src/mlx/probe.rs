//! Measures what this machine's engine can move, in seconds: the figures that predictions rest on. Two kernels: a sum
//! (every byte is read once) and the quantised matrix × vector product in which decode spends its time. Only the
//! second predicts decode; the two can differ by a factor of five.
//!
//! Runs in a process of its own, on an idle node: running out of memory on a GPU ends the process.

use std::time::{Duration, Instant};

use mlx_rs::error::Result;
use mlx_rs::ops::{add, ones_dtype, quantize, quantized_matmul, zeros_dtype};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype, memory, random};

use super::device::{self, Backend};
use super::load::dtype;
use crate::clock::Clock;
use crate::roofline::model::FloatType;
use crate::wire::{ProbeFigure, ProbeReport};

const GROUP_SIZE: i32 = 64;
const BITS: i32 = 4;

/// Distinct buffers used in turn, at least: a byte is then out of every cache before it is read again.
const MIN_BUFFERS: usize = 4;
/// Evaluations before the first that counts.
const WARM_UPS: usize = 5;
const MIN_SAMPLES: usize = 10;
const MAX_SAMPLES: usize = 30;
/// Launches in one evaluation, at most.
const MAX_LAUNCHES: usize = 100;
/// Of what MLX would allocate at most; other programs use the machine too.
const MEMORY_SHARE: usize = 8;

/// Sizes and times, by back end.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Of all buffers of one figure.
    total_bytes: usize,
    /// Rows and columns of the quantised matrices.
    side: i32,
    /// Of one timed evaluation: long against a launch and against the clock's grain.
    sample: Duration,
    /// Of all timed evaluations of one figure.
    figure: Duration,
}

impl Plan {
    fn new(backend: Backend) -> Result<Self> {
        let limit = memory::memory_limit()? / MEMORY_SHARE;
        let plan = match backend {
            // The CPU's caches are smaller and its kernels slower: more would only take longer.
            Backend::Cpu => Self {
                total_bytes: 256 << 20,
                side: 2048,
                sample: Duration::from_millis(40),
                figure: Duration::from_millis(1500),
            },
            Backend::Metal | Backend::Cuda => Self {
                total_bytes: 2 << 30,
                side: 8192,
                sample: Duration::from_millis(60),
                figure: Duration::from_millis(2500),
            },
        };
        Ok(Self {
            total_bytes: plan.total_bytes.min(limit),
            ..plan
        })
    }
}

/// A figure could not be measured.
#[derive(Debug, thiserror::Error)]
#[error("the engine failed while measuring: {0}")]
pub(crate) struct ProbeError(mlx_rs::error::Exception);

impl From<mlx_rs::error::Exception> for ProbeError {
    fn from(err: mlx_rs::error::Exception) -> Self {
        Self(err)
    }
}

/// Measures; a few seconds.
pub(crate) fn measure(clock: &Clock) -> std::result::Result<ProbeReport, ProbeError> {
    let backend = Backend::current()?;
    measure_as(Plan::new(backend)?, backend, clock)
}

fn measure_as(plan: Plan, backend: Backend, clock: &Clock) -> std::result::Result<ProbeReport, ProbeError> {
    let read = measure_read(&plan, clock)?;
    // The first figure's buffers would count against the second's memory.
    memory::clear_cache()?;
    let qmv = measure_qmv(&plan, backend, clock)?;
    memory::clear_cache()?;
    Ok(ProbeReport {
        engine: device::engine_info()?,
        read,
        qmv,
        measured_at: clock.now().to_string(),
    })
}

fn measure_read(plan: &Plan, clock: &Clock) -> Result<ProbeFigure> {
    let elements = plan.total_bytes / MIN_BUFFERS / size_of::<f32>();
    let elements = i32::try_from(elements).unwrap_or(i32::MAX);
    let buffers = (0..MIN_BUFFERS)
        .map(|_| ones_dtype(&[elements], Dtype::Float32))
        .collect::<Result<Vec<_>>>()?;
    eval(&buffers)?;
    let buffer_bytes = buffers[0].nbytes();
    figure(plan, clock, buffer_bytes, buffers.len(), |launches, first| {
        let sums = (0..launches)
            .map(|launch| buffers[(first + launch) % buffers.len()].sum(None))
            .collect::<Result<Vec<_>>>()?;
        eval(&sums)
    })
}

/// A matrix in MLX's affine quantisation.
struct Quantized {
    weight: Array,
    scales: Array,
    biases: Array,
}

impl Quantized {
    fn arrays(&self) -> [&Array; 3] {
        [&self.weight, &self.scales, &self.biases]
    }

    fn bytes(&self) -> usize {
        self.arrays().into_iter().map(Array::nbytes).sum()
    }

    /// The same numbers in memory of their own.
    fn duplicate(&self) -> Result<Self> {
        let copy = |array: &Array| add(array, zeros_dtype(&[1], array.dtype())?);
        Ok(Self {
            weight: copy(&self.weight)?,
            scales: copy(&self.scales)?,
            biases: copy(&self.biases)?,
        })
    }
}

fn measure_qmv(plan: &Plan, backend: Backend, clock: &Clock) -> Result<ProbeFigure> {
    let element = dtype(backend.compute_type(FloatType::F16));
    let side = plan.side;
    // Of this spread, a vector keeps its length from product to product: no overflow, and none of the tiny numbers on
    // which CPUs are slow.
    let spread = (side as f32).sqrt().recip();
    let key = random::key(0)?;
    let dense = random::normal::<f32>(&[side, side], None, spread, Some(&key))?.as_dtype(element)?;
    let (weight, scales, biases) = quantize(dense, GROUP_SIZE, BITS)?;
    let original = Quantized {
        weight,
        scales,
        biases,
    };
    eval(original.arrays())?;
    let matrix_bytes = original.bytes();
    let count = (plan.total_bytes / matrix_bytes).max(MIN_BUFFERS);
    let mut ring = Vec::with_capacity(count);
    for _ in 1..count {
        let copy = original.duplicate()?;
        eval(copy.arrays())?;
        ring.push(copy);
    }
    ring.push(original);
    let start = random::normal::<f32>(&[1, side], None, None, Some(&key))?.as_dtype(element)?;
    eval([&start])?;
    figure(plan, clock, matrix_bytes, count, |launches, first| {
        // Each product needs the one before it, as in decode.
        let mut vector = start.clone();
        for launch in 0..launches {
            let Quantized {
                weight,
                scales,
                biases,
            } = &ring[(first + launch) % ring.len()];
            vector = quantized_matmul(vector, weight, scales, biases, true, GROUP_SIZE, BITS)?;
        }
        eval([&vector])
    })
}

/// Times `run(launches, first)`, which goes through `launches` buffers from the `first` on.
fn figure(
    plan: &Plan,
    clock: &Clock,
    buffer_bytes: usize,
    buffers: usize,
    run: impl Fn(usize, usize) -> Result<()>,
) -> Result<ProbeFigure> {
    let mut next = 0;
    let mut timed = |launches: usize| -> Result<Duration> {
        let begin: Instant = clock.instant();
        run(launches, next)?;
        next += launches;
        Ok(clock.instant().duration_since(begin))
    };
    timed(1)?;
    let one = timed(1)?.max(Duration::from_micros(1));
    let launches = times(plan.sample, one).clamp(1, MAX_LAUNCHES);
    let mut sample = one;
    for _ in 0..WARM_UPS {
        sample = timed(launches)?.max(Duration::from_micros(1));
    }
    let samples = times(plan.figure, sample).clamp(MIN_SAMPLES, MAX_SAMPLES);
    let mut rates = Vec::with_capacity(samples);
    for _ in 0..samples {
        rates.push((launches * buffer_bytes) as f64 / timed(launches)?.as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok(ProbeFigure {
        median_bytes_per_second: quantile(&rates, 0.5),
        p10_bytes_per_second: quantile(&rates, 0.1),
        p90_bytes_per_second: quantile(&rates, 0.9),
        buffer_bytes: buffer_bytes as u64,
        buffers: u32::try_from(buffers).unwrap_or(u32::MAX),
        samples: u32::try_from(samples).unwrap_or(u32::MAX),
    })
}

/// How many `part` fit into `whole`.
fn times(whole: Duration, part: Duration) -> usize {
    (whole.as_secs_f64() / part.as_secs_f64()) as usize
}

/// Of sorted, non-empty values, between the two nearest.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let (low, high) = (position.floor() as usize, position.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (position - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx;

    #[test]
    fn quantiles_lie_between_the_nearest_values() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(quantile(&sorted, 0.5), 3.0);
        assert_eq!(quantile(&sorted, 0.9), 4.6);
        assert_eq!(quantile(&[7.0], 0.1), 7.0);
    }

    #[test]
    fn a_small_probe_measures_what_it_says() {
        let _mlx = mlx::exclusive();
        let plan = Plan {
            total_bytes: 8 << 20,
            side: 256,
            sample: Duration::from_millis(2),
            figure: Duration::from_millis(20),
        };
        let backend = Backend::current().unwrap();
        let report = measure_as(plan, backend, &Clock::System).unwrap();
        assert_eq!((report.read.buffers, report.read.buffer_bytes), (4, 2 << 20));
        // 4 bits for each weight, and a scale and a bias for every 64.
        let element = backend.compute_type(FloatType::F16).bytes();
        assert_eq!(report.qmv.buffer_bytes, 256 * 256 / 2 + 256 * 4 * 2 * element);
        assert_eq!(u64::from(report.qmv.buffers), (8 << 20) / report.qmv.buffer_bytes);
        for figure in [report.read, report.qmv] {
            assert!(figure.samples >= 10);
            assert!(figure.p10_bytes_per_second > 0.0);
            assert!(figure.p10_bytes_per_second <= figure.median_bytes_per_second);
            assert!(figure.median_bytes_per_second <= figure.p90_bytes_per_second);
        }
        assert_eq!(report.engine.device, backend.as_str());
    }

    /// The bytes come from the plan, the seconds from the clock: where nothing is evaluated, 16 MiB seem to be read in
    /// the microseconds it takes to ask for it. No CPU reads 1 TB/s.
    #[test]
    fn the_engine_really_reads_the_bytes() {
        let _mlx = mlx::exclusive();
        if Backend::current().unwrap() != Backend::Cpu {
            return;
        }
        let plan = Plan {
            total_bytes: 64 << 20,
            side: 256,
            sample: Duration::from_millis(5),
            figure: Duration::from_millis(50),
        };
        let read = measure_read(&plan, &Clock::System).unwrap();
        assert!(read.median_bytes_per_second < 1e12, "{read:?}");
    }
}
