//! Self test of the engine on this device: kernels against references, a tiny model of each family
//! against stored logits, the bandwidth probe, and a soak.
//!
//! MLX runs on the calling thread, which must be the only one that uses MLX.

mod archive;
mod check;
mod kernels;
mod models;
mod probe;
mod soak;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::check::{Check, Group, Status};
use rooflet_base::clock::Clock;
use rooflet_host::Host;
use rooflet_mlx::backend::Backend;

/// Runs the checks of the groups, in this order. `report` receives each result when its check ends.
/// `soak` is the duration of the soak.
pub fn run(groups: &[Group], soak: Duration, host: &Host, clock: &Clock, report: &mut dyn FnMut(Check)) {
    for group in groups {
        let backend = match Backend::current() {
            Ok(backend) => backend,
            Err(err) => return report(Check::failed(*group, "engine", err)),
        };
        match group {
            Group::Kernels => kernels::run(backend, report),
            Group::Models => models::run(backend, report),
            Group::Probe => probe::run(host, clock, report),
            Group::Soak => soak::run(backend, soak, clock, report),
        }
    }
}
