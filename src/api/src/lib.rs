//! The vocabulary: group `rooflet.dev`, version `v1alpha1`. Data only; what the words mean is in the doc comments,
//! which `kubectl explain` shows.

pub mod conditions;
pub mod crd;
pub mod meta;
pub mod v1alpha1;
pub mod wire;

/// The API group of every kind of ours.
pub const GROUP: &str = "rooflet.dev";
/// The only version served so far.
pub const VERSION: &str = "v1alpha1";
