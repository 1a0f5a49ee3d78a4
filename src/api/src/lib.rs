//! Kinds of the API group `rooflet.dev`, version `v1alpha1`, and documents that rooflet processes
//! exchange.
//!
//! Invariant: data types only, no I/O and no decisions. `kubectl explain` shows the doc comments of
//! the kinds.

pub mod conditions;
pub mod crd;
pub mod engine_failure;
pub mod meta;
pub mod model_requests;
pub mod reasons;
pub mod v1alpha1;
pub mod wire;

/// API group of all rooflet kinds.
pub const GROUP: &str = "rooflet.dev";
/// Only served version.
pub const VERSION: &str = "v1alpha1";
