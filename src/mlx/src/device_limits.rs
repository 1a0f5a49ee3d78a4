//! Limits of the device that only a trial shows: whether the system stops a long command, and the
//! error of an allocation that cannot succeed.

use std::time::Duration;

use mlx_rs::error::Result;
use mlx_rs::ops::{add, matmul};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype, random};

use super::backend::Backend;
use super::load;
use rooflet_base::clock::Clock;
use rooflet_base::units::Bytes;
use rooflet_model::config::FloatType;

/// Side of the product whose time determines the side of the long one. On a GPU, such a product
/// takes long compared with its launch.
const TRIAL_SIDE: i32 = 2048;
/// Multiple of all sides, which fits the tiles of the kernels.
const TILE: i32 = 64;
/// Rows and columns of an array that no machine can hold: 2^48 elements.
const EXCESSIVE_SIDE: i32 = 1 << 24;

/// Runs a single command that takes about `duration`, or less if `memory` is too small for its
/// matrices. Returns the time that it took.
///
/// # Errors
/// Returns the driver's error if the system stops the command.
pub fn run_long_command(duration: Duration, memory: Bytes, clock: &Clock) -> Result<Duration> {
    run_command(duration, memory, TRIAL_SIDE, clock)
}

fn run_command(duration: Duration, memory: Bytes, trial_side: i32, clock: &Clock) -> Result<Duration> {
    let kind = Backend::current()?.compute_type(FloatType::F16);
    let element = load::dtype(kind);
    // The first product loads the kernel.
    product(trial_side, element, clock)?;
    let trial = product(trial_side, element, clock)?;
    let wanted = side(trial_side, duration.as_secs_f64() / trial.as_secs_f64().max(1e-6));
    product(wanted.min(largest_side(memory, kind.bytes())), element, clock)
}

/// Returns the side of a product that takes `growth` times as long as one with `trial_side`: the
/// time grows with the third power of the side.
fn side(trial_side: i32, growth: f64) -> i32 {
    in_tiles(f64::from(trial_side) * growth.cbrt())
}

/// Returns the largest side for which factor, product and the random numbers in float32 occupy at
/// most half of `memory`.
fn largest_side(memory: Bytes, element_bytes: u64) -> i32 {
    let bytes = (4 + 2 * element_bytes) as f64;
    in_tiles((memory.0 as f64 / 2.0 / bytes).sqrt())
}

/// Rounds a side to complete tiles.
fn in_tiles(side: f64) -> i32 {
    // The conversion saturates.
    ((side / f64::from(TILE)).round() as i32)
        .max(1)
        .saturating_mul(TILE)
}

/// Returns the time of one product of square matrices, which is one command.
fn product(side: i32, element: Dtype, clock: &Clock) -> Result<Duration> {
    let matrix = random::uniform::<_, f32>(0.0_f32, 1.0_f32, &[side, side], Some(&random::key(5)?))?
        .as_dtype(element)?;
    eval([&matrix])?;
    let start = clock.instant();
    eval([&matmul(&matrix, &matrix)?])?;
    Ok(clock.instant() - start)
}

/// Returns the error of an allocation that is larger than the memory of any machine. `None` if the
/// allocation succeeds. Only for Metal: MLX's CPU backend crashes, and CUDA remembers the failure.
pub fn failed_allocation() -> Option<String> {
    let sum = || {
        let column = Array::from_slice(&vec![0_u8; EXCESSIVE_SIDE as usize], &[EXCESSIVE_SIDE, 1]);
        let row = column.reshape(&[1, EXCESSIVE_SIDE])?;
        eval([&add(&column, &row)?])
    };
    sum().err().map(|err| err.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exclusive;

    #[test]
    fn long_command_takes_longer_than_a_short_one() {
        let _mlx = exclusive();
        let run = |milliseconds| {
            let duration = Duration::from_millis(milliseconds);
            run_command(duration, Bytes::gib(1), 128, &Clock::System).unwrap()
        };
        let (short, long) = (run(0), run(100));
        assert!(short < long, "{short:?} {long:?}");
    }

    #[test]
    fn side_follows_from_time_and_memory() {
        assert_eq!(side(TRIAL_SIDE, 1000.0), 10 * TRIAL_SIDE);
        assert_eq!(side(TRIAL_SIDE, 125.0), 5 * TRIAL_SIDE);
        assert_eq!(side(TRIAL_SIDE, 0.0), TILE);
        // 8 bytes per element in 16 MiB are 1448², about 23 tiles.
        assert_eq!(largest_side(Bytes::mib(32), 2), 23 * TILE);
        assert_eq!(largest_side(Bytes::ZERO, 2), TILE);
    }
}
