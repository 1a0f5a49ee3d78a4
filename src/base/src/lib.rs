//! Types and functions that every other crate uses and that belong to no domain: units, quantities,
//! time, tasks, files, errors, YAML and metrics.
//!
//! Invariants: only [`clock`] reads the time, only [`task`] spawns tasks, only [`latest`] borrows
//! from `watch` channels, and only [`yaml`] uses the YAML crate.

pub mod clock;
pub mod environment;
pub mod error;
pub mod file;
pub mod json_syntax;
pub mod latest;
pub mod local_network;
pub mod loopback;
pub mod metrics;
pub mod mutex;
pub mod percent;
pub mod quantile;
pub mod quantity;
pub mod task;
pub mod units;
pub mod yaml;
